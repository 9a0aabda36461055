//go:build proof

package tensorflow

import (
	_ "embed"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

//go:embed train.py
var train string

func TestMultiWorkerMirroredStrategy(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "proof")
	p.Apply(`{api_version: falaj/v1, kind: Environment, name: tensorflow, project: PROJECT, spec: {python: /usr/bin/python3.11, requirements: [tensorflow-cpu==2.21.0]}}`)
	var job client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "mirrored", "spec": map[string]any{
		"environment": "tensorflow", "framework": "tensorflow", "workers": 2, "script": train,
		"resources": map[string]string{"cpu": "500m", "memory": "2GiB"}, "timeout": "10m", "max_attempts": 1,
	}}, &job))
	id := job.Text("id")
	p.Within(15*time.Minute, "job "+id+" does not end", func() (bool, error) { // TensorFlow is fetched first
		err := p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+id+"?wait=30s"), nil, &job)
		return slices.Contains([]string{"failed", "succeeded", "cancelled"}, job.Text("state")), err
	})
	log := p.Run(0, "job", "logs", id)
	results := 0
	for line := range strings.Lines(log) {
		_, said, ok := strings.Cut(line, "RESULT ")
		if !ok {
			continue
		}
		results++
		var r struct {
			Workers               int
			Together, Whole, Part [2]float64
		}
		p.Must(json.Unmarshal([]byte(said), &r))
		far := func(a, b [2]float64) float64 { return max(math.Abs(a[0]-b[0]), math.Abs(a[1]-b[1])) }
		if r.Workers != 2 || far(r.Together, r.Whole) > 1e-3 || far(r.Part, r.Whole) < 1e-1 {
			t.Errorf("%+v", r)
		}
		t.Logf("%+v", r)
	}
	if job.Text("state") != "succeeded" || results != 2 {
		t.Errorf("%d results\n%s\n%s", results, p.Story(id), log)
	}
}
