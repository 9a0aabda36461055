package sweep

import (
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// look is what a round sees of a sweep.
type look struct {
	spec     Spec
	seed     uint64          // for what is random and not the search's
	stop     string          // who or what ends it
	ends     State           // as what
	forgiven int             // trials whose failure is forgotten
	trials   []trial.Trial   // all of them, by number
	theirs   map[int]bool    // those that clients added, which are learnt from and count for nothing else
	open     map[int]bool    // those whose job has not ended, by number
	fresh    map[int][]int64 // steps that they reported since the last look, in their order, by number
	warm     []trial.Trial   // of other sweeps
	spent    stop.Spent
	now      time.Time
}

// plan is what is to be done next.
type plan struct {
	end    []ending       // running trials that a rule stops
	begin  []space.Params // of trials that begin, in the order of their numbers
	state  State          // what the sweep is then
	reason string
}

type ending struct {
	number int
	reason string
}

// most is how many trials begin in a round: the transaction of a round is short.
const most = 16

// decide says what is to be done. It is a function of what it is given: the same look
// gives the same plan.
func decide(l look) (plan, error) {
	p := plan{state: Running}
	trials := slices.Clone(l.trials)

	// 1. Which trials end.
	running, complete, failed, ended := 0, 0, 0, 0
	for i, t := range trials {
		counts := t.Number >= l.forgiven && !l.theirs[t.Number]
		if t.State != trial.Running && counts {
			ended++
		}
		switch {
		case t.State == trial.Complete:
			complete++
		case t.State == trial.Failed && counts:
			failed++
		case t.State == trial.Running && l.open[t.Number]:
			d := stop.Decision{Stop: l.stop != "", Reason: l.stop}
			if !d.Stop {
				d = l.decideStop(t, trials)
			}
			if !d.Stop {
				running++
				continue
			}
			p.end = append(p.end, ending{t.Number, d.Reason})
			trials[i].State = trial.Stopped
		}
	}

	// 2. Whether any more begin, and which.
	over := ""
	switch spent := l.spec.Budget.Decide(l.spent); {
	case l.stop != "":
		over, p.state = l.stop, l.ends
	case complete == 0 && failed >= patience && failed == ended:
		over, p.state = fmt.Sprintf("the first %d trials failed", failed), Failed
	case spent.Stop:
		over, p.state = spent.Reason, Complete
	case l.spec.moneyOnly() && l.spent.Money == 0 && l.spent.Trials >= gratis:
		over, p.state = fmt.Sprintf("%d trials had no cost, and the budget limits only money", l.spent.Trials), Failed
	}
	if over == "" && len(trials) >= stop.MaxTrials {
		over, p.state = fmt.Sprintf("its study has %d trials, the limit", len(trials)), Complete
	}
	for over == "" && running < l.spec.Parallel && len(p.begin) < most && len(trials) < stop.MaxTrials {
		params, err := l.suggest(trials)
		if fault.Is(err, fault.Exhausted) {
			over, p.state = err.Error(), Complete
			break
		}
		if err != nil {
			return plan{}, err
		}
		p.begin = append(p.begin, params)
		trials = append(trials, trial.Trial{Number: len(trials), State: trial.Running, Params: params, Started: l.now})
		running++
		l.spent.Trials++
		if spent := l.spec.Budget.Decide(l.spent); spent.Stop {
			break // said in the next round, once they are under way
		}
	}

	// 3. Whether it is over: jobs that were told to end are waited for, too. Of trials that
	// failed or were stopped there is no result.
	p.reason = over
	left := len(l.open) + len(p.begin)
	if over != "" && left == 0 && p.state == Complete && complete == 0 {
		p.reason, p.state = over+"; no trial is complete", Failed
	}
	if over != "" && left > 0 {
		p.state = Running
		p.reason = fmt.Sprintf("%s; %d of its jobs are still running", over, left)
	}
	return p, nil
}

// suggest gives the parameters of the next trial. The first values are for the sweep's own
// trials, however many a client has added before.
func (l look) suggest(trials []trial.Trial) (space.Params, error) {
	if own := len(trials) - len(l.theirs); own < len(l.spec.Search.First) {
		return l.spec.Problem().Space.Check(l.spec.Search.First[own])
	}
	return search.Suggest(l.spec.Problem(), l.spec.Search, slices.Concat(l.warm, trials), len(trials))
}

// decideStop applies the stopping rule to each new report in turn, as if it had arrived alone. So no rung
// is skipped when several reports arrive together, and no rung is decided twice.
func (l look) decideStop(t trial.Trial, others []trial.Trial) (d stop.Decision) {
	whole := t.Reports
	for _, step := range l.spec.Stop.Turns(t, l.fresh[t.Number]) {
		t.Reports = slices.DeleteFunc(slices.Clone(whole), func(r trial.Report) bool { return r.Step > step })
		if d = stop.Decide(l.spec.Stop, l.seed, t, others, l.now); d.Stop {
			return d
		}
	}
	silence := l.spec.Stop
	silence.Kind = stop.None
	t.Reports = whole
	return stop.Decide(silence, l.seed, t, others, l.now)
}
