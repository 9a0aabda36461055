// Package simulated is a cloud that is not there: its nodes start up, are taken away
// and are missing as the settings of a pool say, and once they are ready they are
// nodes of a pool on this machine. It is for trying and for tests.
//
// Life of a node. Rent writes when it will be ready, and when it will be taken away,
// into DIR/POOL.json; what state it is in follows from that and the clock. So it
// goes on while no server runs, as a real one would.
package simulated

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Cloud is a provisioner.Provisioner.
type Cloud struct {
	dir string
	now func() time.Time

	mu sync.Mutex // held while a file is read and written
}

// New opens a directory, which is made. Nil is time.Now.
func New(dir string, now func() time.Time) (*Cloud, error) {
	if now == nil {
		now = time.Now
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "making the directory of the simulated cloud")
	}
	return &Cloud{dir: dir, now: now}, nil
}

// instance is a node that was rented.
type instance struct {
	Asked time.Time `json:"asked"`
	Ready time.Time `json:"ready"`
	Taken time.Time `json:"taken,omitzero"` // when it is taken away; zero is never
	Said  time.Time `json:"said,omitzero"`  // when that is said
}

// Nodes gives the places of a pool: POOL-1 and so on.
func (c *Cloud) Nodes(_ context.Context, p provisioner.Pool) ([]provisioner.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := c.read(p)
	if err != nil {
		return nil, err
	}
	now := c.now()
	places := p.Max
	for name := range all {
		if i := place(p, name); i > places {
			places = i // more than there may be now
		}
	}
	out := make([]provisioner.Node, 0, places)
	for i := range places {
		n := provisioner.Node{Name: p.Name + "-" + strconv.Itoa(i+1), State: provisioner.Off}
		if x, ok := all[n.Name]; ok {
			n.State, n.Since = provisioner.Coming, x.Asked
			if !now.Before(x.Ready) {
				n.State, n.Since = provisioner.Ready, x.Ready
			}
			if !x.Taken.IsZero() && !now.Before(x.Said) {
				n.State, n.Since, n.Until, n.Why = provisioner.Leaving, x.Said, x.Taken, "reclaimed by the provider"
			}
		}
		if n.State != provisioner.Off || i < p.Max {
			out = append(out, n)
		}
	}
	return out, nil
}

// place is the number of a place; 0 when it has none.
func place(p provisioner.Pool, name string) int {
	prefix := p.Name + "-"
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return 0
	}
	i, err := strconv.Atoi(name[len(prefix):])
	if err != nil || i < 1 || strconv.Itoa(i) != name[len(prefix):] {
		return 0
	}
	return i
}

// Rent asks for a node.
func (c *Cloud) Rent(_ context.Context, p provisioner.Pool, name string) error {
	if i := place(p, name); i == 0 || i > p.Max {
		return fault.New(fault.NotFound, "pool %s has no place %.80q", p.Name, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := c.read(p)
	if err != nil {
		return err
	}
	if _, ok := all[name]; ok {
		return nil
	}
	s := provisioner.Simulated{Capacity: p.Max}
	if p.Simulated != nil {
		s = *p.Simulated
	}
	if len(all) >= s.Capacity {
		return fault.New(fault.Exhausted, "the simulated cloud has %d nodes, and all are in use", s.Capacity)
	}
	x := instance{Asked: c.now().UTC(), Ready: c.now().Add(s.Startup).UTC()}
	if s.InterruptAfter > 0 {
		x.Taken = x.Ready.Add(s.InterruptAfter)
		if x.Said = x.Taken.Add(-s.Notice); x.Said.Before(x.Ready) {
			x.Said = x.Ready
		}
	}
	all[name] = x
	return c.write(p, all)
}

// Release gives a node back.
func (c *Cloud) Release(_ context.Context, p provisioner.Pool, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := c.read(p)
	if err != nil {
		return err
	}
	if _, ok := all[name]; !ok {
		return nil
	}
	delete(all, name)
	return c.write(p, all)
}

func (c *Cloud) file(p provisioner.Pool) string { return filepath.Join(c.dir, p.Name+".json") }

// read gives the nodes that are not taken away yet.
func (c *Cloud) read(p provisioner.Pool) (map[string]instance, error) {
	all := map[string]instance{}
	b, err := os.ReadFile(c.file(p))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the simulated cloud cannot be read: %w", err)
	}
	now := c.now()
	for name, x := range all {
		if !x.Taken.IsZero() && !now.Before(x.Taken) {
			delete(all, name)
		}
	}
	return all, nil
}

func (c *Cloud) write(p provisioner.Pool, all map[string]instance) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	tmp := c.file(p) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fault.New(fault.Unavailable, "the simulated cloud cannot be written: %w", err)
	}
	if err := os.Rename(tmp, c.file(p)); err != nil {
		return fault.New(fault.Unavailable, "the simulated cloud cannot be written: %w", err)
	}
	return nil
}
