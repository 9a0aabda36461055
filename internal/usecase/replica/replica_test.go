package replica

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

type anybody struct{}

func (anybody) Allow(context.Context, policy.Action, policy.Object) error { return nil }

type noJournal struct{}

func (noJournal) Record(context.Context, audit.Entry) error { return nil }

// newPlaces are the places of a machine of two cores.
type places struct {
	*Reservations
	pools *compute.Pools
}

func newPlaces(t *testing.T) *places {
	t.Helper()
	db := storetest.SQLite(t, computesql.Migrations)
	c := compute.New(compute.Config{
		DB: db, Store: computesql.Store{}, Authorizer: anybody{}, Journal: noJournal{}, Guard: border.NewGuard(noJournal{}),
		Engines: map[string]compute.Engine{"local": {
			Driver: enginetest.NewFake(), Isolation: scheduler.Sandbox, Machine: resource.Amount{CPU: resource.Cores(2), Memory: 8 * resource.GiB},
		}},
	})
	if _, err := c.Pools.EnsureHome(t.Context(), "local"); err != nil {
		t.Fatal(err)
	}
	p := New(Config{Compute: c.Workloads, DB: db, Log: slog.New(slog.DiscardHandler), Memory: child.Memory})
	c.Scheduling.RegisterOwner(compute.Replica, p)
	c.Scheduling.Start(t.Context())
	t.Cleanup(c.Scheduling.Stop)
	return &places{p, c.Pools}
}

// used is what of the machine's cores is taken.
func (p *places) used(t *testing.T) resource.Amount {
	t.Helper()
	pools, err := p.pools.ListPools(t.Context())
	if err != nil || len(pools) != 1 {
		t.Fatal(err)
	}
	return pools[0].Used
}

// TestPlaces: a replica has a place among the workloads of the machine, one that has
// none waits and says why, and a place is given back.
func TestPlaces(t *testing.T) {
	p := newPlaces(t)
	none := func(why string) { t.Errorf("it waits: %s", why) }
	one := serving.ReplicaRequest{Project: "nyc", Deployment: "delay", Threads: 1, Memory: resource.GiB}
	first, err := p.Reserve(t.Context(), one, none)
	if err != nil {
		t.Fatal(err)
	}
	if u := p.used(t); u.CPU != resource.Cores(1) || u.Memory != resource.GiB {
		t.Errorf("used %+v", u)
	}
	two := serving.ReplicaRequest{Project: "nyc", Deployment: "wide", Threads: 2, Size: 1 << 20}
	ctx, leave := context.WithCancel(t.Context())
	waits := make(chan string, 100)
	got := make(chan error, 1)
	var second serving.Reservation
	go func() {
		var err error
		second, err = p.Reserve(ctx, two, func(why string) { waits <- why })
		got <- err
	}()
	if why := <-waits; !strings.Contains(why, "2 cpu wanted, 1 free on home; held by a replica of deployment delay") {
		t.Errorf("it waits: %s", why)
	}
	leave()
	if err := <-got; !errors.Is(err, context.Canceled) || second != nil {
		t.Errorf("who is not wanted: %v", err)
	}
	go func() {
		var err error
		second, err = p.Reserve(t.Context(), two, func(string) {})
		got <- err
	}()
	first.Release()
	first.Release()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if u := p.used(t); u.CPU != resource.Cores(2) || u.Memory < 2*resource.GiB {
		t.Errorf("used %+v", u)
	}
	var wid string
	p.mu.Lock()
	for id := range p.all {
		wid = id
	}
	p.mu.Unlock()
	if err := p.DB.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
		return p.Compute.Cancel(ctx, tx, compute.WorkloadID(wid), "others need the room")
	}); err != nil {
		t.Fatal(err)
	}
	<-second.Lost()
	second.Release()
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if u := p.used(t); u.CPU != 0 {
		t.Errorf("used %+v", u)
	}
}

// TestPlaceRefused: one that is ended in the line is refused, with the reason.
func TestPlaceRefused(t *testing.T) {
	p := newPlaces(t)
	got := make(chan error, 1)
	go func() {
		_, err := p.Reserve(t.Context(), serving.ReplicaRequest{Project: "nyc", Deployment: "huge", Threads: 64, Memory: resource.GiB}, func(string) {})
		got <- err
	}()
	var wid string
	for wid == "" {
		p.mu.Lock()
		for id := range p.all {
			wid = id
		}
		p.mu.Unlock()
	}
	for {
		err := p.DB.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
			return p.Compute.Cancel(ctx, tx, compute.WorkloadID(wid), "ended by alice")
		})
		if err == nil {
			break
		}
		select { // it is submitted after it is known
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(err)
		}
	}
	if err := <-got; err == nil || !strings.Contains(err.Error(), "ended by alice") {
		t.Errorf("%v", err)
	}
}

// TestCalledTooLate: the connection of a replica that calls when its workload has ended,
// or when it is not wanted any more, is closed, and so is one that has just come.
func TestCalledTooLate(t *testing.T) {
	for _, how := range []string{"ended", "unwanted"} {
		for _, before := range []bool{false, true} {
			p := newPlaces(t)
			pl := &reservation{placed: make(chan struct{}), lost: make(chan struct{}), ended: make(chan struct{}), over: make(chan struct{}), remote: newRemoteReplica()}
			p.all["rep_1"] = pl
			take, err := p.Claim("rep_1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Claim("rep_1"); !fault.Is(err, fault.Conflict) {
				t.Errorf("a second call: %v", err)
			}
			near, far := net.Pipe()
			if before { // who waits sees both, and may take either
				take(near)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if how == "ended" {
				p.forget("rep_1", "it was preempted")
			} else {
				cancel()
			}
			got, err := p.await(ctx, serving.ReplicaRequest{Project: "nyc", Threads: 1}, "rep_1", pl, func(string) {})
			if err == nil {
				got.Release()
			}
			if !before {
				if err == nil {
					t.Errorf("%s: it has a connection", how)
				}
				take(near)
			}
			if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("%s, called before %v: the connection is not closed: %v", how, before, err)
			}
			cancel()
			if _, err := p.Claim("rep_2"); !fault.Is(err, fault.Gone) {
				t.Errorf("one that there is not: %v", err)
			}
		}
	}
}
