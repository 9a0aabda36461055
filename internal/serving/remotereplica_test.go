package serving

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
	"github.com/falaj-ml/falaj/internal/share"
)

// awayPlace is one on a pool.
type awayPlace struct {
	testPlace
	pool string
	zone residency.Zone
}

func (p *awayPlace) Pool() string         { return p.pool }
func (p *awayPlace) Zone() residency.Zone { return p.zone }

func (p *awayPlace) Load(context.Context, []byte, runtime.Options) (runtime.Session, error) {
	return &mortal{}, nil
}

// newSpread is a herd whose replicas beyond the first are in zones that take turns.
func newSpread(zones ...residency.Zone) (*replicas, *[]*mortal, *[]*awayPlace) {
	var mu sync.Mutex
	all, places := []*mortal{{}}, []*awayPlace{nil}
	p := newReplicas(all[0], func(context.Context, func(string)) (runtime.Session, Reservation, error) {
		mu.Lock()
		defer mu.Unlock()
		m := &mortal{}
		place := &awayPlace{testPlace: testPlace{lost: make(chan struct{})}, pool: "far", zone: zones[len(all)%len(zones)]}
		all, places = append(all, m), append(places, place)
		return m, place, nil
	}, func(error) {})
	p.spread = true
	return p, &all, &places
}

// TestAway: runs go where they are to be, and elsewhere when nobody answers there; the
// one here stays; one that is lost is replaced, after a pause when it had just come.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, all, places := newSpread("home")
		if p.RemoteRuns() != 0 {
			t.Errorf("%d runs elsewhere", p.RemoteRuns())
		}
		p.resize(3)
		synctest.Wait()
		if p.RemoteRuns() != 2 || p.pools()["far"] != 2 {
			t.Fatalf("%d runs elsewhere, %v", p.RemoteRuns(), p.pools())
		}
		ask := func(infer func(context.Context, []runtime.Tensor, []string) ([]runtime.Tensor, error)) {
			t.Helper()
			if _, err := infer(t.Context(), runtimetest.TokensOf(1, 1, 1), []string{"same"}); err != nil {
				t.Error(err)
			}
		}
		for range 10 {
			ask(p.Infer)
			ask(p.InferRemote)
		}
		here, one, two := (*all)[0].served.Load(), (*all)[1].served.Load(), (*all)[2].served.Load()
		if here != 10 || one+two != 10 || one != two {
			t.Errorf("%d answers here, %d and %d elsewhere", here, one, two)
		}
		(*all)[0].away.Store(true)
		ask(p.Infer) // by one elsewhere
		(*all)[0].away.Store(false)
		(*all)[1].away.Store(true)
		(*all)[2].away.Store(true)
		ask(p.InferRemote) // by the one here
		if p.RemoteRuns() != 0 {
			t.Error("those that are away take runs")
		}
		(*all)[2].away.Store(false)
		(*places)[1].take()
		synctest.Wait()
		if n, loads, _ := p.size(); n != 2 || loads || (*places)[1].released.Load() != 1 {
			t.Errorf("%d replicas, loading %v", n, loads)
		}
		<-time.After(5 * time.Second)
		p.resize(3)
		synctest.Wait()
		if n, _, _ := p.size(); n != 3 {
			t.Errorf("%d replicas: it is not replaced", n)
		}
		p.resize(1)
		synctest.Wait()
		if (*all)[0].closed.Load() != 0 || p.RemoteRuns() != 0 {
			t.Error("the one here did not stay")
		}
		_ = p.Close()
	})
}

// TestFence: replicas where features may not be any more are let go, before a run has
// them there, and none comes back there.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, all, _ := newSpread("home", "DE")
		p.resize(3) // one in DE, one at home
		synctest.Wait()
		p.fence(residency.Of("home", "DE"))
		if p.RemoteRuns() != 2 {
			t.Fatalf("%d", p.RemoteRuns())
		}
		p.fence(residency.Of("home"))
		if p.RemoteRuns() != 1 {
			t.Errorf("%d runs elsewhere", p.RemoteRuns())
		}
		for range 4 {
			if _, err := p.InferRemote(t.Context(), runtimetest.TokensOf(1, 1, 1), []string{"same"}); err != nil {
				t.Error(err)
			}
		}
		if n := (*all)[1].served.Load(); n != 0 {
			t.Errorf("%d runs were in DE", n)
		}
		p.resize(3)
		synctest.Wait()
		for _, r := range *p.all.Load() {
			if r.remote != nil && r.remote.Zone() != "home" {
				t.Errorf("one came to %s", r.remote.Zone())
			}
		}
		_ = p.Close()
	})
}

// TestScalePools: which pools a manifest may name.
func TestScalePools(t *testing.T) {
	two := 2
	good := Spec{Model: "m", Scale: &ScaleSpec{Min: &two, Pools: []string{"far", "farther"}}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(s *Spec){
		"one replica":   func(s *Spec) { s.Scale.Min = nil },
		"twice":         func(s *Spec) { s.Scale.Pools = []string{"far", "far"} },
		"no name":       func(s *Spec) { s.Scale.Pools = []string{"Far away"} },
		"many":          func(s *Spec) { s.Scale.Pools = make([]string, 17) },
		"in the server": func(s *Spec) { s.Runtime = &RuntimeSpec{Isolation: InProcess} },
		"python":        func(s *Spec) { s.Runtime = &RuntimeSpec{Python: PythonSpec{Processes: 2}} },
	} {
		s := good
		scale := *good.Scale
		s.Scale = &scale
		if change(&s); !fault.Is(s.Validate(), fault.Invalid) {
			t.Errorf("%s: %v", what, s.Validate())
		}
	}
	if same, other := good.how(), (Spec{Model: "m", Scale: &ScaleSpec{Min: &two}}).how(); same == other {
		t.Error("a version is not loaded again when its pools are others")
	}
}

// roomy gives places, and slow loads until it is told to leave off.
type (
	roomy struct{ places chan *testPlace }
	slow  struct{ left chan struct{} }
)

func (r roomy) Reserve(context.Context, ReplicaRequest, func(string)) (Reservation, error) {
	return <-r.places, nil
}

func (s slow) Load(ctx context.Context, _ []byte, _ runtime.Options) (runtime.Session, error) {
	<-ctx.Done()
	s.left <- struct{}{}
	return nil, ctx.Err()
}

// TestPlaceTaken: a replica whose place is taken while it is loaded leaves off at once,
// gives the place back, and another one is tried after a pause.
func TestPlaceTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		room, load := roomy{make(chan *testPlace, 1)}, slow{make(chan struct{}, 1)}
		s := &core{cfg: Config{Capacity: room, Runtime: load}, log: slog.New(slog.DiscardHandler), loads: share.New(share.Limits{Name: "model_loads", What: "models being loaded"})}
		two := 2
		o := runtime.Options{Again: func(context.Context) ([]byte, error) { return []byte("model"), nil }}
		p := s.replicate("nyc", "d", Spec{Scale: &ScaleSpec{Min: &two}}, Model{Version: 1}, o, &mortal{}).(*replicas)
		p.resize(2)
		for range 2 {
			place := &testPlace{lost: make(chan struct{})}
			room.places <- place
			synctest.Wait()
			place.take()
			synctest.Wait()
			select {
			case <-load.left:
			default:
				t.Fatal("it goes on loading")
			}
			if place.released.Load() != 1 || !strings.Contains(p.trouble(), "preempted before") {
				t.Errorf("released %d times: %s", place.released.Load(), p.trouble())
			}
			<-time.After(time.Minute)
			p.resize(2)
		}
		room.places <- &testPlace{lost: make(chan struct{})}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}
