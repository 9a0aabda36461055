package serving_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// numbered runs models that answer with their own number: the file "model 3"
// gives version 3. It finds out who uses a session that was closed, or twice.
type numbered struct {
	t        testing.TB
	open     atomic.Int64
	sessions sync.WaitGroup
	slow     float32       // the number of the model that waits; 0: all
	hold     chan struct{} // not nil: Infer waits for it
	inside   chan struct{} // not nil: told when an Infer waits
}

type numberedSession struct {
	of     *numbered
	number float32
	closed atomic.Bool
}

func (n *numbered) Load(_ context.Context, model []byte, _ runtime.Options) (runtime.Session, error) {
	number, ok := strings.CutPrefix(string(model), "model ")
	f, err := strconv.ParseFloat(number, 32)
	if !ok || err != nil {
		return nil, fault.New(fault.Invalid, "not a model")
	}
	n.open.Add(1)
	n.sessions.Add(1)
	return &numberedSession{of: n, number: float32(f)}, nil
}

func (*numberedSession) Metadata() runtime.Metadata {
	return runtime.Metadata{
		Platform: "numbered", Inputs: []runtime.Spec{{Name: "X", Datatype: runtime.FP32, Shape: []int64{-1, 2}}},
		Outputs: []runtime.Spec{{Name: "number", Datatype: runtime.FP32, Shape: []int64{-1, 1}}, {Name: "name", Datatype: runtime.Bytes, Shape: []int64{-1}}},
	}
}

func (s *numberedSession) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if s.closed.Load() {
		s.of.t.Error("a closed session was asked")
	}
	if s.of.hold != nil && (s.of.slow == 0 || s.of.slow == s.number) {
		if s.of.inside != nil {
			s.of.inside <- struct{}{}
		}
		select {
		case <-s.of.hold:
		case <-ctx.Done():
			return nil, fault.New(fault.Timeout, "too late")
		}
	}
	n := in[0].Shape[0]
	out := make([]runtime.Tensor, len(outputs))
	for i, name := range outputs {
		out[i] = runtime.Tensor{Name: name, Datatype: runtime.FP32, Shape: []int64{n, 1}, Data: make([]float32, n)}
		for row := range n {
			out[i].Data.([]float32)[row] = s.number
		}
	}
	if s.closed.Load() {
		s.of.t.Error("a session was closed while it was asked")
	}
	return out, nil
}

func (s *numberedSession) Close() error {
	if s.closed.Swap(true) {
		s.of.t.Error("a session was closed twice")
	}
	s.of.open.Add(-1)
	s.of.sessions.Done()
	return nil
}

// pond is a service over numbered models in a database that can be opened again.
type pond struct {
	*services
	world *world
	db    *store.DB
	rt    *numbered
}

func newPond(tb testing.TB) *pond {
	tb.Helper()
	db := storetest.SQLite(tb, servingsql.Migrations)
	return newPondOn(tb, db)
}

func newPondOn(tb testing.TB, db *store.DB) *pond {
	tb.Helper()
	w := newWorld()
	w.models = map[string]serving.Model{}
	for v := range int64(9) {
		w.add(v + 1)
	}
	w.models["m/champion"] = w.models["m/1"]
	p := &pond{world: w, db: db, rt: &numbered{t: tb}}
	p.reopen()
	return p
}

func (w *world) add(v int64) {
	n := strconv.FormatInt(v, 10)
	w.models["m/"+n] = serving.Model{Name: "m", Version: v, Digest: "sha256:" + n, File: []byte("model " + n)}
}

func (p *pond) config() serving.Config {
	return serving.Config{DB: p.db, Store: servingsql.Store{}, Authz: p.world, Models: p.world, Journal: p.world, Guard: p.world, Runtime: p.rt}
}

// reopen is a process that was killed and began again.
func (p *pond) reopen() { p.services = newServices(p.config()) }

func (p *pond) apply(t *testing.T, spec serving.Spec) {
	t.Helper()
	if _, _, err := p.Apply(t.Context(), "nyc", "d", spec, false); err != nil {
		t.Fatal(err)
	}
}

// ask is the version that answers, by what it says itself.
func (p *pond) ask(t *testing.T, version, routeKey string) int64 {
	t.Helper()
	a, err := p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "d", Version: version, Inputs: ask, RouteKey: routeKey})
	if err != nil {
		t.Fatal(err)
	}
	said := int64(a.Outputs[0].Data.([]float32)[0])
	if said != a.Version {
		t.Fatalf("version %d answered as version %d", said, a.Version)
	}
	return said
}

func (p *pond) start(t *testing.T, version string, weight int) serving.Rollout {
	t.Helper()
	r, err := p.Start(t.Context(), "nyc", "d", serving.RolloutRequest{Version: version, Weight: weight, Cause: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (p *pond) status(t *testing.T) serving.Status {
	t.Helper()
	s, err := p.Status(t.Context(), "nyc", "d")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mix asks with many keys and counts who answers.
func (p *pond) mix(t *testing.T) map[int64]int {
	t.Helper()
	out := map[int64]int{}
	for i := range 500 {
		out[p.ask(t, "", "key "+strconv.Itoa(i))]++
	}
	return out
}

func TestLifeOfARollout(t *testing.T) { lifeOfARollout(t, newPond(t)) }

func lifeOfARollout(t *testing.T, p *pond) {
	t.Helper()
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m"})
	r := p.start(t, "2", 20)
	if r.State != serving.Running || r.Stable != 1 || r.Candidate != 2 || r.Weight != 20 || r.Spec.Metric == "" {
		t.Fatalf("%+v", r)
	}
	if m := p.mix(t); m[2] < 50 || m[2] > 150 || m[1]+m[2] != 500 {
		t.Errorf("20 %% of 500 keys: %v", m)
	}
	if p.ask(t, "1", "") != 1 || p.ask(t, "2", "") != 2 {
		t.Error("an explicit version was not answered by it")
	}
	if _, err := p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: "3"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("two at once: %v", err)
	}
	st := p.status(t)
	if len(st.Versions) != 2 || st.Versions[0].Weight != 80 || st.Versions[1].Role != serving.Canary || st.Versions[1].Weight != 20 || st.Versions[1].Requests == 0 || st.Versions[1].P99 == 0 || st.Rollout == nil {
		t.Errorf("%+v", st.Versions)
	}

	// Killed and begun again: the same keys meet the same versions.
	before := map[string]int64{}
	for i := range 200 {
		k := strconv.Itoa(i)
		before[k] = p.ask(t, "", k)
	}
	p.reopen()
	if err := p.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	for k, v := range before {
		if got := p.ask(t, "", k); got != v {
			t.Fatalf("key %s met version %d, and %d after a restart", k, v, got)
		}
	}

	// Another share is another rollout; a greater one keeps the candidate's keys.
	moved, err := p.SetWeight(ctx, "nyc", "d", 60)
	if err != nil || moved.ID == r.ID || moved.Weight != 60 || moved.Spec.Weight != 60 {
		t.Fatalf("%+v %v", moved, err)
	}
	for k, v := range before {
		if v == 2 && p.ask(t, "", k) != 2 {
			t.Errorf("key %s lost the candidate as its share grew", k)
		}
	}
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{Rollout: r.ID}); !fault.Is(err, fault.Conflict) {
		t.Errorf("promoted a rollout that has ended: %v", err)
	}
	done, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{Rollout: moved.ID, Reason: "better", Evidence: json.RawMessage(`{"p":1}`)})
	if err != nil || done.State != serving.Promoted || done.Reason != "better" || string(done.Evidence) != `{"p":1}` {
		t.Fatalf("%+v %v", done, err)
	}
	if p.world.pointed != "champion=2" {
		t.Errorf("the alias was moved to %q", p.world.pointed)
	}
	if again, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{Rollout: moved.ID}); err != nil || again.State != serving.Promoted {
		t.Errorf("promoted again: %+v %v", again, err)
	}
	if m := p.mix(t); m[2] != 500 {
		t.Errorf("after the promotion: %v", m)
	}
	p.world.models["m/champion"] = p.world.models["m/2"]
	if _, changed, err := p.Apply(ctx, "nyc", "d", serving.Spec{Model: "m"}, false); err != nil || changed {
		t.Errorf("the manifest again: changed %v, %v", changed, err)
	}

	promoted := p.status(t).History[0]
	if promoted.State != serving.Promoted || !promoted.PromotedAt.IsZero() {
		t.Errorf("%+v", promoted)
	}

	// And back, by undoing what that rollout did.
	d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Rollout: moved.ID, Reason: "worse after all"})
	if err != nil || d.Version != 1 || p.world.pointed != "champion=1" {
		t.Fatalf("%+v %v", d, err)
	}
	// The history has the end of the promotion, and when and why it was promoted.
	if h := p.status(t).History[0]; h.State != serving.RolledBack || h.Reason != "worse after all" || h.Promotion != promoted.Reason || promoted.Reason == "" ||
		!h.PromotedAt.Equal(promoted.Ended) || !h.Ended.After(h.PromotedAt) {
		t.Errorf("%+v after %+v", h, promoted)
	}
	if d, err = p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Rollout: moved.ID}); err != nil || d.Version != 1 {
		t.Errorf("rolled back again: %+v %v", d, err)
	}
	if _, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{}); !fault.Is(err, fault.Conflict) {
		t.Errorf("back to nothing: %v", err)
	}
	if m := p.mix(t); m[1] != 500 {
		t.Errorf("after the rollback: %v", m)
	}
	history, err := p.Rollouts.List(ctx, "nyc", "d")
	if err != nil || len(history) != 2 || history[0].State != serving.RolledBack || history[1].State != serving.Cancelled {
		t.Errorf("%+v %v", history, err)
	}
}

// TestRollbackOfACandidate: what is tried ends, and what answered goes on.
func TestRollbackOfACandidate(t *testing.T) { rollbackOfACandidate(t, newPond(t)) }

func rollbackOfACandidate(t *testing.T, p *pond) {
	t.Helper()
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	r := p.start(t, "2", 50)
	at := time.Date(2013, 7, 1, 0, 0, 0, 0, time.UTC)
	for range 2 { // the first counts
		if err := p.Began(ctx, "nyc", r.ID, at); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Hour)
	}
	running, err := p.Running(ctx)
	if err != nil || len(running) != 1 || running[0].ID != r.ID || !running[0].StartedAt.Equal(at.Add(-2*time.Hour)) {
		t.Fatalf("%+v %v", running, err)
	}
	d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Rollout: r.ID, State: serving.Inconclusive, Reason: "no labels"})
	if err != nil || d.Version != 1 || len(d.Targets) != 1 {
		t.Fatalf("%+v %v", d, err)
	}
	st := p.status(t)
	if st.Rollout != nil || st.History[0].State != serving.Inconclusive || st.History[0].Reason != "no labels" || st.History[0].Ended.IsZero() {
		t.Errorf("%+v", st.History)
	}
	if m := p.mix(t); m[1] != 500 {
		t.Errorf("%v", m)
	}
	// A pinned version moves with a promotion.
	p.start(t, "3", 50)
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil {
		t.Fatal(err)
	}
	// What decided before that to roll it back does not undo what a person did.
	if d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Rollout: p.status(t).History[0].ID, Unless: serving.Promoted}); !fault.Is(err, fault.Conflict) {
		t.Errorf("back to %d: %v", d.Version, err)
	}
	if d, err := p.One(ctx, "nyc", "d"); err != nil || d.Spec.Version != "3" || p.world.pointed != "" {
		t.Errorf("%+v %v, alias %q", d.Spec, err, p.world.pointed)
	}
	// Deploying something else ends what is tried.
	p.start(t, "4", 50)
	p.apply(t, serving.Spec{Model: "m", Version: "5"})
	if h := p.status(t).History; h[0].State != serving.Cancelled || !strings.Contains(h[0].Reason, "version 5") {
		t.Errorf("%+v", h[0])
	}
	if d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil || d.Version != 3 {
		t.Errorf("back to %d: %v", d.Version, err)
	}
	if d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil || d.Version != 1 {
		t.Errorf("further back to %d: %v", d.Version, err)
	}
}

// TestRefusedRollouts: what is refused changes nothing.
func TestRefusedRollouts(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	p.world.models["m/3"] = serving.Model{Name: "m", Version: 3, Digest: "sha256:3", File: []byte("garbage")}
	p.world.models["m/4"] = serving.Model{Name: "m", Version: 4, Digest: "sha256:4"} // tampered with
	for version, kind := range map[string]fault.Kind{"1": fault.Conflict, "3": fault.Invalid, "4": fault.Conflict, "77": fault.NotFound, "": fault.Invalid} {
		if _, err := p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: version}); !fault.Is(err, kind) {
			t.Errorf("version %q: %v", version, err)
		}
	}
	for _, weight := range []int{-1, 100} {
		if _, err := p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: "2", Weight: weight}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d %%: %v", weight, err)
		}
	}
	p.world.gone = 2
	if _, err := p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: "2"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("deleted while it was loaded: %v", err)
	}
	p.world.gone = 0
	for name, err := range map[string]error{
		"promote":  second(p.Promote(ctx, "nyc", "d", serving.RolloutEnd{})),
		"reweigh":  second(p.SetWeight(ctx, "nyc", "d", 10)),
		"rollback": second(p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{})),
		"evidence": second(p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Evidence: json.RawMessage("{")})),
		"rollout":  second(p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Rollout: "rol_x"})),
	} {
		if err == nil {
			t.Errorf("%s with nothing to do", name)
		}
	}
	if st := p.status(t); len(st.History) != 0 || st.Deployment.Revision != 1 || len(st.Versions) != 1 {
		t.Errorf("%+v", st)
	}

	// Back to what no longer loads: what answers goes on answering.
	p.start(t, "2", 50)
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil {
		t.Fatal(err)
	}
	one := p.world.models["m/1"]
	p.world.models["m/1"] = serving.Model{Name: "m", Version: 1, Digest: "sha256:1", File: []byte("damaged")}
	if _, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{}); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "version 1 cannot be loaded any more, and version 2 keeps serving") {
		t.Errorf("%v", err)
	}
	if p.ask(t, "", "") != 2 {
		t.Error("what answered does not")
	}
	d, err := p.One(ctx, "nyc", "d")
	if err != nil || !d.Uses(1) || !d.Uses(2) || d.Uses(3) {
		t.Errorf("the version to go back to is not in use: %+v %v", d, err)
	}
	p.world.models["m/1"] = one
	if d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil || d.Version != 1 {
		t.Errorf("%+v %v", d, err)
	}

	p.world.denied["deployment.rollout"] = true
	for name, err := range map[string]error{
		"start": second(p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: "2"})), "promote": second(p.Promote(ctx, "nyc", "d", serving.RolloutEnd{})),
		"rollback": second(p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{})), "shadow": second(p.Shadow(ctx, "nyc", "d", "2")),
		"reweigh": second(p.SetWeight(ctx, "nyc", "d", 5)), "automation": second(p.SetAutomation(ctx, "nyc", "d", false, "")),
		"began": p.Began(ctx, "nyc", "rol_x", time.Now()),
	} {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s without permission: %v", name, err)
		}
	}
	p.world.denied["deployment.rollout"] = false
	p.world.denied["model.promote"] = true
	p.apply(t, serving.Spec{Model: "m"})
	p.start(t, "2", 50)
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an alias was moved without permission: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestCanaryThatDoesNotLoad: after a restart its share goes to the stable
// version, and the status says so.
func TestCanaryThatDoesNotLoad(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m"})
	p.start(t, "2", 50)
	two := p.world.models["m/2"]
	p.world.models["m/2"] = serving.Model{Name: "m", Version: 2, Digest: "sha256:2", File: []byte("damaged")}
	p.reopen()
	if err := p.RunOnce(ctx); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
	if m := p.mix(t); m[1] != 500 {
		t.Errorf("%v", m)
	}
	st := p.status(t)
	if v := st.Versions[1]; v.State != serving.Failed || v.Weight != 0 || !strings.Contains(v.Reason, "not a model") || st.Versions[0].Weight != 100 {
		t.Errorf("%+v", st.Versions)
	}
	if _, err := p.Infer(ctx, serving.Request{Project: "nyc", Name: "d", Version: "2", Inputs: ask}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("asked for by number: %v", err)
	}
	if !p.Ready("nyc") || !p.Ready("") {
		t.Error("a canary makes the project unready")
	}
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "version 1 keeps serving") {
		t.Errorf("what does not load was promoted: %v", err)
	}
	p.world.models["m/2"] = two
	p.reopen()
	if err := p.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if m := p.mix(t); m[2] == 0 {
		t.Errorf("%v", m)
	}
	p.reopen() // nothing is in memory
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil {
		t.Error(err)
	}
	if m := p.mix(t); m[2] != 500 {
		t.Errorf("%v", m)
	}
}

// TestNothingLostOrMixed asks with keys and without while shares move, versions
// load, are promoted, rolled back and shadowed. Each request is answered, by a
// version of the table that it was given; a key that was with the candidate stays
// while the candidate's share grows; in the end no session is left open.
func TestNothingLostOrMixed(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	done := make(chan struct{})
	var wg sync.WaitGroup
	var answered atomic.Int64
	for g := range 6 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				r := serving.Request{Project: "nyc", Name: "d", Inputs: ask}
				if g%2 == 0 {
					r.RouteKey = "key " + strconv.Itoa(i%50)
				}
				a, err := p.Infer(ctx, r)
				if err != nil {
					t.Error(err)
					return
				}
				said := int64(a.Outputs[0].Data.([]float32)[0])
				known := a.Deployment.Version == said
				for _, trial := range a.Deployment.Trials {
					known = known || trial.Role == serving.Canary && trial.Version == said
				}
				if said != a.Version || !known {
					t.Errorf("version %d answered as %d in a deployment of %d and %+v", said, a.Version, a.Deployment.Version, a.Deployment.Trials)
					return
				}
				answered.Add(1)
			}
		})
	}
	wg.Go(func() { // the loader goes on all the while
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := p.RunOnce(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	stable := int64(1)
	for i := range 12 {
		candidate := stable%8 + 1
		_, err := p.Shadow(ctx, "nyc", "d", "9")
		must(err)
		_, err = p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: strconv.FormatInt(candidate, 10), Weight: 5})
		must(err)
		kept := map[string]bool{}
		for _, weight := range []int{20, 50, 90} {
			_, err := p.SetWeight(ctx, "nyc", "d", weight)
			must(err)
			for k := range 50 {
				key := "key " + strconv.Itoa(k)
				got := p.ask(t, "", key)
				if kept[key] && got != candidate {
					t.Errorf("%s left the candidate as its share grew", key)
				}
				kept[key] = got == candidate
			}
		}
		if i%3 == 2 {
			_, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{})
			must(err)
			continue
		}
		_, err = p.Promote(ctx, "nyc", "d", serving.RolloutEnd{})
		must(err)
		if stable = candidate; p.ask(t, "", "any") != stable {
			t.Errorf("version %d was promoted and does not answer", stable)
		}
	}
	_, err := p.Shadow(ctx, "nyc", "d", "")
	must(err)
	close(done)
	wg.Wait()
	must(p.Close(ctx))
	if answered.Load() == 0 {
		t.Error("nothing was asked")
	}
	must(p.Delete(ctx, "nyc", "d"))
	p.rt.sessions.Wait() // for ever, if one is left open
}

// TestDrain: a request that runs on a version that is replaced ends on it.
func TestDrain(t *testing.T) {
	p := newPond(t)
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	p.rt.hold, p.rt.inside, p.rt.slow = make(chan struct{}), make(chan struct{}, 1), 1
	said := make(chan int64)
	go func() {
		a, err := p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "d", Inputs: ask})
		if err != nil {
			t.Error(err)
		}
		said <- a.Version
	}()
	<-p.rt.inside
	p.apply(t, serving.Spec{Model: "m", Version: "2"})
	if p.rt.open.Load() != 2 {
		t.Errorf("%d sessions are open while a request runs on the old one", p.rt.open.Load())
	}
	close(p.rt.hold)
	if v := <-said; v != 1 {
		t.Errorf("answered by version %d", v)
	}
}

// TestUndoneWhileTrying: undoing a promotion also ends what is tried since.
func TestUndoneWhileTrying(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	first := p.start(t, "2", 50)
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil {
		t.Fatal(err)
	}
	p.start(t, "3", 50)
	d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Rollout: first.ID, Reason: "labels say so"})
	if err != nil || d.Version != 1 || len(d.Targets) != 1 {
		t.Fatalf("%+v %v", d, err)
	}
	for _, r := range p.status(t).History {
		if r.State != serving.RolledBack || r.Reason != "labels say so" {
			t.Errorf("%+v", r)
		}
	}
	if m := p.mix(t); m[1] != 500 {
		t.Errorf("%v", m)
	}
	// To another version, past what is tried.
	p.start(t, "4", 50)
	if d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{To: 5}); err != nil || d.Version != 5 || len(d.Targets) != 1 {
		t.Errorf("%+v %v", d, err)
	}
}

// TestWayBackIsOfWhatStood: going back asks nobody, but only to what answered here before: another
// version is one that its policy may hold back.
func TestWayBackIsOfWhatStood(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	p.apply(t, serving.Spec{Model: "m", Version: "2"})
	hold := func(version int64) {
		p.world.mu.Lock()
		defer p.world.mu.Unlock()
		p.world.uncleared = version
	}
	hold(3)
	if _, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{To: 3}); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "m@3 may not answer requests yet") {
		t.Errorf("a version that was never let through answers by a rollback: %v", err)
	}
	if m := p.mix(t); m[2] != 500 {
		t.Errorf("%v", m)
	}
	// What is tried gets no more requests when it is held back since, and may have fewer.
	hold(0)
	p.start(t, "3", 50)
	hold(3)
	if _, err := p.SetWeight(ctx, "nyc", "d", 60); !fault.Is(err, fault.Conflict) {
		t.Errorf("a version that is held back gets more requests: %v", err)
	}
	if r, err := p.SetWeight(ctx, "nyc", "d", 10); err != nil || r.Weight != 10 {
		t.Errorf("%+v, %v", r, err)
	}
	hold(1)
	if d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{To: 1}); err != nil || d.Version != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	// What was undone was of another model, which had a version of this number.
	p.apply(t, serving.Spec{Model: "m", Version: "4"})
	first := p.start(t, "5", 50)
	if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil {
		t.Fatal(err)
	}
	for _, v := range []int64{4, 5} {
		p.world.models["n/"+strconv.FormatInt(v, 10)] = serving.Model{Name: "n", Version: v, Digest: "sha256:n", File: []byte("model " + strconv.FormatInt(v, 10))}
	}
	p.apply(t, serving.Spec{Model: "n", Version: "5"})
	hold(4)
	if d, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{Rollout: first.ID}); !fault.Is(err, fault.Conflict) {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestAppliedWhileTrying: what a manifest changes but the version holds for what
// is tried, too, and the rollout goes on.
func TestAppliedWhileTrying(t *testing.T) {
	p, _, n := fed(t)
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	r := p.start(t, "2", 50)
	zero := 0
	p.apply(t, serving.Spec{Model: "m", Version: "1", Threads: 2, Prediction: &serving.PredictionSpec{Output: "number", Index: &zero}})
	if m := p.mix(t); m[2] < 150 || m[1] < 150 {
		t.Errorf("%v", m)
	}
	if rec := n.last(t); rec.Rollout != string(r.ID) || len(rec.Scores) != 1 {
		t.Errorf("%+v", rec)
	}
	if st := p.status(t); st.Rollout == nil || st.Rollout.ID != r.ID || st.Versions[1].State != serving.Ready {
		t.Errorf("%+v", st)
	}
}

// TestOnPostgreSQL: the other database says the same.
func TestOnPostgreSQL(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *pond){
		"rollout": lifeOfARollout, "rollback": rollbackOfACandidate, "acts": lifeOfActs, "claims": claimedOnce, "usage": testUsage,
	} {
		t.Run(name, func(t *testing.T) { test(t, newPondOn(t, storetest.PostgreSQL(t, servingsql.Migrations))) })
	}
}
