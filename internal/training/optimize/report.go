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
	Metric      string      `json:"metric" doc:"Metric: accuracy, auc and agreement range from 0 to 1; rmse is in the label's unit; r2 is relative to the original model's predictions"`
	Labelled    bool        `json:"labelled" doc:"Whether predictions were compared with labels, rather than with the original model's predictions"`
	Rows        int         `json:"rows" doc:"Rows used to evaluate"`
	Calibration int         `json:"calibration_rows"`
	Threads     int         `json:"threads"`
	MaxLoss     float64     `json:"max_loss"`
	MinSpeedup  float64     `json:"min_speedup"`
	Runtime     string      `json:"runtime"`
	Candidates  []Candidate `json:"candidates" doc:"Candidates; the first is the original model, fp32"`
	Chosen      string      `json:"chosen" doc:"The chosen candidate; empty when none is acceptable"`
	Reason      string      `json:"reason" doc:"Reason for the choice"`
	DryRun      bool        `json:"dry_run"`

	Job   string `json:"job,omitempty"`
	Of    string `json:"of,omitempty" doc:"Version that was optimised"`
	Made  string `json:"made,omitempty" doc:"Version that was registered"`
	State string `json:"state,omitempty" doc:"State of the job"`
}

// Candidate is one variant of the model.
type Candidate struct {
	Name      string   `json:"name"`
	Reason    string   `json:"reason,omitempty" doc:"Why the candidate could not be built"`
	Bytes     int64    `json:"bytes,omitempty"`
	Value     *float64 `json:"value,omitempty" doc:"Value of the metric; absent when predictions are not numbers"`
	Loss      *float64 `json:"loss,omitempty" doc:"Loss against fp32, for rmse the relative increase; negative values are improvements"`
	LossError *float64 `json:"loss_error,omitempty" doc:"Half width of the 95% confidence interval of the loss, by bootstrap"`
	MadeS     float64  `json:"made_s,omitempty" doc:"Build time in seconds"`
	Measured  []Speed  `json:"measured,omitempty" doc:"Measurements by batch size"`
}

// Speed is how fast a candidate is.
type Speed struct {
	Batch      int     `json:"batch"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	RowsPerS   float64 `json:"rows_per_s"`
	Runs       int     `json:"runs"`
	Speedup    float64 `json:"speedup" doc:"Speed-up over fp32, the median of the rounds"`
	SpeedupLow float64 `json:"speedup_low" doc:"Smallest speed-up of a round"`
	SpeedupTop float64 `json:"speedup_high" doc:"Largest speed-up of a round"`
}

// readReport reads what a job wrote: anything, possibly. Error: fault.Invalid.
func readReport(b []byte) (Report, error) {
	var r Report
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Report{}, fault.New(fault.Invalid, "%s is not a valid optimisation report: %v", reportFile, err)
	}
	r.Job, r.Of, r.Made, r.State = "", "", "", "" // ours to say
	names := map[string]bool{}
	for _, c := range r.Candidates {
		if names[c.Name] || c.Name != "fp32" && !slices.Contains(Candidates, c.Name) {
			return Report{}, fault.New(fault.Invalid, "%s: candidate %.40q is unknown or duplicated", reportFile, c.Name)
		}
		names[c.Name] = true
	}
	if !names["fp32"] || r.Chosen != "" && !names[r.Chosen] {
		return Report{}, fault.New(fault.Invalid, "%s refers to candidates that it does not contain", reportFile)
	}
	return r, nil
}
