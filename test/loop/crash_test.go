package loop

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var (
	kills = flag.Int("kills", 10, "how often the server is killed while versions are tried")
	seed  = flag.Uint64("seed", 0, "seed of the moments; 0 takes one from the clock")
)

// sent is a request as the client knows it.
type sent struct {
	id       string
	x, truth float64
	version  string // "": no answer came; it may have been made or not
	labelled bool   // the label was acknowledged
}

// ledger is what was sent.
type ledger struct {
	sync.Mutex
	all      []*sent
	answered int
}

func (l *ledger) add(s *sent) {
	l.Lock()
	defer l.Unlock()
	l.all = append(l.all, s)
}

// TestKilled kills the server in the middle of rollouts: no answer and no label
// that was acknowledged is lost, the judge's sums are those of a recount, and
// nothing automatic is done twice.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a real server many times")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d kills", *seed, *kills)
	o := &ocean{Server: live.New(t, ""), next: &sync.Mutex{}}
	o.Up(t)
	p := o.pond(t)
	p.Register("m", linear(0, 1, 0), linear(0, 1, 0), linear(0, 1, 0)) // as good as each other
	const manifest = "{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m, rollout: {weight: 50, margin: 0.4, min_labels: "
	p.Apply(manifest + "1000000}}}")
	_, err := p.C.Canary(t.Context(), p.Name, "m", "2", 0, "a long one")
	p.Must(err)

	// 1. A long rollout, killed in the middle.
	moments := rand.New(rand.NewPCG(*seed, 0))
	var l ledger
	half := (*kills + 1) / 2
	for n := range half {
		p.traffic(&l, n, time.Duration(100+moments.IntN(600))*time.Millisecond, nil, nil)
	}
	p.recount(&l)

	// 2. Short ones, which are promoted by themselves.
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 0, "enough")
	p.Must(err)
	p.Apply(manifest + "50}}}")
	for n := half; n < *kills; n++ {
		var enough func() bool
		if n == *kills-1 {
			enough = p.promoted
		}
		p.traffic(&l, n, time.Duration(300+moments.IntN(1500))*time.Millisecond, func(c *client.Client) {
			s, err := c.DeploymentStatus(t.Context(), p.Name, "m")
			if err != nil || s["rollout"] != nil {
				return
			}
			version := "2"
			if s.Text("deployment.version") == "2" {
				version = "3"
			}
			_, _ = c.Canary(t.Context(), p.Name, "m", version, 0, "a short one")
		}, enough)
	}
	p.once()
	p.known(&l)
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, args := range [][]string{{"audit", "export", "-f", file}, {"audit", "verify", file, "--checkpoints", filepath.Join(p.Data, "checkpoints")}} {
		if out, code := p.Command(t.Context(), args...); code != 0 {
			t.Error(out)
		}
	}
}

// fewest is how many requests are answered at least before the server is killed.
const fewest = 20

// promoted says whether a rollout was.
func (p *pond) promoted() bool {
	runs, _ := p.status("m")["history"].([]any)
	return slices.ContainsFunc(runs, func(r any) bool { return client.Object(r.(map[string]any)).Text("state") == "promoted" })
}

// traffic asks and labels until the server is killed, and starts it again. A busy machine
// takes longer than until to answer the fewest, and until it is enough.
func (p *pond) traffic(l *ledger, epoch int, until time.Duration, beside func(c *client.Client), enough func() bool) {
	p.T.Helper()
	ctx, stop := context.WithCancel(p.T.Context())
	defer stop()
	c, before := p.Client(p.T), l.answered
	var all sync.WaitGroup
	tick := func(every time.Duration, do func(i int)) {
		all.Go(func() {
			ticker := time.NewTicker(every)
			defer ticker.Stop()
			for i := 0; ; i++ {
				do(i)
				select {
				case <-ticker.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	for w := range 3 {
		tick(2*time.Millisecond, func(i int) {
			s := &sent{id: fmt.Sprintf("r%d-%d-%d", epoch, w, i), x: float64(i%97) / 100, truth: float64(i % 2)}
			l.add(s)
			var a live.Answer
			err := p.Foreign(c, http.MethodPost, "/v2/models/m/infer", map[string]any{"id": s.id, "inputs": []any{live.Tensor("X", "FP32", []float64{s.x, 0}, 1, 2)}}, &a)
			if err != nil {
				return
			}
			if a.ID != s.id || math.Abs(a.Score()-s.x) > 1e-6 {
				p.T.Errorf("%s: %+v", s.id, a)
			}
			l.Lock()
			s.version = a.Version
			l.answered++
			l.Unlock()
		})
	}
	tick(20*time.Millisecond, func(int) { // labels of what was answered a while ago, sometimes again
		l.Lock()
		var some []*sent
		for _, s := range l.all[max(0, len(l.all)-200):] {
			if s.version != "" && len(s.id)%2 == 0 {
				some = append(some, s)
			}
		}
		l.Unlock()
		p.label(c, l, some)
	})
	if beside != nil {
		tick(30*time.Millisecond, func(int) { beside(c) })
	}
	timer := time.NewTimer(until)
	defer timer.Stop()
	<-timer.C
	p.Eventually("few requests are answered", func() (bool, error) {
		l.Lock()
		some := l.answered >= before+fewest
		l.Unlock()
		return some && (enough == nil || enough()), nil
	})
	p.Must(p.Kill())
	stop()
	all.Wait()
	p.Again()
	p.Loaded()
}

// label sends labels and says which of them are of no prediction that is known.
func (p *pond) label(c *client.Client, l *ledger, some []*sent) (unknown map[string]bool) {
	unknown = map[string]bool{}
	for len(some) > 0 {
		n := min(len(some), 5000)
		labels := make([]client.Label, n)
		for i, s := range some[:n] {
			labels[i] = client.Label{ID: s.id, Value: &s.truth}
		}
		a, err := c.Label(p.T.Context(), p.Name, "m", labels)
		if err != nil {
			return nil
		}
		l.Lock()
		for i, r := range a.Results {
			s := some[i]
			switch {
			case r.Status == "unknown":
				unknown[s.id] = true
			case r.Status != "accepted" && r.Status != "duplicate", s.labelled && r.Status != "duplicate":
				p.T.Errorf("label of %s: %s; it was acknowledged before: %t", s.id, r.Status, s.labelled)
			}
			s.labelled = true
		}
		l.Unlock()
		some = some[n:]
	}
	return unknown
}

// known labels everything that was sent: what was answered is known, and what was
// labelled is labelled. It gives what was never answered.
func (p *pond) known(l *ledger) map[string]bool {
	p.T.Helper()
	unknown := p.label(p.C, l, l.all)
	if unknown == nil {
		p.T.Fatal("the labels are refused")
	}
	for _, s := range l.all {
		if s.version != "" && unknown[s.id] {
			p.T.Errorf("the answer to %s is lost", s.id)
		}
	}
	p.T.Logf("%d requests, %d answered, %d never made", len(l.all), l.answered, len(unknown))
	return unknown
}

// recount compares the judge's sums with those of what was sent.
func (p *pond) recount(l *ledger) {
	p.T.Helper()
	unknown := p.known(l)
	requests, loss, least := 0, 0.0, map[string]int{}
	for _, s := range l.all {
		if unknown[s.id] {
			continue
		}
		requests++
		score := float64(float32(s.x))
		loss += (score - s.truth) * (score - s.truth)
		least[s.version]++
	}
	var r client.Object
	p.Eventually("the judge does not see all", func() (bool, error) {
		var err error
		if r, err = p.C.Rollout(p.T.Context(), p.Name, "m"); err != nil {
			return false, err
		}
		return r.Text("labels") == strconv.Itoa(requests), fmt.Errorf("%s labels and not %d", r.Text("labels"), requests)
	})
	number := func(path string) float64 {
		x, err := strconv.ParseFloat(r.Text(path), 64)
		if err != nil {
			p.T.Fatalf("%s: %v: %v", path, err, r)
		}
		return x
	}
	if got := number("stable.requests") + number("candidate.requests"); got != float64(requests) {
		p.T.Errorf("%v requests were judged, %d were made", got, requests)
	}
	sum := 0.0
	for arm, version := range map[string]string{"stable": "1", "candidate": "2"} {
		n := number(arm + ".loss.n")
		sum += n * number(arm+".loss.mean")
		if n < float64(least[version]) || n != number(arm+".requests") {
			p.T.Errorf("version %s has %v labels and %v requests, and %d answers came of it", version, n, number(arm+".requests"), least[version])
		}
	}
	if math.Abs(sum-loss) > 1e-6*float64(requests) {
		p.T.Errorf("the losses sum to %v, and to %v when they are counted again", sum, loss)
	}
}

// once checks that each rollout was decided and acted upon once.
func (p *pond) once() {
	p.T.Helper()
	concluded, acts := map[string]int{}, map[string]int{}
	p.Eventually("what was decided is not done", func() (bool, error) { // or the audit log lags behind
		clear(concluded)
		clear(acts)
		err := p.C.List(p.T.Context(), "/api/v1/audit", url.Values{"project": {p.Name}, "page_size": {"200"}}, func(e client.Object) error {
			switch act, id := e.Text("detail.act"), e.Text("detail.id"); {
			case e.Text("action") == "rollout.concluded":
				concluded[e.Text("detail.rollout")]++
			case e.Text("action") == "deployment.rollout" && id != "":
				acts[id+" "+e.Text("detail.outcome")]++
			case e.Text("action") == "deployment.rollout" && act == "promoted":
				acts[e.Text("detail.rollout")+" promoted"]++
			}
			return nil
		})
		for rollout := range concluded {
			if acts[rollout+" promoted"] == 0 {
				return false, fmt.Errorf("%s is not promoted: %v", rollout, acts)
			}
		}
		return len(concluded) > 0 && !strings.Contains(p.status("m").Text("acts"), "claimed"), err
	})
	promoted := 0
	for what, n := range acts {
		if n != 1 {
			p.T.Errorf("%s: %d times", what, n)
		}
		if strings.HasSuffix(what, " promoted") {
			promoted++
		}
		if strings.HasSuffix(what, " failed") {
			p.T.Errorf("%s", what)
		}
	}
	for rollout, n := range concluded {
		if n != 1 {
			p.T.Errorf("rollout %s was concluded %d times", rollout, n)
		}
	}
	if promoted != len(concluded) {
		p.T.Errorf("%d promotions of %d decisions", promoted, len(concluded))
	}
	p.T.Logf("%d decisions, %d promotions", len(concluded), promoted)
}

// TestKilledWhileRetraining kills the server between drift and canary: each
// finding begins one job, and each job's version is tried once.
func TestKilledWhileRetraining(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a real server several times")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	o := &ocean{Server: live.New(t, ""), next: &sync.Mutex{}}
	o.Up(t)
	p := o.pond(t)
	p.trained(1)
	p.Apply(retraining)
	r := rand.New(rand.NewPCG(13, 14))
	moments := rand.New(rand.NewPCG(*seed, 1))
	p.rows("m", 0, 250, normal(r, 0))
	p.windows("m", 1)
	for n := range 4 {
		p.rows("m", 300*(n+1), 250, normal(r, float64(5*(n+1))))
		timer := time.NewTimer(time.Duration(moments.IntN(4500)) * time.Millisecond)
		<-timer.C
		p.Must(p.Kill())
		p.Again()
		p.Loaded()
		p.Eventually(fmt.Sprintf("after kill %d the chain does not go on", n+1), func() (bool, error) {
			s, err := p.C.DeploymentStatus(t.Context(), p.Name, "m")
			return err == nil && s["rollout"] != nil && !strings.Contains(s.Text("acts"), "claimed"), fmt.Errorf("%w %v", err, s.Text("acts"))
		})
		retrained, tried := p.acts("retrain"), p.acts("canary")
		if len(retrained) != n+1 || len(tried) != n+1 || len(p.jobs()) != n+2 {
			t.Fatalf("after kill %d: %d retrainings, %d canaries, %d jobs: %v", n+1, len(retrained), len(tried), len(p.jobs()), p.status("m"))
		}
		for _, a := range append(retrained, tried...) {
			if a.Text("outcome") != "done" {
				t.Errorf("after kill %d: %v", n+1, a)
			}
		}
		_, err := p.C.Rollback(t.Context(), p.Name, "m", 0, "the next one")
		p.Must(err)
	}
}

// TestDamagedWhileAway changes what is stored of versions while the server is
// away: a canary that does not load leaves its share to the stable version, and a
// stable version that does not load can be rolled back.
func TestDamagedWhileAway(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	o := &ocean{Server: live.New(t, ""), next: &sync.Mutex{}}
	o.Up(t)
	p := o.pond(t)
	p.threeVersions()
	ask := func(want string) {
		t.Helper()
		for i := range 20 {
			a, err := p.Infer(p.C, "m", map[string]any{"route_key": strconv.Itoa(i)}, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2))
			if err != nil || a.Version != want || fmt.Sprint(a.Score()) != want+"001" {
				t.Errorf("%+v %v, want version %s", a, err, want)
				return
			}
		}
	}
	loaded := func() client.Object {
		t.Helper()
		var s client.Object
		p.Eventually("it is still loading", func() (bool, error) {
			s = p.status("m")
			return !strings.Contains(s.Text("deployment.targets"), "loading"), fmt.Errorf("%v", s)
		})
		return s
	}
	_, err := p.C.Canary(t.Context(), p.Name, "m", "2", 60, "")
	p.Must(err)
	p.Must(p.Kill())
	p.damage("v2")
	p.Again()
	if s := loaded(); s.Text("deployment.state") != "ready" || !strings.Contains(s.Text("deployment.targets"), "failed") {
		t.Errorf("%v", s)
	}
	ask("1")
	if _, err := p.C.Promote(t.Context(), p.Name, "m", "blindly"); err == nil {
		t.Error("a version that does not load was promoted")
	} else {
		p.refused("promotion", err, http.StatusConflict, "version 2")
	}
	ask("1")
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 0, "")
	p.Must(err)
	_, err = p.C.Canary(t.Context(), p.Name, "m", "3", 60, "")
	p.Must(err)
	_, err = p.C.Promote(t.Context(), p.Name, "m", "")
	p.Must(err)
	p.Must(p.Kill())
	p.damage("v3")
	p.Again()
	if s := loaded(); s.Text("deployment.state") != "failed" || !strings.Contains(s.Text("deployment.reason"), "were modified") {
		t.Errorf("%v", s)
	}
	_, err = p.Infer(p.C, "m", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2))
	p.refused("a version that does not load", err, http.StatusServiceUnavailable, "could not be loaded")
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 0, "it is damaged")
	p.Must(err)
	ask("1")
}
