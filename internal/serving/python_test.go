package serving_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// snakes is a runtime that notes how it was asked to load, and environments.
type snakes struct {
	runtimetest.Fake

	mu     sync.Mutex
	loaded []runtime.Options
	built  map[string]bool
}

func (s *snakes) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	s.mu.Lock()
	s.loaded = append(s.loaded, o)
	s.mu.Unlock()
	if o.Python != nil {
		model = runtimetest.FakeModel
	}
	return s.Fake.Load(ctx, model, o)
}

// Use implements serving.Environments.
func (s *snakes) Use(_ context.Context, _, ref string) (runtime.Python, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	built, ok := s.built[ref]
	if !ok {
		return runtime.Python{}, fault.New(fault.NotFound, "no environment %s", ref)
	}
	if !built {
		return runtime.Python{}, fault.New(fault.Unavailable, "environment %s is being built: %w", ref, serving.ErrNotYet)
	}
	return runtime.Python{Environment: ref + "@sha256:1"}, nil
}

// last is how the last model was loaded.
func (s *snakes) last() runtime.Options {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded[len(s.loaded)-1]
}

func filesOf(environment string) *serving.Files {
	return &serving.Files{
		Size: 7, Environment: func(context.Context) (string, error) { return environment, nil },
		Write: func(context.Context, string) error { return nil },
	}
}

func openSnakes(t *testing.T) (*services, *snakes) {
	t.Helper()
	w, n := newWorld(), &snakes{built: map[string]bool{"own": true, "named": true, "slow": false}}
	w.models["snake/1"] = serving.Model{Name: "snake", Version: 1, Digest: "sha256:f", File: []byte{}, Files: filesOf("own")}
	w.models["snake/2"] = serving.Model{Name: "snake", Version: 2, Digest: "sha256:g", File: runtimetest.FakeModel, Files: filesOf("own")}
	w.models["snake/3"] = serving.Model{Name: "snake", Version: 3, Digest: "sha256:h", File: runtimetest.FakeModel}
	w.words("champion", 1)
	db := storetest.SQLite(t, servingsql.Migrations)
	return newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: onlyFiles{w}, Journal: w, Guard: w, Runtime: n, Environments: n}), n
}

// onlyFiles has models without an ONNX file, where the world's file is empty.
type onlyFiles struct{ *world }

func (o onlyFiles) OpenVerified(ctx context.Context, p, model, version string) (serving.Model, error) {
	m, err := o.world.OpenVerified(ctx, p, model, version)
	if len(m.File) == 0 {
		m.File = nil
	}
	return m, err
}

func pythonSpec(version string, p serving.PythonSpec) serving.Spec {
	return serving.Spec{Model: "snake", Version: version, Runtime: &serving.RuntimeSpec{Python: p}}
}

// TestPythonRuntime: what the manifest says decides, then what made the version.
func TestPythonRuntime(t *testing.T) {
	s, n := openSnakes(t)
	for name, c := range map[string]struct {
		spec serving.Spec
		want string // environment; empty: ONNX
	}{
		"its own":             {serving.Spec{Model: "snake", Version: "1"}, "own"},
		"named":               {pythonSpec("1", serving.PythonSpec{Environment: "named"}), "named"},
		"both, and it is":     {pythonSpec("2", serving.PythonSpec{Environment: "named"}), "named"},
		"both, and it is not": {serving.Spec{Model: "snake", Version: "2"}, ""},
		"onnx":                {serving.Spec{Model: "snake", Version: "3"}, ""},
	} {
		d, _, err := s.Apply(t.Context(), "nyc", "d", c.spec, false)
		if err != nil || d.State != serving.Ready {
			t.Errorf("%s: %+v, %v", name, d, err)
			continue
		}
		got, shown := "", ""
		if p := n.last().Python; p != nil {
			got, shown = strings.TrimSuffix(p.Environment, "@sha256:1"), p.Environment
			if p.Processes != 1 || p.Size != 7 || p.Write == nil {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if got != c.want || d.Targets[0].Environment != shown {
			t.Errorf("%s: it runs in %q, and says %q", name, got, d.Targets[0].Environment)
		}
	}
	for name, c := range map[string]struct {
		spec serving.Spec
		kind fault.Kind
		says string
	}{
		"no files":         {pythonSpec("3", serving.PythonSpec{Environment: "named"}), fault.Invalid, "no predict.py"},
		"unknown":          {pythonSpec("1", serving.PythonSpec{Environment: "none"}), fault.NotFound, "no environment none"},
		"processes":        {pythonSpec("1", serving.PythonSpec{Processes: -1}), fault.Invalid, "processes: -1 is"},
		"many":             {pythonSpec("1", serving.PythonSpec{Processes: 65}), fault.Invalid, "1 to 64"},
		"in process":       {serving.Spec{Model: "snake", Version: "1", Runtime: &serving.RuntimeSpec{Isolation: serving.InProcess}}, fault.Invalid, "not support in-process"},
		"in process, said": {serving.Spec{Model: "snake", Version: "1", Runtime: &serving.RuntimeSpec{Isolation: serving.InProcess, Python: serving.PythonSpec{Processes: 1}}}, fault.Invalid, "not support in-process"},
		"remote":           {serving.Spec{Model: "snake", Version: "1", Runtime: &serving.RuntimeSpec{Remote: serving.RemoteSpec{Name: "r"}, Python: serving.PythonSpec{Processes: 1}}}, fault.Invalid, "python is not supported for remote models"},
	} {
		if _, _, err := s.Apply(t.Context(), "nyc", "no", c.spec, false); !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEnvironmentNotBuilt: a deployment waits for its environment with the reason, what
// answered before goes on, and it is loaded when the environment is there.
func TestEnvironmentNotBuilt(t *testing.T) {
	s, n := openSnakes(t)
	slow := pythonSpec("1", serving.PythonSpec{Environment: "slow"})
	d, changed, err := s.Apply(t.Context(), "nyc", "new", slow, false)
	if err != nil || !changed || d.State != serving.Loading || d.Version != 1 || !strings.Contains(d.Reason, "environment slow is being built") {
		t.Fatalf("%+v, %v, %v", d, changed, err)
	}
	if _, _, err := infer(t.Context(), s, "nyc", "new", "", ask, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("asked while it waits: %v", err)
	}
	if _, _, err := s.Apply(t.Context(), "nyc", "old", serving.Spec{Model: "snake", Version: "3"}, false); err != nil {
		t.Fatal(err)
	}
	if d, _, err := s.Apply(t.Context(), "nyc", "old", slow, false); err != nil || d.State != serving.Loading {
		t.Errorf("%+v, %v", d, err)
	}
	if _, d, err := infer(t.Context(), s, "nyc", "old", "", ask, nil); err != nil || d.Version != 3 {
		t.Errorf("meanwhile version %d answers, %v", d.Version, err)
	}
	n.mu.Lock()
	n.built["slow"] = true
	n.mu.Unlock()
	if err := s.RunOnce(t.Context()); err != nil { // at once: what waits has no pause
		t.Error(err)
	}
	for _, name := range []string{"new", "old"} {
		if d, err := s.One(t.Context(), "nyc", name); err != nil || d.State != serving.Ready || d.Reason != "" {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		if _, d, err := infer(t.Context(), s, "nyc", name, "", ask, nil); err != nil || d.Version != 1 {
			t.Errorf("%s: version %d, %v", name, d.Version, err)
		}
	}
}

// TestPythonAmongSteps: what the manifest says of the model's Python is of the model, and
// not of the steps.
func TestPythonAmongSteps(t *testing.T) {
	s, n := openSnakes(t)
	spec := stepped()
	spec.Model, spec.Version, spec.Runtime = "snake", "1", &serving.RuntimeSpec{Python: serving.PythonSpec{Environment: "named"}}
	if _, _, err := s.Apply(t.Context(), "nyc", "delay", spec, false); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.loaded) != 2 || n.loaded[0].Python == nil || n.loaded[0].Python.Environment != "named@sha256:1" || n.loaded[1].Python != nil {
		t.Errorf("%+v", n.loaded)
	}
}

// TestDormant: what deployments need that are not in memory is known, asleep and after a
// restart.
func TestDormant(t *testing.T) {
	s, n := openSnakes(t)
	none := 0
	for name, spec := range map[string]serving.Spec{
		"own": {Model: "snake", Version: "1"}, "named": pythonSpec("2", serving.PythonSpec{Environment: "named"}), "onnx": {Model: "snake", Version: "3"},
	} {
		spec.Scale = &serving.ScaleSpec{Min: &none, Idle: "1m"}
		if _, _, err := s.Apply(t.Context(), "nyc", name, spec, false); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want ...serving.Unloaded) {
		t.Helper()
		got := s.Unloaded()
		slices.SortFunc(got, func(a, b serving.Unloaded) int { return int(a.Version - b.Version) })
		for i := range want {
			want[i].Project, want[i].Model = "nyc", "snake"
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	is()
	for range 2 {
		if err := s.ScaleAt(t.Context(), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	is(serving.Unloaded{Version: 1, Environment: "own@sha256:1", Known: true}, serving.Unloaded{Version: 2, Environment: "named"}, serving.Unloaded{Version: 3, Known: true})
	c := s.config
	c.Runtime = n
	s = newServices(c)
	if err := s.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	is(serving.Unloaded{Version: 1}, serving.Unloaded{Version: 2, Environment: "named"}, serving.Unloaded{Version: 3})
}
