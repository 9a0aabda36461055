package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestSoak replays flights at a deployment that tries one version after the other, while
// the server and its model processes stand still for moments or die, and labels come late,
// twice, before their predictions and in any order. Each rollout is decided as its version
// deserves, and whatever is waited for meanwhile has a reason that the status says. It
// ends after a few rollouts; FALAJ_SOAK=2h makes it last two hours.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server under disturbances")
	}
	const rollouts = 8 // at least
	var length time.Duration
	if text := os.Getenv("FALAJ_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("FALAJ_SOAK: %v", err)
		}
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d rollouts, for %s at least", *seed, rollouts, length)
	o := &ocean{Server: live.New(t, ""), next: &sync.Mutex{}}
	o.Up(t)
	s := &soak{pond: o.pond(t), at: begin, ends: map[string]int{}, rnd: rand.New(rand.NewPCG(*seed, 2))}
	// The score of a good version is near the truth, 0 or 1; a bad one is off by one.
	s.Register("m", linear(0, 1, 0), linear(0, 1, 0), linear(1, 1, 0), linear(0, 1, 0))
	s.Apply(`
{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m, rollout: {weight: 50, metric: squared_error, margin: 0.4, min_labels: 50, max_duration: 60d}}}
---
{api_version: falaj/v1, kind: Monitor, name: m, project: PROJECT, spec: {deployment: m, window: {every: 7d}, lateness: 6h}}`)
	if _, err := s.Infer(s.C, "m", nil, live.Tensor("X", "FP32", []float64{0, 0}, 1, 2)); err != nil { // one that is live
		t.Fatal(err)
	}

	ctx, calm := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	beside.Go(func() { s.disturb(ctx, rand.New(rand.NewPCG(*seed, 3))) })
	defer func() {
		calm()
		beside.Wait()
	}()
	for until := time.Now().Add(length); (s.decided() < rollouts || time.Now().Before(until)) && !t.Failed(); {
		s.try(ctx)
	}
	calm()
	beside.Wait()
	if t.Failed() {
		return
	}
	s.settled()
	t.Logf("%d flights until %s, rollouts: %v; %d pauses, %d kills", s.flights, s.at.Format(time.DateOnly), s.ends, s.pauses, s.kills)
}

// soak is a replay with what is known of it.
type soak struct {
	*pond

	at       time.Time // the replay's hour
	rnd      *rand.Rand
	flights  int
	answered []flight // the newest
	due      []flight
	ends     map[string]int // by state

	mu            sync.Mutex
	pauses, kills int
}

// flight is a request with its label, at the time when it left or the label is known.
type flight struct {
	at    time.Time
	id    string
	truth float64
}

func (f flight) label() client.Label { return client.Label{ID: f.id, Value: &f.truth} }

// disturb stops and kills processes until ctx ends.
func (s *soak) disturb(ctx context.Context, rnd *rand.Rand) {
	lastKill, kills := time.Time{}, 0
	wait := func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	moment := func() time.Duration { return time.Duration(100+rnd.IntN(1400)) * time.Millisecond }
	for wait(moment()) {
		pid := s.PID()
		if models := s.models(); len(models) > 0 && rnd.IntN(2) == 0 {
			pid = models[rnd.IntN(len(models))]
			// A version whose process dies three times in a while is set aside, which is
			// another test's.
			if rnd.IntN(4) == 0 && (kills < 2 || time.Since(lastKill) > 15*time.Minute) {
				if syscall.Kill(pid, syscall.SIGKILL) == nil {
					lastKill = time.Now()
					kills++
					s.mu.Lock()
					s.kills++
					s.mu.Unlock()
				}
				continue
			}
		}
		if syscall.Kill(pid, syscall.SIGSTOP) != nil {
			continue // it has just ended
		}
		wait(moment())
		_ = syscall.Kill(pid, syscall.SIGCONT)
		s.mu.Lock()
		s.pauses++
		s.mu.Unlock()
	}
}

// models are the server's descendants that run models.
func (s *soak) models() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	parents, runs := map[int]int{}, map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		stat, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		runs[pid] = slices.Contains(strings.Split(string(line), "\x00"), "model")
	}
	server := s.PID()
	for _, pid := range slices.Sorted(maps.Keys(runs)) {
		if !runs[pid] {
			continue
		}
		for up := pid; up > 1; up = parents[up] {
			if up == server {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// try tries the next version and replays until that has ended.
func (s *soak) try(ctx context.Context) {
	t := s.T
	st := s.steady()
	stable := st.Text("deployment.version")
	versions := slices.DeleteFunc([]string{"1", "2", "3", "4"}, func(v string) bool { return v == stable })
	version := versions[s.rnd.IntN(len(versions))]
	killed := s.rnd.IntN(4) == 0
	done := make(chan struct{})
	if killed { // while it loads, or just after
		before := s.models()
		go func() {
			defer close(done)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); <-tick.C {
				for _, pid := range s.models() {
					if !slices.Contains(before, pid) {
						if syscall.Kill(pid, syscall.SIGKILL) == nil {
							s.mu.Lock()
							s.kills++
							s.mu.Unlock()
						}
						return
					}
				}
			}
		}()
	} else {
		close(done)
	}
	_, err := s.C.Canary(ctx, s.Name, "m", version, 0, "the next one")
	<-done
	refused, answered := errors.AsType[*client.Error](err)
	killed = killed || answered && strings.Contains(refused.Detail, "killed by SIGKILL") // by disturb
	if err != nil && (!answered || !killed && refused.Status != http.StatusServiceUnavailable && refused.Status != http.StatusGatewayTimeout) {
		t.Errorf("version %s is not tried: %v", version, err)
		return
	}
	if err != nil && s.steady().Text("rollout.id") == "" { // another one will be
		s.hour()
		return
	}
	began, told := time.Now(), time.Now()
	for !t.Failed() {
		s.hour()
		st := s.steady()
		running := st.Text("rollout.id")
		if running == "" {
			break
		}
		why := s.why(st, running)
		if why != "" {
			told = time.Now()
		}
		if silent := time.Since(told); silent > live.Wait {
			t.Errorf("rollout %s waits for %s and nothing says why: %v", running, silent, st)
		}
		if time.Since(began) > 2*live.Wait {
			r, err := s.C.Rollout(t.Context(), s.Name, "m")
			t.Errorf("rollout %s of version %s has not ended: %s\nstatus %v\nrollout %v %v", running, version, why, st, r, err)
		}
	}
	s.ended(version, stable)
}

// steady is the status, from a server that may stand still for a moment.
func (s *soak) steady() (st client.Object) {
	s.Eventually("no status", func() (bool, error) {
		var err error
		st, err = s.C.DeploymentStatus(s.T.Context(), s.Name, "m")
		return err == nil, err
	})
	return st
}

// why is what `falaj deploy status` says that the rollout waits for.
func (s *soak) why(st client.Object, running string) string {
	if waiting, _ := st["waiting"].([]any); len(waiting) > 0 {
		return fmt.Sprint(waiting...)
	}
	r, err := s.C.Rollout(s.T.Context(), s.Name, "m")
	if err != nil || r.Text("rollout") != running {
		return ""
	}
	return r.Text("problem") + r.Text("decision.reason")
}

// hour has the flights of an hour leave, in any order, and sends the labels that are due.
func (s *soak) hour() {
	const flights, clients = 16, 4
	leave, xs := make([]flight, flights), make([]float64, flights)
	early := []client.Label{}
	for i := range leave {
		s.flights++
		f := flight{s.at.Add(time.Duration(s.rnd.IntN(60)) * time.Minute), fmt.Sprintf("f%06d", s.flights), float64(s.rnd.IntN(2))}
		leave[i], xs[i] = f, f.truth+0.3*s.rnd.NormFloat64()
		switch n := s.rnd.IntN(100); {
		case n < 5: // its label comes before it
			early = append(early, f.label())
		case n < 95:
			s.due = append(s.due, flight{s.at.Add(time.Duration(s.rnd.IntN(48)) * time.Hour), f.id, f.truth})
		} // of the others there is none
	}
	s.label(early)
	var all sync.WaitGroup
	var mu sync.Mutex
	for c := range clients {
		all.Go(func() {
			for i := c; i < flights; i += clients {
				body := map[string]any{
					"id": leave[i].id, "inputs": []any{live.Tensor("X", "FP32", []float64{xs[i], 0}, 1, 2)},
					"parameters": map[string]any{"as_of": leave[i].at.Format(time.RFC3339), "route_key": leave[i].id},
				}
				var a live.Answer
				// Who gets none gives up: a version that has no process for a moment answers 503.
				if err := s.Foreign(s.C, http.MethodPost, "/v2/models/m/infer", body, &a); err == nil {
					mu.Lock()
					s.answered = append(s.answered, leave[i])
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	s.answered = s.answered[max(0, len(s.answered)-5000):]
	s.at = s.at.Add(time.Hour)
	now := []client.Label{}
	s.due = slices.DeleteFunc(s.due, func(f flight) bool {
		if f.at.After(s.at) {
			return false
		}
		now = append(now, f.label())
		return true
	})
	for range len(now) / 8 { // some come again
		now = append(now, now[s.rnd.IntN(len(now))])
	}
	s.rnd.Shuffle(len(now), func(i, j int) { now[i], now[j] = now[j], now[i] })
	s.label(now)
}

// label sends labels until the server has taken them.
func (s *soak) label(some []client.Label) {
	if len(some) == 0 {
		return
	}
	s.Eventually("labels are not taken", func() (bool, error) {
		a, err := s.C.Label(s.T.Context(), s.Name, "m", some)
		if err == nil && len(a.Results) != len(some) {
			err = fmt.Errorf("%d labels, %+v", len(some), a)
		}
		return err == nil, err
	})
}

// ended checks that a rollout ended as its version deserves.
func (s *soak) ended(version, stable string) {
	st := s.steady()
	history, _ := st["history"].([]any)
	if len(history) == 0 {
		return // the first one was never begun
	}
	run := client.Object(history[0].(map[string]any))
	if run.Text("candidate") != version || run.Text("stable") != stable {
		return
	}
	state, reason := run.Text("state"), run.Text("reason")
	s.ends[state]++
	bad := func(v string) bool { return v == "3" }
	want := "promoted"
	if bad(version) && !bad(stable) {
		want = "rolled_back"
	}
	// Its process may have died three times, or answered much less often than the other's.
	if state != want && !strings.Contains(reason, "set aside") && !strings.Contains(reason, "fails more often") {
		s.T.Errorf("version %s beside %s was %s: %s", version, stable, state, reason)
	}
}

// decided counts the rollouts that ended.
func (s *soak) decided() (n int) {
	for _, some := range s.ends {
		n += some
	}
	return n
}

// settled checks what must be so once nothing is disturbed any more.
func (s *soak) settled() {
	t := s.T
	s.Eventually("the monitor does not read the replay to its end", func() (bool, error) {
		m, err := s.C.Monitor(t.Context(), s.Name, "m")
		at, _ := time.Parse(time.RFC3339, m.Text("replayed"))
		return err == nil && !at.Before(s.at.Add(-2*time.Hour)), fmt.Errorf("%s of %s, %s %w", m.Text("replayed"), s.at, m.Text("problem"), err)
	})
	s.Eventually("an act does not end", func() (bool, error) {
		acts := s.steady().Text("acts")
		return !strings.Contains(acts, "claimed"), errors.New(acts)
	})
	var labels []client.Label
	for _, f := range s.answered {
		labels = append(labels, f.label())
	}
	a, err := s.C.Label(t.Context(), s.Name, "m", labels)
	s.Must(err)
	for i, r := range a.Results {
		old := s.answered[i].at.Before(s.at.AddDate(0, 0, -29)) // a label comes too late after 30 days
		if r.Status != "accepted" && r.Status != "duplicate" && (r.Status != "too_late" || !old) {
			t.Fatalf("the label of %s, which was answered, is %s", r.ID, r.Status)
		}
	}
	if out, code := s.Command(t.Context(), "deploy", "status", "m", "-p", s.Name); code != 0 || !strings.Contains(out, "deployment m of model m: ready") {
		t.Error(out)
	}
}
