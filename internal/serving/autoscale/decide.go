package autoscale

import (
	"fmt"
	"math"
	"time"
)

// Decide says how many replicas a version should have. The limits are valid.
func Decide(s Snapshot) Decision {
	low := max(1, s.Min)
	high := max(low, s.Max)

	// 1. Zero: nobody asks. Whoever asks has the first replica loaded at once, which
	// is not decided here.
	if s.Min == 0 && !s.Busy {
		if s.Running == 0 {
			return Decision{Reason: "no requests"}
		}
		if quiet := s.Now.Sub(s.Asked); quiet >= s.Idle {
			return Decision{Reason: fmt.Sprintf("no request for %s", round(quiet))}
		}
	}
	running := max(1, s.Running)
	d := Decision{Wanted: 1, Reason: "one replica suffices"}

	// 2. Requests in flight, on average of the stable window; of the panic window
	// alone when that wants twice what runs.
	if s.Concurrency > 0 {
		for _, window := range []time.Duration{Stable, Panic} {
			mean, ok := s.inFlight(window)
			n := int(math.Ceil(mean/s.Concurrency - 1e-9))
			if ok && n > d.Wanted && (window == Stable || n >= 2*running) {
				d = Decision{Wanted: n, Reason: fmt.Sprintf("%.3g in flight, averaged over %s; the target per replica is %.3g", mean, window, s.Concurrency)}
			}
		}
	}

	// 3. Queue time, by its ratio to the target. It says nothing of replicas that have
	// not been there for a while: each is judged by what came after the last one. While
	// it is over half of the target, none can be spared.
	if wait, ok := s.queueTime(); s.QueueTime > 0 && ok && 2*wait >= s.QueueTime {
		n := running
		if wait > s.QueueTime && !s.Loading {
			n = int(math.Ceil(min(2, float64(wait)/float64(s.QueueTime)) * float64(running)))
		}
		if n > d.Wanted {
			d = Decision{Wanted: n, Reason: fmt.Sprintf("requests wait %s; the target is %s", round(wait), s.QueueTime)}
		}
	}
	d.Need = d.Wanted

	// 4. The way down is slow: to half at a time, and no lower than what was needed
	// within the window.
	if d.Wanted < s.Running {
		most := d.Wanted
		for _, p := range s.Past {
			if s.Now.Sub(p.At) < Down {
				most = max(most, p.Need)
			}
		}
		if most = min(most, s.Running); most > d.Wanted {
			d.Wanted, d.Reason = most, fmt.Sprintf("%d were needed within the last %s", most, Down)
		}
		if half := s.Running / 2; d.Wanted < half {
			d.Wanted = half
			d.Reason += "; scaling down by half at a time"
		}
	}

	// 5. The way up is bounded, too: a replica takes memory at once, and helps later.
	if most := 2 * running; d.Wanted > most {
		d.Wanted = most
		d.Reason += fmt.Sprintf("; twice %d at a time", running)
	}

	// 6. No replica that would find no core, but those that are asked for by number.
	if s.Useful > 0 && d.Wanted > max(low, s.Useful) {
		d.Wanted = max(low, s.Useful)
		d.Reason += fmt.Sprintf("; more than %d would exceed the cores", s.Useful)
	}

	// 7. The manifest's bounds.
	switch {
	case d.Wanted < low:
		d.Wanted, d.Reason = low, fmt.Sprintf("the minimum is %d", low)
	case d.Wanted > high:
		d.Wanted = high
		d.Reason += fmt.Sprintf("; the maximum is %d", high)
	}
	return d
}

// inFlight is the mean of the samples of the last while; false when there are none.
func (s Snapshot) inFlight(window time.Duration) (float64, bool) {
	n, sum := 0, 0
	for _, x := range s.Samples {
		if s.Now.Sub(x.At) < window {
			n++
			sum += x.InFlight
		}
	}
	if n == 0 {
		return 0, false
	}
	return float64(sum) / float64(n), true
}

// queueTime is how long a request waited, on average of the panic window, or of what
// of it is after the last replica; false when none was answered.
func (s Snapshot) queueTime() (time.Duration, bool) {
	answered, queued := int64(0), time.Duration(0)
	for _, x := range s.Samples {
		if s.Now.Sub(x.At) < Panic && x.At.After(s.Grown) {
			answered += x.Answered
			queued += x.Queued
		}
	}
	if answered == 0 {
		return 0, false
	}
	return queued / time.Duration(answered), true
}

// round is a duration for people.
func round(d time.Duration) time.Duration {
	switch {
	case d > time.Minute:
		return d.Round(time.Second)
	case d > time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
