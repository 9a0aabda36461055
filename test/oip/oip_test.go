// Package oip asks Falaj with the unmodified clients of Triton and of KServe, and
// compares its answers with those of a real Triton, field by field.
package oip

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	python := installed(t, "oip")
	w := begin(t)
	for _, which := range []string{"http", "grpc", "aio", "kserve", "reflected"} {
		t.Run(which, func(t *testing.T) { w.run(t, python, "clients.py", which) })
	}
}

// TestSideBySide asks Falaj and Triton the same. What differs is listed, with its
// reason, in docs/reference/inference.md.
func TestSideBySide(t *testing.T) {
	python := installed(t, "triton")
	w := begin(t)
	h, g := triton(t, python)
	w.env = append(w.env, "TRITON_HTTP="+h, "TRITON_GRPC="+g)
	got := w.run(t, python, "compare.py")
	const golden = "testdata/differences.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("differences from Triton (-listed +now); list them by -rewrite and in docs/reference/inference.md\n%s", diff)
	}
}

// TestPerfAnalyzer: Triton's own load generator measures a deployment by both protocols,
// with what the server says of its configuration and statistics.
func TestPerfAnalyzer(t *testing.T) {
	env := filepath.Dir(filepath.Dir(installed(t, "perf")))
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
	grpcurl := program(t, "grpcurl")
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

// program is a program that make engines builds.
func program(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server and real clients")
	}
	path, err := filepath.Abs(filepath.Join("..", "..", ".tmp", "bin", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		how := name + " is not built: make engines"
		if os.Getenv("CI") == "true" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return path
}

// installed is the Python of an environment.
func installed(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server and real clients")
	}
	python, err := filepath.Abs(filepath.Join("..", "..", ".tmp", "venv", name, "bin", "python"))
	if err == nil {
		_, err = os.Stat(python)
	}
	if err != nil {
		how := "the environment " + name + " is not installed: make engines"
		if os.Getenv("CI") == "true" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return python
}

func begin(t *testing.T) *world {
	t.Helper()
	s := live.New(t, "")
	calls := free(t)
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

// free is an address where nobody listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// run runs a script of testdata and gives what it writes.
func (w *world) run(t *testing.T, python, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
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
	split := func(address string) string {
		_, port, _ := net.SplitHostPort(address)
		return port
	}
	httpAddress, grpcAddress = free(t), free(t)
	cmd := exec.Command(filepath.Join(from, "bin", "tritonserver"),
		"--model-repository", filepath.Join(dir, "models"), "--backend-directory", filepath.Join(dir, "backends"),
		"--http-address", "127.0.0.1", "--http-port", split(httpAddress), "--grpc-address", "127.0.0.1", "--grpc-port", split(grpcAddress),
		"--allow-metrics", "false", "--model-control-mode", "explicit", "--load-model", "linear", "--load-model", "types",
		"--backend-config", "python,shm-default-byte-size=1048576", "--backend-config", "python,shm-region-prefix-name=falaj-"+split(httpAddress))
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(packages[0], "nvidia_pytriton.libs"), "PYTHONPATH="+packages[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(live.Wait):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	timeout := time.After(live.Wait)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if resp, err := http.Get("http://" + httpAddress + "/v2/health/ready"); err == nil {
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					return httpAddress, grpcAddress
				}
			}
		case <-ended:
			t.Fatalf("tritonserver ended:\n%s", log.String())
		case <-timeout:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
			t.Fatalf("tritonserver is not ready:\n%s", log.String())
		}
	}
}
