package slurm_test

import (
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/test/live"
)

// TestDigitsOnSlurm: the example runs here as it does on the server's own
// machine, with another word for its pools, and loses as much in each step; the
// second time it loses a node on the way.
func TestDigitsOnSlurm(t *testing.T) {
	live.Torch(t)
	x := newSite(t)
	example := filepath.Join(x.Bin.Root, "examples", "digits-ddp")
	env, err := os.ReadFile(filepath.Join(example, "env.yaml"))
	x.Must(err)
	x.Apply(string(env) + "project: PROJECT\n")
	job, err := os.ReadFile(filepath.Join(example, "job.yaml"))
	x.Must(err)
	submit := func(pool, more string) (id string) {
		file := filepath.Join(t.TempDir(), "job.yaml")
		text := strings.Replace(string(job), `"120"]`, `"60"`+more+`]`, 1) + "  pools: [" + pool + "]\n"
		x.Must(os.WriteFile(file, []byte(text), 0o600))
		out := x.Run(0, "job", "submit", "-f", file, "--source", example, "-o", "json")
		id = regexp.MustCompile(`job_[0-9A-Z]{26}`).FindString(out)
		if id == "" {
			t.Fatalf("no job in %s", out)
		}
		return id
	}
	home := submit("home", "")
	x.Ends(home, "succeeded")
	want := losses(x.Run(0, "job", "logs", home))

	disturbed := submit("hpc", `, --every, "5", --pause, "0.3"`)
	x.Eventually("no checkpoint is kept", func() (bool, error) {
		var o struct {
			Items []any `json:"items"`
		}
		err := x.C.Do(t.Context(), http.MethodGet, x.Path("jobs/"+disturbed+"/checkpoints"), nil, &o)
		return len(o.Items) > 0, err
	})
	node, err := x.c.Command(t.Context(), "squeue", "--noheader", "--format=%B", "--states=RUNNING")
	x.Must(err)
	x.c.Fail(strings.TrimSpace(node))
	ended := x.Ends(disturbed, "succeeded")
	if ended.Text("attempts") == "1" {
		t.Errorf("nothing was lost: %v", ended)
	}
	got := losses(x.Run(0, "job", "logs", disturbed))
	if len(want) != 60 || len(got) == 0 || len(got) > 60 {
		t.Fatalf("%d steps at home, %d after the loss", len(want), len(got))
	}
	for step, loss := range got {
		if math.Abs(loss-want[step]) > 1e-4 {
			t.Errorf("step %d: loss %v, at home %v", step, loss, want[step])
		}
	}
	if _, last := got[60]; !last {
		t.Errorf("the last step is not there: %v", got)
	}
}

var step = regexp.MustCompile(`step (\d+) loss ([0-9.]+)`)

// losses are those of a log, by step.
func losses(log string) map[int]float64 {
	all := map[int]float64{}
	for _, m := range step.FindAllStringSubmatch(log, -1) {
		n, _ := strconv.Atoi(m[1])
		all[n], _ = strconv.ParseFloat(m[2], 64)
	}
	return all
}
