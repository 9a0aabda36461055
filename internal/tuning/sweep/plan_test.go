package sweep

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

func unit() Spec {
	return Spec{
		Job:        training.Spec{Command: []string{"train", "--lr=${params.lr}"}},
		Parameters: []space.Parameter{{Name: "lr", Type: space.Float, Low: 0, High: 1}},
		Objectives: []Objective{{Metric: "loss"}},
		Budget:     stop.Budget{Trials: 10},
	}
}

var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// trials are written as letters: r runs, c is complete, s stopped, f failed; a capital
// has a job that has not ended.
func written(text string) (trials []trial.Trial, open map[int]bool) {
	open = map[int]bool{}
	states := map[string]trial.State{"r": trial.Running, "c": trial.Complete, "s": trial.Stopped, "f": trial.Failed}
	for i, r := range text {
		t := trial.Trial{Number: i, State: states[strings.ToLower(string(r))], Params: space.Params{"lr": float64(i) / 100}}
		if t.State == trial.Complete {
			t.Values = []float64{float64(i)}
		}
		trials = append(trials, t)
		if r < 'a' {
			open[i] = true
		}
	}
	return trials, open
}

// theirs are the first n trials.
func theirs(n int) map[int]bool {
	all := map[int]bool{}
	for i := range n {
		all[i] = true
	}
	return all
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(l *look)
		trials string
		end    []int
		begin  int
		state  State
		reason string
	}{
		{name: "the first", begin: 1, state: Running},
		{name: "at once", change: func(l *look) { l.spec.Parallel = 4 }, trials: "cR", begin: 3, state: Running},
		{name: "as many as there may be", change: func(l *look) { l.spec.Parallel = 4 }, trials: "cccccccccR"[1:], begin: 1, state: Running},
		{name: "all run", change: func(l *look) { l.spec.Parallel = 4 }, trials: "ccccccRRRR", state: Running, reason: "10 trials were started, of 10; 4 of its jobs are still running"},
		{name: "all have ended", trials: "cccccccccc", state: Complete, reason: "10 trials were started, of 10"},
		{name: "a stopped one whose job has not ended holds no place", trials: "ccS", begin: 1, state: Running},
		{name: "and is waited for", trials: "cccccccccS", state: Running, reason: "10 trials were started, of 10; 1 of its jobs are still running"},
		{name: "one of a client's holds no place", trials: "cr", begin: 1, state: Running},
		{name: "clients' use no budget", change: func(l *look) { l.theirs = theirs(9) }, trials: "cccccccccc", begin: 1, state: Running},
		{name: "clients' failures are not ours", change: func(l *look) { l.theirs = theirs(6); l.spec.Budget.Failed = 2 }, trials: "ffffffR", state: Running},
		{name: "all of ours fail", change: func(l *look) { l.theirs = theirs(2) }, trials: "sffffff", state: Failed, reason: "the first 5 trials failed"},
		{name: "the study is full", change: func(l *look) {
			l.trials = make([]trial.Trial, stop.MaxTrials)
			l.theirs = theirs(stop.MaxTrials)
		}, state: Failed, reason: "its study has 100000 trials, the limit; no trial is complete"},
		{name: "stopped", change: func(l *look) { l.stop, l.ends = "stopped by user alice", Stopped }, trials: "cRcR", end: []int{1, 3}, state: Running, reason: "stopped by user alice; 2 of its jobs are still running"},
		{name: "stopped, and all has ended", change: func(l *look) { l.stop, l.ends = "stopped by user alice", Stopped }, trials: "cscs", state: Stopped, reason: "stopped by user alice"},
		{name: "all fail", trials: "fffff", state: Failed, reason: "the first 5 trials failed"},
		{name: "all fail, and one is under way", change: func(l *look) { l.spec.Parallel = 2 }, trials: "fffffR", state: Running, reason: "the first 5 trials failed; 1 of its jobs are still running"},
		{name: "all fail beside a client's that was left", trials: "rfffff", state: Failed, reason: "the first 5 trials failed"},
		{name: "many at once", change: func(l *look) { l.spec.Parallel = 50; l.spec.Budget.Trials = 100 }, begin: 16, state: Running},
		{name: "forgiven", change: func(l *look) { l.forgiven = 5 }, trials: "fffff", begin: 1, state: Running},
		{name: "forgiven once", change: func(l *look) { l.forgiven = 3; l.spec.Budget.Trials = 20 }, trials: "ffffffff", state: Failed, reason: "the first 5 trials failed"},
		{name: "some fail", trials: "fffcffff", begin: 1, state: Running},
		{name: "too many fail", change: func(l *look) { l.spec.Budget.Failed = 2 }, trials: "cffR", state: Running, reason: "2 trials failed, the limit is 2; 1 of its jobs are still running"},
		{name: "too many fail, and none is complete", change: func(l *look) { l.spec.Budget.Failed = 2 }, trials: "ff", state: Failed, reason: "2 trials failed, the limit is 2; no trial is complete"},
		{name: "none is complete, and one may be", change: func(l *look) { l.spec.Budget.Failed = 2 }, trials: "ffR", state: Running, reason: "2 trials failed, the limit is 2; 1 of its jobs are still running"},
		{name: "all of the budget, and none is complete", trials: "fsfsfsfsfs", state: Failed, reason: "10 trials were started, of 10; no trial is complete"},
		{name: "the time is over, and none is complete", change: func(l *look) { l.spec.Budget.Time = compute.Duration(time.Hour); l.spent.Time = time.Hour }, state: Failed, reason: "1h0m0s passed, of 1h0m0s; no trial is complete"},
		{name: "the time is over", change: func(l *look) { l.spec.Budget.Time = compute.Duration(time.Hour); l.spent.Time = time.Hour }, trials: "c", state: Complete, reason: "1h0m0s passed, of 1h0m0s"},
		{name: "the money is spent", change: func(l *look) { l.spec.Budget.Money = 5; l.spent.Money = 5.5 }, trials: "cR", state: Running, reason: "5.50 were spent, of 5.00; 1 of its jobs are still running"},
		{name: "a grid ends", change: func(l *look) {
			l.spec.Search = search.Config{Algorithm: search.Grid, GridPoints: 2}
			l.spec.Budget = stop.Budget{}
			l.trials[0].Params, l.trials[1].Params = space.Params{"lr": 0.0}, space.Params{"lr": 1.0}
		}, trials: "cc", state: Complete, reason: "every point of the grid has been evaluated"},
		{name: "a rule", change: func(l *look) {
			l.spec.Stop = stop.Rule{Kind: stop.ASHA, Direction: trial.Minimize}
			for i := range l.trials {
				l.trials[i].Reports = []trial.Report{{Step: 1, Value: float64(i)}}
			}
			l.fresh = map[int][]int64{3: {1}}
		}, trials: "cccR", end: []int{3}, begin: 1, state: Running},
		{name: "a rule, of many reports at once", change: func(l *look) {
			l.spec.Stop = stop.Rule{Kind: stop.ASHA, Direction: trial.Minimize}
			for i := range l.trials {
				l.trials[i].Reports = []trial.Report{{Step: 1, Value: float64(i)}, {Step: 2, Value: float64(i)}}
			}
			l.fresh = map[int][]int64{3: {1, 2}}
		}, trials: "cccR", end: []int{3}, begin: 1, state: Running},
		{name: "who was judged is not judged again", change: func(l *look) {
			l.spec.Stop = stop.Rule{Kind: stop.ASHA, Direction: trial.Minimize}
			for i := range l.trials {
				l.trials[i].Reports = []trial.Report{{Step: 1, Value: float64(i)}}
			}
		}, trials: "cccR", state: Running},
		{name: "it is silent", change: func(l *look) {
			l.spec.Stop = stop.Rule{Kind: stop.None, Direction: trial.Minimize, ReportWithin: compute.Duration(time.Minute)}
			l.trials[0].Started = l.now.Add(-2 * time.Minute)
		}, trials: "RR", end: []int{0}, state: Running},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := look{spec: unit().complete(), now: epoch}
			l.trials, l.open = written(c.trials)
			l.spent.Trials, l.spent.Failed = len(l.trials), strings.Count(strings.ToLower(c.trials), "f")
			if c.change != nil {
				c.change(&l)
			}
			l.spent.Trials = len(l.trials) - len(l.theirs)
			for n := range l.theirs {
				if l.trials[n].State == trial.Failed {
					l.spent.Failed--
				}
			}
			p, err := decide(l)
			if err != nil {
				t.Fatal(err)
			}
			var end []int
			for _, e := range p.end {
				if end = append(end, e.number); e.reason == "" {
					t.Errorf("trial %d ends without a reason", e.number)
				}
			}
			if !slices.Equal(end, c.end) || len(p.begin) != c.begin || p.state != c.state || p.reason != c.reason {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestTransitions(t *testing.T) {
	for _, from := range []State{Running, Complete, Stopped, Failed} {
		for _, to := range []State{Running, Complete, Stopped, Failed} {
			w := Sweep{State: from, ResumedAt: epoch}
			_, err := w.moved(to, epoch.Add(time.Hour))
			if want := (from == Running) != (to == Running); (err == nil) != want {
				t.Errorf("%s to %s: %v", from, to, err)
			}
		}
	}
	w := Sweep{State: Running, ResumedAt: epoch}
	for range 2 {
		var err error
		if w, err = w.moved(Complete, w.ResumedAt.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if w, err = w.moved(Running, w.EndedAt.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.under(w.ResumedAt.Add(time.Minute)); got != 2*time.Hour+time.Minute {
		t.Errorf("it was under way for %s", got)
	}
}

func TestSpecsThatAreRefused(t *testing.T) {
	if err := unit().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(s *Spec){
		"no objective":             func(s *Spec) { s.Objectives = nil },
		"no metric":                func(s *Spec) { s.Objectives[0].Metric = "" },
		"an objective twice":       func(s *Spec) { s.Objectives = append(s.Objectives, s.Objectives[0]) },
		"a direction":              func(s *Spec) { s.Objectives[0].Direction = "up" },
		"a value":                  func(s *Spec) { s.Objectives[0].Value = "first" },
		"no parameter":             func(s *Spec) { s.Parameters = nil },
		"no end":                   func(s *Spec) { s.Budget = stop.Budget{} },
		"a parameter that is not":  func(s *Spec) { s.Job.Command = []string{"train", "${params.lx}"} },
		"params":                   func(s *Spec) { s.Job.Params = training.Params{"lr": 1} },
		"a name MLflow has not":    func(s *Spec) { s.Parameters[0].Name = "a=b" },
		"parallel":                 func(s *Spec) { s.Parallel = 1001 },
		"no parallel":              func(s *Spec) { s.Parallel = -1 },
		"an algorithm":             func(s *Spec) { s.Search.Algorithm = "luck" },
		"a rule":                   func(s *Spec) { s.Stop.Kind = "luck" },
		"a rule for nothing known": func(s *Spec) { s.Stop.Kind, s.Watch = stop.Median, "accuracy" },
		"a budget":                 func(s *Spec) { s.Budget.Money = -1 },
		"a job":                    func(s *Spec) { s.Job.Command = nil },
		"a sweep to learn from":    func(s *Spec) { s.WarmStart = []string{"NO"} },
		"a grid without end":       func(s *Spec) { s.Search = search.Config{Algorithm: search.Grid, GridPoints: 1 << 30} },
	} {
		s := unit()
		change(&s)
		if err := s.Validate(); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJob: the job of a trial has its values as programs read them, and none of what is
// not active.
func TestJob(t *testing.T) {
	s := unit()
	s.Parameters = []space.Parameter{
		{Name: "opt", Type: space.Categorical, Choices: space.Choices{"sgd", "adam"}},
		{Name: "momentum", Type: space.Float, High: 1, When: &space.Condition{Parameter: "opt", In: space.Choices{"sgd"}}},
		{Name: "lr", Type: space.Float, High: 2},
		{Name: "layers", Type: space.Int, High: 9},
	}
	s.Job.Command = []string{"train", "${params.opt}:${params.momentum}"}
	w := Sweep{Name: "mlp", Spec: s.complete(), Data: map[string]string{"train": "weather@3"}, Environment: "torch@sha256:0"}
	name, job := w.job(7, space.Params{"opt": "adam", "lr": 1.0, "layers": int64(3)})
	got := fmt.Sprint(name, " ", job.Command, " ", job.Params, " ", job.Data, " ", job.Environment, " ", job.Experiment, " ", job.Family)
	if want := "mlp-7 [train ${params.opt}:null] map[layers:3 lr:1.0 opt:adam] map[train:weather@3] torch@sha256:0 mlp mlp"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if w.Spec.Job.Command[1] != "${params.opt}:${params.momentum}" {
		t.Error("the specification was changed")
	}
	if err := job.Validate(); err != nil {
		t.Error(err)
	}
}
