package serving_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// distant runs the suite's fake models as if they were elsewhere.
type distant struct {
	mu      sync.Mutex
	loads   []runtime.Remote
	runs    int
	rows    int
	away    error
	entered chan struct{} // not nil: told of each run elsewhere, which waits then
}

func (d *distant) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	s, err := runtimetest.Fake{}.Load(ctx, model, o)
	if err != nil || o.Remote.Server == "" {
		return s, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loads = append(d.loads, o.Remote)
	return distantSession{s, d}, nil
}

type distantSession struct {
	runtime.Session
	of *distant
}

func (s distantSession) Unavailable() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.of.away
}

func (s distantSession) MaxRows() int { return s.of.rows }

func (s distantSession) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	s.of.mu.Lock()
	s.of.runs++
	entered := s.of.entered
	s.of.mu.Unlock()
	if entered != nil {
		entered <- struct{}{}
		<-ctx.Done()
		return nil, fault.New(fault.Timeout, "over")
	}
	return s.Session.Infer(ctx, in, outputs)
}

func remotes() map[string]serving.Remote {
	return map[string]serving.Remote{"near": {Zone: residency.Home}, "de": {Zone: "DE"}, "theirs": {Zone: residency.Home, Projects: []string{"other"}}}
}

func at(remote, model, version string) *serving.RuntimeSpec {
	return &serving.RuntimeSpec{Remote: serving.RemoteSpec{Name: remote, Model: model, Version: version}}
}

// elsewhere is a pond of the fake model in versions 1 to 3: 2 may be in DE, too, 3 is
// restricted.
func elsewhere(t *testing.T) (*pond, *distant, *notes) {
	t.Helper()
	p, d, n := newPond(t), &distant{}, &notes{}
	for v, m := range map[string]serving.Model{
		"1": {Name: "m", Version: 1, Digest: "sha256:1", File: runtimetest.FakeModel},
		"2": {Name: "m", Version: 2, Digest: "sha256:2", File: runtimetest.FakeModel, Residency: residency.Of("DE", "home")},
		"3": {Name: "m", Version: 3, Digest: "sha256:3", File: runtimetest.FakeModel, Classification: "restricted"},
	} {
		p.world.models["m/"+v] = m
	}
	p.world.models["m/champion"] = p.world.models["m/1"]
	c := p.config()
	c.Runtime, c.Remotes, c.Predictions = d, remotes(), n
	c.Features = &weather{rows: map[string]serving.FeatureColumn{}, label: residency.Of("home")}
	p.services = newServices(c)
	return p, d, n
}

// TestNothingLeavesItsZone: a model whose label does not allow a remote's zone, and one
// whose features may not be there, is not deployed; the reason is in words.
func TestNothingLeavesItsZone(t *testing.T) {
	p, d, _ := elsewhere(t)
	features := &serving.FeaturesSpec{Service: "weather", Input: "X", Columns: []string{"distance", "weather:temp"}}
	for says, spec := range map[string]serving.Spec{
		"model m is allowed only in home, and remote de is in DE":                   {Model: "m", Version: "1", Runtime: at("de", "", "")},
		"feature service weather@2 is allowed only in home, and remote de is in DE": {Model: "m", Version: "2", Runtime: at("de", "", ""), Features: features},
		`remote "nowhere" does not exist for this project`:                          {Model: "m", Version: "2", Runtime: at("nowhere", "", "")},
		`remote "theirs" does not exist for this project`:                           {Model: "m", Version: "2", Runtime: at("theirs", "", "")},
	} {
		if _, _, err := p.Apply(t.Context(), "nyc", "d", spec, false); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if len(d.loads) > 0 {
		t.Errorf("remotes were asked for %+v", d.loads)
	}
	p.apply(t, serving.Spec{Model: "m", Version: "2", Runtime: at("de", "", "")})
	if len(d.loads) != 1 || d.loads[0] != (runtime.Remote{Server: "de", Model: "m", Version: "2"}) {
		t.Errorf("asked for %+v", d.loads)
	}
	// A version that may not be there does not come by a rollout either.
	if _, err := p.Start(t.Context(), "nyc", "d", serving.RolloutRequest{Version: "1", Weight: 20}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a rollout: %v", err)
	}
}

// TestFeaturesThatMayNotLeaveAnyMore: their label is looked at with each request.
func TestFeaturesThatMayNotLeaveAnyMore(t *testing.T) {
	p, d, n := elsewhere(t)
	w := &weather{label: residency.Of("DE", "home"), rows: map[string]serving.FeatureColumn{
		"JFK": {Values: []float64{30}, Statuses: []serving.FeatureStatus{serving.FeaturePresent}, Events: []time.Time{noon}},
	}}
	c := p.config()
	c.Runtime, c.Remotes, c.Predictions, c.Features = d, remotes(), n, w
	p.services = newServices(c)
	p.apply(t, serving.Spec{
		Model: "m", Version: "2", Runtime: at("de", "", ""), Batching: &serving.BatchingSpec{MaxRows: 1},
		Features: &serving.FeaturesSpec{Service: "weather", Input: "X", Columns: []string{"distance", "weather:temp"}},
	})
	r := keyed([]float64{1}, "JFK")
	r.Project, r.Name = "nyc", "d"
	if _, err := p.Infer(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	runs := d.runs
	w.label = residency.Of("home")
	r = keyed([]float64{1}, "JFK")
	r.Project, r.Name = "nyc", "d"
	if _, err := p.Infer(t.Context(), r); !fault.Is(err, fault.PermissionDenied) || d.runs != runs {
		t.Errorf("%v, %d runs", err, d.runs-runs)
	}
}

// TestScoredRowsStayInTheirZone: rows that are scored, and the features that they are,
// go to a remote that both labels allow. What may not is refused before the model is loaded.
func TestScoredRowsStayInTheirZone(t *testing.T) {
	p, d, n := elsewhere(t)
	w := &weather{label: residency.Of("DE", "home")}
	c := p.config()
	c.Runtime, c.Remotes, c.Predictions, c.Features = d, remotes(), n, w
	p.services = newServices(c)
	p.apply(t, serving.Spec{
		Model: "m", Version: "2", Runtime: at("de", "", ""),
		Features: &serving.FeaturesSpec{Service: "weather", Input: "X", Columns: []string{"distance", "weather:temp"}},
	})
	rows := serving.Rows{What: "dataset people@3", Label: residency.Of("DE", "home"), Values: [][]float64{{700, 30}}}
	if got, err := p.Score(t.Context(), "nyc", "d", 2, rows); err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	runs, loads := d.runs, len(d.loads)
	rows.Label = residency.Of("home")
	_, err := p.Score(t.Context(), "nyc", "d", 2, rows)
	if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "dataset people@3 is allowed only in home, and remote de is in DE") {
		t.Errorf("rows that may be at home only: %v", err)
	}
	rows.Label, w.label = residency.Of("DE", "home"), residency.Of("home")
	if _, err := p.Score(t.Context(), "nyc", "d", 2, rows); !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "feature service weather@2") {
		t.Errorf("features that may be at home only: %v", err)
	}
	if d.runs != runs || len(d.loads) != loads {
		t.Errorf("%d runs, %d loads", d.runs-runs, len(d.loads)-loads)
	}
}

// TestWhereItWasProcessed: the record of an answer, the journal and the audit log say
// which remote answered, and where it is.
func TestWhereItWasProcessed(t *testing.T) {
	p, _, n := elsewhere(t)
	p.apply(t, serving.Spec{Model: "m", Version: "3", Runtime: at("near", "", "")})
	if _, err := p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "d", Inputs: ask}); err != nil {
		t.Fatal(err)
	}
	if r := n.last(t); r.Remote != "near" || r.Zone != "home" {
		t.Errorf("record %+v", r)
	}
	e := p.world.recorded[len(p.world.recorded)-1]
	if e.Detail["remote"] != "near" || e.Detail["zone"] != residency.Home {
		t.Errorf("journal %+v", e)
	}
	p.apply(t, serving.Spec{Model: "m", Version: "3"})
	if _, err := p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "d", Inputs: ask}); err != nil {
		t.Fatal(err)
	}
	if r := n.last(t); r.Remote != "" || r.Zone != "" {
		t.Errorf("record of a model that runs here %+v", r)
	}
}

// TestReadinessFollowsARemote: while it is away, the deployment is not ready.
func TestReadinessFollowsARemote(t *testing.T) {
	p, d, _ := elsewhere(t)
	d.rows = 4
	p.apply(t, serving.Spec{Model: "m", Version: "1", Runtime: at("near", "", "")})
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	see := func() serving.Deployment {
		d, err := p.One(t.Context(), "nyc", "d")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if s := see(); s.State != serving.Ready || s.Targets[0].Remote != "near" || s.Targets[0].Zone != "home" || !p.Ready("nyc") {
		t.Errorf("at first %+v, ready %t", s, p.Ready("nyc"))
	}
	d.mu.Lock()
	d.away = fault.New(fault.Unavailable, "the remote near does not answer")
	d.mu.Unlock()
	told, err := p.Metadata(t.Context(), "nyc", "d", "")
	if s := see(); s.State != serving.Failed || s.Reason != "the remote near does not answer" || p.Ready("nyc") || told.Away == nil {
		t.Errorf("away %+v, ready %t, %v", s, p.Ready("nyc"), err)
	}
	d.mu.Lock()
	d.away = nil
	d.mu.Unlock()
	if s := see(); s.State != serving.Ready || !p.Ready("nyc") {
		t.Errorf("back %+v", s)
	}
}

// TestARemoteTakesNoCores: models that run here go on while a remote keeps everybody
// waiting.
func TestARemoteTakesNoCores(t *testing.T) {
	p, d, _ := elsewhere(t)
	p.apply(t, serving.Spec{Model: "m", Version: "1", Runtime: at("near", "", ""), Batching: &serving.BatchingSpec{MaxRows: 1}})
	if _, _, err := p.Apply(t.Context(), "nyc", "here", serving.Spec{Model: "m", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.entered = make(chan struct{})
	d.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() { _, _ = p.Infer(ctx, serving.Request{Project: "nyc", Name: "d", Inputs: ask}) })
	}
	for range 32 {
		<-d.entered
	}
	if _, err := p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "here", Inputs: ask}); err != nil {
		t.Error(err)
	}
	cancel()
	all.Wait()
}

// TestWhichModelThere: what a version is called there, and what would make two
// versions one.
func TestWhichModelThere(t *testing.T) {
	for _, c := range []struct {
		model, version string
		want           runtime.Remote
	}{
		{"", "", runtime.Remote{Server: "near", Model: "m", Version: "2"}},
		{"delay", "", runtime.Remote{Server: "near", Model: "delay", Version: "2"}},
		{"delay-v{version}", "", runtime.Remote{Server: "near", Model: "delay-v2"}},
		{"delay-v{version}", "1", runtime.Remote{Server: "near", Model: "delay-v2", Version: "1"}},
		{"delay", "7", runtime.Remote{Server: "near", Model: "delay", Version: "7"}},
		{"delay", "none", runtime.Remote{Server: "near", Model: "delay"}},
	} {
		p, d, _ := elsewhere(t)
		p.apply(t, serving.Spec{Model: "m", Version: "2", Runtime: at("near", c.model, c.version)})
		if d.loads[0] != c.want {
			t.Errorf("%q %q: %+v", c.model, c.version, d.loads)
		}
		_, err := p.Start(t.Context(), "nyc", "d", serving.RolloutRequest{Version: "3", Weight: 20})
		if fixed := c.version == "7" || c.version == "none"; fixed != fault.Is(err, fault.Invalid) || !fixed && err != nil {
			t.Errorf("%q %q: a rollout: %v", c.model, c.version, err)
		}
	}
	for says, spec := range map[string]serving.Spec{
		"an alias, which can move":  {Model: "m", Runtime: at("near", "", "7")},
		"remote name":               {Model: "m", Runtime: at("Near!", "", "")},
		"is not a valid name":       {Model: "m", Runtime: at("near", "a/../b", "")},
		"spec.threads":              {Model: "m", Threads: 2, Runtime: at("near", "", "")},
		"isolation and memory":      {Model: "m", Runtime: &serving.RuntimeSpec{Isolation: serving.Child, Remote: serving.RemoteSpec{Name: "near"}}},
		"spec.runtime.remote: remo": {Model: "m", Runtime: at("", "m", "")},
	} {
		if err := spec.Validate(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
