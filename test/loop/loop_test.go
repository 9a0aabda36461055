// Package loop attacks what closes the loop on the real server: requests,
// labels, monitors, rollouts and what is done automatically, with the input that
// nobody wanted, with kill -9, a full disk, and people and machines who act at the
// same time.
package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestLoop runs what can share a server, each in a project of its own.
func TestLoop(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	o := &ocean{Server: live.New(t, ""), next: &sync.Mutex{}}
	o.hooks, o.hung = map[string]*httptest.Server{}, make(chan struct{})
	var hosts []string
	for _, kind := range []string{"hang", "broken", "loopback", "plain", "round", "gone", "endless", "good"} {
		o.hooks[kind] = httptest.NewServer(http.HandlerFunc(o.hook))
		hosts = append(hosts, strings.TrimPrefix(o.hooks[kind].URL, "http://"))
		t.Cleanup(o.hooks[kind].Close)
	}
	t.Cleanup(func() { close(o.hung) })
	o.Env = append(o.Env, "FALAJ_ALERTS_HOSTS="+strings.Join(hosts, ","), "FALAJ_LIMITS_SQL_TIME=3s")
	o.start(t)
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*pond){
			"requests": wrongRequests, "labels": wrongLabels, "same name": sameNameAgain, "monitors": oddMonitors, "times": strangeTimes, "categories": manyCategories, "webhooks": wrongWebhooks,
			"no traffic": noTraffic, "bad candidates": badCandidates, "rollback": rollbackThatDoesNotLoad, "load": nothingLostOrMixed, "permissions": noPermission,
			"at once": promoteAndRollBack, "switch": killSwitch, "rights": lostRights, "bad jobs": badJobs,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(o.pond(t))
			})
		}
	})
}

// ocean is the server that tests share.
type ocean struct {
	*live.Server
	hooks map[string]*httptest.Server
	hung  chan struct{} // closed at the end: what hangs goes on
	next  *sync.Mutex
	last  int
	posts sync.Map // path → *[]string of bodies
}

func (o *ocean) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	if err := o.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// pond is a project with an administrator's client.
type pond struct {
	*ocean
	t       *testing.T
	c       *client.Client
	project string
}

func (o *ocean) pond(t *testing.T) *pond {
	t.Helper()
	o.next.Lock()
	o.last++
	p := &pond{ocean: o, t: t, c: o.Client(t), project: "p" + strconv.Itoa(o.last)}
	o.next.Unlock()
	p.apply("{api_version: falaj/v1, kind: Project, name: " + p.project + "}")
	return p
}

func (p *pond) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// apply applies manifests in which PROJECT stands for the project.
func (p *pond) apply(manifests string) []client.Applied {
	p.t.Helper()
	applied, err := p.try(p.c, manifests)
	p.must(err)
	return applied
}

func (p *pond) try(c *client.Client, manifests string) ([]client.Applied, error) {
	return c.Apply(p.t.Context(), "", []byte(strings.ReplaceAll(manifests, "PROJECT", p.project)), false)
}

// as is a client of a service with a role in the project.
func (p *pond) as(name, role string) *client.Client {
	p.t.Helper()
	var o client.Object
	p.must(p.c.Do(p.t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.project, "name": name, "role": role, "expires_in": "24h"}, &o))
	return p.ClientWith(p.t, o.Text("secret"))
}

func (p *pond) path(rest string) string { return "/api/v1/projects/" + p.project + "/" + rest }

// foreign speaks a protocol that names no project in its path.
func (p *pond) foreign(c *client.Client, method, path string, body, out any) error {
	resp, err := c.Send(p.t.Context(), method, path, body, http.Header{"Falaj-Project": {p.project}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return client.Decode(resp.Body, out)
}

// register makes a version of a model for each file; the first is its champion.
func (p *pond) register(name string, files ...[]byte) {
	p.t.Helper()
	p.must(p.foreign(p.c, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": name}, nil))
	for _, file := range files {
		var run client.Object
		p.must(p.foreign(p.c, http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
		id := run.Text("run.info.run_id")
		p.must(p.foreign(p.c, http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/model.onnx", bytes.NewReader(file), nil))
		p.must(p.foreign(p.c, http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": name, "source": "runs:/" + id + "/model", "run_id": id}, nil))
	}
	p.must(p.c.Do(p.t.Context(), http.MethodPut, p.path("models/"+name+"/aliases/champion"), map[string]any{"version": "1"}, nil))
}

type answer struct {
	ID      string `json:"id"`
	Version string `json:"model_version"`
	Outputs []struct {
		Name string `json:"name"`
		Data []any  `json:"data"`
	} `json:"outputs"`
}

// score is the first row's.
func (a answer) score() float64 {
	if len(a.Outputs) == 0 || len(a.Outputs[len(a.Outputs)-1].Data) == 0 {
		return math.NaN()
	}
	x, err := strconv.ParseFloat(fmt.Sprint(a.Outputs[len(a.Outputs)-1].Data[0]), 64)
	if err != nil {
		return math.NaN()
	}
	return x
}

// infer asks a deployment. Inputs are in the protocol's words.
func (p *pond) infer(c *client.Client, name string, parameters map[string]any, inputs ...any) (a answer, err error) {
	body := map[string]any{"inputs": inputs}
	if parameters != nil {
		body["parameters"] = parameters
	}
	return a, p.foreign(c, http.MethodPost, "/v2/models/"+name+"/infer", body, &a)
}

func tensor(name, datatype string, data any, shape ...int) map[string]any {
	return map[string]any{"name": name, "datatype": datatype, "shape": shape, "data": data}
}

// refused reports whether an error is a refusal with a status, and says so.
func (p *pond) refused(what string, err error, status int, says ...string) {
	p.t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status {
		p.t.Errorf("%s: %v, want status %d", what, err, status)
		return
	}
	for _, s := range says {
		if text := e.Detail + " " + e.Hint; !strings.Contains(text, s) {
			p.t.Errorf("%s: %q does not say %q", what, text, s)
		}
	}
}

// eventually asks again until it is so.
func (p *pond) eventually(what string, so func() (bool, error)) {
	p.t.Helper()
	timeout := time.NewTimer(live.Wait)
	defer timeout.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := so()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			p.t.Fatal(what, err)
		}
	}
}

// windows are the monitor's, the oldest first, once there are so many.
func (p *pond) windows(monitor string, n int) []client.Object {
	p.t.Helper()
	var all []client.Object
	p.eventually(fmt.Sprintf("monitor %s has not closed %d windows", monitor, n), func() (bool, error) {
		all = nil
		err := p.c.Windows(p.t.Context(), p.project, monitor, 0, func(o client.Object) error {
			all = append([]client.Object{o}, all...)
			return nil
		})
		if err == nil && len(all) < n {
			var m client.Object
			m, err = p.c.Monitor(p.t.Context(), p.project, monitor)
			err = fmt.Errorf("%d windows; %v %w", len(all), m, err)
		}
		return len(all) >= n, err
	})
	return all
}

func (p *pond) status(name string) client.Object {
	p.t.Helper()
	o, err := p.c.DeploymentStatus(p.t.Context(), p.project, name)
	p.must(err)
	return o
}
