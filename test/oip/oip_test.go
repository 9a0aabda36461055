// Package oip asks Falaj with the unmodified clients of Triton and of KServe, and
// compares its answers with those of a real Triton, field by field.
package oip

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var rewrite = flag.Bool("rewrite", false, "write what differs from Triton into testdata/differences.txt")

const manifests = `
{api_version: falaj/v1, kind: Deployment, name: linear, project: PROJECT, spec: {model: linear, version: "1"}}
---
{api_version: falaj/v1, kind: Deployment, name: types, project: PROJECT, spec: {model: types, version: "1"}}
`

// world is a Falaj that serves the models of testdata.
type world struct {
	*live.Project
	http, calls string // addresses of the listeners
	token       string // of a deployer
	env         []string
}

func TestClients(t *testing.T) {
	python := live.Installed(t, "oip")
	w := begin(t)
	for _, which := range []string{"http", "grpc", "aio", "kserve", "reflected"} {
		t.Run(which, func(t *testing.T) { w.run(t, python, "clients.py", which) })
	}
}

// TestSideBySide asks Falaj and Triton the same. What differs is listed, with its
// reason, in docs/reference/inference.md.
func TestSideBySide(t *testing.T) {
	python := live.Installed(t, "triton")
	w := begin(t)
	h, g := triton(t, python)
	w.env = append(w.env, "TRITON_HTTP="+h, "TRITON_GRPC="+g)
	got := w.run(t, python, "compare.py")
	live.Differences(t, "Triton", "testdata/differences.txt", got, *rewrite)
}

// TestPerfAnalyzer: Triton's own load generator measures a deployment by both protocols,
// with what the server says of its configuration and statistics.
func TestPerfAnalyzer(t *testing.T) {
	env := filepath.Dir(filepath.Dir(live.Installed(t, "perf")))
	libraries, err := filepath.Glob(filepath.Join(env, "lib", "python3.*", "site-packages", "nvidia", "cuda_runtime", "lib"))
	if err != nil || len(libraries) != 1 {
		t.Fatal(libraries, err)
	}
	w := begin(t)
	for which, address := range map[string]string{"http": w.http, "grpc": w.calls} {
		t.Run(which, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(env, "bin", "perf_analyzer"), "-m", "linear", "-i", which, "-u", address,
				"--request-count", "200", "--concurrency-range", "4", "-b", "2", "-H", "authorization:Bearer "+w.token) // of gRPC's metadata, too
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries[0])
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil || !strings.Contains(string(out), "Inference count: ") || !strings.Contains(string(out), "Throughput: ") {
				t.Error(err)
			}
		})
	}
}

// TestGrpcurl: who has nothing but the address and a token finds the calls, and asks.
func TestGrpcurl(t *testing.T) {
	grpcurl := live.Built(t, "grpcurl")
	w := begin(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"inference.GRPCInferenceService\n", []string{"list"}},
		{"rpc ModelStatistics ( .inference.ModelStatisticsRequest )", []string{"describe", "inference.GRPCInferenceService"}},
		{`"ready": true`, []string{"-d", `{"name":"linear"}`, "inference.GRPCInferenceService/ModelReady"}},
		{`"AABAQAAAoEAAAOBA"`, []string{"-d", `{"model_name":"linear","outputs":[{"name":"y"}],"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"contents":{"fp32_contents":[1,2,3]}}]}`, "inference.GRPCInferenceService/ModelInfer"}},
		{`"inferenceCount": "1"`, []string{"-d", `{"name":"linear"}`, "inference.GRPCInferenceService/ModelStatistics"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
		defer cancel()
		args := []string{"-plaintext", "-H", "authorization: Bearer " + w.token}
		call := c.args[len(c.args)-1]
		if c.args[0] == "-d" {
			args = append(append(args, c.args[:len(c.args)-1]...), w.calls, call)
		} else {
			args = append(append(args, w.calls), c.args...)
		}
		out, err := exec.CommandContext(ctx, grpcurl, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%v: %v\n%s", c.args, err, out)
		}
	}
}

func begin(t *testing.T) *world {
	t.Helper()
	s := live.New(t, "")
	calls, _ := live.Address(t)
	s.Args = []string{"--grpc", calls}
	s.Up(t)
	w := &world{Project: s.Project(t, "nyc"), http: strings.TrimPrefix(s.URL, "http://"), calls: calls}
	for _, name := range []string{"linear", "types"} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".onnx"))
		w.Must(err)
		w.Register(name, b)
	}
	w.Apply(manifests)
	token := func(role string) string {
		var made client.Object
		w.Must(w.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": w.Name, "name": "oip-" + role, "role": role, "expires_in": "24h"}, &made))
		return made.Text("secret")
	}
	w.token = token("deployer")
	w.env = []string{
		"FALAJ_HTTP=" + w.http, "FALAJ_GRPC=" + calls,
		"FALAJ_TOKEN=" + w.token, "FALAJ_VIEWER=" + token("viewer"), "HOME=" + s.Home,
	}
	return w
}

// run runs a script of testdata and gives what it writes.
func (w *world) run(t *testing.T, python, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), live.WaitProgram)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.Join("testdata", script)}, args...)...)
	cmd.Env = append(os.Environ(), w.env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), log.String())
	}
	return out.String()
}

// triton starts the server of nvidia-pytriton on the same functions, on the CPU.
func triton(t *testing.T, python string) (httpAddress, grpcAddress string) {
	t.Helper()
	packages, err := filepath.Glob(filepath.Join(filepath.Dir(python), "..", "lib", "python3.*", "site-packages"))
	if err != nil || len(packages) != 1 {
		t.Fatal(packages, err)
	}
	minor := strings.TrimPrefix(filepath.Base(filepath.Dir(packages[0])), "python")
	from := filepath.Join(packages[0], "pytriton", "tritonserver")
	dir := t.TempDir()
	backend := filepath.Join(dir, "backends", "python")
	if err := errors.Join(os.MkdirAll(backend, 0o750), os.CopyFS(filepath.Join(dir, "models"), os.DirFS(filepath.Join("testdata", "triton")))); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"libtriton_python.so": "backends/python", "triton_python_backend_utils.py": "backends/python", "triton_python_backend_stub": "python_backend_stubs/" + minor,
	} {
		if err := os.Symlink(filepath.Join(from, path, name), filepath.Join(backend, name)); err != nil {
			t.Fatal(err)
		}
	}
	httpAddress, h := live.Address(t)
	grpcAddress, g := live.Address(t)
	cmd := exec.Command(filepath.Join(from, "bin", "tritonserver"),
		"--model-repository", filepath.Join(dir, "models"), "--backend-directory", filepath.Join(dir, "backends"),
		"--http-address", "127.0.0.1", "--http-port", h, "--grpc-address", "127.0.0.1", "--grpc-port", g,
		"--allow-metrics", "false", "--model-control-mode", "explicit", "--load-model", "linear", "--load-model", "types",
		"--backend-config", "python,shm-default-byte-size=1048576", "--backend-config", "python,shm-region-prefix-name=falaj-"+h)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(packages[0], "nvidia_pytriton.libs"), "PYTHONPATH="+packages[0])
	live.Peer{Cmd: cmd, Ready: live.Answers("http://" + httpAddress + "/v2/health/ready"), Polite: true}.Start(t)
	return httpAddress, grpcAddress
}
