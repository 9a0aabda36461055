package jobs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/test/live"
)

// TestTogether: two workers of the real XGBoost and LightGBM, each with half of
// the rows, make one model, which is as good on all rows as one of all rows. Those
// that never join are told so.
func TestTogether(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "together")
	p.Apply(`{api_version: falaj/v1, kind: Environment, name: boosted, project: PROJECT, spec: {python: /usr/bin/python3.11,
		requirements: [xgboost-cpu==3.2.0, lightgbm==4.7.0, numpy==2.4.6, scipy==1.17.1, narwhals==2.29.0]}}`)
	p.Run(0, "env", "wait", "boosted") // before the time that jobs are given begins
	source := t.TempDir()
	p.Must(os.CopyFS(filepath.Join(source, "falaj"), os.DirFS("../../sdk/python/falaj")))
	program, err := os.ReadFile("testdata/together.py")
	p.Must(err)
	p.Must(os.WriteFile(filepath.Join(source, "train.py"), program, 0o600))
	submit := func(framework, how string) string {
		file := filepath.Join(t.TempDir(), "job.yaml")
		p.Must(os.WriteFile(file, []byte(`{api_version: falaj/v1, kind: Job, name: boosts, spec: {environment: boosted, framework: `+framework+
			`, workers: 2, max_attempts: 1, resources: {cpu: 300m, memory: 512MiB}, command: [python, train.py, `+framework+how+`]}}`), 0o600))
		said := strings.Fields(p.Run(0, "job", "submit", "-f", file, "--source", source))
		return said[len(said)-1]
	}
	jobs := map[string]string{"xgboost": submit("xgboost", ""), "lightgbm": submit("lightgbm", "")}
	alone := submit("xgboost", ", alone")
	const warned = "not all of 2 workers joined xgboost's tracker"
	for framework, job := range jobs {
		got, log := ended(p, job), p.Run(0, "job", "logs", job)
		var models []string
		for line := range strings.Lines(log) {
			_, said, ok := strings.Cut(line, "RESULT ")
			if !ok {
				continue
			}
			var r struct {
				Model                 string
				Together, Whole, Part float64
			}
			p.Must(json.Unmarshal([]byte(said), &r))
			if r.Part < 2*r.Whole || r.Together > 1.2*r.Whole {
				t.Errorf("%s: %+v", framework, r)
			}
			models = append(models, r.Model)
		}
		if got.State != "succeeded" || len(models) != 2 || models[0] != models[1] || strings.Contains(log, warned) {
			t.Errorf("%s: %+v\n%s", framework, got, log)
		}
	}
	if got, log := ended(p, alone), p.Run(0, "job", "logs", alone); got.State != "succeeded" || !strings.Contains(log, warned) {
		t.Errorf("alone: %+v\n%s", got, log)
	}
}
