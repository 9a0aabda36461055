package serving_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

type world struct {
	mu        sync.Mutex
	models    map[string]serving.Model // by "name/version"
	denied    map[policy.Action]bool
	gone      int64  // a version that was deleted
	uncleared int64  // version that its policy holds back
	pointed   string // the alias that was moved last
	recorded  []audit.Entry
	journal   error
}

func (w *world) OpenVerified(_ context.Context, _, model, version string) (serving.Model, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.models[model+"/"+version]
	if !ok {
		return m, fault.New(fault.NotFound, "no model %s version %s", model, version)
	}
	if m.File == nil {
		return m, fault.New(fault.Conflict, "model.onnx was changed after it was signed")
	}
	return m, nil
}

func (w *world) RequireVersion(_ context.Context, _ *store.Tx, _, model string, version int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone == version {
		return fault.New(fault.NotFound, "model %s version %d was deleted", model, version)
	}
	return nil
}

func (w *world) Cleared(_ context.Context, _ *store.Tx, _, model string, version int64, alias string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.uncleared == version {
		return fault.New(fault.Conflict, "model %s@%d may not answer requests yet (%q)", model, version, alias)
	}
	return nil
}

func (w *world) Allow(_ context.Context, a policy.Action, _ policy.Object) error {
	if w.denied[a] {
		return fault.New(fault.PermissionDenied, "no")
	}
	return nil
}

func (w *world) Pass(_ context.Context, p residency.Transfer) error {
	return residency.Check(p.What, p.Label, p.Where, p.Zone)
}

func (w *world) Record(_ context.Context, e audit.Entry) error {
	w.recorded = append(w.recorded, e)
	return w.journal
}

// services are all of serving's, for tests that need several.
type services struct {
	*serving.Deployments
	*serving.Inference
	*serving.Rollouts
	*serving.AutoActions
	*serving.Loader
	*serving.Quotas
	*serving.Metrics
	config serving.Config
}

func newServices(c serving.Config) *services {
	s := serving.New(c)
	return &services{s.Deployments, s.Inference, s.Rollouts, s.AutoActions, s.Loader, s.Quotas, s.Metrics, c}
}

func open(t *testing.T, w *world, path string) (*services, *store.DB) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, filepath.Dir(path), servingsql.Migrations), Migrations: []store.Migrations{servingsql.Migrations}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: runtimetest.Fake{}}), db
}

func newWorld() *world {
	return &world{models: map[string]serving.Model{
		"delay/champion": {Name: "delay", Version: 1, Digest: "sha256:a", File: runtimetest.FakeModel},
		"delay/1":        {Name: "delay", Version: 1, Digest: "sha256:a", File: runtimetest.FakeModel},
		"delay/2":        {Name: "delay", Version: 2, Digest: "sha256:b", File: runtimetest.FakeModel, Classification: "restricted"},
		"delay/3":        {Name: "delay", Version: 3, Digest: "sha256:c", File: []byte("garbage")},
		"delay/4":        {Name: "delay", Version: 4, Digest: "sha256:d"}, // tampered with
		"delay/5":        {Name: "delay", Version: 5, Digest: "sha256:e", File: runtimetest.FakeModel, Residency: residency.Of("DE")},
	}, denied: map[policy.Action]bool{}}
}

func (w *world) Point(_ context.Context, _ *store.Tx, _, _, alias string, version int64) error {
	w.pointed = fmt.Sprintf("%s=%d", alias, version)
	return nil
}

func infer(ctx context.Context, s *services, project, name, version string, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, serving.Deployment, error) {
	a, err := s.Infer(ctx, serving.Request{Project: project, Name: name, Version: version, Inputs: in, Outputs: outputs})
	var d serving.Deployment
	if a.Deployment != nil {
		d = *a.Deployment
	}
	return a.Outputs, d, err
}

var ask = []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{1, 1}}}

func TestLifeOfADeployment(t *testing.T) {
	w, path := newWorld(), filepath.Join(t.TempDir(), "falaj.db")
	s, db := open(t, w, path)
	ctx := t.Context()
	d, changed, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay"}, false)
	if err != nil || !changed || d.State != serving.Ready || d.Version != 1 {
		t.Fatalf("%+v %v %v", d, changed, err)
	}
	if _, changed, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay"}, false); err != nil || changed {
		t.Errorf("the same again: changed %v, %v", changed, err)
	}
	if d, changed, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay", Version: "2"}, true); err != nil || !changed || d.Version != 2 {
		t.Errorf("dry run: %+v %v %v", d, changed, err)
	}
	w.gone = 2 // while it was loaded
	if _, _, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay", Version: "2"}, false); !fault.Is(err, fault.NotFound) {
		t.Errorf("a version deleted meanwhile: %v", err)
	}
	w.gone, w.uncleared = 0, 2
	if _, _, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay", Version: "2"}, false); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "may not answer requests yet") {
		t.Errorf("a version that is not cleared was deployed: %v", err)
	}
	if _, _, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay", Version: "2"}, true); !fault.Is(err, fault.Conflict) {
		t.Errorf("a dry run of a version that is not cleared: %v", err)
	}
	if _, err := s.Start(ctx, "nyc", "delay", serving.RolloutRequest{Version: "2"}); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "may not answer requests yet") {
		t.Errorf("a version that is not cleared is tried: %v", err)
	}
	if _, err := s.Shadow(ctx, "nyc", "delay", "2"); err != nil {
		t.Errorf("a version that is not cleared may not see requests: %v", err)
	}
	if _, err := s.Shadow(ctx, "nyc", "delay", ""); err != nil {
		t.Error(err)
	}
	w.uncleared = 1 // what answers already goes on
	if _, changed, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay"}, false); err != nil || changed {
		t.Errorf("the same again: changed %v, %v", changed, err)
	}
	w.uncleared = 0
	out, got, err := infer(ctx, s, "nyc", "delay", "", ask, nil)
	if err != nil || got.Version != 1 || len(out) != 2 {
		t.Fatalf("%+v %+v %v", out, got, err)
	}
	if all, err := s.Statistics(ctx, "nyc", "delay", ""); err != nil || len(all) != 1 || all[0].Version != 1 || all[0].Executions != 1 || all[0].Inferences != 1 || all[0].Success.Count != 1 {
		t.Errorf("statistics %+v, %v", all, err)
	}
	for name, version := range map[string]string{"delay": "2"} {
		if _, err := s.Statistics(ctx, "nyc", name, version); !fault.Is(err, fault.NotFound) {
			t.Errorf("statistics of %s %s: %v", name, version, err)
		}
	}
	w.denied["deployment.read"] = true
	if _, err := s.Statistics(ctx, "nyc", "delay", ""); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("statistics without permission: %v", err)
	}
	w.denied["deployment.read"] = false
	if len(w.recorded) != 0 {
		t.Errorf("an unclassified answer was journaled: %v", w.recorded)
	}
	if _, _, err := s.Apply(ctx, "nyc", "delay", serving.Spec{Model: "delay", Version: "2"}, false); err != nil {
		t.Fatal(err)
	}
	if _, got, err := infer(ctx, s, "nyc", "delay", "2", ask, []string{"label"}); err != nil || got.Version != 2 {
		t.Errorf("%+v %v", got, err)
	}
	if len(w.recorded) != 1 || w.recorded[0].Action != "deployment.infer" {
		t.Errorf("a restricted answer left %v in the journal", w.recorded)
	}
	w.journal = fault.New(fault.Exhausted, "disk full")
	if _, _, err := infer(ctx, s, "nyc", "delay", "", ask, nil); !fault.Is(err, fault.Exhausted) {
		t.Errorf("answered without a journal: %v", err)
	}
	w.journal = nil

	// A new process loads what is wanted; other projects see nothing.
	again := newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: runtimetest.Fake{}})
	if d, err := again.One(ctx, "nyc", "delay"); err != nil || d.State != serving.Loading {
		t.Errorf("%+v %v", d, err)
	}
	if _, _, err := infer(ctx, again, "nyc", "delay", "", ask, nil); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Errorf("asked before the models are loaded: %v", err)
	}
	if again.Ready("nyc") || again.Ready("") {
		t.Error("ready before the deployments were read")
	}
	if err := again.RunOnce(ctx); err != nil || !again.Ready("nyc") || !again.Ready("") {
		t.Fatal(err)
	}
	if _, got, err := infer(ctx, again, "nyc", "delay", "", ask, nil); err != nil || got.Version != 2 {
		t.Errorf("%+v %v", got, err)
	}
	if _, _, err := infer(ctx, again, "other", "delay", "", ask, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("another project's model answered: %v", err)
	}
	if err := again.Delete(ctx, "nyc", "delay"); err != nil {
		t.Fatal(err)
	}
	if err := s.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := infer(ctx, s, "nyc", "delay", "", ask, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("deleted elsewhere and still answering: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld()
	s, _ := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	ctx := t.Context()
	for name, c := range map[string]struct {
		deployment string
		spec       serving.Spec
		kind       fault.Kind
		says       string
	}{
		"no model":      {"d", serving.Spec{}, fault.Invalid, "spec.model"},
		"bad name":      {"../d", serving.Spec{Model: "delay"}, fault.Invalid, "name"},
		"threads":       {"d", serving.Spec{Model: "delay", Threads: -1}, fault.Invalid, "threads"},
		"unknown":       {"d", serving.Spec{Model: "delay", Version: "9"}, fault.NotFound, "version 9"},
		"garbage":       {"d", serving.Spec{Model: "delay", Version: "3"}, fault.Invalid, "not a model"},
		"tampered with": {"d", serving.Spec{Model: "delay", Version: "4"}, fault.Conflict, "changed after it was signed"},
		"abroad":        {"d", serving.Spec{Model: "delay", Version: "5"}, fault.PermissionDenied, "only in DE"},
	} {
		_, _, err := s.Apply(ctx, "nyc", c.deployment, c.spec, false)
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ds, err := s.Deployments.List(ctx, "nyc", "", 10); err != nil || len(ds) != 0 {
		t.Errorf("refused, and still there: %v %v", ds, err)
	}
	if _, _, err := s.Apply(ctx, "nyc", "d", serving.Spec{Model: "delay"}, false); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][]runtime.Tensor{
		"missing":      {},
		"other name":   {{Name: "Y", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{1, 1}}},
		"datatype":     {{Name: "X", Datatype: runtime.FP64, Shape: []int64{1, 2}, Data: []float64{1, 1}}},
		"shape":        {{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 3}, Data: []float32{1, 1, 1}}},
		"dimensions":   {{Name: "X", Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{1, 1}}},
		"twice":        {ask[0], ask[0]},
		"one too many": {ask[0], {Name: "Z", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}}},
	} {
		if _, _, err := infer(ctx, s, "nyc", "d", "", in, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, a := range []policy.Action{"deployment.apply", "deployment.read", "deployment.infer"} {
		w.denied[a] = true
	}
	_, _, apply := s.Apply(ctx, "nyc", "d", serving.Spec{Model: "delay"}, false)
	_, _, infer := infer(ctx, s, "nyc", "d", "", ask, nil)
	_, metadata := s.Metadata(ctx, "nyc", "d", "")
	_, one := s.One(ctx, "nyc", "d")
	_, list := s.Deployments.List(ctx, "nyc", "", 10)
	for name, err := range map[string]error{"apply": apply, "infer": infer, "metadata": metadata, "one": one, "list": list, "delete": s.Delete(ctx, "nyc", "d")} {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s without permission: %v", name, err)
		}
	}
}

// TestReadiness: a model that cannot be loaded is its own project's matter.
func TestReadiness(t *testing.T) {
	w := newWorld()
	s, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	ctx := t.Context()
	for project, version := range map[string]string{"nyc": "1", "broken": "2"} {
		if _, _, err := s.Apply(ctx, project, "d", serving.Spec{Model: "delay", Version: version}, false); err != nil {
			t.Fatal(err)
		}
	}
	delete(w.models, "delay/2")
	again := newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: runtimetest.Fake{}})
	if err := again.RunOnce(ctx); !fault.Is(err, fault.NotFound) {
		t.Errorf("loaded what is not there: %v", err)
	}
	for project, want := range map[string]bool{"nyc": true, "broken": false, "empty": true, "": true} {
		if again.Ready(project) != want {
			t.Errorf("project %q ready: %v, want %v", project, !want, want)
		}
	}
}

// during is a runtime that does something in the middle of a Load.
type during struct {
	runtimetest.Fake
	do func()
}

func (r *during) Load(ctx context.Context, m []byte, o runtime.Options) (runtime.Session, error) {
	if do := r.do; do != nil {
		r.do = nil
		do()
	}
	return r.Fake.Load(ctx, m, o)
}

// TestChangedWhileLoading changes and ends deployments while the loader of a
// restarted server loads what it read before.
func TestChangedWhileLoading(t *testing.T) {
	w := newWorld()
	s, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	ctx := t.Context()
	apply := func(s *services, name, version string) {
		t.Helper()
		if _, _, err := s.Apply(ctx, "nyc", name, serving.Spec{Model: "delay", Version: version}, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "anew", "elsewhere", "gone"} {
		apply(s, name, "1")
	}
	r := &during{}
	again := newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: r, Loads: 1})
	r.do = func() {
		apply(again, "a", "2")
		apply(s, "elsewhere", "2")
		for _, name := range []string{"anew", "gone"} {
			if err := again.Delete(ctx, "nyc", name); err != nil {
				t.Fatal(err)
			}
		}
		apply(again, "anew", "2")
	}
	if err := again.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "anew"} {
		if _, d, err := infer(ctx, again, "nyc", name, "", ask, nil); err != nil || d.Version != 2 {
			t.Errorf("%s answers with version %d, %v", name, d.Version, err)
		}
	}
	if _, d, err := infer(ctx, again, "nyc", "gone", "", ask, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("a deleted deployment answers with version %d, %v", d.Version, err)
	}
	if _, d, err := infer(ctx, again, "nyc", "elsewhere", "", ask, nil); err == nil && d.Version != 2 {
		t.Errorf("what another server replaced was loaded: version %d", d.Version)
	}
	if err := again.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if _, d, err := infer(ctx, again, "nyc", "elsewhere", "", ask, nil); err != nil || d.Version != 2 {
		t.Errorf("elsewhere answers with version %d, %v", d.Version, err)
	}
}

// TestManyAtOnce lets several people change the same deployments while the loader
// runs: when they are done, what answers is what the database says.
func TestManyAtOnce(t *testing.T) {
	w := newWorld()
	s, _ := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	ctx := t.Context()
	names := []string{"a", "b"}
	var people, loader sync.WaitGroup
	for i := range 4 {
		people.Go(func() {
			for j := range 25 {
				name := names[(i+j)%2]
				if (i+j)%5 == 0 {
					if err := s.Delete(ctx, "nyc", name); err != nil && !fault.Is(err, fault.NotFound) {
						t.Error(err)
					}
					continue
				}
				if _, _, err := s.Apply(ctx, "nyc", name, serving.Spec{Model: "delay", Version: "1", Threads: 1 + (3*i+j)%9}, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	loader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := s.RunOnce(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	people.Wait()
	close(done)
	loader.Wait()
	for _, name := range names {
		want, err := s.One(ctx, "nyc", name)
		_, got, inferred := infer(ctx, s, "nyc", name, "", ask, nil)
		switch {
		case fault.Is(err, fault.NotFound):
			if !fault.Is(inferred, fault.NotFound) {
				t.Errorf("%s is deleted and answers: %v", name, inferred)
			}
		case err != nil || inferred != nil || got.ID != want.ID || got.Revision != want.Revision:
			t.Errorf("%s answers as %s revision %d, wanted %s revision %d: %v %v", name, got.ID, got.Revision, want.ID, want.Revision, err, inferred)
		}
	}
}

// TestReplaceUnderLoad changes a deployment while it answers: no request fails.
func TestReplaceUnderLoad(t *testing.T) {
	w := newWorld()
	s, _ := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	ctx := t.Context()
	if _, _, err := s.Apply(ctx, "nyc", "d", serving.Spec{Model: "delay", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, _, err := infer(ctx, s, "nyc", "d", "", ask, []string{"label"}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 20 {
		if _, _, err := s.Apply(ctx, "nyc", "d", serving.Spec{Model: "delay", Version: "1", Threads: i + 1}, false); err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
}

// TestNamesWithCapitals: names that differ only in case are two deployments, with answers
// of their own.
func TestNamesWithCapitals(t *testing.T) {
	w := newWorld()
	w.models["ResNet50.v2/champion"] = serving.Model{Name: "ResNet50.v2", Version: 7, Digest: "sha256:r", File: runtimetest.FakeModel}
	s, _ := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	for name, spec := range map[string]serving.Spec{"ResNet50.v2": {Model: "ResNet50.v2"}, "resnet50.v2": {Model: "delay"}} {
		if d, _, err := s.Apply(t.Context(), "nyc", name, spec, false); err != nil || d.State != serving.Ready || d.Name != name {
			t.Fatalf("deploying %s: %+v, %v", name, d, err)
		}
	}
	for name, version := range map[string]int64{"ResNet50.v2": 7, "resnet50.v2": 1} {
		if _, d, err := infer(t.Context(), s, "nyc", name, "", ask, nil); err != nil || d.Version != version {
			t.Errorf("%s was answered by version %d, %v", name, d.Version, err)
		}
	}
	if _, _, err := infer(t.Context(), s, "nyc", "RESNET50.V2", "", ask, nil); err == nil {
		t.Error("a third writing of the name is answered")
	}
	if _, _, err := s.Apply(t.Context(), "nyc", "resnet50..v2", serving.Spec{Model: "delay"}, false); !fault.Is(err, fault.Invalid) {
		t.Errorf("two dots: %v", err)
	}
}
