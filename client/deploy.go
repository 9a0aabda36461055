package client

import (
	"context"
	"net/http"
	"net/url"
)

func deployment(project, name, act string) string {
	return "/api/v1/projects/" + url.PathEscape(project) + "/deployments/" + url.PathEscape(name) + "/" + act
}

// DeploymentStatus tells what a deployment does, how its versions fare, its
// rollouts, and what was done automatically and why.
func (c *Client) DeploymentStatus(ctx context.Context, project, name string) (Object, error) {
	var o Object
	return o, c.Do(ctx, http.MethodGet, deployment(project, name, "status"), nil, &o)
}

// DeploymentUsage returns the use of a deployment's quota in the current period, by
// client.
func (c *Client) DeploymentUsage(ctx context.Context, project, name string) (Object, error) {
	var o Object
	return o, c.Do(ctx, http.MethodGet, deployment(project, name, "usage"), nil, &o)
}

// Canary starts a canary with a version (a number or an alias). The weight is a
// percentage of the requests; 0 is that of the manifest. An empty version changes the
// weight of the running canary. The answer is the rollout.
func (c *Client) Canary(ctx context.Context, project, name, version string, weight int, reason string) (Object, error) {
	var o Object
	return o, c.Do(ctx, http.MethodPost, deployment(project, name, "canary"), map[string]any{"version": version, "weight": weight, "reason": reason}, &o)
}

// Promote promotes the canary to the stable version. The answer is the
// rollout.
func (c *Client) Promote(ctx context.Context, project, name, reason string) (Object, error) {
	var o Object
	return o, c.Do(ctx, http.MethodPost, deployment(project, name, "promote"), map[string]any{"reason": reason}, &o)
}

// Rollback aborts the running rollout or, without one, rolls back to the previous
// version; to names another one. The answer is the deployment.
func (c *Client) Rollback(ctx context.Context, project, name string, to int64, reason string) (Object, error) {
	var o Object
	return o, c.Do(ctx, http.MethodPost, deployment(project, name, "rollback"), map[string]any{"to": to, "reason": reason}, &o)
}

// Shadow mirrors a deployment's requests to a shadow version; an empty version
// stops mirroring. The answer is the deployment.
func (c *Client) Shadow(ctx context.Context, project, name, version string) (Object, error) {
	var o Object
	return o, c.Do(ctx, http.MethodPost, deployment(project, name, "shadow"), map[string]any{"version": version}, &o)
}

// Prediction is what Predict answers, and what becomes of it.
type Prediction struct {
	Dataset   string              `json:"dataset"`              // with or without @version
	Into      string              `json:"into"`                 // another dataset, which is made where it is missing
	Keep      []string            `json:"keep,omitempty"`       // columns beside the answers; default all
	Prefix    string              `json:"prefix,omitempty"`     // of the names of the model's outputs
	Columns   map[string][]string `json:"columns,omitempty"`    // of each input of the model, in order
	Shapes    map[string][]int    `json:"shapes,omitempty"`     // of a row of an input
	Nulls     string              `json:"nulls,omitempty"`      // refuse or nan
	BatchRows int                 `json:"batch_rows,omitempty"` // rows that run at once
	Threads   int                 `json:"threads,omitempty"`
	Env       string              `json:"environment,omitempty"`
	Pools     []string            `json:"pools,omitempty"`
}

// Predict submits a job that answers the rows of a dataset with the version that is
// stable in a deployment now. The answer is the job, whose inputs name that version.
func (c *Client) Predict(ctx context.Context, project, name string, p Prediction) (Object, error) {
	var o Object
	return o, c.Do(ctx, http.MethodPost, deployment(project, name, "predict"), p, &o)
}

// SetAutomation turns automatic acts of a deployment on or off, or with an empty
// name those of the whole project.
func (c *Client) SetAutomation(ctx context.Context, project, name string, on bool, reason string) error {
	path := "/api/v1/projects/" + url.PathEscape(project) + "/automation"
	if name != "" {
		path = deployment(project, name, "automation")
	}
	return c.Do(ctx, http.MethodPost, path, map[string]any{"on": on, "reason": reason}, nil)
}
