package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// Advice is a job's resource use with right-sizing recommendations. Sentence
// summarises it, or explains why there is no recommendation; it is empty while
// nothing is known.
type Advice struct {
	Job      string          `json:"job"`
	Family   string          `json:"family"`
	Currency string          `json:"currency"`
	Sentence string          `json:"sentence"`
	Now      *Place          `json:"now"`
	Used     json.RawMessage `json:"used"`
	Ask      json.RawMessage `json:"ask"`
	Attempts int             `json:"attempts"` // of the family, measured where it ran
	Options  []Alternative   `json:"options"`
	Explore  []Trial         `json:"explore"`
}

// Place is somewhere that a job may run.
type Place struct {
	Pool    string  `json:"pool"`
	Device  string  `json:"device"`
	Workers int     `json:"workers"`
	Hourly  float64 `json:"price_per_hour"`
}

// Ratio is relative to where a job ran; Low and High hold the truth with 95 %, and
// are 0 where too little was measured.
type Ratio struct {
	Is   float64 `json:"is"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Alternative is what a job would take in another place, and how that is known:
// measured, fitted, like jobs, or bound.
type Alternative struct {
	Place
	Time     Ratio  `json:"time"`
	Price    *Ratio `json:"price"`
	Known    string `json:"known"`
	Attempts int    `json:"attempts"`
	Families int    `json:"families"`
}

// Trial is a place that is worth trying.
type Trial struct {
	Place
	Minutes float64 `json:"minutes"`
	Cost    float64 `json:"cost"`
	Saving  float64 `json:"expected_saving"`
	Runs    float64 `json:"runs"`
}

// JobAdvice returns a job's resource use and right-sizing recommendations. It starts
// no job.
func (c *Client) JobAdvice(ctx context.Context, project, job string) (a Advice, err error) {
	err = c.Do(ctx, http.MethodGet, "/api/v1/projects/"+url.PathEscape(project)+"/jobs/"+url.PathEscape(job)+"/advice", nil, &a)
	return a, err
}
