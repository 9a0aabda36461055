package serving_test

import (
	"context"
	"errors"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
)

// mortal is numbered, of sessions whose processes can die.
type mortal struct {
	*numbered

	mu    sync.Mutex
	died  map[string]func(runtime.Death) bool // of the newest session of a file
	loads map[string]int
	dead  map[string]bool // its processes die while they load
}

func (m *mortal) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loads[string(model)]++
	if m.dead[string(model)] {
		err := fault.New(fault.Invalid, "loading the model ended its process")
		err.Err = runtime.DeathError{Death: death()}
		return nil, err
	}
	m.died[string(model)] = o.Died
	return m.numbered.Load(ctx, model, o)
}

func death() runtime.Death {
	return runtime.Death{At: time.Now().UTC(), Reason: "killed by SIGFPE (floating point exception)"}
}

// kill has the process of a version die; the answer is whether it is started again.
func (m *mortal) kill(version string) bool {
	m.mu.Lock()
	died := m.died["model "+version]
	m.mu.Unlock()
	return died(death())
}

func (m *mortal) loaded(version string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loads["model "+version]
}

// mortals are a deployment of version 1 by a runtime whose processes can die.
func mortals(t *testing.T, adapt func(*serving.Config)) (*pond, *mortal) {
	t.Helper()
	p := newPond(t)
	m := &mortal{numbered: p.rt, died: map[string]func(runtime.Death) bool{}, loads: map[string]int{}, dead: map[string]bool{}}
	c := p.config()
	c.Runtime = m
	if adapt != nil {
		adapt(&c)
	}
	p.services = newServices(c)
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	return p, m
}

// killThrice sets a version aside.
func (p *pond) killThrice(t *testing.T, m *mortal, version string) {
	t.Helper()
	for i := range 3 {
		if again := m.kill(version); again != (i < 2) {
			t.Errorf("after death %d another process is started: %v", i+1, again)
		}
	}
	p.Settled()
}

// TestDeathInStatus: the status says why a process died, also when there is another one.
func TestDeathInStatus(t *testing.T) {
	p, m := mortals(t, nil)
	if !m.kill("1") {
		t.Error("it is not started again")
	}
	x := p.status(t).Deployment.Targets[0]
	if x.State != serving.Ready || x.Restarts != 1 || x.LastDeath == nil || !strings.Contains(x.LastDeath.Reason, "SIGFPE") {
		t.Errorf("got %+v", x)
	}
}

// TestSetAside: a version whose process died three times is not started again, its
// status says why, and a person may try it again.
func TestSetAside(t *testing.T) {
	p, m := mortals(t, nil)
	p.killThrice(t, m, "1")
	d := p.status(t).Deployment
	if d.State != serving.Failed || !strings.Contains(d.Reason, "set aside") || !strings.Contains(d.Reason, "SIGFPE") || !strings.Contains(d.Reason, "apply the deployment again") {
		t.Errorf("%s: %s", d.State, d.Reason)
	}
	if m.kill("1") {
		t.Error("it is started again")
	}
	_, err := p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "d", Inputs: ask})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "set aside") {
		t.Errorf("a request: %v", err)
	}
	if _, err := p.Score(t.Context(), "nyc", "d", 1, serving.Rows{}); err == nil {
		t.Error("rows are scored by it")
	}
	for range 3 {
		if err := p.RunOnce(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := m.loaded("1"); n != 1 {
		t.Errorf("it was loaded %d times", n)
	}
	for name, again := range map[string]func() error{
		"apply": func() error {
			_, _, err := p.Apply(t.Context(), "nyc", "d", serving.Spec{Model: "m", Version: "1"}, false)
			return err
		},
		"load": func() error { return p.Load(t.Context(), "nyc", "d") },
	} {
		if err := again(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := p.status(t).Deployment; d.State != serving.Ready || d.Targets[0].Restarts != 0 {
			t.Errorf("after %s: %s: %s", name, d.State, d.Reason)
		}
		p.ask(t, "", "")
		p.killThrice(t, m, "1") // a new count
	}
	if err := p.Delete(t.Context(), "nyc", "d"); err != nil {
		t.Fatal(err)
	}
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	if d := p.status(t).Deployment; d.State != serving.Ready {
		t.Errorf("another deployment of the name: %s", d.Reason)
	}
}

// TestDryRunTriesNothing: to look at a deployment does not start again what was set aside.
func TestDryRunTriesNothing(t *testing.T) {
	p, m := mortals(t, nil)
	p.killThrice(t, m, "1")
	if _, _, err := p.Apply(t.Context(), "nyc", "d", serving.Spec{Model: "m", Version: "1"}, true); err != nil {
		t.Fatal(err)
	}
	if d := p.status(t).Deployment; d.State != serving.Failed {
		t.Errorf("%s: %s", d.State, d.Reason)
	}
}

// TestLastGood: in place of a stable version that was set aside the newest earlier one
// that loads serves, and that is recorded as what was done automatically.
func TestLastGood(t *testing.T) {
	p, m := mortals(t, nil)
	for _, v := range []string{"2", "3", "4"} {
		p.apply(t, serving.Spec{Model: "m", Version: v})
	}
	m.mu.Lock()
	m.dead["model 3"] = true
	m.mu.Unlock()
	p.killThrice(t, m, "4")
	st := p.status(t)
	if st.Deployment.Version != 2 || st.Deployment.State != serving.Ready || p.ask(t, "", "") != 2 {
		t.Errorf("version %d is %s: %s", st.Deployment.Version, st.Deployment.State, st.Deployment.Reason)
	}
	if len(st.Acts) != 1 || st.Acts[0].Kind != serving.AutoRollback || st.Acts[0].Outcome != serving.AutoActionDone || st.Acts[0].Result != "2" ||
		!strings.Contains(st.Acts[0].Reason, "version 4 was set aside") || !strings.Contains(st.Acts[0].Reason, "SIGFPE") {
		t.Errorf("acts: %+v", st.Acts)
	}
}

// TestLastGoodWithAutomationOff: what answers is not changed where automation is off.
func TestLastGoodWithAutomationOff(t *testing.T) {
	p, m := mortals(t, nil)
	off := false
	p.apply(t, serving.Spec{Model: "m", Version: "2", Automation: &off})
	p.killThrice(t, m, "2")
	st := p.status(t)
	if st.Deployment.Version != 2 || st.Deployment.State != serving.Failed || len(st.Acts) != 1 || st.Acts[0].Outcome != serving.AutoActionSkipped {
		t.Errorf("version %d is %s; acts %+v", st.Deployment.Version, st.Deployment.State, st.Acts)
	}
	if _, err := p.Rollback(t.Context(), "nyc", "d", serving.RolloutEnd{Reason: "a person"}); err != nil {
		t.Fatal(err)
	}
	if p.ask(t, "", "") != 1 {
		t.Error("it is not rolled back")
	}
}

// TestSetAsideCanary: a rollout whose version was set aside is rolled back, and the stable
// version serves all.
func TestSetAsideCanary(t *testing.T) {
	for name, automation := range map[string]bool{"on": true, "off": false} {
		t.Run("automation "+name, func(t *testing.T) {
			p, m := mortals(t, nil)
			p.apply(t, serving.Spec{Model: "m", Version: "1", Automation: &automation})
			p.start(t, "2", 99)
			p.killThrice(t, m, "2")
			for range 20 {
				if p.ask(t, "", "") != 1 {
					t.Fatal("another version answers")
				}
			}
			st := p.status(t)
			if st.Rollout != nil || len(st.History) != 1 || st.History[0].State != serving.RolledBack || !strings.Contains(st.History[0].Reason, "SIGFPE") {
				t.Errorf("history %+v", st.History)
			}
			if len(st.Deployment.Targets) != 1 || st.Deployment.State != serving.Ready {
				t.Errorf("targets %+v", st.Deployment.Targets)
			}
			p.start(t, "2", 10) // by a person, again
			if st := p.status(t); len(st.Deployment.Targets) != 2 || st.Deployment.Targets[1].State != serving.Ready {
				t.Errorf("targets %+v", st.Deployment.Targets)
			}
		})
	}
}

// TestSetAsideShadow: a shadow that was set aside is one no more.
func TestSetAsideShadow(t *testing.T) {
	p, m := mortals(t, nil)
	if _, err := p.Shadow(t.Context(), "nyc", "d", "2"); err != nil {
		t.Fatal(err)
	}
	p.killThrice(t, m, "2")
	if st := p.status(t); len(st.Deployment.Targets) != 1 || st.Deployment.State != serving.Ready || p.ask(t, "", "") != 1 {
		t.Errorf("targets %+v", st.Deployment.Targets)
	}
}

// TestSetAsideStableDuringRollout: the version that is tried does not take the place of
// one that was set aside; the last that was stable does.
func TestSetAsideStableDuringRollout(t *testing.T) {
	p, m := mortals(t, nil)
	p.apply(t, serving.Spec{Model: "m", Version: "2"})
	p.start(t, "3", 50)
	p.killThrice(t, m, "2")
	st := p.status(t)
	if st.Deployment.Version != 1 || st.Rollout != nil || p.ask(t, "", "") != 1 {
		t.Errorf("version %d, rollout %+v", st.Deployment.Version, st.Rollout)
	}
}

// TestSetAsideAtAGateway: the deployments of another server are not changed.
func TestSetAsideAtAGateway(t *testing.T) {
	p, m := mortals(t, nil)
	p.apply(t, serving.Spec{Model: "m", Version: "2"})
	p.start(t, "3", 99)
	before := p.status(t).Deployment.Revision
	c := p.config()
	c.Runtime, c.Follows = m, true
	p.services = newServices(c)
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.killThrice(t, m, "3")
	for range 20 {
		if p.ask(t, "", "") != 2 {
			t.Fatal("another version answers")
		}
	}
	st := p.status(t)
	if st.Deployment.Revision != before || st.Rollout == nil || len(st.Acts) > 0 {
		t.Errorf("revision %d of %d, %+v", st.Deployment.Revision, before, st)
	}
	if x := st.Deployment.Targets[1]; x.State != serving.Failed || !strings.Contains(x.Reason, "set aside") {
		t.Errorf("got %+v", x)
	}
}

// TestDeadLoads: the loader gives up a version whose processes die while they load.
func TestDeadLoads(t *testing.T) {
	p, m := mortals(t, nil)
	m.mu.Lock()
	m.dead["model 1"] = true
	m.mu.Unlock()
	c := p.config()
	c.Runtime = m
	p.services = newServices(c) // a server that starts
	before := m.loaded("1")
	for m.loaded("1") < before+3 {
		_ = p.RunOnce(t.Context())
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		p.Hasten()
	}
	p.Settled()
	for range 3 {
		_ = p.RunOnce(t.Context())
		p.Hasten()
	}
	if n := m.loaded("1") - before; n != 3 {
		t.Errorf("it was loaded %d times", n)
	}
	if d := p.status(t).Deployment; d.State != serving.Failed || !strings.Contains(d.Reason, "set aside") {
		t.Errorf("%s: %s", d.State, d.Reason)
	}
	m.mu.Lock()
	m.dead["model 1"] = false
	m.mu.Unlock()
	if err := p.Load(t.Context(), "nyc", "d"); err != nil {
		t.Fatal(err)
	}
	p.ask(t, "", "")
}

// fullDisk is a store that takes nothing while the disk is full.
type fullDisk struct {
	servingsql.Store

	full atomic.Bool
}

func (f *fullDisk) err() error {
	if f.full.Load() {
		return syscall.ENOSPC
	}
	return nil
}

func (f *fullDisk) Put(ctx context.Context, tx *store.Tx, d serving.Deployment) error {
	return errors.Join(f.err(), f.Store.Put(ctx, tx, d))
}

func (f *fullDisk) PutRollout(ctx context.Context, tx *store.Tx, r serving.Rollout) error {
	return errors.Join(f.err(), f.Store.PutRollout(ctx, tx, r))
}

func (f *fullDisk) UpdateAction(ctx context.Context, tx *store.Tx, a serving.AutoAction) error {
	return errors.Join(f.err(), f.Store.UpdateAction(ctx, tx, a))
}

// TestFullDisk: what cannot be written down is not deployed, and leaves no process; a
// version is set aside all the same, and its deployment brought back when there is room.
func TestFullDisk(t *testing.T) {
	disk := &fullDisk{}
	p, m := mortals(t, func(c *serving.Config) { c.Store = disk })
	p.apply(t, serving.Spec{Model: "m", Version: "2"})
	disk.full.Store(true)
	for name, do := range map[string]func() error{
		"apply": func() error {
			_, _, err := p.Apply(t.Context(), "nyc", "other", serving.Spec{Model: "m", Version: "3"}, false)
			return err
		},
		"change": func() error {
			_, _, err := p.Apply(t.Context(), "nyc", "d", serving.Spec{Model: "m", Version: "3"}, false)
			return err
		},
		"canary": func() error {
			_, err := p.Start(t.Context(), "nyc", "d", serving.RolloutRequest{Version: "3"})
			return err
		},
		"shadow": func() error {
			_, err := p.Shadow(t.Context(), "nyc", "d", "3")
			return err
		},
		"rollback": func() error {
			_, err := p.Rollback(t.Context(), "nyc", "d", serving.RolloutEnd{})
			return err
		},
	} {
		if err := do(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", name, err)
		}
		for p.rt.open.Load() > 1 { // closed beside the caller
			if t.Context().Err() != nil {
				t.Fatalf("%s leaves a process", name)
			}
			goruntime.Gosched()
		}
		if p.ask(t, "", "") != 2 {
			t.Errorf("%s changes what answers", name)
		}
	}
	if _, err := p.One(t.Context(), "nyc", "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is deployed: %v", err)
	}
	p.killThrice(t, m, "2")
	if d := p.status(t).Deployment; d.Version != 2 || d.State != serving.Failed {
		t.Errorf("version %d is %s", d.Version, d.State)
	}
	if err := p.RunOnce(t.Context()); err != nil {
		t.Error(err)
	}
	disk.full.Store(false)
	if err := p.RunOnce(t.Context()); err != nil {
		t.Error(err)
	}
	st := p.status(t)
	if st.Deployment.Version != 1 || p.ask(t, "", "") != 1 || len(st.Acts) != 1 || st.Acts[0].Outcome != serving.AutoActionDone {
		t.Errorf("version %d, acts %+v", st.Deployment.Version, st.Acts)
	}
}

// TestDeathsOfReplicas: each child is counted by itself.
func TestDeathsOfReplicas(t *testing.T) {
	p, m := mortals(t, nil)
	m.mu.Lock()
	died := m.died["model 1"]
	m.mu.Unlock()
	for i := range uint64(8) {
		d := death()
		if d.Child = 1 + i%4; !died(d) {
			t.Fatalf("set aside after %d deaths of four children", i+1)
		}
	}
	d := death()
	if d.Child = 2; died(d) {
		t.Error("not set aside after the third death of a child")
	}
	p.Settled()
	if d := p.status(t).Deployment; d.State != serving.Failed || !strings.Contains(d.Reason, "crashed 3 times") || d.Targets[0].Restarts != 9 {
		t.Errorf("%s: %s", d.State, d.Reason)
	}
}

// TestOldDeaths: deaths count for a while only.
func TestOldDeaths(t *testing.T) {
	p, m := mortals(t, nil)
	m.mu.Lock()
	died := m.died["model 1"]
	m.mu.Unlock()
	for i := range 10 {
		d := death()
		d.At = d.At.Add(time.Duration(i) * time.Hour)
		if !died(d) {
			t.Fatalf("set aside after %d deaths, one an hour", i+1)
		}
	}
	if x := p.status(t).Deployment.Targets[0]; x.Restarts != 10 || x.State != serving.Ready {
		t.Errorf("got %+v", x)
	}
}
