package loop

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const three = `{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m, version: champion, automation: false}}`

// threeVersions answer 1000 times their number, and the first of two inputs.
func (p *pond) threeVersions() {
	p.T.Helper()
	p.Register("m", linear(1000, 1, 0), linear(2000, 1, 0), linear(3000, 1, 0))
	p.Apply(three)
}

// noTraffic is a canary that nobody meets: it ends, and says why.
func noTraffic(p *pond) {
	t := p.T
	p.Register("m", linear(1000, 1, 0), linear(2000, 1, 0))
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m, rollout: {max_duration: 2s}}}`)
	_, err := p.C.Canary(t.Context(), p.Name, "m", "2", 0, "let us see")
	p.Must(err)
	var s client.Object
	p.Eventually("the canary does not end", func() (bool, error) {
		s = p.status("m")
		return s["rollout"] == nil, nil
	})
	history := s["history"].([]any)
	run := client.Object(history[0].(map[string]any))
	if len(history) != 1 || run.Text("state") != "rolled_back" || !strings.Contains(run.Text("reason"), "inconclusive after 2s") ||
		!strings.Contains(run.Text("reason"), "version 2 has not received requests") || s.Text("deployment.version") != "1" {
		t.Errorf("%v", s)
	}
	p.Eventually("the act is not concluded", func() (bool, error) { return strings.Contains(p.status("m").Text("acts"), "done"), nil })
	if out, code := p.Command(t.Context(), "deploy", "status", "m", "-p", p.Name); code != 0 || !strings.Contains(out, "inconclusive") {
		t.Error(out)
	}
}

// damage flips a bit in each file of a version.
func (p *pond) damage(version string) (files []string) {
	p.T.Helper()
	files, err := filepath.Glob(filepath.Join(p.Data, "objects", "projects", p.Name, "models", "*", version, "*"))
	if err != nil || len(files) == 0 {
		p.T.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		p.Must(err)
		b[len(b)/2] ^= 1
		p.Must(os.WriteFile(f, b, 0o600))
	}
	return files
}

// rollbackThatDoesNotLoad is refused, and what answers goes on.
func rollbackThatDoesNotLoad(p *pond) {
	t := p.T
	p.threeVersions()
	ask := func(want string) {
		t.Helper()
		if a, err := p.Infer(p.C, "m", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2)); err != nil || a.Version != want {
			t.Errorf("%+v %v, want version %s", a, err, want)
		}
	}
	_, err := p.C.Canary(t.Context(), p.Name, "m", "2", 20, "")
	p.Must(err)
	_, err = p.C.Promote(t.Context(), p.Name, "m", "")
	p.Must(err)
	ask("2")
	files := p.damage("v1")
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 0, "away from it")
	p.refused("rollback to a changed version", err, http.StatusConflict, "version 1 cannot be loaded any more", "version 2 keeps serving", "Name another version")
	ask("2")
	for _, f := range files {
		p.Must(os.Remove(f))
	}
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 1, "")
	p.refused("rollback to a version that is gone", err, http.StatusConflict, "version 1 cannot be loaded any more")
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 99, "")
	p.refused("rollback to what never was", err, http.StatusConflict, "version 99")
	_, err = p.C.Canary(t.Context(), p.Name, "m", "1", 20, "")
	if err == nil {
		t.Error("a version that does not load is tried")
	}
	ask("2")
	s := p.status("m")
	if s.Text("deployment.version") != "2" || s.Text("deployment.state") != "ready" || len(s["history"].([]any)) != 1 {
		t.Errorf("%v", s)
	}
	// Another one still works.
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 3, "to another")
	p.Must(err)
	ask("3")
}

// nothingLostOrMixed moves weights and versions under load: each request is
// answered, once, by one version, and is on record.
func nothingLostOrMixed(p *pond) {
	t := p.T
	p.threeVersions()
	const clients = 8
	var asked atomic.Int64
	ids := make([][]string, clients)
	stop := live.Load(t, clients, func(n, i int) bool {
		x := float64(n + clients*(i%100))
		a, err := p.Infer(p.C, "m", map[string]any{"route_key": strconv.Itoa(i % 50)}, live.Tensor("X", "FP32", []float64{x, 7}, 1, 2))
		if err != nil {
			t.Errorf("client %d: %v", n, err)
			return false
		}
		v, err := strconv.ParseFloat(a.Version, 64)
		if err != nil || a.Score() != 1000*v+x {
			t.Errorf("version %s answered %v to %v", a.Version, a.Score(), x)
			return false
		}
		ids[n] = append(ids[n], a.ID)
		asked.Add(1)
		return true
	})
	more := func() { // some requests under what was just done
		until := asked.Load() + 150
		p.Eventually("requests stand still", func() (bool, error) { return asked.Load() >= until || t.Failed(), nil })
	}
	ok := func(_ client.Object, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		more()
	}
	ctx := t.Context()
	more()
	for range 2 {
		ok(p.C.Shadow(ctx, p.Name, "m", "3"))
		ok(p.C.Canary(ctx, p.Name, "m", "2", 20, ""))
		ok(p.C.Canary(ctx, p.Name, "m", "", 80, ""))
		ok(p.C.Canary(ctx, p.Name, "m", "", 1, ""))
		ok(p.C.Promote(ctx, p.Name, "m", ""))
		ok(p.C.Canary(ctx, p.Name, "m", "3", 50, ""))
		ok(p.C.Rollback(ctx, p.Name, "m", 0, ""))
		p.Apply(strings.Replace(three, "model: m", "model: m, threads: 2", 1)) // loaded anew
		more()
		ok(p.C.Rollback(ctx, p.Name, "m", 0, ""))
		ok(p.C.Shadow(ctx, p.Name, "m", ""))
		p.Apply(strings.Replace(three, "champion", "3", 1))
		more()
		p.Apply(three)
		more()
	}
	stop()
	if t.Failed() {
		return
	}
	s := p.status("m")
	if s.Text("deployment.version") != "1" || s.Text("lost") != "0" {
		t.Errorf("%v", s.Text("deployment"))
	}
	// What was answered is in the log, once: each id takes a label.
	accepted := 0
	for _, some := range ids {
		for len(some) > 0 {
			n := min(len(some), 2000)
			labels := make([]client.Label, n)
			for i := range labels {
				v := 1.0
				labels[i] = client.Label{ID: some[i], Value: &v}
			}
			a, err := p.C.Label(ctx, p.Name, "m", labels)
			p.Must(err)
			accepted += a.Accepted
			some = some[n:]
		}
	}
	if int64(accepted) != asked.Load() {
		t.Errorf("%d of %d answers are in the log", accepted, asked.Load())
	}
	answered := int64(0)
	for _, v := range s["versions"].([]any) {
		n, err := strconv.ParseInt(client.Object(v.(map[string]any)).Text("requests"), 10, 64)
		p.Must(err)
		answered += n
	}
	if answered < asked.Load() { // shadows are counted, too
		t.Errorf("%d answers were counted, %d were given", answered, asked.Load())
	}
	t.Logf("%d requests", asked.Load())
}

// promoteAndRollBack lets people who want different things act at once: each act
// happened or was refused with a reason, and what is left is one of their worlds.
func promoteAndRollBack(p *pond) {
	t := p.T
	p.threeVersions()
	ctx := t.Context()
	var promoted, rolledBack atomic.Int64
	for round := range 6 {
		candidate := strconv.Itoa(2 + round%2)
		if p.status("m").Text("deployment.version") == candidate {
			candidate = "1"
		}
		_, err := p.C.Canary(ctx, p.Name, "m", candidate, 20, "")
		p.Must(err)
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				var err error
				switch i % 3 {
				case 0:
					if _, err = p.C.Promote(ctx, p.Name, "m", "better"); err == nil {
						promoted.Add(1)
					}
				case 1:
					if _, err = p.C.Rollback(ctx, p.Name, "m", 0, "worse"); err == nil {
						rolledBack.Add(1)
					}
				default:
					_, err = p.C.Canary(ctx, p.Name, "m", "", 10+round, "")
				}
				if e, is := errors.AsType[*client.Error](err); err != nil && (!is || e.Status != http.StatusConflict) {
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		s := p.status("m")
		runs := s["history"].([]any)
		for i, r := range runs {
			if state := client.Object(r.(map[string]any)).Text("state"); state == "running" && (i > 0 || s["rollout"] == nil) {
				t.Errorf("round %d: rollout %d runs: %v", round, i, r)
			}
		}
		var alias client.Object
		p.Must(p.Foreign(p.C, http.MethodGet, "/api/2.0/mlflow/registered-models/alias?name=m&alias=champion", nil, &alias))
		version := s.Text("deployment.version")
		if got := alias.Text("model_version.version"); got != version {
			t.Errorf("round %d: the champion is %s and version %s is stable", round, got, version)
		}
		a, err := p.Infer(p.C, "m", map[string]any{"route_key": "a"}, live.Tensor("X", "FP32", []float64{5, 0}, 1, 2))
		if err != nil || fmt.Sprint(a.Score()) != a.Version+"005" {
			t.Errorf("round %d: %+v %v", round, a, err)
		}
		if s["rollout"] == nil && a.Version != version {
			t.Errorf("round %d: version %s answers, %s is stable", round, a.Version, version)
		}
		if s["rollout"] != nil { // cancelled by moving the weight at the same time, and begun again
			_, err := p.C.Rollback(ctx, p.Name, "m", 0, "")
			p.Must(err)
		}
	}
	if promoted.Load()+rolledBack.Load() == 0 {
		t.Error("everybody was refused: the test tests nothing")
	}
	t.Logf("%d promotions, %d rollbacks", promoted.Load(), rolledBack.Load())
}

// noPermission refuses those who may not, and hides from those who are elsewhere.
func noPermission(p *pond) {
	t := p.T
	p.threeVersions()
	p.Apply("{api_version: falaj/v1, kind: Monitor, name: watch, project: PROJECT, spec: {deployment: m}}")
	other := p.ocean.pond(t)
	value := 1.0
	acts := map[string]func(c *client.Client) error{
		"canary":     func(c *client.Client) error { _, err := c.Canary(t.Context(), p.Name, "m", "2", 20, ""); return err },
		"promote":    func(c *client.Client) error { _, err := c.Promote(t.Context(), p.Name, "m", ""); return err },
		"rollback":   func(c *client.Client) error { _, err := c.Rollback(t.Context(), p.Name, "m", 0, ""); return err },
		"shadow":     func(c *client.Client) error { _, err := c.Shadow(t.Context(), p.Name, "m", "3"); return err },
		"automation": func(c *client.Client) error { return c.SetAutomation(t.Context(), p.Name, "m", true, "") },
		"all automation": func(c *client.Client) error {
			return c.SetAutomation(t.Context(), p.Name, "", true, "")
		},
		"label": func(c *client.Client) error {
			_, err := c.Label(t.Context(), p.Name, "m", []client.Label{{ID: "x", Value: &value}})
			return err
		},
		"monitor": func(c *client.Client) error {
			_, err := p.Try(c, "{api_version: falaj/v1, kind: Monitor, name: watch, project: PROJECT, spec: {deployment: m, repeat: 3}}")
			return err
		},
		"delete monitor": func(c *client.Client) error {
			return c.Do(t.Context(), http.MethodDelete, p.Path("monitors/watch?yes=true"), nil, nil)
		},
		"secret": func(c *client.Client) error {
			return c.Do(t.Context(), http.MethodPost, p.Path("webhook-secrets"), map[string]any{"name": "s"}, nil)
		},
		"verify": func(c *client.Client) error {
			_, err := c.VerifyAnswers(t.Context(), p.Name, "m", 10, 1)
			return err
		},
		"classify": func(c *client.Client) error {
			return c.Do(t.Context(), http.MethodPost, p.Path("monitors/watch/classify"), map[string]any{"window": "1-0"}, nil)
		},
		"ask the past": func(c *client.Client) error {
			_, err := p.Infer(c, "m", map[string]any{"as_of": "2013-01-01T00:00:00Z"}, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2))
			return err
		},
		"ask": func(c *client.Client) error {
			_, err := p.Infer(c, "m", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2))
			return err
		},
	}
	reads := map[string]string{
		"status": "deployments/m/status", "rollout": "deployments/m/rollout", "labels": "deployments/m/labels", "monitors": "monitors",
		"monitor": "monitors/watch", "windows": "monitors/watch/windows", "baseline": "monitors/watch/baseline", "alerts": "alerts",
	}
	may := map[string][]string{ // beside reading
		"viewer":   nil,
		"engineer": {"label", "monitor", "secret", "ask the past", "ask"},
		"deployer": {"label", "canary", "shadow", "ask"},
	}
	skip := map[string][]string{ // what they may, and others here would miss
		"engineer": {"delete monitor", "verify", "classify"},
		"deployer": {"delete monitor", "promote", "rollback", "automation", "all automation", "monitor", "secret"},
	}
	for role, allowed := range may {
		c := p.as(role, role)
		for what, act := range acts {
			if slices.Contains(skip[role], what) {
				continue
			}
			err := act(c)
			if slices.Contains(allowed, what) {
				if err != nil {
					t.Errorf("%s: %s: %v", role, what, err)
				}
				continue
			}
			p.refused(role+": "+what, err, http.StatusForbidden)
		}
		for what, path := range reads {
			if err := c.Do(t.Context(), http.MethodGet, p.Path(path), nil, nil); err != nil {
				if e, is := errors.AsType[*client.Error](err); !is || e.Status != http.StatusNotFound || what != "rollout" && what != "baseline" {
					t.Errorf("%s: %s: %v", role, what, err)
				}
			}
		}
	}
	stranger := other.as("stranger", "admin")
	for what, act := range acts {
		status := http.StatusNotFound
		if strings.HasPrefix(what, "ask") { // by a header; what it says is the same for projects that are not there
			status = http.StatusForbidden
		}
		p.refused("stranger: "+what, act(stranger), status)
	}
	for what, path := range reads {
		p.refused("stranger: "+what, stranger.Do(t.Context(), http.MethodGet, p.Path(path), nil, nil), http.StatusNotFound)
	}
}

// badCandidates are refused, or rolled back by themselves.
func badCandidates(p *pond) {
	t := p.T
	p.Register("m", linear(0, 1, 0), failing(), linear(0, 1, 0, 0), reader())
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m, rollout: {weight: 50}}}`)
	ctx := t.Context()
	for version, says := range map[string]string{"3": `no input "X" (FP32 [-1 2])`, "4": "2 inputs"} {
		_, err := p.C.Canary(ctx, p.Name, "m", version, 0, "")
		p.refused("a version of other inputs", err, http.StatusConflict, says, "version 1")
	}
	_, err := p.C.Canary(ctx, p.Name, "m", "2", 0, "")
	p.Must(err)
	failed := 0
	for i := range 600 {
		if _, err := p.Infer(p.C, "m", map[string]any{"route_key": strconv.Itoa(i)}, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2)); err != nil {
			if failed == 0 {
				t.Log(err)
			}
			failed++
		}
	}
	var s client.Object
	p.Eventually("a version that fails is not rolled back", func() (bool, error) {
		s = p.status("m")
		progress, err := p.C.Rollout(ctx, p.Name, "m")
		return s["rollout"] == nil, fmt.Errorf("%d failed: %v %w", failed, progress, err)
	})
	run := client.Object(s["history"].([]any)[0].(map[string]any))
	if run.Text("state") != "rolled_back" || !strings.Contains(run.Text("reason"), "version 2 fails more often") {
		t.Errorf("%v", run)
	}
	if a, err := p.Infer(p.C, "m", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2)); err != nil || a.Version != "1" {
		t.Errorf("%+v %v", a, err)
	}
}
