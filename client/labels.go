package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// Label says what turned out to be true for a prediction. Exactly one of Value
// and Values is set.
type Label struct {
	ID     string     `json:"id"`               // the answer's
	Value  *float64   `json:"value,omitempty"`  // false is 0, true 1
	Values []float64  `json:"values,omitempty"` // one for each row of the request
	At     *time.Time `json:"at,omitempty"`     // when it became known; nil: now
	// Class is a class as text, in place of Value; Classes are those of the rows of a
	// request, in place of Values.
	Class   string   `json:"-"`
	Classes []string `json:"-"`
}

// MarshalJSON writes classes where the API takes values.
func (l Label) MarshalJSON() ([]byte, error) {
	type plain Label
	if l.Class == "" && l.Classes == nil {
		return json.Marshal(plain(l))
	}
	return json.Marshal(struct {
		ID     string     `json:"id"`
		Value  string     `json:"value,omitempty"`
		Values []string   `json:"values,omitempty"`
		At     *time.Time `json:"at,omitempty"`
	}{l.ID, l.Class, l.Classes, l.At})
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
