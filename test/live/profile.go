package live

import (
	"math"
	"net/http"
	"strings"
)

// Spied is an environment that has the real py-spy.
const Spied = `{api_version: falaj/v1, kind: Environment, name: spied, project: PROJECT, spec: {python: /usr/bin/python3.11, requirements: [py-spy==0.4.1]}}`

// Turning is a program for Spied that computes in turn_RANK for most of the time,
// and rests.
const Turning = `
import os, time
def turn_0(until):
    while time.monotonic() < until: 3 * 7
def turn_1(until):
    while time.monotonic() < until: 3 * 7
turn = (turn_0, turn_1)[int(os.environ.get("RANK", "0"))]
print("turns", flush=True)
while True:
    turn(time.monotonic() + 0.2)
    time.sleep(0.05)
`

// Profile is what was seen of a worker.
type Profile struct {
	ID, Tool                             string
	Worker, Processes                    int
	Compute, Memory, Communication, Idle float64
	Artifacts                            []string
	Top                                  []struct{ Name, Where, Kind string }
}

// Look profiles a job that runs, once its program has begun.
func (p *Project) Look(job string, look map[string]any) (s Profile) {
	p.T.Helper()
	p.Eventually("job "+job+" cannot be looked at", func() (bool, error) {
		err := p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs/"+job+"/profiles"), look, &s)
		if err != nil && strings.Contains(err.Error(), "is failed") {
			p.T.Fatalf("%v\n%s", err, p.Story(job))
		}
		return err == nil, err
	})
	return s
}

// SeesInto fails the test unless the real py-spy, of an environment or of the
// nodes, sees what the second of two workers does that run in a pool.
func (p *Project) SeesInto(pool, environment string) {
	p.T.Helper()
	var job struct{ ID string }
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "turns-in-" + pool, "spec": map[string]any{
		"environment": environment, "script": Turning, "workers": 2, "pools": []string{pool}, "resources": map[string]any{"cpu": "500m", "memory": "256MiB"},
	}}, &job))
	s := p.Look(job.ID, map[string]any{"worker": 1, "seconds": 2})
	whole := s.Compute + s.Memory + s.Communication + s.Idle
	if s.Tool != "py-spy" || s.Worker != 1 || s.Processes != 1 || len(s.Artifacts) != 2 || math.Abs(whole-1) > 1e-6 || s.Compute < s.Idle || s.Idle <= 0 ||
		len(s.Top) == 0 || s.Top[0].Name != "turn_1" || s.Top[0].Kind != "compute" {
		p.T.Errorf("%+v", s)
	}
	p.Run(0, "job", "cancel", job.ID)
	p.Ends(job.ID, "cancelled")
}
