package expectation

import "fmt"

// Result is the outcome of an expectation for a version.
type Result struct {
	Expectation Rule      `json:"expectation"`
	Passed      bool      `json:"passed"`
	Checked     int64     `json:"checked"` // rows that it applies to
	Failed      int64     `json:"failed"`  // of them; with otherwise: quarantine they are there
	Problem     string    `json:"problem,omitempty"`
	Against     string    `json:"against,omitempty"`  // the version that it was compared with, "customers@3"
	Note        string    `json:"note,omitempty"`     // what was found, where that is no count of rows
	Examples    []Example `json:"examples,omitempty"` // the first failures, at most 5
}

// Example is a cell that failed. Value is empty, and Hidden set, for
// confidential and restricted data.
type Example struct {
	Row    int64  `json:"row"` // of what was read, from 1
	Column string `json:"column"`
	Value  string `json:"value,omitempty"`
	Hidden bool   `json:"hidden,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler, with numbers as they are written.
func (r *Result) UnmarshalJSON(b []byte) error {
	type plain Result
	err := exactly(b, (*plain)(r))
	if err == nil {
		r.Expectation, err = r.Expectation.settled()
	}
	return err
}

const maxExamples = 5

// String describes the failure and its place.
func (r Result) String() string { return r.Text(true) }

// Text is String, with the first value that failed or without.
func (r Result) Text(value bool) string {
	s := r.Expectation.String()
	switch {
	case r.Passed && r.Expectation.Otherwise == Quarantine && r.Failed > 0:
		return s + fmt.Sprintf(" passes, with %d of %d rows quarantined", r.Failed, r.Checked)
	case r.Passed && r.Note != "":
		return s + " holds: " + r.Note
	case r.Passed:
		return s + " holds"
	case r.Problem != "":
		return s + " fails: " + r.Problem
	}
	s += fmt.Sprintf(" fails for %d of %d rows", r.Failed, r.Checked)
	if m := r.Expectation.AtMost; m != nil {
		s += fmt.Sprintf(", over at_most %g", *m)
	}
	if len(r.Examples) > 0 {
		x := r.Examples[0]
		s += fmt.Sprintf(", first at row %d, column %q", x.Row, x.Column)
		if value && !x.Hidden {
			s += fmt.Sprintf(": %q", x.Value)
		}
	}
	return s
}
