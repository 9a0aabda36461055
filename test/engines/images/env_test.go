package images_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/oci/ocitest"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/test/live"
)

// gpuPools are pools of simulated nodes: what their labels say is all there is.
var gpuPools = []struct{ name, node, says string }{
	{"a100", `accelerators: {nvidia.com/gpu: 8}, labels: {arch: x86_64, nvidia.driver: 550.54.15, gpu.compute: "8.0"}`, `yes +-`},
	{"arm", `labels: {arch: aarch64}`, `no +its processors are aarch64, the environment is for x86_64`},
	{"b200", `accelerators: {nvidia.com/gpu: 8}, labels: {arch: x86_64, nvidia.driver: 570.86.10, gpu.compute: "10.0"}`, `no +its GPUs have compute capability 10.0, which CUDA 12.8 is the first to have code for`},
	{"k80", `accelerators: {nvidia.com/gpu: 2}, labels: {arch: x86_64, nvidia.driver: 470.57.02, gpu.compute: "3.7"}`, `no +its GPUs have compute capability 3.7, and CUDA 12.4 and cuDNN 9.1.0 \(of the image's CUDA_VERSION\) has no code below 5.0\n +its NVIDIA driver is 470.57.02, and CUDA 12.4 and cuDNN 9.1.0 .* needs 525 or newer`},
	{"quiet", `accelerators: {nvidia.com/gpu: 2}`, `yes +not known: its NVIDIA driver; CUDA 12.4`},
}

// TestEnvironments: what the command line says of environments, before anything
// queues and after, on the real binary with simulated pools.
func TestEnvironments(t *testing.T) {
	sandboxtest.Runc(t)
	registry := ocitest.New(t)
	s := live.New(t, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "images: {registries: [%[1]q], insecure: [%[1]q]}\nengines: {cluster: {kind: ray, address: \"http://127.0.0.1:9\"}}\n", registry.Host), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	x := &site{s.Project(t, "p")}
	for _, p := range gpuPools {
		x.Apply(fmt.Sprintf(`{api_version: falaj/v1, kind: Pool, name: %s, spec: {engine: local, nodes: [{name: %[1]s-1, cpu: 64, memory: 256GiB, %s}]}}`, p.name, p.node))
	}
	x.Apply(`{api_version: falaj/v1, kind: Pool, name: ray, spec: {engine: cluster, nodes: [{name: r1, cpu: 8, memory: 8GiB, labels: {arch: x86_64, glibc: "2.36", python: 3.9.2}}]}}`)

	variables := []string{"PATH=/bin", "CUDA_VERSION=12.4.1.003", "NV_CUDNN_VERSION=9.1.0.70-1", "PYTORCH_VERSION=2.4.0"}
	first := registry.Push(t, "team/cuda", ocitest.Image(t, variables, ocitest.Busybox(t)))
	x.Apply(fmt.Sprintf(`{api_version: falaj/v1, kind: Environment, project: PROJECT, name: cuda, spec: {image: "%s/team/cuda:latest"}}`, registry.Host))
	x.Apply(`{api_version: falaj/v1, kind: Environment, project: PROJECT, name: site, spec: {python: /usr/bin/python3.11, site_packages: true}}`)
	x.Run(0, "env", "wait", "site")

	x.check(t)
	x.refuse(t)
	x.change(t, registry, first, variables)
	x.prune(t, registry)
}

func (x *site) check(t *testing.T) {
	t.Helper()
	said := x.Run(0, "env", "check", "cuda")
	t.Logf("falaj env check cuda\n%s", said)
	if !strings.Contains(said, "needs x86_64, torch 2.4.0, CUDA 12.4, cuDNN 9.1.0\n") {
		t.Errorf("what it needs is not said:\n%s", said)
	}
	for _, p := range gpuPools {
		if !regexp.MustCompile(`(?m)^` + p.name + ` +` + p.says).MatchString(said) {
			t.Errorf("%s does not say %q:\n%s", p.name, p.says, said)
		}
	}
	for _, want := range []string{`(?m)^home +yes +note: it has no GPU, and the CUDA 12.4 of the image's CUDA_VERSION lies idle there`, `(?m)^ray +no +it is an image, and Ray starts its workers`} {
		if !regexp.MustCompile(want).MatchString(said) {
			t.Errorf("%q is not said:\n%s", want, said)
		}
	}
	if said := x.Run(0, "env", "check", "site"); !regexp.MustCompile(`(?m)^ray +no +its Pythons are 3.9.2`).MatchString(said) || !regexp.MustCompile(`(?m)^arm +no +its processors`).MatchString(said) {
		t.Errorf("of the machine's Python:\n%s", said)
	}
	var checked struct {
		Needs map[string]any   `json:"needs"`
		Pools []map[string]any `json:"pools"`
	}
	x.Must(json.Unmarshal([]byte(x.Run(0, "env", "check", "cuda", "-o", "json")), &checked))
	if checked.Needs["cuda"] != "12.4" || len(checked.Pools) != len(gpuPools)+2 || checked.Pools[1]["fits"] != false {
		t.Errorf("%+v", checked)
	}
}

// refuse: what fits no pool that it names never queues.
func (x *site) refuse(t *testing.T) {
	t.Helper()
	for pools, want := range map[string]string{"[k80]": "its NVIDIA driver is 470.57.02", "[arm, b200]": "pool b200: its GPUs have compute capability 10.0", "[ray]": "it is an image"} {
		file := filepath.Join(t.TempDir(), "job.yaml")
		x.Must(os.WriteFile(file, []byte("{api_version: falaj/v1, kind: Job, name: never, spec: {environment: cuda, command: [sh], pools: "+pools+"}}"), 0o600))
		out, code := x.Command(t.Context(), "job", "submit", "-f", file, "-p", x.Name)
		t.Log(out)
		if code == 0 || !strings.Contains(out, want) || !strings.Contains(out, "falaj env check cuda") {
			t.Errorf("%s: exit code %d\n%s", pools, code, out)
		}
	}
	var jobs struct {
		Items []client.Object `json:"items"`
	}
	x.Must(x.C.Do(t.Context(), http.MethodGet, x.Path("jobs"), nil, &jobs))
	if len(jobs.Items) != 0 {
		t.Errorf("queued: %v", jobs.Items)
	}
}

// change: a tag that moved counts once the environment is built anew, and the
// difference can be read.
func (x *site) change(t *testing.T, registry *ocitest.Registry, first string, variables []string) {
	t.Helper()
	old := regexp.MustCompile(`digest: "?(sha256:[0-9a-f]{64})`).FindStringSubmatch(x.Run(0, "env", "show", "cuda"))
	if old == nil {
		t.Fatal("the environment has no digest")
	}
	variables[1] = "CUDA_VERSION=12.8.0"
	second := registry.Push(t, "team/cuda", ocitest.Image(t, variables, ocitest.Busybox(t)))
	if said := x.Run(0, "env", "build", "cuda"); !strings.Contains(said, second) {
		t.Errorf("%s", said)
	}
	diff := x.Run(0, "env", "diff", "cuda@"+old[1], "cuda")
	t.Logf("falaj env diff\n%s", diff)
	for _, want := range []string{`package +cuda +12\.4\.1\.003 \(from the image\) +12\.8\.0 \(from the image\)`, `image .*` + regexp.QuoteMeta(first) + ` +` + regexp.QuoteMeta(second)} {
		if !regexp.MustCompile(want).MatchString(diff) {
			t.Errorf("%q is not said:\n%s", want, diff)
		}
	}
	if said := x.Run(0, "env", "diff", "cuda", "cuda"); !strings.Contains(said, "are the same") {
		t.Error(said)
	}
	if said := x.Run(0, "env", "check", "cuda"); !regexp.MustCompile(`(?m)^b200 +yes +-`).MatchString(said) {
		t.Errorf("CUDA 12.8 has code for it:\n%s", said)
	}
	for name, want := range map[string]string{"cuda": "pkg:oci/cuda@sha256%3A", "site": "falaj:from"} {
		var bom map[string]any
		out := x.Run(0, "env", "show", name, "--sbom")
		if err := json.Unmarshal([]byte(out), &bom); err != nil || bom["specVersion"] != "1.5" || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// prune: what nobody used for long goes, what a job uses stays.
func (x *site) prune(t *testing.T, registry *ocitest.Registry) {
	t.Helper()
	idle := registry.Push(t, "team/idle", ocitest.Image(t, []string{"PATH=/bin"}, ocitest.Busybox(t)))
	busy := registry.Push(t, "team/busy", ocitest.Image(t, []string{"PATH=/bin", "A=b"}, ocitest.Busybox(t)))
	at := func(ref string) string {
		_, digest, _ := strings.Cut(ref, "@")
		return filepath.Join(x.Data, "images", "images", strings.Replace(digest, ":", "-", 1), "image.json")
	}
	for name, ref := range map[string]string{"idle": idle, "busy": busy} {
		x.Apply(fmt.Sprintf(`{api_version: falaj/v1, kind: Environment, project: PROJECT, name: %s, spec: {image: %q}}`, name, ref))
		x.Eventually("image "+name+" is not pulled ahead", func() (bool, error) {
			_, err := os.Stat(at(ref))
			return err == nil, nil
		})
	}
	var job client.Object
	x.Must(x.C.Do(t.Context(), http.MethodPost, x.Path("jobs"), map[string]any{"name": "busy", "spec": map[string]any{
		"environment": "busy", "command": []string{"/bin/sh", "-c", "echo running; sleep 1000"}, "resources": map[string]any{"cpu": "100m", "memory": "64MiB"},
	}}, &job))
	x.Eventually("the job does not run", func() (bool, error) {
		log, code := x.Command(t.Context(), "job", "logs", job.Text("id"), "-p", x.Name)
		return code == 0 && strings.Contains(log, "running"), nil
	})
	if said := x.Run(0, "env", "prune", "--older", "1h"); strings.Contains(said, "sha256") {
		t.Errorf("pruned at once:\n%s", said)
	}
	for _, ref := range []string{idle, busy} {
		var image map[string]any
		b, err := os.ReadFile(at(ref))
		x.Must(err)
		x.Must(json.Unmarshal(b, &image))
		image["used_at"] = time.Now().Add(-48 * time.Hour)
		b, err = json.Marshal(image)
		x.Must(err)
		x.Must(os.WriteFile(at(ref), b, 0o600))
	}
	dirs, err := filepath.Glob(filepath.Join(x.Data, "environments", "[0-9a-f]*"))
	x.Must(err)
	if len(dirs) != 1 {
		t.Fatalf("%v", dirs)
	}
	long := time.Now().Add(-48 * time.Hour)
	x.Must(os.Chtimes(dirs[0], long, long))
	for _, args := range [][]string{{"env", "prune", "--older", "24h", "--dry-run"}, {"env", "prune", "--older", "24h"}} {
		said := x.Run(0, args...)
		t.Logf("falaj %q\n%s", args, said)
		if !strings.Contains(said, idle) || strings.Contains(said, busy) || !strings.Contains(said, x.Name+"/site") {
			t.Errorf("%q:\n%s", args, said)
		}
	}
	if _, err := os.Stat(at(idle)); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(dirs[0]); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(at(busy)); err != nil {
		t.Error(err)
	}
	x.Run(0, "job", "cancel", job.Text("id"))
}
