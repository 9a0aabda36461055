// Package loop attacks what closes the loop on the real server: requests,
// labels, monitors, rollouts and what is done automatically, with the input that
// nobody wanted, with kill -9, a full disk, and people and machines who act at the
// same time.
package loop

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

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
	o.Up(t)
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*pond){
			"requests": wrongRequests, "labels": wrongLabels, "same name": sameNameAgain, "monitors": oddMonitors, "times": strangeTimes, "categories": manyCategories, "webhooks": wrongWebhooks,
			"no traffic": noTraffic, "bad candidates": badCandidates, "rollback": rollbackThatDoesNotLoad, "load": nothingLostOrMixed, "permissions": noPermission,
			"at once": promoteAndRollBack, "switch": killSwitch, "rights": lostRights, "bad jobs": badJobs, "busy": busy,
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

// pond is a project of its own.
type pond struct {
	*live.Project
	ocean *ocean
}

func (o *ocean) pond(t *testing.T) *pond {
	t.Helper()
	o.next.Lock()
	o.last++
	name := "p" + strconv.Itoa(o.last)
	o.next.Unlock()
	return &pond{o.Project(t, name), o}
}

// as is a client of a service with a role in the project.
func (p *pond) as(name, role string) *client.Client {
	p.T.Helper()
	var o client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": name, "role": role, "expires_in": "24h"}, &o))
	return p.ClientWith(p.T, o.Text("secret"))
}

// refused reports whether an error is a refusal with a status, and says so.
func (p *pond) refused(what string, err error, status int, says ...string) {
	p.T.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status {
		p.T.Errorf("%s: %v, want status %d", what, err, status)
		return
	}
	for _, s := range says {
		if text := e.Detail + " " + e.Hint; !strings.Contains(text, s) {
			p.T.Errorf("%s: %q does not say %q", what, text, s)
		}
	}
}

// windows are the monitor's, the oldest first, once there are so many.
func (p *pond) windows(monitor string, n int) []client.Object {
	p.T.Helper()
	var all []client.Object
	p.Eventually(fmt.Sprintf("monitor %s has not closed %d windows", monitor, n), func() (bool, error) {
		all = nil
		err := p.C.Windows(p.T.Context(), p.Name, monitor, 0, func(o client.Object) error {
			all = append([]client.Object{o}, all...)
			return nil
		})
		if err == nil && len(all) < n {
			var m client.Object
			m, err = p.C.Monitor(p.T.Context(), p.Name, monitor)
			err = fmt.Errorf("%d windows; %v %w", len(all), m, err)
		}
		return len(all) >= n, err
	})
	return all
}

func (p *pond) status(name string) client.Object {
	p.T.Helper()
	o, err := p.C.DeploymentStatus(p.T.Context(), p.Name, name)
	p.Must(err)
	return o
}
