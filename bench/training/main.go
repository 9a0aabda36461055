// Command training measures how jobs get to engines, and what that costs, and
// writes bench/results/training.json and its table in bench/README.md. Run it by
// `make bench-training`, from the root of the repository, with bin/falaj and
// bin/falaj-worker built.
//
// # Map
//
//   - main.go: the order of the measurements; jobs over the API.
//   - noop.go: a job that does nothing, on each engine and by the engine itself.
//   - queue.go: 10,000 jobs at once: submitting, dispatching, memory.
//   - throughput.go: many short jobs on Slurm.
//   - recovery.go: a lost node. checkpoint.go: keeping and restoring.
//   - cluster.go: a real Slurm of virtual nodes, as a child. ray.go: a real Ray.
//
// An engine that is not installed leaves its rows without a value, and their
// notes say why. So does what waits for minutes, a Ray and a lost node, in a quick
// run.
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

func main() { harness.Main("training", steps) }

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	return []harness.Step{
		{Name: "no-op jobs", Do: b.noops},
		{Name: "kubernetes", Do: b.onKube},
		{Name: "queue", Do: b.queue},
		{Name: "throughput", Do: b.throughput},
		{Name: "recovery", Do: b.recovery},
		{Name: "checkpoints", Do: b.checkpoints},
	}
}

const (
	project = "bench"
	notNow  = "left out of a quick run"
)

// up starts a server with a configuration, and makes what the manifests say.
func (b *bench) up(ctx context.Context, name, config string, manifests ...string) (*harness.Server, *client.Client, error) {
	file := filepath.Join(b.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.Root, "bin", "falaj"), "up", "--config", file, "--data", filepath.Join(b.Dir, name),
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0")
	cmd.Env = []string{"XDG_CONFIG_HOME=" + filepath.Join(b.Dir, "config")}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FALAJ_") && !strings.HasPrefix(kv, "XDG_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	s, err := b.Launch(cmd, -1, "Falaj is ready at ")
	if err != nil {
		return nil, nil, err
	}
	c, err := s.Client()
	for _, m := range append([]string{"{api_version: falaj/v1, kind: Project, name: " + project + "}"}, manifests...) {
		if err == nil {
			_, err = c.Apply(ctx, project, []byte(m), false)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, s.Stop())
	}
	return s, c, nil
}

const jobs = "/api/v1/projects/" + project + "/jobs"

// submit submits a job and gives its ID.
func submit(ctx context.Context, c *client.Client, spec map[string]any) (string, error) {
	var job client.Object
	if err := c.Do(ctx, http.MethodPost, jobs, map[string]any{"name": "bench", "spec": spec}, &job); err != nil {
		return "", err
	}
	if id := job.Text("id"); id != "" {
		return id, nil
	}
	return "", errors.New("the job has no id")
}

// finished waits until a job has succeeded.
func finished(ctx context.Context, c *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		var job client.Object
		if err := c.Do(ctx, http.MethodGet, jobs+"/"+id+"?wait=50s", nil, &job); err != nil {
			return err
		}
		switch state := job.Text("state"); state {
		case "succeeded":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("job %s is %s: %v", id, state, job)
		}
	}
}

// once is how long a job takes from its submission to the answer that it has
// finished.
func once(ctx context.Context, c *client.Client, spec map[string]any) (time.Duration, error) {
	began := time.Now()
	id, err := submit(ctx, c, spec)
	if err == nil {
		err = finished(ctx, c, id)
	}
	return time.Since(began), err
}
