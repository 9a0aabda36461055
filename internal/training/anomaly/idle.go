package anomaly

import "time"

// When a job's accelerators count as idle. Samples are of seconds, so a minute of
// them says that it was no accident; ten minutes are more than reading data,
// evaluating or saving usually takes.
const (
	IdleBelow = 0.02 // busy share of all of them
	IdleFor   = 10 * time.Minute
	UsedFrom  = 0.10
	UsedFor   = time.Minute
	maxGap    = 2 * time.Minute // between samples; more is not known
)

// Idle follows how busy the accelerators of one attempt are. The zero Idle has seen
// nothing. It can be kept and taken up again.
type Idle struct {
	Last  time.Time     `json:"last,omitzero"`  // sample
	Used  time.Duration `json:"used,omitempty"` // for how long it was busy before
	Since time.Time     `json:"since,omitzero"` // idle, without a busier sample
	Back  time.Time     `json:"back,omitzero"`  // busy again, after Told
	Told  bool          `json:"told,omitempty"` // that it is idle
	At    time.Time     `json:"at,omitzero"`    // when
}

// Sample takes in a share, 0 to 1, at a time after the last.
func (i *Idle) Sample(at time.Time, busy float64) Change {
	passed := at.Sub(i.Last)
	known := !i.Last.IsZero() && passed > 0 && passed <= maxGap
	i.Last = at
	if !known {
		i.Since, i.Back, passed = time.Time{}, time.Time{}, 0
	}
	if busy >= UsedFrom {
		i.Used += passed
		i.Since = time.Time{}
		if !i.Told {
			return None
		}
		if i.Back.IsZero() {
			i.Back = at
		}
		if at.Sub(i.Back) < UsedFor {
			return None
		}
		i.Told, i.Back = false, time.Time{}
		return Ended
	}
	i.Back = time.Time{}
	if !(busy <= IdleBelow) {
		i.Since = time.Time{}
		return None
	}
	if i.Since.IsZero() {
		i.Since = at
	}
	if i.Told || i.Used < UsedFor || at.Sub(i.Since) < IdleFor {
		return None
	}
	i.Told, i.At = true, at
	return Began
}

// Warned is since when it has been idle, all the time, after that was told; zero is
// that it is not, or that nobody has looked for a while.
func (i *Idle) Warned(now time.Time) time.Time {
	switch {
	case !i.Told || i.Since.IsZero() || now.Sub(i.Last) > maxGap:
		return time.Time{}
	case i.Since.After(i.At):
		return i.Since
	}
	return i.At
}

// End is the end of the attempt.
func (i *Idle) End() Change {
	if !i.Told {
		return None
	}
	i.Told = false
	return Ended
}
