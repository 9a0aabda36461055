// Package bursting runs jobs on nodes that a simulated cloud rents to a real server,
// which is killed (SIGKILL) on the way.
package bursting

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/test/live"
)

const pools = `
{api_version: falaj/v1, kind: Pool, name: own, spec: {price_per_hour: 1, nodes: [{name: own-1, cpu: 500m, memory: 256MiB}]}}
---
api_version: falaj/v1
kind: Pool
name: cloud
spec:
  cost: {rented: {on_demand: 10}}
  elastic: {provisioner: simulated, max: 3, startup: 2s, idle: 10s, node: {cpu: 500m, memory: 256MiB}}
---
api_version: falaj/v1
kind: Job
name: full
project: PROJECT
spec: {pools: [own], command: [sleep, "600"], timeout: 4h, resources: {cpu: 500m, memory: 64MiB}}
`

// job is one that takes some seconds, on what there is.
func job(name, more string) string {
	return fmt.Sprintf("{api_version: falaj/v1, kind: Job, name: %s, project: PROJECT, spec: {pools: [own, cloud], command: [sleep, \"3\"], timeout: 1h, resources: {cpu: 500m, memory: 64MiB}%s}}", name, more)
}

// pool is how the cloud stands.
type pool struct {
	Nodes   []struct{ Name, Down string }
	Renting struct {
		Wished, Ready, Coming, Leaving int
		Why                            []string
	}
}

func cloud(p *live.Project) (c pool, err error) {
	err = p.C.Do(p.T.Context(), http.MethodGet, "/api/v1/pools/cloud", nil, &c)
	return c, err
}

func submit(p *live.Project, manifest string) string {
	p.T.Helper()
	return p.Apply(manifest)[0].ID
}

// empty waits until the cloud has no nodes for us, by its own books too.
func empty(p *live.Project) {
	p.T.Helper()
	p.Eventually("nodes are left", func() (bool, error) {
		c, err := cloud(p)
		if err != nil || c.Renting.Wished > 0 || len(c.Nodes) > 0 {
			return false, err
		}
		var nodes map[string]any
		b, err := os.ReadFile(filepath.Join(p.Data, "simulated-cloud", "cloud.json"))
		if err == nil {
			err = json.Unmarshal(b, &nodes)
		}
		return len(nodes) == 0, err
	})
}

// TestBursts: who does not say what waiting costs waits; who does gets a node, runs
// there, and it goes again.
func TestBursts(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "p")
	all := p.Apply(pools)
	full := all[len(all)-1].ID
	p.Eventually("own is not full", func() (bool, error) {
		out := p.Run(0, "job", "why", full)
		return strings.Contains(out, "running on pool own"), nil
	})
	patient := submit(p, job("patient", ""))
	hurried := submit(p, job("hurried", ", delay_cost: 100"))
	p.Eventually("nobody says what it waits for", func() (bool, error) {
		out := p.Run(0, "job", "why", hurried)
		return strings.Contains(out, "waits for 1 node of cloud that starts up, about") || strings.Contains(out, "running on pool cloud"), nil
	})
	if out := p.Run(0, "job", "why", patient); !strings.Contains(out, "no delay_cost is set") {
		t.Errorf("patient: %s", out)
	}
	if out := p.Run(0, "pool", "status", "cloud"); !strings.Contains(out, "elastic, by simulated: 0 to 3 nodes; desired 1") || !strings.Contains(out, "worth") && !strings.Contains(out, "1 reserved") && !strings.Contains(out, "1 busy") && !strings.Contains(out, "1 starting") {
		t.Errorf("status: %s", out)
	}
	if got := p.Ends(hurried, "succeeded"); got.Text("pool") != "cloud" {
		t.Errorf("it ran on %q", got.Text("pool"))
	}
	empty(p)
	gang := submit(p, job("gang", ", workers: 3, delay_cost: 1000"))
	if got := p.Ends(gang, "succeeded"); got.Text("pool") != "cloud" {
		t.Errorf("the gang ran on %q", got.Text("pool"))
	}
	empty(p)
	if out := p.Run(0, "job", "why", patient); !strings.Contains(out, "no delay_cost") {
		t.Errorf("patient: %s", out)
	}
	report := p.Run(0, "cost", "report", "--installation", "--by", "pool")
	if !strings.Contains(report, "cloud") {
		t.Errorf("%s", report)
	}
	t.Logf("%s", report)
}

// TestKilledOnTheWay: the server is killed again and again while nodes are wished
// for, start up, work and go. Each job ends, and no node is left.
func TestKilledOnTheWay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("kills a real server many times")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	moments := rand.New(rand.NewPCG(seed, 0))
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "p")
	p.Apply(pools)
	var jobs []string
	for i := range 3 {
		jobs = append(jobs, submit(p, job(fmt.Sprint("job-", i), fmt.Sprintf(", workers: %d, delay_cost: 1000", 1+i))))
		for range 3 {
			// Not before the wish is there, and up to a life of a node later.
			timer := time.NewTimer(time.Duration(moments.IntN(2500)) * time.Millisecond)
			<-timer.C
			p.Must(p.Kill())
			p.Again()
		}
	}
	for _, id := range jobs {
		p.Ends(id, "succeeded")
	}
	empty(p)
}
