// Package provisioner is how compute gets nodes that are not there all the time: a
// Provisioner rents them and gives them back, at a cloud, or at a cluster that
// switches its nodes off to save power.
//
// A pool's provider has a fixed set of places for nodes, by name; at each there is a
// node or none. Compute picks the place and writes its wish down before it asks, so
// asking again after a crash is the same wish: no node is rented twice, and a node
// without a recorded wish is found by its name and released.
//
// Drivers: simulated is a cloud that is not there; package engine/slurm switches
// the nodes of a cluster on and off. provisionertest is what each of them must do.
package provisioner

import (
	"context"
	"time"
)

// State of a place.
type State string

// The states.
const (
	Off     State = "off"     // there is no node, and one may be asked for
	Coming  State = "coming"  // it starts up
	Ready   State = "ready"   // it takes work
	Leaving State = "leaving" // it shuts down, or will be taken away
	Failed  State = "failed"  // it did not come up, or fell over
)

// Pool is whose nodes are meant.
type Pool struct {
	Name    string
	Max     int               // places
	Options map[string]string // of the pool, for its engine
	// Simulated are the settings of a simulated provider; nil elsewhere.
	Simulated *Simulated
}

// Simulated says how a cloud behaves that is not there.
type Simulated struct {
	Startup        time.Duration // of a node
	Capacity       int           // nodes that there are in all: who asks for more gets none
	InterruptAfter time.Duration // a node is taken away so long after it was ready; 0 is never
	Notice         time.Duration // how long before that it is said
}

// Node is what there is at a place.
type Node struct {
	Name  string
	State State
	Since time.Time // of the state; zero is not known
	Why   string    // in words, where something is unusual
	// Busy is true when work holds it, as the provider sees it.
	Busy bool
	// Until is when a node that is taken away is gone; zero where it is not.
	Until time.Time
}

// Provisioner rents nodes. Safe for concurrent use. Errors: fault.Unavailable when
// the provider does not answer, and asking again later may help.
type Provisioner interface {
	// Nodes gives the places of a pool in an order that stays, those that are Off too.
	Nodes(ctx context.Context, p Pool) ([]Node, error)
	// Rent asks for a node at a place; it comes later. Where one is there or on its
	// way, that is no change. Error: fault.Exhausted when the provider has none.
	Rent(ctx context.Context, p Pool, name string) error
	// Release gives a node back; it is gone later, and asked again until it is. Where
	// none is, that is no change. The caller knows that no work is on it.
	Release(ctx context.Context, p Pool, name string) error
}
