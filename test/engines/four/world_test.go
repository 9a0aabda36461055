package four

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/ray/raytest"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/test/live"
)

// The engines, and the pools of the same names.
const (
	home  = "home"
	hpc   = "hpc"
	pods  = "pods"
	actor = "actors"
)

// world is a Falaj with four engines.
type world struct {
	*live.Project
	slurm *slurmtest.Cluster
	kube  *kubetest.Cluster
	ray   *raytest.Cluster
	specs map[string]string // of the pools, but for closed
}

// with is the world for a subtest.
func (w *world) with(t *testing.T) *world {
	t.Helper()
	p, of := *w.Project, *w
	p.T = t
	of.Project, of.kube = &p, w.kube.With(t)
	return &of
}

// start starts the engines, the server, the project and the pools.
func start(t *testing.T) *world {
	t.Helper()
	kubetest.Need(t)
	live.Torch(t)
	w := &world{slurm: slurmtest.New(t, slurmtest.Options{}), kube: kubetest.Start(t, kubetest.Options{Pods: true})}
	w.ray = raytest.New(t, raytest.Node{Name: "r1", CPUs: 2}, raytest.Node{Name: "r2", CPUs: 2})

	s := live.New(t, "")
	cert, key := kubetest.Certificate(t)
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
tls: {cert: %s, key: %s}
engines:
  slurm: {kind: slurm, conf: %s, users: {p: daemon}, worker: %s, lease: 1m}
  kube: {kind: kube, kubeconfig: %s, namespace: %s, worker_image: %q, lease: 1m}
  ray: {kind: ray, address: %q, token_file: %s, lease: 1m}
`, cert, key, w.slurm.Conf, w.slurm.Worker(t, s.Bin.Worker), w.kube.Falaj(), kubetest.Namespace, w.kube.Worker(s.Bin.Worker), w.ray.Address, w.ray.TokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config, "--http", kubetest.Address + ":0"}
	s.Env = append(s.Env, "SSL_CERT_FILE="+cert)
	s.Up(t)
	w.Project = s.Project(t, "p")
	w.specs = map[string]string{
		home:  "mode: exclusive",
		hpc:   "engine: slurm, mode: delegated, options: {partition: batch}",
		pods:  fmt.Sprintf("engine: kube, mode: delegated, options: {image: %q, pull: never, unreachable_after: 2s}", w.kube.Import("torch")),
		actor: "engine: ray, mode: delegated, isolation: none, options: {strategy: SPREAD}",
	}
	for _, name := range []string{hpc, pods, actor} {
		w.pool(name, name, "")
	}
	w.Run(0, "apply", "-f", filepath.Join(w.example(), "env.yaml"))
	w.Run(0, "env", "wait", "torch")
	return w
}

func (w *world) example() string { return filepath.Join(w.Bin.Root, "examples", "digits-ddp") }

// pool applies a pool on an engine. One that is closed starts nothing.
func (w *world) pool(name, engine, closed string) {
	w.T.Helper()
	w.Apply(fmt.Sprintf("{api_version: falaj/v1, kind: Pool, name: %s, spec: {%s, closed: %q}}", name, w.specs[engine], closed))
}

var idRE = regexp.MustCompile(`job_[0-9A-Z]{26}`)

// submit submits the example's manifest as a user does, unchanged.
func (w *world) submit(pools ...string) (job string) {
	w.T.Helper()
	return w.submitFile(filepath.Join(w.example(), "job.yaml"), pools...)
}

// submitSlow submits it with steps that take time, on two workers, named in the
// environment of its processes.
func (w *world) submitSlow(mark string, pools ...string) (job string) {
	w.T.Helper()
	text, err := os.ReadFile(filepath.Join(w.example(), "job.yaml"))
	w.Must(err)
	changed := strings.NewReplacer(`"120"]`, `"120", --every, "5", --pause, "0.2"]`, "{min: 2, max: 4}", "2").Replace(string(text))
	if changed == string(text) {
		w.T.Fatalf("the example has changed:\n%s", text)
	}
	file := filepath.Join(w.T.TempDir(), "job.yaml")
	w.Must(os.WriteFile(file, []byte(changed+"  max_attempts: 9\n  env: {MARK: "+mark+"}\n"), 0o600))
	return w.submitFile(file, pools...)
}

func (w *world) submitFile(file string, pools ...string) (job string) {
	w.T.Helper()
	out := w.Run(0, "job", "submit", "-f", file, "--source", w.example(), "--pool", strings.Join(pools, ","), "-o", "json")
	if job = idRE.FindString(out); job == "" {
		w.T.Fatalf("no job in %s", out)
	}
	return job
}

// attempt of a job.
type attempt struct {
	State   string `json:"state"`
	Pool    string `json:"pool"`
	Workers int    `json:"workers"`
	Class   string `json:"class"`
	Reason  string `json:"reason"`
	Run     string `json:"run_id"`
}

func (w *world) attempts(job string) (state string, all []attempt) {
	w.T.Helper()
	var o struct {
		State string    `json:"state"`
		Tries []attempt `json:"tries"`
	}
	w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+job+"?view=full"), nil, &o))
	return o.State, o.Tries
}

// classes of the ends of a job's attempts, in their order.
func (w *world) classes(job string) (all []string) {
	w.T.Helper()
	_, tries := w.attempts(job)
	for _, a := range tries {
		all = append(all, a.Class)
	}
	return all
}

// eventually is Eventually with the time that several engines on a small machine
// need.
func (w *world) eventually(what, job string, so func() bool) {
	w.T.Helper()
	in := false
	defer func() {
		if !in {
			w.T.Log(w.story(job))
		}
	}()
	w.Within(2*live.Wait, what, func() (bool, error) { in = so(); return in, nil })
}

// story is what Falaj tells of a job.
func (w *world) story(job string) string {
	ctx := context.WithoutCancel(w.T.Context())
	var b strings.Builder
	for _, args := range [][]string{{"job", "describe", job}, {"job", "why", job}, {"job", "logs", job}} {
		out, _ := w.Command(ctx, append(args, "-p", w.Name)...)
		fmt.Fprintf(&b, "── %s\n%s\n", strings.Join(args[:2], " "), out[max(0, len(out)-3000):])
	}
	return b.String()
}

func (w *world) succeeds(job string) {
	w.T.Helper()
	state := ""
	w.eventually("the end of the job", job, func() bool {
		state, _ = w.attempts(job)
		return slices.Contains([]string{"succeeded", "failed", "cancelled"}, state)
	})
	if state != "succeeded" {
		w.T.Fatalf("job %s is %s\n%s", job, state, w.story(job))
	}
}

// saves waits until an attempt, or one after it, has brought a checkpoint to the
// server that is newer than what it began with.
func (w *world) saves(job string, number int) {
	w.T.Helper()
	began, at := 0, -1 // the attempt that is looked at, and the newest step when it began
	w.eventually("a checkpoint of attempt "+strconv.Itoa(number), job, func() bool {
		state, tries := w.attempts(job)
		if state != "queued" && state != "running" {
			w.T.Fatalf("job %s has %s before attempt %d was seen to save\n%s", job, state, number, w.story(job))
		}
		if len(tries) < number || tries[len(tries)-1].State != "running" {
			return false
		}
		var kept struct {
			Items []struct {
				Step int `json:"step"`
			} `json:"items"`
		}
		w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+job+"/checkpoints"), nil, &kept))
		newest := 0
		for _, c := range kept.Items {
			newest = max(newest, c.Step)
		}
		if began != len(tries) {
			began, at = len(tries), newest
		}
		return newest > at
	})
	w.T.Logf("%s attempt %d, which went on from step %d, saves", time.Now().Format(time.TimeOnly), began, at)
}

// node of the second worker that runs.
func (w *world) node(job string) (name string) {
	w.T.Helper()
	w.eventually("the node of a worker", job, func() bool {
		var top struct {
			Workers []struct {
				Node string `json:"node"`
			} `json:"workers"`
		}
		w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+job+"/top"), nil, &top))
		if len(top.Workers) < 2 {
			return false
		}
		name = top.Workers[1].Node
		return name != ""
	})
	w.T.Logf("%s node %s fails", time.Now().Format(time.TimeOnly), name)
	return name
}

// killWorker kills one process of the program with SIGKILL, wherever it runs.
func (w *world) killWorker(mark string) {
	w.T.Helper()
	victim := 0
	w.Eventually("there is nobody to kill", func() (bool, error) {
		files, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return false, err
		}
		for _, file := range files {
			env, _ := os.ReadFile(file)
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			if strings.Contains("\x00"+string(env), "\x00MARK="+mark+"\x00") && strings.Contains(string(line), "\x00train.py\x00") &&
				!strings.Contains(string(line), "--no_python") && !strings.Contains(string(line), "falaj-worker") {
				victim, err = strconv.Atoi(filepath.Base(filepath.Dir(file)))
				return err == nil, err
			}
		}
		return false, nil
	})
	w.Must(syscall.Kill(victim, syscall.SIGKILL))
}

// curve is the loss by step that the runs of a job's attempts have; the later
// attempt is right.
func (w *world) curve(job string) map[int64]float64 {
	w.T.Helper()
	all := map[int64]float64{}
	_, tries := w.attempts(job)
	for _, a := range tries {
		if a.Run == "" {
			continue
		}
		var history struct {
			Metrics []struct {
				Value json.Number `json:"value"`
				Step  json.Number `json:"step"`
			} `json:"metrics"`
		}
		w.Must(w.Foreign(w.C, http.MethodGet, "/api/2.0/mlflow/metrics/get-history?metric_key=loss&max_results=1000&run_id="+url.QueryEscape(a.Run), nil, &history))
		for _, m := range history.Metrics {
			step, err := m.Step.Int64()
			w.Must(err)
			all[step], err = m.Value.Float64()
			w.Must(err)
		}
	}
	return all
}

// artifact is a file that a job left.
func (w *world) artifact(job, path string) []byte {
	w.T.Helper()
	_, tries := w.attempts(job)
	var o client.Object
	run := tries[len(tries)-1].Run
	w.Must(w.Foreign(w.C, http.MethodGet, "/api/2.0/mlflow/runs/get?run_id="+run, nil, &o))
	resp, err := w.C.Send(w.T.Context(), http.MethodGet, "/api/2.0/mlflow-artifacts/artifacts/"+o.Text("run.info.experiment_id")+"/"+run+"/artifacts/"+path, nil, http.Header{"Falaj-Project": {w.Name}})
	w.Must(err)
	defer resp.Body.Close()
	return readAll(w.T, resp.Body)
}
