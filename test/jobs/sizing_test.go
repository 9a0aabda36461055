package jobs

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// learns is a program that tells a step to its run now and then, each after some
// milliseconds that its pool says.
var learns = script(
	"import json, os, time, urllib.request",
	"def tell(step):",
	"    body = json.dumps({'run_id': os.environ['MLFLOW_RUN_ID'], 'key': 'loss', 'value': 1 / step, 'step': step, 'timestamp': int(time.time() * 1000)}).encode()",
	"    urllib.request.urlopen(urllib.request.Request(os.environ['MLFLOW_TRACKING_URI'] + '/api/2.0/mlflow/runs/log-metric', body,",
	"        {'Authorization': 'Bearer ' + os.environ['MLFLOW_TRACKING_TOKEN'], 'Content-Type': 'application/json'})).read()",
	"for step in range(1, 5):",
	"    tell(step)",
	"    time.sleep(float(os.environ['STEP']))",
)

// TestRightSizing: from two attempts on two pools with other devices and prices to
// the sentence, for people and as JSON. The devices are declared, and their speed is
// what their pools say in STEP.
func TestRightSizing(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "sizes")
	p.Apply(`
api_version: falaj/v1
kind: Pool
name: fast
spec: {price_per_hour: 40, env: {STEP: "0.2"}, nodes: [{name: f1, cpu: 2, memory: 2GiB, labels: {cpu.model: Fast 9000}}]}
---
api_version: falaj/v1
kind: Pool
name: slow
spec: {price_per_hour: 4, env: {STEP: "0.4"}, nodes: [{name: s1, cpu: 2, memory: 2GiB, labels: {cpu.model: Slow 100}}]}
`)
	run := func(name, pool string) string {
		job := submit(p, name, map[string]any{
			"command": learns, "pools": []string{pool}, "batch": 32, "resources": map[string]string{"cpu": "1", "memory": "1GiB"},
		})
		if got := ended(p, job); got.State != "succeeded" {
			t.Fatal(p.Story(job))
		}
		return job
	}
	first := run("digits-1", "fast")
	if text := p.Run(0, "job", "describe", first); strings.Contains(text, "would take") {
		t.Errorf("of nothing measured: %s", text)
	}
	run("digits-2", "slow")
	text := p.Run(0, "job", "advise", first)
	sentence := regexp.MustCompile(`used [\d.]+ of 1 core and \d+ MiB of 1 GiB; 256 MiB would do; a Slow 100 would take [\d.]+x the time at 0\.\d+x the price \(measured in 1 attempt\)`)
	if !sentence.MatchString(text) || !strings.Contains(text, "POOL") || !strings.Contains(text, "measured, 1 attempt") {
		t.Errorf("advise: %s", text)
	}
	if text := p.Run(0, "job", "describe", first); !strings.Contains(text, "\nSize\n  used ") || !sentence.MatchString(text) {
		t.Errorf("describe: %s", text)
	}
	var got client.Advice
	if err := json.Unmarshal([]byte(p.Run(0, "job", "advise", first, "-o", "json")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Family != "digits" || got.Now == nil || got.Now.Device != "Fast 9000" || len(got.Options) != 1 || got.Options[0].Pool != "slow" || got.Options[0].Price == nil || got.Options[0].Known != "measured" {
		t.Errorf("%+v", got)
	}
	never := submit(p, "never", map[string]any{"command": learns, "resources": map[string]string{"cpu": "900", "memory": "1GiB"}})
	if text := p.Run(0, "job", "advise", never); !strings.Contains(text, "no measurements yet") {
		t.Error(text)
	}
	if text := p.Run(4, "job", "advise", "job_x"); !strings.Contains(text, "not found") {
		t.Error(text)
	}
}
