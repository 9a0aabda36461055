// Package monitoring watches deployments: it compares what models see and say
// with what they were trained on, and what they said with what came true.
//
// # Map
//
//   - monitoring.go: Monitor, Window and what is found in one. spec.go: the
//     manifest, its defaults and limits.
//   - baseline.go: what a version was trained on, as sketches; computed once per
//     version and training set.
//   - stream.go: detectors of change in the scores, across windows.
//   - pane.go: records in append order become panes, panes become windows; pure.
//   - evaluate.go: a window against its baseline; pure.
//   - label.go: labels, which come late, become the performance of windows.
//   - classify.go: the rows of a window and a job that tells them from the
//     baseline's. classifier/ is the program and its answer.
//   - loop.go: reads, closes, evaluates and records; the only writer.
//   - sketch/ drift/ performance/ are the statistics; label/ joins labels to
//     predictions and judges rollouts; alert/ tells people.
//
// # Time
//
// Windows are on the records' clock: the time that a request was about. Live
// traffic also closes a window by the wall clock; replayed traffic closes one
// only when a later record, plus the lateness, was seen. Live and replayed
// records are in windows of their own. Windows by time begin at multiples of
// their slide, counted from Monday, 5 January 1970, 00:00 UTC.
//
// # Guarantees
//
// A window's row, the place in the log up to which records are in it, its events
// and its alerts commit in one transaction, fenced by a lease: after a crash the
// same windows come out, once. Memory is bounded, whatever comes: panes hold
// sketches. What is stored of values is sealed under the project's key.
package monitoring

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// ID names a monitor: "mon_01J…".
type ID string

// State is how the watched deployment does.
type State string

// The states. Degraded is stronger than Drifted, Drifted than Unjudged; OK is said only
// of what was judged.
const (
	Waiting  State = "waiting" // nothing was judged yet; the reason says why
	OK       State = "ok"
	Unjudged State = "unjudged" // windows or metrics with a limit could not be judged; the reason says why
	Drifted  State = "drifted"  // inputs or scores are not what the version was trained on
	Degraded State = "degraded" // labels say that the answers are worse than allowed
)

// Monitor watches a deployment.
type Monitor struct {
	ID         ID     `json:"id"`
	Project    string `json:"project"`
	Name       string `json:"name"`
	Deployment string `json:"deployment"`
	Spec       Spec   `json:"spec"`
	Automatic  bool   `json:"automatic" doc:"Made with the deployment, and deleted with it"`
	// By applied it last; retraining acts with the rights that it has then.
	By        identity.Principal `json:"by" doc:"Who applied it last; what it begins is done with their rights"`
	CreatedAt time.Time          `json:"created_at"`
	UpdatedAt time.Time          `json:"updated_at"`
	Revision  int64              `json:"revision"`

	Status
}

// Status is what a monitor found so far, of the version that answers.
type Status struct {
	State     State      `json:"state"`
	Reason    string     `json:"reason,omitempty" doc:"In words"`
	Since     *time.Time `json:"since,omitempty" doc:"Begin of the first window in a row that is as bad, on the records' clock"`
	Version   int64      `json:"version,omitempty" doc:"The version that was judged last"`
	Watermark *time.Time `json:"watermark,omitempty" doc:"The newest record's time, on the records' clock: of live requests, or of replays where there are no others"`
	Replayed  *time.Time `json:"replayed,omitempty" doc:"The newest time of a replay's record, which has a clock of its own"`
	Windows   int64      `json:"windows" doc:"Windows that were closed"`
	Late      int64      `json:"late" doc:"Records that came after their window was closed"`
	Skewed    int64      `json:"skewed" doc:"Live records from more than five minutes in the future; in no window"`
	Lost      int64      `json:"lost,omitempty" doc:"Slides of windows that were given up because too many were open"`
	Problem   string     `json:"problem,omitempty" doc:"Why the monitor does not go on, if it does not"`
	Baseline  string     `json:"baseline,omitempty" doc:"What the newest window of that version was compared with"`
	Note      string     `json:"note,omitempty" doc:"What the newest window of that version was not judged for, or what is odd"`
}

// Streak is a run of bad windows of one version.
type Streak struct {
	Version int64     `json:"version"` // 0: none was judged
	Bad     bool      `json:"bad"`     // the newest judged window is bad
	Since   time.Time `json:"since"`   // begin of the first bad window of the run
	Length  int64     `json:"length"`  // windows of the run
	Newest  time.Time `json:"newest"`  // end of the newest judged window
	Told    int64     `json:"told"`    // length when it was last told
}

// WindowKey identifies a window of a monitor. Start is microseconds since 1970
// of its begin, or the ordinal of its first pane for windows by count.
type WindowKey struct {
	Version int64 `json:"version"`
	Replay  bool  `json:"replay"`
	Start   int64 `json:"-"`
}

// String is "3-1388534400000000", with a trailing r for replayed records.
func (k WindowKey) String() string {
	s := strconv.FormatInt(k.Version, 10) + "-" + strconv.FormatInt(k.Start, 10)
	if k.Replay {
		s += "r"
	}
	return s
}

// Window is what was found in a closed window of one version's records.
type Window struct {
	ID string `json:"id" doc:"Unique within the monitor"`
	WindowKey
	From     time.Time        `json:"from"`
	To       time.Time        `json:"to"`
	ClosedAt time.Time        `json:"closed_at" doc:"On the wall clock"`
	Requests int64            `json:"requests"`
	Rows     int64            `json:"rows"`
	Answered int64            `json:"answered" doc:"Rows that have a score"`
	Failures map[string]int64 `json:"failures,omitempty" doc:"Requests that failed, by kind of failure"`
	Failed   int64            `json:"failed" doc:"Requests that failed"`
	Late     int64            `json:"late" doc:"Records that came after the window was closed; they are in nothing else here"`
	Judged   bool             `json:"judged" doc:"Whether there were a baseline and rows enough"`
	Unjudged bool             `json:"unjudged,omitempty" doc:"It has rows enough, and nothing of it could be compared: an alert. The note says why"`
	Drifted  bool             `json:"drifted"`
	Share    float64          `json:"share" doc:"Of the features that drifted"`
	Note     string           `json:"note,omitempty" doc:"What the window is not judged for, or what is odd"`
	Baseline string           `json:"baseline,omitempty" doc:"What it was compared with"`
	Features []Feature        `json:"features"`
	Score    *Feature         `json:"score,omitempty"`
	Streams  []Detection      `json:"detectors,omitempty"`

	Performance Performance     `json:"performance"`
	Latency     Latency         `json:"latency"`
	Classifier  *Classification `json:"classifier,omitempty" doc:"Of a domain classifier, when one was asked for"`
}

// Feature is an input (or the score) of a window against the baseline. A number
// that there is none of is null.
type Feature struct {
	Name         string   `json:"name"`
	Kind         string   `json:"kind" doc:"numeric or categorical"`
	Method       string   `json:"method,omitempty"`
	Statistic    *float64 `json:"statistic"`
	PValue       *float64 `json:"p_value"`
	Threshold    *float64 `json:"threshold"`
	Drifted      bool     `json:"drifted"`
	Rows         int64    `json:"rows"`
	Missing      float64  `json:"missing" doc:"Share of the values that are missing"`
	BaseMissing  float64  `json:"baseline_missing"`
	Mean         *float64 `json:"mean"`
	BaselineMean *float64 `json:"baseline_mean"`
	Note         string   `json:"note,omitempty" doc:"In words: what is odd, or why there is no test"`
}

// Detection is where a stream detector found a change of the score's mean.
type Detection struct {
	Detector string    `json:"detector"`
	At       time.Time `json:"at" doc:"Of the record, on its clock"`
}

// Performance is how good the answers of a window were.
type Performance struct {
	Labelled float64        `json:"labelled" doc:"Share of the answered rows that have a label"`
	Rows     int64          `json:"rows" doc:"Rows with a label"`
	Sampled  int64          `json:"sampled,omitempty" doc:"Rows that the metrics are of, when not all"`
	Task     string         `json:"task,omitempty" doc:"regression, binary or multiclass: declared, or what the model's outputs are"`
	State    string         `json:"state" doc:"In words: how many labels there are"`
	Judged   bool           `json:"judged"`
	Degraded bool           `json:"degraded"`
	Metrics  []Metric       `json:"metrics"`
	Segments []SegmentScore `json:"segments,omitempty"`
	// Unusable rows are in no metric.
	Unusable    int64    `json:"unusable,omitempty" doc:"Labelled rows that the metrics cannot take, such as a label other than 0 and 1 of a binary model"`
	Note        string   `json:"note,omitempty" doc:"In words: which rows are unusable, first of all, and what else is missing"`
	NotComputed []string `json:"not_computed,omitempty" doc:"Metrics with a limit that could not be computed, and why: an alert"`
}

// Metric is a measure with its 95 % interval. Estimate marks what was computed
// without labels, from the model's own confidence.
type Metric struct {
	Name     string   `json:"name"`
	Value    *float64 `json:"value"`
	Low      *float64 `json:"low"`
	High     *float64 `json:"high"`
	Estimate bool     `json:"estimate"`
	Limit    *float64 `json:"limit,omitempty"`
	Breached bool     `json:"breached,omitempty"`
	Note     string   `json:"note,omitempty" doc:"Why there is no value"`
}

// SegmentScore is the performance of the rows with one value of a column.
type SegmentScore struct {
	Column  string   `json:"column"`
	Value   string   `json:"value"`
	Rows    int64    `json:"rows"`
	Metrics []Metric `json:"metrics"`
}

// Latency of the requests that were answered, in milliseconds.
type Latency struct {
	P50 *float64 `json:"p50_ms"`
	P99 *float64 `json:"p99_ms"`
}

// Baseline is what windows of a version are compared with.
type Baseline struct {
	Version        int64           `json:"version"`
	Source         string          `json:"source" doc:"training set, dataset, or first window"`
	Ref            string          `json:"ref,omitempty" doc:"The dataset version"`
	Declared       bool            `json:"declared" doc:"The columns are all that the model sees"`
	Digest         string          `json:"digest" doc:"Of what it was computed from"`
	Rows           int64           `json:"rows"`
	ScoreSource    string          `json:"score_source" doc:"What the score's baseline is: the model over rows of the training set, a column of the dataset, or the first window; empty: scores have none"`
	ScoreNote      string          `json:"score_note,omitempty" doc:"Why scores have no baseline"`
	Note           string          `json:"note,omitempty"`
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification"`
	ComputedAt     time.Time       `json:"computed_at"`
	From           *time.Time      `json:"from,omitempty" doc:"Begin of the window that is the baseline, if one is"`
	To             *time.Time      `json:"to,omitempty" doc:"Its end"`
	Columns        []NamedColumn   `json:"columns"`
	Score          *NamedColumn    `json:"score,omitempty"`
}

// NamedColumn is the summary of an input for pictures: counts, quantiles and a
// histogram, or the commonest categories.
type NamedColumn struct {
	Name    string          `json:"name"`
	Summary json.RawMessage `json:"summary"`
}

// Summaries are the inputs of a window for pictures.
type Summaries struct {
	Window
	Columns []NamedColumn `json:"columns"`
	Scores  *NamedColumn  `json:"scores,omitempty"`
}

// number is a float that JSON can hold: nil for NaN and the infinities.
func number(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}
