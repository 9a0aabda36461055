// Package label takes what turned out to be true, joins it to the predictions
// that were made, and judges by it whether a new version takes over.
//
// # Map
//
//   - Service (service.go) is the only way in: Add keeps labels, Counts says how
//     many, Pairs (pairs.go) hands out predictions with their labels.
//   - index.go finds a prediction by its ID; it is made anew from the log after a
//     start.
//   - Judge (judge.go) follows every running rollout, and says by event when it is
//     decided; tally.go is what it has seen so far.
//   - store.go is what this needs from a database (labelsql), events.go what
//     others hear of.
//
// # Guarantees
//
// A label that Add accepted is durable, and its values are sealed under the
// project's key. The first label of a prediction counts; a
// repetition changes nothing, and one that contradicts it is counted and
// reported. A label may come before its prediction is known: it waits, and is
// joined later. Pairs come in an order that never changes, in which nothing
// appears later before what was there; so a reader that keeps its place sees each
// pair once. The sums of a judgement and its places in the log and among the
// labels commit together: a crash anywhere gives the same sums. A rollout is
// concluded once.
//
// # Clocks
//
// A label's time and a prediction's At are on the clock of the records, which a
// replay of old times sets back. How long a label waits is on the wall's.
package label

import (
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// Limits.
const (
	MaxLabels = 10_000    // in one call
	maxValues = 1_000_000 // in one call
	maxID     = 256       // bytes
	maxText   = 256       // bytes of a class
)

// Label says what turned out to be true for a prediction.
type Label struct {
	ID     string    // of the prediction
	Values []float64 // one for each of its rows; false is 0, true 1, NaN a row without a label
	Texts  []string  // the class of each row, in place of Values; empty for a row without a label
	At     time.Time // when it became known, on the clock of the records; zero: now
}

// rows is how many rows the prediction has, by the label.
func (l Label) rows() int { return len(l.Values) + len(l.Texts) }

// says reports whether any row has a label.
func (l Label) says() bool {
	return slices.ContainsFunc(l.Values, func(v float64) bool { return !math.IsNaN(v) }) || slices.ContainsFunc(l.Texts, func(t string) bool { return t != "" })
}

// Status is what became of a label.
type Status string

// The statuses. The last three are of a label that is kept but joined to nothing.
const (
	Accepted    Status = "accepted"
	Duplicate   Status = "duplicate"   // there already, with the same values
	Contradicts Status = "contradicts" // there already, with other values, which stay
	Unknown     Status = "unknown"     // no such prediction yet: it waits
	TooLate     Status = "too_late"    // the prediction is older than the horizon
	WrongRows   Status = "wrong_rows"  // another number of values than the prediction has rows
	Expired     Status = "expired"     // its prediction never came
)

// Result is what became of one label of a call.
type Result struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
}

// Answer is what became of the labels of a call, in their order.
type Answer struct {
	Accepted    int      `json:"accepted"`
	Duplicates  int      `json:"duplicates"`
	Contradicts int      `json:"contradicts"`
	Unknown     int      `json:"unknown"`
	TooLate     int      `json:"too_late"`
	WrongRows   int      `json:"wrong_rows"`
	Results     []Result `json:"results"`
}

func (a *Answer) add(id string, s Status) {
	switch s {
	case Accepted:
		a.Accepted++
	case Duplicate:
		a.Duplicates++
	case Contradicts:
		a.Contradicts++
	case Unknown:
		a.Unknown++
	case TooLate:
		a.TooLate++
	case WrongRows:
		a.WrongRows++
	default:
	}
	a.Results = append(a.Results, Result{ID: id, Status: s})
}

// Counts is how many labels a deployment has had.
type Counts struct {
	Joined      int64 `json:"joined"`
	Waiting     int64 `json:"waiting"` // for their prediction
	Duplicates  int64 `json:"duplicates"`
	Contradicts int64 `json:"contradicts"`
	TooLate     int64 `json:"too_late"`
	WrongRows   int64 `json:"wrong_rows"`
	Expired     int64 `json:"expired"`
	// Repeated counts predictions with an ID that an earlier one had, of those
	// that the server has in memory; labels join the earlier one.
	Repeated int64 `json:"repeated_predictions"`
}

// Facts are what a deployment's label and classification are.
type Facts struct {
	Classification string
	Residency      residency.Label
	// Owner is that of its predictions (prediction.OwnerOf): no label joins those of
	// another one that had its name. 0 joins all.
	Owner uint64
}

// validate refuses what no label may be. Error: fault.Invalid, fault.TooLarge.
func validate(labels []Label) error {
	if len(labels) == 0 {
		return fault.New(fault.Invalid, "labels are required").WithHint("Send {\"labels\": [{\"id\": …, \"value\": …}]}.")
	}
	if len(labels) > MaxLabels {
		return fault.New(fault.TooLarge, "%d labels are over the limit of %d", len(labels), MaxLabels).WithHint("Split them into several requests.")
	}
	total := 0
	for i, l := range labels {
		switch {
		case l.ID == "" || len(l.ID) > maxID || !utf8.ValidString(l.ID):
			return fault.New(fault.Invalid, "labels[%d]: the id has %d bytes", i, len(l.ID)).
				WithHint("Use the id of the prediction, a text of 1 to %d bytes.", maxID)
		case !l.says():
			return fault.New(fault.Invalid, "labels[%d]: a value is required", i).WithHint("Set value, or values with one entry per row of the request and null for unknown labels.")
		case len(l.Values) > 0 && len(l.Texts) > 0:
			return fault.New(fault.Invalid, "labels[%d]: its values mix numbers and texts", i).WithHint("Write all classes of a prediction as text, or all values as numbers.")
		}
		if total += l.rows(); total > maxValues {
			return fault.New(fault.TooLarge, "more than %d values", maxValues).WithHint("Split them into several requests.")
		}
		for n, v := range l.Values {
			if math.IsInf(v, 0) {
				return fault.New(fault.Invalid, "labels[%d].values[%d]: %v is not a label", i, n, v).WithHint("Send null for a row with an unknown label.")
			}
		}
		for n, v := range l.Texts {
			if len(v) > maxText || !utf8.ValidString(v) {
				return fault.New(fault.Invalid, "labels[%d].values[%d]: %.60q is not a class", i, n, v).WithHint("A class is a text of 1 to %d bytes.", maxText)
			}
		}
	}
	return nil
}
