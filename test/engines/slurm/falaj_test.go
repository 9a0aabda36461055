package slurm_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/test/live"
)

// site is a Falaj with a Slurm: the real binary, configured as a site would.
type site struct {
	*live.Project
	c     *slurmtest.Cluster
	signs string
}

func newSite(t *testing.T) *site {
	t.Helper()
	t.Parallel()
	c := slurmtest.New(t, slurmtest.Options{})
	s := live.New(t, "")
	x := &site{c: c, signs: filepath.Join(c.Dir, "signs")}
	for _, err := range []error{os.Mkdir(x.signs, 0o700), os.Chmod(x.signs, 0o777)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "engines: {hpc: {kind: slurm, conf: %s, users: {p: daemon}, worker: %s}}\n", c.Conf, c.Worker(t, s.Bin.Worker)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	x.Project = s.Project(t, "p")
	x.Apply(`{api_version: falaj/v1, kind: Pool, name: hpc, spec: {engine: hpc, mode: delegated, options: {partition: batch}}}`)
	return x
}

// submit submits a gang that runs a shell script.
func (x *site) submit(name string, workers int, script string) (id string) {
	x.T.Helper()
	var job client.Object
	x.Must(x.C.Do(x.T.Context(), http.MethodPost, x.Path("jobs"), map[string]any{"name": name, "spec": map[string]any{
		"command": []string{"/bin/sh", "-c", script}, "env": map[string]string{"SIGNS": x.signs}, "pools": []string{"hpc"}, "workers": workers,
		"resources": map[string]any{"cpu": "8", "memory": "100MiB"}, "grace": "5s",
	}}, &job))
	return job.Text("id")
}

func (x *site) sign(names ...string) {
	x.T.Helper()
	for _, name := range names {
		x.Eventually("no job made "+name, func() (bool, error) {
			_, err := os.Stat(filepath.Join(x.signs, name))
			return err == nil, err
		})
	}
}

// TestFalajOnSlurm: a gang loses a node, and goes on from its checkpoint on
// others; its log, its output, its nodes and what its workers do are seen from here.
func TestFalajOnSlurm(t *testing.T) {
	x := newSite(t)
	id := x.submit("gang", 2, `echo "rank $RANK of $WORLD_SIZE as $(id -un)"
		if [ -e "$FALAJ_CHECKPOINT_DIR/step1/state$RANK" ]; then
			read s <"$FALAJ_CHECKPOINT_DIR/step1/state$RANK"; echo "goes on from $s"; echo "$s" >"$FALAJ_OUTPUT_DIR/result$RANK"; exit 0
		fi
		mkdir "$FALAJ_CHECKPOINT_DIR/.new" && echo "one$RANK" >"$FALAJ_CHECKPOINT_DIR/.new/state$RANK" && mv "$FALAJ_CHECKPOINT_DIR/.new" "$FALAJ_CHECKPOINT_DIR/step1"
		echo "$SLURMD_NODENAME" >"$SIGNS/up$RANK"; exec sleep 100000`)
	x.sign("up0", "up1")
	x.Eventually("the checkpoint is not kept", func() (bool, error) {
		var o struct {
			Items []client.Object `json:"items"`
		}
		err := x.C.Do(t.Context(), http.MethodGet, x.Path("jobs/"+id+"/checkpoints"), nil, &o)
		return len(o.Items) == 1, err
	})
	node, err := x.c.Command(t.Context(), "squeue", "--noheader", "--format=%B", "--states=RUNNING")
	x.Must(err)
	x.c.Fail(strings.TrimSpace(node))
	x.Ends(id, "succeeded")
	log := x.Run(0, "job", "logs", id)
	for _, want := range []string{"[0] rank 0 of 2 as daemon", "[1] goes on from one1"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if said := x.Run(0, "job", "describe", id); !strings.Contains(said, "node_lost") || !strings.Contains(said, strings.TrimSpace(node)) {
		t.Errorf("describe does not tell of the lost node %s:\n%s", node, said)
	}
	if said := x.Run(0, "pool", "describe", "hpc"); !strings.Contains(said, "n4") {
		t.Errorf("the nodes are not shown:\n%s", said)
	}
	x.Apply(live.Spied)
	x.SeesInto("hpc", "spied")
}

// TestFalajWaitsOnSlurm: why says what others hold.
func TestFalajWaitsOnSlurm(t *testing.T) {
	x := newSite(t)
	_, err := x.c.Command(t.Context(), "sbatch", "--uid=nobody", "--nodes=4", "--exclusive", "--output=/dev/null", "--chdir=/", "--job-name=other", "--wrap=sleep 10000")
	x.Must(err)
	x.Eventually("the other job does not run", func() (bool, error) {
		out, err := x.c.Command(t.Context(), "squeue", "--noheader", "--states=RUNNING", "--format=%j")
		return strings.Contains(out, "other"), err
	})
	id := x.submit("waits", 1, "echo ran")
	x.Eventually("why does not tell", func() (bool, error) {
		out, _ := x.Command(t.Context(), "job", "why", id, "-p", x.Name)
		return strings.Contains(out, "not enough nodes are free on Slurm") && strings.Contains(out, "1 running on 64 cpus"), fmt.Errorf("%s", out)
	})
	_, err = x.c.Command(t.Context(), "scancel", "--name=other")
	x.Must(err)
	x.Ends(id, "succeeded")
}

// TestFalajIsAheadOnSlurm: what a named node has no room for waits on it in Slurm's
// queue, as much as the pool says, and runs there.
func TestFalajIsAheadOnSlurm(t *testing.T) {
	x := newSite(t)
	x.Apply(`{api_version: falaj/v1, kind: Pool, name: hpc, spec: {engine: hpc, ahead: 0.5, options: {partition: batch}, nodes: [{name: n2, cpu: "16", memory: 1GiB}]}}`)
	var ids []string
	for n := range 4 {
		ids = append(ids, x.submit(fmt.Sprint("short", n), 1, fmt.Sprintf(`: >"$SIGNS/up%d"; while [ ! -e "$SIGNS/go" ]; do sleep 0.1; done`, n)))
	}
	x.Eventually("two do not run", func() (bool, error) {
		up, err := filepath.Glob(filepath.Join(x.signs, "up*"))
		return len(up) == 2, err
	})
	x.Eventually("none is ahead", func() (bool, error) {
		out, err := x.c.Command(t.Context(), "squeue", "--noheader", "--states=PENDING", "--format=%n %r")
		return strings.TrimSpace(out) == "n2 Resources", fmt.Errorf("%s, %w", out, err)
	})
	x.Eventually("why does not tell", func() (bool, error) {
		return slices.ContainsFunc(ids[:3], func(id string) bool { // whichever Slurm got last
			said, _ := x.Command(t.Context(), "job", "why", id, "-p", x.Name)
			return strings.Contains(said, "on Slurm")
		}), nil
	})
	if out := x.Run(0, "job", "why", ids[3]); !strings.Contains(out, "8 cpu wanted, 0 free on hpc") {
		t.Errorf("the fourth: %s", out)
	}
	x.Must(os.WriteFile(filepath.Join(x.signs, "go"), nil, 0o600))
	for _, id := range ids {
		x.Ends(id, "succeeded")
		if said := x.Run(0, "job", "describe", id); !strings.Contains(said, " n2") {
			t.Errorf("%s did not run on n2:\n%s", id, said)
		}
	}
}

// TestFalajRestartsOverSlurm: neither the server's death nor the controller's
// ends a job, or makes a second one.
func TestFalajRestartsOverSlurm(t *testing.T) {
	x := newSite(t)
	id := x.submit("stays", 2, `echo "start of $RANK" >>"$SIGNS/starts"; : >"$SIGNS/up$RANK"; while [ ! -e "$SIGNS/go" ]; do sleep 0.1; done; echo done`)
	x.sign("up0", "up1")
	url := x.URL
	x.Must(x.Kill())
	x.c.KillController()
	x.Args = append(x.Args, "--http", strings.TrimPrefix(url, "http://")) // the nodes know this address
	x.Again()
	x.Must(os.WriteFile(filepath.Join(x.signs, "go"), nil, 0o600))
	x.Ends(id, "succeeded")
	x.Must(x.c.StartController(t.Context()))
	if starts, err := os.ReadFile(filepath.Join(x.signs, "starts")); err != nil || strings.Count(string(starts), "\n") != 2 {
		t.Errorf("%s %v", starts, err)
	}
}
