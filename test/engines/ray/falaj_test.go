package ray_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/ray/raytest"
	"github.com/falaj-ml/falaj/test/live"
)

// site is a Falaj with a Ray: the real binary, configured as a site would.
type site struct {
	*live.Project
	c     *raytest.Cluster
	signs string
}

// falaj is the real binary. What loses a node or the server comes last.
func falaj(t *testing.T, c *raytest.Cluster) {
	t.Helper()
	s := live.New(t, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "engines: {cluster: {kind: ray, address: %s, token_file: %s, lease: 20s}}\n", c.Address, c.TokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	x := &site{s.Project(t, "p"), c, t.TempDir()}
	x.Apply(`{api_version: falaj/v1, kind: Pool, name: actors, spec: {engine: cluster, mode: delegated, env: {GLOO_SOCKET_IFNAME: lo}, options: {strategy: SPREAD}}}
---
{api_version: falaj/v1, kind: Environment, project: PROJECT, name: plain, spec: {python: /usr/bin/python3, requirements: []}}`)
	t.Run("what the pool promises", x.with((*site).promises))
	t.Run("a gang", x.with((*site).gang))
	t.Run("a job that fails", x.with((*site).fails))
	t.Run("what a worker does", x.with(func(x *site) { x.SeesInto("actors", "plain") }))
	t.Run("why it waits", x.with((*site).waits))
	t.Run("the server dies", x.with((*site).restart))
	t.Run("a node dies", x.with((*site).loss))
}

func (x *site) with(test func(x *site)) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		p := *x.Project
		p.T = t
		test(&site{&p, x.c, t.TempDir()})
	}
}

// submit submits a gang that runs a shell script.
func (x *site) submit(name string, workers int, script string) (id string) {
	x.T.Helper()
	var job client.Object
	x.Must(x.C.Do(x.T.Context(), http.MethodPost, x.Path("jobs"), map[string]any{"name": name, "spec": map[string]any{
		"command": []string{"/bin/sh", "-c", script}, "env": map[string]string{"SIGNS": x.signs}, "pools": []string{"actors"}, "workers": workers,
		"environment": "plain", "resources": map[string]any{"cpu": "1", "memory": "100MiB"}, "grace": "5s",
	}}, &job))
	return job.Text("id")
}

// says runs a command line, whose output must have all words.
func (x *site) says(args []string, words ...string) {
	x.T.Helper()
	out := x.Run(0, args...)
	for _, w := range words {
		if !strings.Contains(out, w) {
			x.T.Errorf("falaj %s does not say %q:\n%s", strings.Join(args, " "), w, out)
		}
	}
}

// why waits until the reason of a job that waits has some words.
func (x *site) why(id, words string) {
	x.T.Helper()
	x.Eventually("why does not say "+words, func() (bool, error) {
		out, _ := x.Command(x.T.Context(), "job", "why", id, "-p", x.Name)
		return strings.Contains(out, words), fmt.Errorf("%s", out)
	})
}

// signed waits until jobs made files.
func (x *site) signed(names ...string) {
	x.T.Helper()
	for _, name := range names {
		x.Eventually("no job made "+name, func() (bool, error) {
			_, err := os.Stat(filepath.Join(x.signs, name))
			return err == nil, err
		})
	}
}

func (x *site) promises() {
	x.says([]string{"pool", "describe", "actors"}, "n1", "n2", "isolates by none: ", "GLOO_SOCKET_IFNAME=lo")
	_, err := x.Try(x.C, `{api_version: falaj/v1, kind: Pool, name: liar, spec: {engine: cluster, mode: delegated, isolation: process}}`)
	if err == nil || !strings.Contains(err.Error(), "isolates by none") {
		x.T.Errorf("a pool that promises more than Ray gives: %v", err)
	}
}

func (x *site) gang() {
	id := x.submit("gang", 2, `echo "rank $RANK of $WORLD_SIZE by $GLOO_SOCKET_IFNAME"
		python -c 'import sys; print("an environment of its own:", sys.prefix != sys.base_prefix)'`)
	x.Ends(id, "succeeded")
	x.says([]string{"job", "logs", id}, "[0] rank 0 of 2 by lo", "[1] rank 1 of 2 by lo", "[1] an environment of its own: True")
}

func (x *site) fails() {
	var job client.Object
	x.Must(x.C.Do(x.T.Context(), http.MethodPost, x.Path("jobs"), map[string]any{"name": "fails", "spec": map[string]any{
		"command": []string{"/usr/bin/python3", "-c", "raise ValueError('the labels are those of another day')"}, "pools": []string{"actors"},
		"resources": map[string]any{"cpu": "1", "memory": "100MiB"},
	}}, &job))
	id := job.Text("id")
	x.Ends(id, "failed")
	x.says([]string{"job", "describe", id}, "user_error", "ValueError: the labels are those of another day")
}

func (x *site) waits() {
	var job client.Object
	x.Must(x.C.Do(x.T.Context(), http.MethodPost, x.Path("jobs"), map[string]any{"name": "waits", "spec": map[string]any{
		"command": []string{"/bin/true"}, "pools": []string{"actors"}, "workers": 3, "resources": map[string]any{"cpu": "4", "memory": "100MiB"},
	}}, &job))
	x.why(job.Text("id"), "cpu")
	x.Run(0, "job", "cancel", job.Text("id"))
	x.Ends(job.Text("id"), "cancelled")
}

// restart: the server's death neither ends a job nor makes a second one.
func (x *site) restart() {
	id := x.submit("stays", 2, `echo "start of $RANK" >>"$SIGNS/starts"; : >"$SIGNS/up$RANK"; while [ ! -e "$SIGNS/go" ]; do sleep 0.1; done; echo "done $RANK"`)
	x.signed("up0", "up1")
	x.Must(x.Kill())
	x.Args = append(x.Args, "--http", strings.TrimPrefix(x.URL, "http://")) // the nodes know this address
	x.Again()
	x.Must(os.WriteFile(filepath.Join(x.signs, "go"), nil, 0o600))
	x.Ends(id, "succeeded")
	x.says([]string{"job", "logs", id}, "[0] done 0", "[1] done 1")
	if starts, err := os.ReadFile(filepath.Join(x.signs, "starts")); err != nil || strings.Count(string(starts), "\n") != 2 {
		x.T.Errorf("%s %v", starts, err)
	}
}

// loss: a gang loses a node, and goes on from its checkpoint on another.
func (x *site) loss() {
	id := x.submit("loses", 2, `if [ -e "$FALAJ_CHECKPOINT_DIR/step1/state$RANK" ]; then
			read s <"$FALAJ_CHECKPOINT_DIR/step1/state$RANK"; echo "goes on from $s"; exit 0
		fi
		mkdir "$FALAJ_CHECKPOINT_DIR/.new" && echo "one$RANK" >"$FALAJ_CHECKPOINT_DIR/.new/state$RANK" && mv "$FALAJ_CHECKPOINT_DIR/.new" "$FALAJ_CHECKPOINT_DIR/step1"
		: >"$SIGNS/up$RANK"; exec sleep 100000`)
	x.signed("up0", "up1")
	x.Eventually("the checkpoint is not kept", func() (bool, error) {
		var o struct {
			Items []client.Object `json:"items"`
		}
		err := x.C.Do(x.T.Context(), http.MethodGet, x.Path("jobs/"+id+"/checkpoints"), nil, &o)
		return len(o.Items) == 1, err
	})
	x.c.Fail(x.T, node2.Name)
	x.Ends(id, "succeeded")
	x.says([]string{"job", "logs", id}, "[0] goes on from one0", "[1] goes on from one1")
	x.says([]string{"job", "describe", id}, "node_lost", node2.Name)
}
