package oip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
	"github.com/falaj-ml/falaj/internal/serving/runtime/remote"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
	"github.com/falaj-ml/falaj/test/live"
)

// far is a server of one protocol as the runtime is told of it.
func far(t *testing.T, s remote.Server) *remote.Runtime {
	t.Helper()
	s.Timeout = 30 * time.Second
	r, err := remote.New(remote.Config{Servers: map[string]remote.Server{"far": s}, Signature: onnx.Signature})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func file(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// loaded is a model of testdata at a server.
func loaded(t *testing.T, r *remote.Runtime, name, version string) runtime.Session {
	t.Helper()
	s, err := r.Load(t.Context(), file(t, filepath.Join("testdata", name+".onnx")), runtime.Options{Remote: runtime.Remote{Server: "far", Model: name, Version: version}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// agrees asks the models of testdata and compares with what they are.
func agrees(t *testing.T, r *remote.Runtime, version string) {
	t.Helper()
	linear := loaded(t, r, "linear", version)
	out, err := linear.Infer(t.Context(), []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{2, 3}, Data: []float32{1, 2, 3, 9, 8, 7}}}, []string{"largest", "y"})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(out[0].Data, out[1].Data, out[1].Shape); got != "[2 0] [3 5 7 19 17 15] [2 3]" {
		t.Errorf("linear answers %s", got)
	}
	types := loaded(t, r, "types", version)
	data := map[runtime.Datatype]any{
		runtime.Bool: []bool{true, false}, runtime.Uint8: []uint8{1, 255}, runtime.Uint16: []uint16{1, 65535}, runtime.Uint32: []uint32{1, math.MaxUint32}, runtime.Uint64: []uint64{1, math.MaxUint64},
		runtime.Int8: []int8{1, -128}, runtime.Int16: []int16{1, -2}, runtime.Int32: []int32{1, -2}, runtime.Int64: []int64{1, math.MinInt64},
		runtime.FP32: []float32{1.5, -2}, runtime.FP64: []float64{1.5, -2}, runtime.Bytes: []string{"a\x00b", "نخلة"},
	}
	var in []runtime.Tensor
	var wanted []string
	for d, v := range data {
		in, wanted = append(in, runtime.Tensor{Name: "in_" + string(d), Datatype: d, Shape: []int64{2}, Data: v}), append(wanted, "out_"+string(d))
	}
	out, err = types.Infer(t.Context(), in, wanted)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range out {
		if fmt.Sprint(o.Data) != fmt.Sprint(in[i].Data) {
			t.Errorf("%s came back as %v", o.Datatype, o.Data)
		}
	}
	if _, err := linear.Infer(t.Context(), []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{1, 2}}}, []string{"y"}); err == nil {
		t.Error("a row of two columns is answered")
	}
	type wrong struct {
		says string
		o    runtime.Remote
	}
	for _, w := range map[bool][]wrong{
		true: {
			{"differs from the registered one", runtime.Remote{Server: "far", Model: "types", Version: version}},
			{"its model does not exist", runtime.Remote{Server: "far", Model: "linear", Version: "9"}},
			{"its model does not exist", runtime.Remote{Server: "far", Model: "nothing", Version: version}},
		},
		// KServe describes nothing, and says by HTTP that a version of it fails.
		false: {
			{"", runtime.Remote{Server: "far", Model: "linear", Version: "1"}},
			{"its model does not exist", runtime.Remote{Server: "far", Model: "nothing"}},
		},
	}[version != ""] {
		if _, err := r.Load(t.Context(), file(t, "testdata/linear.onnx"), runtime.Options{Remote: w.o}); err == nil || !strings.Contains(err.Error(), w.says) {
			t.Errorf("%+v: %v", w.o, err)
		}
	}
}

// TestRemoteTriton asks a real Triton.
func TestRemoteTriton(t *testing.T) {
	h, g := triton(t, live.Installed(t, "triton"))
	for p, address := range map[remote.Protocol]string{remote.HTTP: h, remote.GRPC: g} {
		t.Run(string(p), func(t *testing.T) {
			agrees(t, far(t, remote.Server{Address: address, Protocol: p, Connections: 2}), "1")
		})
	}
}

// TestRemoteKServe asks a real KServe model server, whose models have no versions.
func TestRemoteKServe(t *testing.T) {
	python := live.Installed(t, "oip")
	h, g := kserve(t, python)
	for p, address := range map[remote.Protocol]string{remote.HTTP: h, remote.GRPC: g} {
		t.Run(string(p), func(t *testing.T) {
			agrees(t, far(t, remote.Server{Address: address, Protocol: p, Connections: 2}), "")
		})
	}
}

// kserve starts a model server of KServe with the functions of testdata.
func kserve(t *testing.T, python string) (httpAddress, grpcAddress string) {
	t.Helper()
	httpAddress, h := live.Address(t)
	grpcAddress, g := live.Address(t)
	cmd := exec.Command(python, filepath.Join("testdata", "kserve_server.py"), "--http_port", h, "--grpc_port", g, "--enable_latency_logging", "false")
	ready := live.Answers("http://" + httpAddress + "/v2/models/types/ready")
	live.Peer{Cmd: cmd, Ready: func(ctx context.Context) bool {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", grpcAddress)
		if err == nil {
			_ = c.Close()
		}
		return err == nil && ready(ctx)
	}}.Start(t)
	return httpAddress, grpcAddress
}

// suite loads the models of the runtimes' suite by their names at a Falaj.
type suite struct {
	*remote.Runtime
	names map[string]string
}

func (s suite) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	o.Remote = runtime.Remote{Server: "far", Model: s.names[string(model)], Version: "1"}
	return s.Runtime.Load(ctx, model, o)
}

// TestRemoteFalaj runs the suite of all runtimes against another Falaj.
func TestRemoteFalaj(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	calls, _ := live.Address(t)
	s.Args = []string{"--grpc", calls}
	s.Up(t)
	p := s.Project(t, "suite")
	models := map[string][]byte{}
	names := map[string]string{}
	for _, name := range []string{"logistic", "echo", "total"} {
		models[name] = file(t, filepath.Join("..", "..", "internal", "serving", "runtime", "onnx", "testdata", name+".onnx"))
		names[string(models[name])] = name
		p.Register(name, models[name])
		p.Apply(fmt.Sprintf("{api_version: falaj/v1, kind: Deployment, name: %s, project: PROJECT, spec: {model: %s, version: \"1\"}}\n", name, name))
	}
	token := token(t, p, "engineer")
	for protocol, address := range map[remote.Protocol]string{remote.GRPC: calls, remote.HTTP: strings.TrimPrefix(s.URL, "http://")} {
		t.Run(string(protocol), func(t *testing.T) {
			r := far(t, remote.Server{Address: address, Protocol: protocol, Connections: 4, TokenFile: token})
			runtimetest.Run(t, suite{r, names}, runtimetest.Models{Logistic: models["logistic"], Echo: models["echo"], Total: models["total"]})
		})
	}
}

// token is a file with a token of the project.
func token(t *testing.T, p *live.Project, role string) string {
	t.Helper()
	var made client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "remote", "role": role, "expires_in": "24h"}, &made))
	path := filepath.Join(t.TempDir(), "token")
	p.Must(os.WriteFile(path, []byte(made.Text("secret")), 0o600))
	return path
}

// TestRemoteIsKilled: a Falaj asks another one, under load, which is killed and begins
// again. No answer is of another request, the deployment is not ready meanwhile, and
// it comes back by itself. Nothing but what may be there goes there.
func TestRemoteIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real servers")
	}
	theirs := live.New(t, "")
	calls, _ := live.Address(t)
	web, _ := live.Address(t)
	theirs.Args = []string{"--grpc", calls, "--http", web}
	theirs.Up(t)
	there := theirs.Project(t, "there")
	model := file(t, "testdata/linear.onnx")
	there.Register("linear", model)
	there.Apply("{api_version: falaj/v1, kind: Deployment, name: linear, project: PROJECT, spec: {model: linear, version: \"1\"}}\n")
	secret := token(t, there, "engineer")

	ours := live.New(t, "")
	config := filepath.Join(t.TempDir(), "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
serving:
  remotes:
    near: {url: "http://%s", protocol: oip-grpc, zone: home, token_file: %q}
    far: {url: "http://%s", protocol: oip-grpc, zone: DE, token_file: %q}
`, calls, secret, calls, secret), 0o600); err != nil {
		t.Fatal(err)
	}
	ours.Args = []string{"--config", config}
	ours.Up(t)
	here := ours.Project(t, "here")
	here.Register("linear", model)
	const manifest = "{api_version: falaj/v1, kind: Deployment, name: linear, project: PROJECT, spec: {model: linear, version: \"1\", runtime: {remote: {name: %s}}}}\n"

	if _, err := here.Try(here.C, fmt.Sprintf(manifest, "far")); err == nil || !strings.Contains(err.Error(), "model linear is allowed only in home, and remote far is in DE") {
		t.Fatalf("what may not leave its zone: %v", err)
	}
	here.Apply(fmt.Sprintf(manifest, "near"))

	ask := func(x float32) (float64, error) {
		a, err := here.Infer(here.C, "linear", nil, live.Tensor("x", "FP32", []float32{x, x, x}, 1, 3))
		if err != nil {
			return 0, err
		}
		if len(a.Outputs) == 0 || a.Outputs[0].Name != "y" || len(a.Outputs[0].Data) != 3 {
			return 0, errors.New("an answer of something else")
		}
		return strconv.ParseFloat(fmt.Sprint(a.Outputs[0].Data[1]), 64)
	}
	var good, bad atomic.Int64
	stop := live.Load(t, 8, func(c, n int) bool {
		x := float32(c*10_000 + n%10_000)
		y, err := ask(x)
		switch {
		case err == nil && y == float64(2*x+1):
			good.Add(1)
		case err == nil:
			t.Errorf("%v was answered %v", x, y)
		case strings.Contains(err.Error(), "remote near"):
			bad.Add(1)
		default:
			t.Errorf("%v: %v", x, err)
		}
		return true
	})
	until := func(what string, f func() bool) {
		t.Helper()
		here.Eventually(what, func() (bool, error) { return f(), nil })
	}
	state := func() string {
		var d client.Object
		here.Must(here.C.Do(t.Context(), http.MethodGet, here.Path("deployments/linear"), nil, &d))
		return d.Text("state") + " " + d.Text("reason")
	}
	from := good.Load()
	until("answers", func() bool { return good.Load() > from+200 })
	here.Must(theirs.Kill())
	until("the breaker opens", func() bool { return strings.HasPrefix(state(), "failed the remote near is unavailable") })
	until("refusals", func() bool { return bad.Load() > 100 })
	theirs.Up(t)
	from = good.Load()
	until("it comes back", func() bool { return good.Load() > from+200 })
	until("the deployment is ready", func() bool { return strings.HasPrefix(state(), "ready") })
	stop()
	t.Logf("%d answers, %d refusals", good.Load(), bad.Load())

	metrics, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ours.URL+"/metrics", nil)
	here.Must(err)
	metrics.Header.Set("Authorization", "Bearer "+ours.Token)
	resp, err := http.DefaultTransport.RoundTrip(metrics)
	here.Must(err)
	defer resp.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(resp.Body)
	here.Must(err)
	for _, want := range []string{`falaj_serving_remote_breaker{model="linear",remote="near",version="1"} 0`, `falaj_serving_remote_failures_total{reason="unreachable",remote="near"}`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s among the metrics", want)
		}
	}
	if strings.Contains(ours.LogTail(1<<30), string(file(t, secret))) {
		t.Error("the log has the token")
	}
}
