package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
)

// jobsAndJoin starts one server for what runs as children of it, on all cores.
func (b *bench) jobsAndJoin(ctx context.Context) error {
	s, err := b.Up(ctx, filepath.Join(b.Dir, "main"), -1)
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	c, err := s.Client()
	if err != nil {
		return err
	}
	project, err := os.ReadFile(filepath.Join(b.Root, "examples/nycflights/project.yaml"))
	if err != nil {
		return err
	}
	if b.Quick { // a short file of flights will do
		project = []byte(strings.ReplaceAll(string(project), "min: 300000", "min: 1"))
	}
	if _, err := c.Apply(ctx, "nyc", project, false); err != nil {
		return err
	}
	if err := b.jobs(ctx, c); err != nil {
		return err
	}
	return b.join(ctx, c)
}

// jobs measures from the submission of a job that does nothing to the answer
// that it has finished; a bare fork and exec of the same program goes between.
func (b *bench) jobs(ctx context.Context, c *client.Client) error {
	n := max(6, (30+b.Rounds-1)/b.Rounds)
	if b.Quick {
		n = 2
	}
	if _, err := noop(ctx, c); err != nil { // the first finds nothing in caches
		return err
	}
	var times, bare []float64
	for range b.Rounds {
		for range n {
			took, err := noop(ctx, c)
			if err != nil {
				return err
			}
			times = append(times, harness.Millis(took))
			began := time.Now()
			if err := exec.CommandContext(ctx, "/bin/true").Run(); err != nil {
				return err
			}
			bare = append(bare, harness.Millis(time.Since(began)))
		}
	}
	b.Add(harness.Row{
		Name: "no-op job, submitted to finished, p50", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(times)), Aim: &harness.Aim{Value: harness.Value(300)},
		Note: fmt.Sprintf("%d jobs of /bin/true, one after the other, over the API: scheduled, sandboxed, tracked, audited; a bare fork and exec in between takes %.2g ms", len(times), harness.Median(bare)),
	})
	b.Add(harness.Row{
		Name: "no-op job, submitted to finished, p99", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Quantile(times, 0.99)), Aim: &harness.Aim{Value: harness.Value(300)},
		Note: fmt.Sprintf("of %d jobs the slowest", len(times)),
	})
	return nil
}

func noop(ctx context.Context, c *client.Client) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	began := time.Now()
	var job client.Object
	body := map[string]any{"name": "noop", "spec": map[string]any{"command": []string{"/bin/true"}}}
	if err := c.Do(ctx, http.MethodPost, "/api/v1/projects/nyc/jobs", body, &job); err != nil {
		return 0, err
	}
	id := job.Text("id")
	if id == "" {
		return 0, errors.New("the job has no id")
	}
	for job.Text("state") == "queued" || job.Text("state") == "running" {
		if err := c.Do(ctx, http.MethodGet, "/api/v1/projects/nyc/jobs/"+id+"?wait=50s", nil, &job); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	if state := job.Text("state"); state != "succeeded" {
		return 0, fmt.Errorf("job %s is %q: %v", id, state, job)
	}
	return took, nil
}
