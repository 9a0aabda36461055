package optuna

import (
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna/optunapb"
	"github.com/falaj-ml/falaj/internal/tuning"
)

// timeForm is how Optuna writes times: without a zone. As in its own servers, that is
// the server's.
const timeForm = "2006-01-02 15:04:05.000000"

func timeOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.In(time.Local).Format(timeForm)
}

func timeFrom(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.ParseInLocation(timeForm, text, time.Local)
	if err != nil || t.Year() < 1 {
		return t, fault.New(fault.Invalid, "%.40q is not a timestamp", text).WithHint("Write it as %s.", timeForm)
	}
	return t, nil
}

var states = map[optunapb.TrialState]tuning.State{
	optunapb.TrialState_RUNNING: tuning.Running, optunapb.TrialState_COMPLETE: tuning.Complete, optunapb.TrialState_PRUNED: tuning.Pruned,
	optunapb.TrialState_FAIL: tuning.Failed, optunapb.TrialState_WAITING: tuning.Waiting,
}

// stateFrom is a state as tuning has it; one that is not known has a name that tuning
// refuses.
func stateFrom(s optunapb.TrialState) tuning.State {
	if known, ok := states[s]; ok {
		return known
	}
	return tuning.State(s.String())
}

var stateOf = func() map[tuning.State]optunapb.TrialState {
	out := make(map[tuning.State]optunapb.TrialState, len(states))
	for message, state := range states {
		out[state] = message
	}
	return out
}()

func directionsFrom(in []optunapb.StudyDirection) ([]tuning.Direction, error) {
	out := make([]tuning.Direction, len(in))
	for i, d := range in {
		switch d {
		case optunapb.StudyDirection_MINIMIZE:
			out[i] = tuning.Minimize
		case optunapb.StudyDirection_MAXIMIZE:
			out[i] = tuning.Maximize
		default:
			return nil, fault.New(fault.Invalid, "direction %d is unknown", d).WithHint("Use minimize or maximize.")
		}
	}
	return out, nil
}

func directionsOf(s tuning.Study) []optunapb.StudyDirection {
	out := make([]optunapb.StudyDirection, len(s.Directions))
	for i, d := range s.Directions {
		if d == tuning.Maximize {
			out[i] = optunapb.StudyDirection_MAXIMIZE
		}
	}
	return out
}

func trialFrom(m *optunapb.Trial) (tuning.Trial, error) {
	t := tuning.Trial{
		State: stateFrom(m.GetState()), Values: m.GetValues(), Params: make(map[string]tuning.Param, len(m.GetParams())),
		User: m.GetUserAttributes(), System: m.GetSystemAttributes(), Intermediate: m.GetIntermediateValues(),
	}
	var err error
	if t.Started, err = timeFrom(m.GetDatetimeStart()); err != nil {
		return t, err
	}
	if t.Completed, err = timeFrom(m.GetDatetimeComplete()); err != nil {
		return t, err
	}
	for name, value := range m.GetParams() {
		d, ok := m.GetDistributions()[name]
		if !ok {
			return t, fault.New(fault.Invalid, "parameter %.100q has no distribution", name).WithHint("Set a distribution for each parameter of a trial.")
		}
		t.Params[name] = tuning.Param{Value: value, Distribution: tuning.Distribution(d)}
	}
	return t, nil
}

func messageOf(t tuning.Trial) *optunapb.Trial {
	m := &optunapb.Trial{
		TrialId: int64(t.ID), Number: t.Number, State: stateOf[t.State], Values: t.Values,
		DatetimeStart: timeOf(t.Started), DatetimeComplete: timeOf(t.Completed),
		Params: make(map[string]float64, len(t.Params)), Distributions: make(map[string]string, len(t.Params)),
		UserAttributes: t.User, SystemAttributes: t.System, IntermediateValues: t.Intermediate,
	}
	for name, p := range t.Params {
		m.Params[name], m.Distributions[name] = p.Value, string(p.Distribution)
	}
	return m
}
