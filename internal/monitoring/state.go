package monitoring

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// told is a finding with the event that carries it.
type told struct {
	name    string
	finding Finding
}

// add adds a window to a streak and says what to report: changed, when it becomes bad or good, and
// repeated, after every repeat more bad windows. A window of another version begins a new
// streak.
func (st *Streak) add(version int64, bad bool, from, to time.Time, repeat int) (changed, repeated bool) {
	was := st.Bad
	if st.Version != version {
		*st = Streak{Version: version}
	}
	st.Newest = to
	if !bad {
		st.Bad, st.Length, st.Told, st.Since = false, 0, 0, time.Time{}
		return was, false
	}
	st.Length++
	if !st.Bad {
		st.Bad, st.Since, st.Told = true, from, st.Length
		return true, false
	}
	if repeat > 0 && st.Length-st.Told >= int64(repeat) {
		st.Told = st.Length
		return false, true
	}
	return false, false
}

// observe takes a closed window of the version that answers into the status, and
// says what is to be told. A window that could not be judged is never a recovery: it
// leaves what was found before, and is told of itself.
func (p *Progress) observe(m Monitor, w Window) []told {
	p.Status.Baseline, p.Status.Note = w.Baseline, w.Note
	if w.Unjudged {
		changed, repeated := p.Blind.add(w.Version, true, w.From, w.To, m.Spec.Repeat)
		p.settle(m, w)
		return p.unjudged(m, w, Drift, p.Blind, changed, repeated, w.Note)
	}
	if !w.Judged {
		if p.Drift.Version == 0 && p.Blind.Version == 0 {
			p.Status.Reason = w.Note
		}
		return nil
	}
	seesAgain, _ := p.Blind.add(w.Version, false, w.From, w.To, m.Spec.Repeat)
	changed, repeated := p.Drift.add(w.Version, w.Drifted, w.From, w.To, m.Spec.Repeat)
	p.settle(m, w)
	if seesAgain && !w.Drifted { // what was told of is over
		changed = true
	}
	if !changed && !repeated {
		return nil
	}
	f := finding(m, w, Drift, p.Drift)
	f.Repeated = repeated
	f.Reason = driftWords(m, w)
	for _, one := range w.Features {
		if one.Drifted {
			f.Features = append(f.Features, one)
		}
	}
	slices.SortStableFunc(f.Features, func(a, b Feature) int { return cmp.Compare(strength(b), strength(a)) })
	f.Features = f.Features[:min(len(f.Features), maxFeatures)]
	if w.Score != nil && w.Score.Drifted {
		f.Score = w.Score
	}
	if !w.Drifted {
		return []told{{EventRecovered, f}}
	}
	return []told{{EventDrifted, f}}
}

// unjudged is the finding that something could not be judged.
func (p *Progress) unjudged(m Monitor, w Window, k Kind, st Streak, changed, repeated bool, why string) []told {
	if !changed && !repeated {
		return nil
	}
	f := finding(m, w, k, st)
	f.Repeated, f.Reason = repeated, why
	return []told{{EventUnjudged, f}}
}

// perform takes the performance of a window, new or of more labels than before. Where a
// metric with a limit could not be computed, the others may degrade the window, but do
// not let it recover.
func (p *Progress) perform(m Monitor, w Window) (out []told) {
	if !w.Performance.Judged {
		return nil
	}
	silent := len(w.Performance.NotComputed) > 0
	speaksAgain := false
	if news, same := p.Silent.news(w, silent); news && !same {
		changed, repeated := p.Silent.add(w.Version, silent, w.From, w.To, m.Spec.Repeat)
		p.settle(m, w)
		if silent {
			out = p.unjudged(m, w, Performing, p.Silent, changed, repeated, notComputed+strings.Join(w.Performance.NotComputed, "; "))
		}
		speaksAgain = changed && !silent
	}
	news, same := p.Worse.news(w, w.Performance.Degraded)
	if !news || same || silent && !w.Performance.Degraded {
		return out
	}
	changed, repeated := p.Worse.add(w.Version, w.Performance.Degraded, w.From, w.To, m.Spec.Repeat)
	p.settle(m, w)
	if speaksAgain && !w.Performance.Degraded {
		changed = true
	}
	if !changed && !repeated {
		return out
	}
	f := finding(m, w, Performing, p.Worse)
	f.Repeated, f.Labelled = repeated, w.Performance.Labelled
	var words []string
	for _, one := range w.Performance.Metrics {
		if !one.Breached {
			continue
		}
		f.Metrics = append(f.Metrics, one)
		words = append(words, fmt.Sprintf("%s is %.4g, with the limit %.4g", one.Name, *one.Value, *one.Limit))
	}
	f.Reason = strings.Join(words, "; ")
	if !w.Performance.Degraded {
		f.Reason = fmt.Sprintf("all metrics are within their limits in the window from %s to %s", day(w.From), day(w.To))
		return append(out, told{EventRecovered, f})
	}
	return append(out, told{EventDegraded, f})
}

// news reports whether a window says more than the streak knows: no newer one was judged
// already. same says that it is the newest one, as it was.
func (st *Streak) news(w Window, bad bool) (news, same bool) {
	if w.Version == st.Version && w.To.Before(st.Newest) {
		return false, false
	}
	return true, w.Version == st.Version && w.To.Equal(st.Newest) && bad == st.Bad
}

// notComputed begins what is said of metrics with a limit that could not be computed.
const notComputed = "metrics with a limit could not be computed: "

// settle makes the state that people see of the streaks.
func (p *Progress) settle(m Monitor, w Window) {
	before := p.Status.State
	st := &p.Status
	st.Version = w.Version
	worse := p.Worse.Bad && p.Worse.Version == w.Version
	blind := p.Blind.Bad && p.Blind.Version == w.Version
	silent := p.Silent.Bad && p.Silent.Version == w.Version
	drifted := p.Drift.Bad && p.Drift.Version == w.Version && !blind // what it was before says nothing of now
	switch {
	case worse:
		st.State, st.Since = Degraded, &p.Worse.Since
		st.Reason = "a metric exceeds its limit since " + day(p.Worse.Since)
	case drifted:
		st.State, st.Since = Drifted, &p.Drift.Since
		if w.Drifted {
			st.Reason = driftWords(m, w)
		}
	case blind, silent:
		st.State, st.Since = Unjudged, &p.Blind.Since
		if !blind || silent && p.Silent.Since.Before(p.Blind.Since) {
			st.Since = &p.Silent.Since
		}
		var why []string
		if w.Unjudged {
			why = append(why, w.Note)
		} else if blind {
			why = append(why, "inputs and scores cannot be compared since "+day(p.Blind.Since))
		}
		if len(w.Performance.NotComputed) > 0 {
			why = append(why, notComputed+strings.Join(w.Performance.NotComputed, "; "))
		} else if silent {
			why = append(why, "metrics with a limit cannot be computed since "+day(p.Silent.Since))
		}
		st.Reason = strings.Join(why, "; ")
	default:
		if before != OK {
			from := w.From
			st.Since = &from
		}
		st.State = OK
		st.Reason = fmt.Sprintf("%d of %d inputs drifted in the window from %s to %s", countDrifted(w), len(w.Features), day(w.From), day(w.To))
	}
	if st.Since != nil {
		since := *st.Since
		st.Since = &since // not into a streak that moves on
	}
}

func finding(m Monitor, w Window, kind Kind, st Streak) Finding {
	f := Finding{
		Monitor: m.Name, Deployment: m.Deployment, Version: w.Version, Kind: kind,
		Window: Span{ID: w.ID, From: w.From, To: w.To, Rows: w.Rows}, Since: st.Since, Windows: st.Length,
		Share: w.Share, Replay: w.Replay, At: w.To, Features: []Feature{},
	}
	if f.Since.IsZero() {
		f.Since = w.From
	}
	return f
}

func countDrifted(w Window) int {
	n := 0
	for _, f := range w.Features {
		if f.Drifted {
			n++
		}
	}
	return n
}

// strength is how far a feature is beyond what is allowed, for sorting.
func strength(f Feature) float64 {
	switch {
	case f.PValue != nil && *f.PValue > 0:
		return -math.Log(*f.PValue)
	case f.PValue != nil:
		return math.Inf(1)
	case f.Statistic != nil && f.Threshold != nil && *f.Threshold > 0:
		return *f.Statistic / *f.Threshold
	}
	return 0
}

func driftWords(m Monitor, w Window) string {
	n := countDrifted(w)
	text := fmt.Sprintf("%d of %d inputs drifted", n, len(w.Features))
	if len(w.Features) > 0 {
		text += fmt.Sprintf(" (%.0f %%, with the threshold %.0f %%)", 100*w.Share, 100*m.Spec.Drift.Share)
	}
	strongest := -1
	for i, f := range w.Features {
		if f.Drifted && (strongest < 0 || strength(f) > strength(w.Features[strongest])) {
			strongest = i
		}
	}
	if strongest >= 0 {
		text += "; most: " + featureWords(w.Features[strongest])
	}
	if w.Score != nil && w.Score.Drifted {
		text += "; the score drifted as well: " + featureWords(*w.Score)
	}
	return text + fmt.Sprintf("; window from %s to %s", day(w.From), day(w.To))
}

func featureWords(f Feature) string {
	text := f.Name
	switch {
	case f.PValue != nil && *f.PValue < 1e-15:
		text += fmt.Sprintf(" by %s with p under 1e-15", f.Method)
	case f.PValue != nil:
		text += fmt.Sprintf(" by %s with p = %.2g", f.Method, *f.PValue)
	case f.Statistic != nil && f.Threshold != nil:
		text += fmt.Sprintf(" by %s with %.3g over %.3g", f.Method, *f.Statistic, *f.Threshold)
	}
	if f.Mean != nil && f.BaselineMean != nil {
		text += fmt.Sprintf(", its mean changed from %.4g to %.4g", *f.BaselineMean, *f.Mean)
	}
	if f.Statistic == nil && f.Note != "" {
		text += " (" + f.Note + ")"
	}
	return text
}

// day writes a time as short as it can be.
func day(t time.Time) string {
	t = t.UTC()
	if t.Equal(t.Truncate(24 * time.Hour)) {
		return t.Format(time.DateOnly)
	}
	return t.Format("2006-01-02 15:04Z")
}
