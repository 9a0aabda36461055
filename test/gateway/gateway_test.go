// Package gateway runs a server and another one that is its gateway: it serves while
// it is cut off, and hands back what it answered.
package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const deployment = `
api_version: falaj/v1
kind: Deployment
name: delay
project: PROJECT
spec: {model: delay, version: "1", prediction: {output: probabilities, index: 1}, automation: false}
`

// world is a server and its gateway. The server is always at one address, so that the
// gateway finds it again.
type world struct {
	*live.Project
	edge *live.Project
}

func start(t *testing.T, zone string) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real servers")
	}
	s := live.New(t, "")
	at, _ := live.Address(t)
	s.Args = []string{"--http", at}
	s.Up(t)
	w := &world{Project: s.Project(t, "nyc")}
	w.Register("delay", w.Logistic(), w.Logistic())
	w.Apply(deployment)
	w.Apply("{api_version: falaj/v1, kind: Zone, name: branch, spec: {jurisdiction: DE}}")
	w.Apply("{api_version: falaj/v1, kind: Gateway, name: edge, project: PROJECT, spec: {zone: " + zone + "}}")
	token := filepath.Join(t.TempDir(), "token")
	w.Must(os.WriteFile(token, []byte(w.Run(0, "token", "create", "--name", "edge", "--role", "deployer", "--scope", "gateway.pull:edge", "-o", "json")), 0o600))

	edge := live.New(t, "")
	edge.Env = []string{
		"FALAJ_GATEWAY_UPSTREAM=http://" + at, "FALAJ_GATEWAY_NAME=edge", "FALAJ_GATEWAY_PROJECT=nyc", "FALAJ_GATEWAY_ZONE=" + zone, "FALAJ_GATEWAY_EVERY=500ms", "FALAJ_GATEWAY_TOKEN_FILE=" + secretOf(t, token),
	}
	edge.Up(t)
	w.edge = &live.Project{Server: edge, T: t, C: edge.Client(t), Name: "nyc"}
	return w
}

// secretOf makes a file of the secret alone out of what `token create` printed.
func secretOf(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`"secret":\s*"([^"]+)"`).FindSubmatch(b)
	if found == nil {
		t.Fatalf("no secret in %s", b)
	}
	if err := os.WriteFile(path, found[1], 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func ask(p *live.Project, x float64) (live.Answer, error) {
	return p.Infer(p.C, "delay", nil, live.Tensor("X", "FP32", []float64{x, 1 - x}, 1, 2))
}

// gateway is what the server knows of it.
func (w *world) gateway() (g client.Object) {
	_ = w.C.Do(w.T.Context(), http.MethodGet, w.Path("gateways/edge"), nil, &g) // absent: nothing is known
	return g
}

// logged counts the predictions that a server has written since it started.
func logged(p *live.Project) int {
	p.T.Helper()
	resp, err := p.C.Send(p.T.Context(), http.MethodGet, "/metrics", nil, nil)
	p.Must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	p.Must(err)
	found := regexp.MustCompile(`(?m)^falaj_predictions_logged_total (\d+)$`).FindSubmatch(b)
	if found == nil {
		p.T.Fatal("no count of predictions")
	}
	n, err := strconv.Atoi(string(found[1]))
	p.Must(err)
	return n
}

// TestSteps: a gateway has the models of a deployment's steps, too.
func TestSteps(t *testing.T) {
	w := start(t, "home")
	standardise, err := os.ReadFile(filepath.Join(w.Bin.Root, "test", "chains", "testdata", "standardise.onnx"))
	w.Must(err)
	w.Register("standardise", standardise)
	w.Apply(`
api_version: falaj/v1
kind: Deployment
name: late
project: PROJECT
spec:
  model: delay
  version: "1"
  inputs: [{name: hour, datatype: FP32}, {name: code, datatype: FP32}]
  before:
  - tensor: {name: raw, datatype: FP32, from: [hour, code]}
  - {model: standardise, inputs: {X: raw}, outputs: {variable: X}}
  after:
  - compute: {sure: "probabilities[math.argmax(probabilities)]"}
  outputs: [sure]
`)
	ask := func(p *live.Project) (live.Answer, error) {
		return p.Infer(p.C, "late", nil, live.Tensor("hour", "FP32", []float64{15}, 1), live.Tensor("code", "FP32", []float64{4}, 1))
	}
	here, err := ask(w.Project)
	w.Must(err)
	var there live.Answer
	w.Eventually("the gateway does not answer", func() (bool, error) {
		there, err = ask(w.edge)
		return err == nil, err
	})
	if here.Score() != there.Score() || here.Score() < 0.5 {
		t.Errorf("the server says %v, the gateway %v", here, there)
	}
}

func TestServesWhileCutOff(t *testing.T) {
	w := start(t, "home")
	ctx := t.Context()
	here, err := ask(w.Project, 0.25)
	w.Must(err)
	var there live.Answer
	w.Eventually("the gateway does not answer", func() (bool, error) {
		there, err = ask(w.edge, 0.25)
		return err == nil, err
	})
	if here.Score() != there.Score() || there.Version != "1" {
		t.Fatalf("the server says %v, the gateway %v", here, there)
	}
	// What is not of models is at the other server, and says so.
	if _, err := w.edge.Try(w.edge.C, deployment); err == nil || !strings.Contains(err.Error(), "Deployment") {
		t.Errorf("a deployment is applied to a gateway: %v", err)
	}
	if err := w.edge.C.Do(ctx, http.MethodGet, "/api/v1/projects/nyc/datasets", nil, nil); err == nil || !strings.Contains(err.Error(), "gateway") {
		t.Errorf("a gateway has datasets: %v", err)
	}
	if _, err := w.edge.Infer(w.edge.ClientWith(t, w.Token), "delay", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2)); err == nil {
		t.Error("a token of the other server is good at the gateway")
	}
	w.Eventually("the server does not know that the gateway serves", func() (bool, error) {
		return strings.Contains(w.gateway().Text("seen.holds"), "ready"), nil
	})
	w.Eventually("the first answer is not handed back", func() (bool, error) { return logged(w.Project) == 2, nil })

	// Cut off: it answers, also after a kill -9 of its own.
	w.Must(w.Kill())
	const rounds = 60
	ids := map[string]bool{}
	for i := range 2 * rounds {
		if i == rounds {
			w.Must(w.edge.Kill())
			w.edge.Again()
			w.edge.Loaded()
		}
		a, err := ask(w.edge, float64(i)/200)
		w.Must(err)
		ids[a.ID] = true
	}
	if len(ids) != 2*rounds {
		t.Fatalf("%d answers have %d ids", 2*rounds, len(ids))
	}

	// Together again: what it answered comes back, once, whoever is killed meanwhile.
	w.Again()
	w.Eventually("the predictions are not handed back", func() (bool, error) { return logged(w.Project) >= 2*rounds, nil })
	w.Eventually("the gateway does not say so", func() (bool, error) {
		g := w.gateway()
		return g.Text("seen.waiting") == "0", fmt.Errorf("%v", g)
	})
	if n := logged(w.Project); n != 2*rounds {
		t.Errorf("%d predictions of %d were handed back", n, 2*rounds)
	}
	var labels []any
	for id := range ids {
		labels = append(labels, map[string]any{"id": id, "value": 1})
	}
	w.Must(w.C.Do(ctx, http.MethodPost, w.Path("deployments/delay/labels"), map[string]any{"labels": labels}, nil))
	var counts client.Object
	w.Eventually("labels do not find what the gateway answered", func() (bool, error) {
		err := w.C.Do(ctx, http.MethodGet, w.Path("deployments/delay/labels"), nil, &counts)
		return counts.Text("joined") == strconv.Itoa(2*rounds), fmt.Errorf("%v, %w", counts, err)
	})

	// A new version, then a canary, come by themselves.
	w.Apply(strings.Replace(deployment, `version: "1"`, `version: "2"`, 1))
	w.Eventually("the gateway does not follow", func() (bool, error) {
		a, err := ask(w.edge, 0.5)
		return err == nil && a.Version == "2", err
	})
	w.Run(0, "deploy", "canary", "delay", "--version", "1", "--weight", "50")
	seen := map[string]bool{}
	w.Eventually("the gateway does not try the canary", func() (bool, error) {
		a, err := ask(w.edge, 0.5)
		seen[a.Version] = true
		return seen["1"] && seen["2"], err
	})

	// Deleted, it serves nothing.
	w.Run(0, "delete", "gateway", "edge")
	w.Eventually("a gateway that was deleted goes on", func() (bool, error) {
		_, err := ask(w.edge, 0.5)
		return err != nil && strings.Contains(err.Error(), "unknown model"), err
	})
}

// TestTampered: who sits on the line gives the gateway nothing that was not signed, and
// takes nothing away.
func TestTampered(t *testing.T) {
	w := start(t, "home")
	w.Eventually("the gateway does not answer", func() (bool, error) {
		_, err := ask(w.edge, 0.25)
		return err == nil, err
	})
	central := w.edge.Env[0][len("FALAJ_GATEWAY_UPSTREAM="):]
	to, err := url.Parse(central)
	w.Must(err)
	var how atomic.Value
	how.Store("file")
	var asked atomic.Int64
	line := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, ModifyResponse: func(r *http.Response) error {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		_ = r.Body.Close()
		length := len(b)
		switch file := strings.HasSuffix(r.Request.URL.Path, "model.onnx"); {
		case file && (how.Load() == "file" || how.Load() == "key"): // it may have asked before the key was spoiled
			b[len(b)/2] ^= 1
			if how.Load() == "file" {
				asked.Add(1)
			}
		case how.Load() == "half" && file:
			b = b[:len(b)/2]
			if r.Request.Header.Get("Range") != "" { // the rest does not come, either
				b = nil
			}
			asked.Add(1)
		case how.Load() == "key" && strings.HasSuffix(r.Request.URL.Path, "/sync"):
			b = bytes.ReplaceAll(b, []byte("BEGIN PUBLIC KEY"), []byte("BEGIN  PUBLIC KEY"))
			length = len(b)
			asked.Add(1)
		case how.Load() == "gone":
			r.StatusCode, b = http.StatusGone, []byte("<html>gone</html>")
			length = len(b)
			asked.Add(1)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(length)
		r.Header.Set("Content-Length", strconv.Itoa(length))
		return nil
	}}
	server := httptest.NewServer(line)
	defer server.Close()
	w.Must(w.edge.Stop())
	w.edge.Env[0] = "FALAJ_GATEWAY_UPSTREAM=" + server.URL
	w.edge.Again()
	w.edge.Loaded()
	w.Apply(strings.Replace(deployment, `version: "1"`, `version: "2"`, 1))
	for _, what := range []string{"file", "key", "gone", "half"} {
		how.Store(what)
		before := asked.Load()
		w.Eventually("the gateway does not come: "+what, func() (bool, error) { return asked.Load() > before+1, nil })
		if a, err := ask(w.edge, 0.25); err != nil || a.Version != "1" {
			t.Errorf("%s: the gateway answers with %q, %v", what, a.Version, err)
		}
	}
	how.Store("")
	w.Eventually("the gateway does not follow", func() (bool, error) {
		a, err := ask(w.edge, 0.5)
		return err == nil && a.Version == "2", err
	})
}

// TestBorder: a model does not cross to where its label does not allow it.
func TestBorder(t *testing.T) {
	w := start(t, "branch")
	w.Eventually("the gateway does not come", func() (bool, error) {
		g := w.gateway()
		return strings.Contains(g.Text("seen.left_out"), "has the residency home"), fmt.Errorf("%v", g)
	})
	if _, err := ask(w.edge, 0.5); err == nil {
		t.Error("the gateway answers with a model that may not be there")
	}
	// Nor if it asks for the file itself.
	token, err := os.ReadFile(w.edge.Env[len(w.edge.Env)-1][len("FALAJ_GATEWAY_TOKEN_FILE="):])
	w.Must(err)
	pull := w.ClientWith(t, string(token))
	resp, err := pull.Send(t.Context(), http.MethodGet, w.Path("gateways/edge/models/delay/versions/1/files/model.onnx"), nil, nil)
	if err == nil {
		resp.Body.Close()
		t.Error("the file crosses the border")
	} else if !strings.Contains(err.Error(), "only in home") {
		t.Error(err)
	}
	// And with the token of a gateway nothing else can be done.
	if err := pull.Do(t.Context(), http.MethodGet, w.Path("models"), nil, nil); err == nil {
		t.Error("the token of a gateway lists models")
	}
	if _, err := w.Infer(pull, "delay", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2)); err == nil {
		t.Error("the token of a gateway asks models")
	}
}
