package kube_test

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/test/live"
)

// TestFalaj is the real binary with a cluster in its configuration. Pods reach it
// by TLS, and see nothing of its disk.
func TestFalaj(t *testing.T) {
	c, s := up(t)
	busybox, torch := c.Import("busybox"), c.Import("torch")
	x := &site{s.Project(t, "p")}
	for name, image := range map[string]string{"small": busybox, "torch": torch} {
		x.Apply(pool(name, image))
	}
	x.Apply(`{api_version: falaj/v1, kind: Environment, project: PROJECT, name: plain, spec: {python: /usr/bin/python3.11, requirements: []}}`)
	t.Run("a gang in the image of its pool", x.with((*site).gang))
	t.Run("why it waits", x.with((*site).waits))
	t.Run("what a worker does", x.with(func(x *site) { x.SeesInto("torch", "plain") }))
	t.Run("the digits are learned as at home", x.with((*site).digits))
}

// up starts a cluster, and the real binary with it in its configuration.
func up(tb testing.TB) (*kubetest.Cluster, *live.Server) {
	tb.Helper()
	kubetest.Need(tb)
	cert, key := kubetest.Certificate(tb)
	c := kubetest.Start(tb, kubetest.Options{Pods: true})
	s := live.New(tb, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "tls: {cert: %s, key: %s}\nengines: {cluster: {kind: kube, kubeconfig: %s, namespace: %s, worker_image: %q}}\n",
		cert, key, c.Falaj(), kubetest.Namespace, c.Worker(s.Bin.Worker)), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.Args = []string{"--config", config, "--http", kubetest.Address + ":0"}
	s.Env = append(s.Env, "SSL_CERT_FILE="+cert)
	s.Up(tb)
	return c, s
}

// pool is one on the cluster whose pods run an image that is there.
func pool(name, image string) string {
	return fmt.Sprintf(`{api_version: falaj/v1, kind: Pool, name: %s, spec: {engine: cluster, mode: delegated, options: {image: %q, pull: never}}}`, name, image)
}

type site struct{ *live.Project }

func (x *site) with(test func(x *site)) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		p := *x.Project
		p.T = t
		test(&site{&p})
	}
}

func (x *site) submit(spec map[string]any) (id string) {
	x.T.Helper()
	var job client.Object
	x.Must(x.C.Do(x.T.Context(), http.MethodPost, x.Path("jobs"), map[string]any{"name": spec["name"], "spec": spec["spec"]}, &job))
	return job.Text("id")
}

func (x *site) gang() {
	id := x.submit(map[string]any{"name": "gang", "spec": map[string]any{
		"command": []string{"/bin/sh", "-c", `echo "rank $RANK of $WORLD_SIZE as $(id -u)"; echo $RANK >"$FALAJ_OUTPUT_DIR/rank$RANK"`},
		"pools":   []string{"small"}, "workers": 2, "resources": map[string]any{"cpu": "100m", "memory": "100MiB"},
	}})
	x.Ends(id, "succeeded")
	log := x.Run(0, "job", "logs", id)
	for _, want := range []string{"[0] rank 0 of 2 as 65532", "[1] rank 1 of 2 as 65532"} {
		if !strings.Contains(log, want) {
			x.T.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if said := x.Run(0, "pool", "describe", "small"); !strings.Contains(said, kubetest.Node) {
		x.T.Errorf("the node is not shown:\n%s", said)
	}
}

func (x *site) waits() {
	id := x.submit(map[string]any{"name": "waits", "spec": map[string]any{
		"command": []string{"/bin/true"}, "pools": []string{"small"}, "resources": map[string]any{"accelerators": map[string]int{"nvidia.com/gpu": 1}},
	}})
	said := ""
	x.Eventually("why does not tell", func() (bool, error) {
		said, _ = x.Command(x.T.Context(), "job", "why", id, "-p", x.Name)
		return strings.Contains(said, "nvidia.com/gpu"), nil
	})
	x.Run(0, "job", "cancel", id)
}

// digits runs the example on the server's own machine and on pods: another word
// for its pools is all that differs.
func (x *site) digits() {
	example := filepath.Join(x.Bin.Root, "examples", "digits-ddp")
	env, err := os.ReadFile(filepath.Join(example, "env.yaml"))
	x.Must(err)
	x.Apply(string(env) + "project: PROJECT\n")
	job, err := os.ReadFile(filepath.Join(example, "job.yaml"))
	x.Must(err)
	run := func(pool string) map[int]float64 {
		file := filepath.Join(x.T.TempDir(), "job.yaml")
		x.Must(os.WriteFile(file, []byte(strings.Replace(string(job), `"120"]`, `"20"]`, 1)+"  pools: ["+pool+"]\n"), 0o600))
		id := regexp.MustCompile(`job_[0-9A-Z]{26}`).FindString(x.Run(0, "job", "submit", "-f", file, "--source", example, "-o", "json"))
		x.Ends(id, "succeeded")
		all := map[int]float64{}
		for _, m := range regexp.MustCompile(`step (\d+) loss ([0-9.]+)`).FindAllStringSubmatch(x.Run(0, "job", "logs", id), -1) {
			n, _ := strconv.Atoi(m[1])
			all[n], _ = strconv.ParseFloat(m[2], 64)
		}
		return all
	}
	home, pods := run("home"), run("torch")
	if len(home) != 20 || len(pods) != 20 {
		x.T.Fatalf("%d steps at home, %d on pods", len(home), len(pods))
	}
	for step, loss := range home {
		if math.Abs(loss-pods[step]) > 1e-4 {
			x.T.Errorf("step %d: loss %v at home, %v on pods", step, loss, pods[step])
		}
	}
}
