package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

func monitorPath(project, monitor string) string {
	return "/api/v1/projects/" + url.PathEscape(project) + "/monitors/" + url.PathEscape(monitor)
}

// Monitor is a monitor with what it found so far.
func (c *Client) Monitor(ctx context.Context, project, monitor string) (Object, error) {
	var out Object
	err := c.Do(ctx, http.MethodGet, monitorPath(project, monitor), nil, &out)
	return out, err
}

// Monitors calls yield for each monitor of a project, by name.
func (c *Client) Monitors(ctx context.Context, project string, yield func(Object) error) error {
	return c.List(ctx, "/api/v1/projects/"+url.PathEscape(project)+"/monitors", nil, yield)
}

// Windows calls yield for each window of a monitor, the newest first. A version
// of 0 is all.
func (c *Client) Windows(ctx context.Context, project, monitor string, version int64, yield func(Object) error) error {
	return c.List(ctx, monitorPath(project, monitor)+"/windows", versionQuery(version), yield)
}

// Window is a window with summaries of its inputs and scores.
func (c *Client) Window(ctx context.Context, project, monitor, window string) (Object, error) {
	var out Object
	err := c.Do(ctx, http.MethodGet, monitorPath(project, monitor)+"/windows/"+url.PathEscape(window), nil, &out)
	return out, err
}

// Baseline is what a version's windows are compared with; a version of 0 is the
// one that was judged last.
func (c *Client) Baseline(ctx context.Context, project, monitor string, version int64) (Object, error) {
	var out Object
	path := monitorPath(project, monitor) + "/baseline"
	if q := versionQuery(version); q != nil {
		path += "?" + q.Encode()
	}
	err := c.Do(ctx, http.MethodGet, path, nil, &out)
	return out, err
}

// Classify begins a domain classifier of a closed window: a job that learns to tell
// its rows from the baseline's. An empty window is the newest, an empty
// environment the one that the monitor names. What it finds is the window's
// "classifier" when the job has ended.
func (c *Client) Classify(ctx context.Context, project, monitor, window, environment string) (Object, error) {
	var out Object
	body := map[string]string{}
	if window != "" {
		body["window"] = window
	}
	if environment != "" {
		body["environment"] = environment
	}
	err := c.Do(ctx, http.MethodPost, monitorPath(project, monitor)+"/classify", body, &out)
	return out, err
}

func versionQuery(version int64) url.Values {
	if version == 0 {
		return nil
	}
	return url.Values{"version": {strconv.FormatInt(version, 10)}}
}
