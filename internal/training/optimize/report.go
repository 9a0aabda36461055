package optimize

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// reportFile is the artifact of the job's run with what it measured.
const reportFile = "optimization.json"

// maxReport bounds it, in bytes.
const maxReport = 1 << 20

// Report is what a job measured.
type Report struct {
	Metric      string      `json:"metric" doc:"accuracy, auc and agreement are of 1; rmse is in the label's unit; r2 is 1 where answers are those of the model as it was"`
	Labelled    bool        `json:"labelled" doc:"Whether answers were compared with right ones, else with those of the model as it was"`
	Rows        int         `json:"rows" doc:"Rows that were judged by"`
	Calibration int         `json:"calibration_rows"`
	Threads     int         `json:"threads"`
	MaxLoss     float64     `json:"max_loss"`
	MinSpeedup  float64     `json:"min_speedup"`
	Runtime     string      `json:"runtime"`
	Candidates  []Candidate `json:"candidates" doc:"The first is the model as it was, fp32"`
	Chosen      string      `json:"chosen" doc:"The candidate that is the best; empty where none is"`
	Reason      string      `json:"reason" doc:"Why that one, or none"`
	DryRun      bool        `json:"dry_run"`

	Job   string `json:"job,omitempty"`
	Of    string `json:"of,omitempty" doc:"The version that was optimised"`
	Made  string `json:"made,omitempty" doc:"The version that was made"`
	State string `json:"state,omitempty" doc:"Of the job"`
}

// Candidate is one variant of the model.
type Candidate struct {
	Name      string   `json:"name"`
	Reason    string   `json:"reason,omitempty" doc:"Why it could not be made"`
	Bytes     int64    `json:"bytes,omitempty"`
	Value     *float64 `json:"value,omitempty" doc:"Of the metric; missing where its answers are no numbers"`
	Loss      *float64 `json:"loss,omitempty" doc:"Against fp32; of rmse the part by which it grew; below 0 it is better"`
	LossError *float64 `json:"loss_error,omitempty" doc:"Half of the interval that has 95 of 100 losses when the rows are drawn again"`
	MadeS     float64  `json:"made_s,omitempty" doc:"Seconds that it took to make"`
	Measured  []Speed  `json:"measured,omitempty" doc:"For each size of batch"`
}

// Speed is how fast a candidate is.
type Speed struct {
	Batch      int     `json:"batch"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	RowsPerS   float64 `json:"rows_per_s"`
	Runs       int     `json:"runs"`
	Speedup    float64 `json:"speedup" doc:"How many times as fast as fp32, the median over the rounds"`
	SpeedupLow float64 `json:"speedup_low" doc:"The least of a round"`
	SpeedupTop float64 `json:"speedup_high" doc:"The most of a round"`
}

// readReport reads what a job wrote: anything, possibly. Error: fault.Invalid.
func readReport(b []byte) (Report, error) {
	var r Report
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Report{}, fault.New(fault.Invalid, "%s is not what the job of Falaj writes: %v", reportFile, err)
	}
	r.Job, r.Of, r.Made, r.State = "", "", "", "" // ours to say
	names := map[string]bool{}
	for _, c := range r.Candidates {
		if names[c.Name] || c.Name != "fp32" && !slices.Contains(Candidates, c.Name) {
			return Report{}, fault.New(fault.Invalid, "%s has a candidate %.40q, unknown or twice", reportFile, c.Name)
		}
		names[c.Name] = true
	}
	if !names["fp32"] || r.Chosen != "" && !names[r.Chosen] {
		return Report{}, fault.New(fault.Invalid, "%s has not the candidates that it speaks of", reportFile)
	}
	return r, nil
}
