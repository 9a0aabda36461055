package client

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"time"
)

// Label is the ground truth for a prediction. Exactly one of Value and Values is
// set.
type Label struct {
	ID     string     `json:"id"`               // the answer's
	Value  *float64   `json:"value,omitempty"`  // false is 0, true 1
	Values []float64  `json:"values,omitempty"` // one for each row of the request; NaN of a row whose label is not known
	At     *time.Time `json:"at,omitempty"`     // when it became known; nil: now
	// Class is a class as text, in place of Value; Classes are those of the rows of a
	// request, in place of Values, empty of a row whose label is not known.
	Class   string   `json:"-"`
	Classes []string `json:"-"`
}

// MarshalJSON writes classes where the API takes values, and null for rows without a label.
func (l Label) MarshalJSON() ([]byte, error) {
	out := struct {
		ID     string     `json:"id"`
		Value  any        `json:"value,omitempty"`
		Values []any      `json:"values,omitempty"`
		At     *time.Time `json:"at,omitempty"`
	}{ID: l.ID, At: l.At}
	switch {
	case l.Class != "":
		out.Value = l.Class
	case l.Value != nil:
		out.Value = *l.Value
	}
	for _, v := range l.Values {
		if math.IsNaN(v) {
			out.Values = append(out.Values, nil)
		} else {
			out.Values = append(out.Values, v)
		}
	}
	for _, class := range l.Classes {
		if class == "" {
			out.Values = append(out.Values, nil)
		} else {
			out.Values = append(out.Values, class)
		}
	}
	return json.Marshal(out)
}

// Labelled says what became of labels.
type Labelled struct {
	Accepted    int `json:"accepted"`
	Duplicates  int `json:"duplicates"`
	Contradicts int `json:"contradicts"` // another label came first, and stays
	Unknown     int `json:"unknown"`     // of no prediction known yet: they wait
	TooLate     int `json:"too_late"`
	WrongRows   int `json:"wrong_rows"`
	// Results are beside the labels that were sent.
	Results []LabelResult `json:"results"`
}

// LabelResult is what became of one label: accepted, duplicate, contradicts,
// unknown, too_late or wrong_rows.
type LabelResult struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

// Label sends labels of a deployment's predictions, at most 10,000 at a time.
// Sending them again changes nothing.
func (c *Client) Label(ctx context.Context, project, deployment string, labels []Label) (Labelled, error) {
	var out Labelled
	err := c.Do(ctx, http.MethodPost, deploymentPath(project, deployment)+"/labels", map[string]any{"labels": labels}, &out)
	return out, err
}

// VerifyAnswers recomputes what the model saw in a sample of a deployment's
// answers and compares. A sample of 0 is 1,000.
func (c *Client) VerifyAnswers(ctx context.Context, project, deployment string, sample int, seed uint64) (Object, error) {
	var out Object
	err := c.Do(ctx, http.MethodPost, deploymentPath(project, deployment)+"/verify", map[string]any{"sample": sample, "seed": seed}, &out)
	return out, err
}

// Rollout is how the newest rollout of a deployment goes.
func (c *Client) Rollout(ctx context.Context, project, deployment string) (Object, error) {
	var out Object
	err := c.Do(ctx, http.MethodGet, deploymentPath(project, deployment)+"/rollout", nil, &out)
	return out, err
}

func deploymentPath(project, deployment string) string {
	return "/api/v1/projects/" + url.PathEscape(project) + "/deployments/" + url.PathEscape(deployment)
}
