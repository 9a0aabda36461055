// Package monitoring watches deployments: it compares what models see and say
// with what they were trained on, and what they said with what came true.
//
// # Map
//
//   - monitoring.go: Monitor, Window and what is found in one. spec.go: the
//     manifest, its defaults and limits.
//   - baseline.go: what a version was trained on, as sketches; computed once per
//     version and training set.
//   - pane.go: records in append order become panes, panes become windows; pure.
//   - evaluate.go: a window against its baseline, and which of its columns have drifted (compare); pure.
//   - label.go: labels, which come late, become the performance of windows.
//   - classify.go: the rows of a window and a job that tells them from the
//     baseline's. classifier/ is the program and its answer.
//   - loop.go: reads, closes, evaluates and records; the only writer.
//   - change/ tests columns against their baseline, and follows scores across windows. It, the
//     packages sketch and drift, and performance/ are the statistics; label/ joins
//     labels to predictions and evaluates rollouts; alert/ sends alerts.
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
	Automatic  bool   `json:"automatic" doc:"Created with the deployment, and deleted with it"`
	// By applied it last; retraining acts with the rights that it has then.
	By        identity.Principal `json:"by" doc:"User who applied it last; the monitor acts with this user's permissions"`
	CreatedAt time.Time          `json:"created_at"`
	UpdatedAt time.Time          `json:"updated_at"`
	Revision  int64              `json:"revision"`

	Status
}

// Status is what a monitor found so far, of the version that answers.
type Status struct {
	State     State      `json:"state"`
	Reason    string     `json:"reason,omitempty" doc:"Reason of the state"`
	Since     *time.Time `json:"since,omitempty" doc:"Start of the first of the consecutive windows with this state, in event time"`
	Version   int64      `json:"version,omitempty" doc:"Version that was evaluated last"`
	Watermark *time.Time `json:"watermark,omitempty" doc:"Event time of the newest live record, or of the newest replayed one if there is no live record"`
	Replayed  *time.Time `json:"replayed,omitempty" doc:"Time of the newest replayed record; replays have their own time"`
	Windows   int64      `json:"windows" doc:"Number of closed windows"`
	Late      int64      `json:"late" doc:"Number of records that arrived after their window was closed"`
	Skewed    int64      `json:"skewed" doc:"Number of live records dated more than five minutes in the future; they are in no window"`
	Lost      int64      `json:"lost,omitempty" doc:"Number of panes (slides of windows) dropped because too many were open"`
	Problem   string     `json:"problem,omitempty" doc:"Why the monitor is blocked, if it is"`
	Baseline  string     `json:"baseline,omitempty" doc:"Baseline of the version's newest window"`
	Note      string     `json:"note,omitempty" doc:"What was not evaluated in the version's newest window, or a remark"`
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
	ClosedAt time.Time        `json:"closed_at" doc:"Wall-clock time"`
	Requests int64            `json:"requests"`
	Rows     int64            `json:"rows"`
	Answered int64            `json:"answered" doc:"Number of rows with a score"`
	Failures map[string]int64 `json:"failures,omitempty" doc:"Number of failed requests by kind of error"`
	Failed   int64            `json:"failed" doc:"Number of failed requests"`
	Late     int64            `json:"late" doc:"Number of records that arrived after the window was closed; no other field counts them"`
	Judged   bool             `json:"judged" doc:"Whether there was a baseline and enough rows"`
	Unjudged bool             `json:"unjudged,omitempty" doc:"The window has enough rows but nothing could be compared, which is an alert. The note has the reason"`
	Drifted  bool             `json:"drifted"`
	Share    float64          `json:"share" doc:"Share of drifted features"`
	Note     string           `json:"note,omitempty" doc:"What was not evaluated, or a remark"`
	Baseline string           `json:"baseline,omitempty" doc:"Baseline"`
	Features []Feature        `json:"features"`
	Score    *Feature         `json:"score,omitempty"`
	Streams  []Detection      `json:"detectors,omitempty"`

	Performance Performance     `json:"performance"`
	Latency     Latency         `json:"latency"`
	Classifier  *Classification `json:"classifier,omitempty" doc:"Result of the domain classifier, if one was requested"`
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
	Missing      float64  `json:"missing" doc:"Share of missing values"`
	BaseMissing  float64  `json:"baseline_missing"`
	Mean         *float64 `json:"mean"`
	BaselineMean *float64 `json:"baseline_mean"`
	Note         string   `json:"note,omitempty" doc:"A remark, or why there is no test"`
}

// Detection is where a stream detector found a change of the score's mean.
type Detection struct {
	Detector string    `json:"detector"`
	At       time.Time `json:"at" doc:"Time of the record"`
}

// Performance is how good the answers of a window were.
type Performance struct {
	Labelled float64        `json:"labelled" doc:"Share of predictions with a label"`
	Rows     int64          `json:"rows" doc:"Number of rows with a label"`
	Sampled  int64          `json:"sampled,omitempty" doc:"Number of rows that the metrics cover, if not all"`
	Task     string         `json:"task,omitempty" doc:"regression, binary or multiclass: declared, or derived from the model's outputs"`
	State    string         `json:"state" doc:"Remark on the number of labels"`
	Judged   bool           `json:"judged"`
	Degraded bool           `json:"degraded"`
	Metrics  []Metric       `json:"metrics"`
	Segments []SegmentScore `json:"segments,omitempty"`
	// Unusable rows are in no metric.
	Unusable    int64    `json:"unusable,omitempty" doc:"Number of labelled rows that are unusable, such as a label other than 0 and 1 for a binary model"`
	Note        string   `json:"note,omitempty" doc:"Which rows are unusable, and what else is missing"`
	NotComputed []string `json:"not_computed,omitempty" doc:"Metrics with a limit that could not be computed, with the reason; raises an alert"`
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
	Declared       bool            `json:"declared" doc:"Whether the columns are all inputs of the model"`
	Digest         string          `json:"digest" doc:"Digest of the data that the baseline was computed from"`
	Rows           int64           `json:"rows"`
	ScoreSource    string          `json:"score_source" doc:"Baseline of the score: the model's output for rows of the training set, a column of the dataset, or the first window; empty: the score has no baseline"`
	ScoreNote      string          `json:"score_note,omitempty" doc:"Why the score has no baseline"`
	Note           string          `json:"note,omitempty"`
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification"`
	ComputedAt     time.Time       `json:"computed_at"`
	From           *time.Time      `json:"from,omitempty" doc:"Start of the baseline window, if the baseline is a window"`
	To             *time.Time      `json:"to,omitempty" doc:"End of the baseline window"`
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
