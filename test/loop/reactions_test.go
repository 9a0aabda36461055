package loop

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const retraining = `
{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m, version: "1"}}
---
api_version: falaj/v1
kind: Monitor
name: m
project: PROJECT
spec:
  window: {rows: 250}
  baseline: "window:first"
  repeat: 1
  retrain:
    job: train
    data: rows
    training_set: set
    service: weather
    timestamp: at
    window: 30d
    cooldown: 1s
    spine: "SELECT 'JFK' AS origin, observed_at AS at, temp FROM weather WHERE observed_at >= {{from}} AND observed_at < {{to}}"
`

// trained prepares a project whose job, which takes seconds, registers m; the
// job names no data until it is begun again.
func (p *pond) trained(seconds int) {
	p.T.Helper()
	p.Apply(live.Weather)
	var csv strings.Builder
	csv.WriteString("origin,observed_at,temp\n")
	for i := range 100 {
		fmt.Fprintf(&csv, "JFK,%s,%d\n", begin.Add(time.Duration(i)*time.Minute).Format(time.RFC3339), i)
	}
	p.Import("weather", csv.String())
	p.Apply(live.WeatherView("5h"))
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "train", "spec": map[string]any{
		"command":   []string{"/bin/sh", "-ec", fmt.Sprintf(`sleep %d; mkdir "$FALAJ_OUTPUT_DIR/model"; cp model.onnx "$FALAJ_OUTPUT_DIR/model/"`, seconds)},
		"source":    p.Source("model.onnx", linear(0, 1, 1)),
		"register":  "m",
		"resources": map[string]any{"cpu": "0.2", "memory": "128MiB"},
	}}, nil))
	p.trainedOnce()
}

// trainedOnce waits until the newest job has registered a model.
func (p *pond) trainedOnce() {
	p.T.Helper()
	p.Eventually("no model is registered", func() (bool, error) {
		jobs := p.jobs()
		switch jobs[0].Text("state") {
		case "failed", "cancelled":
			p.T.Fatal(jobs)
		}
		return jobs[0].Text("state") == "succeeded", nil
	})
}

// jobs are those called train, the newest first.
func (p *pond) jobs() (all []client.Object) {
	p.T.Helper()
	p.Must(p.C.List(p.T.Context(), p.Path("jobs"), nil, func(o client.Object) error {
		all = append(all, o)
		return nil
	}))
	return all
}

// acts are the automatic ones of m of a kind.
func (p *pond) acts(kind string) (all []client.Object) {
	p.T.Helper()
	acts, _ := p.status("m")["acts"].([]any)
	for _, a := range acts {
		if o := client.Object(a.(map[string]any)); o.Text("kind") == kind {
			all = append(all, o)
		}
	}
	return all
}

// killSwitch stops what has begun: the job's version is not tried.
func killSwitch(p *pond) {
	t := p.T
	p.trained(10)
	p.Apply(retraining)
	r := rand.New(rand.NewPCG(7, 8))
	p.rows("m", 0, 250, normal(r, 0))
	p.rows("m", 300, 250, normal(r, 5))
	p.Eventually("nothing is trained", func() (bool, error) {
		acts := p.acts("retrain")
		return len(acts) > 0 && acts[0].Text("outcome") != "claimed", fmt.Errorf("%v", acts)
	})
	act := p.acts("retrain")[0]
	if act.Text("outcome") != "done" || !strings.HasPrefix(act.Text("result"), "job_") || !strings.Contains(act.Text("reason"), "trains on set@1") {
		t.Fatalf("%v", act)
	}
	p.Must(p.C.SetAutomation(t.Context(), p.Name, "m", false, "stop it"))
	p.Eventually("the job's end is not answered", func() (bool, error) { return len(p.acts("canary")) > 0, nil })
	if act := p.acts("canary")[0]; act.Text("outcome") != "skipped" || !strings.Contains(act.Text("reason"), "stop it") {
		t.Errorf("%v", act)
	}
	// Nor does anything else begin, and nothing is made up for later.
	p.rows("m", 600, 250, normal(r, 9))
	p.Eventually("the finding is not answered", func() (bool, error) { return len(p.acts("retrain")) > 1, nil })
	if act := p.acts("retrain")[0]; act.Text("outcome") != "skipped" || !strings.Contains(act.Text("reason"), "stop it") {
		t.Errorf("%v", act)
	}
	p.Must(p.C.SetAutomation(t.Context(), p.Name, "m", true, ""))
	if s := p.status("m"); s["rollout"] != nil || len(s["history"].([]any)) != 0 || len(p.jobs()) != 2 {
		t.Errorf("%v", s)
	}
}

// busy is a deployment that tries a version when a job registers another: the act fails,
// and names both.
func busy(p *pond) {
	t := p.T
	p.trained(10)
	p.RegisterVersion("m", linear(0, 1, 0))
	p.Apply(retraining)
	r := rand.New(rand.NewPCG(13, 14))
	p.rows("m", 0, 250, normal(r, 0))
	p.rows("m", 300, 250, normal(r, 5))
	p.Eventually("nothing is trained", func() (bool, error) {
		acts := p.acts("retrain")
		return len(acts) > 0 && acts[0].Text("outcome") == "done", fmt.Errorf("%v", acts)
	})
	job := p.acts("retrain")[0].Text("result")
	_, err := p.C.Canary(t.Context(), p.Name, "m", "2", 0, "by hand")
	p.Must(err)
	p.Eventually("the job's end is not answered", func() (bool, error) {
		acts := p.acts("canary")
		return len(acts) > 0 && acts[0].Text("outcome") != "claimed", fmt.Errorf("%v", acts)
	})
	act := p.acts("canary")[0]
	if reason := act.Text("reason"); act.Text("outcome") != "failed" || !strings.Contains(reason, "a rollout of version 2 of m is already running") || !strings.Contains(reason, job+" registered m@3") {
		t.Errorf("%v", act)
	}
}

// lostRights are those of a monitor's author: what it would begin fails, and says
// why.
func lostRights(p *pond) {
	t := p.T
	p.trained(0)
	author := p.as("author", "engineer")
	deployment, monitor, _ := strings.Cut(retraining, "---")
	p.Apply(deployment)
	_, err := p.Try(author, monitor)
	p.Must(err)
	var members []client.Object
	p.Must(p.C.List(t.Context(), p.Path("members"), nil, func(o client.Object) error {
		members = append(members, o)
		return nil
	}))
	gone := 0
	for _, m := range members {
		if m.Text("role") == "engineer" {
			p.Must(p.C.Do(t.Context(), http.MethodDelete, p.Path("members/"+m.Text("name")), nil, nil))
			gone++
		}
	}
	if gone != 1 {
		t.Fatal(members)
	}
	r := rand.New(rand.NewPCG(9, 10))
	p.rows("m", 0, 250, normal(r, 0))
	p.rows("m", 300, 250, normal(r, 5))
	p.Eventually("nothing is tried", func() (bool, error) {
		acts := p.acts("retrain")
		return len(acts) > 0 && acts[0].Text("outcome") != "claimed", fmt.Errorf("%v", acts)
	})
	act := p.acts("retrain")[0]
	if act.Text("outcome") != "failed" || !strings.Contains(act.Text("reason"), "author") || len(p.jobs()) != 1 {
		t.Errorf("%v", act)
	}
	t.Log(act.Text("reason"))
	// Somebody who may applies the same, and it acts for them.
	if a := p.Apply(monitor); len(a) != 1 || a[0].Result != "updated" {
		t.Errorf("%+v", a)
	}
	if a := p.Apply(monitor); a[0].Result != "unchanged" {
		t.Errorf("%+v", a)
	}
	p.rows("m", 600, 250, normal(r, 9))
	p.Eventually("nothing is tried for the new author", func() (bool, error) {
		acts := p.acts("retrain")
		return len(acts) > 1 && acts[0].Text("outcome") == "done", fmt.Errorf("%v", acts)
	})
}

// badJobs fail, register nothing or what is no model: the act says so, at once,
// and holds up no other project's.
func badJobs(p *pond) {
	t := p.T
	p.trained(0)
	r := rand.New(rand.NewPCG(11, 12))
	p.Apply(retraining)
	submit := func(command string) {
		t.Helper()
		p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "train", "spec": map[string]any{
			"command":      []string{"/bin/sh", "-ec", command},
			"source":       p.Source("model.onnx", []byte("this is no model")),
			"register":     "m",
			"max_attempts": 1,
			"resources":    map[string]any{"cpu": "0.2", "memory": "128MiB"},
		}}, nil))
		p.Eventually("the job does not end", func() (bool, error) {
			state := p.jobs()[0].Text("state")
			return state == "succeeded" || state == "failed", nil
		})
	}
	p.rows("m", 0, 250, normal(r, 0))
	for i, x := range []struct{ command, says string }{
		{`mkdir "$FALAJ_OUTPUT_DIR/model"; cp model.onnx "$FALAJ_OUTPUT_DIR/model/"`, ""},
		{`exit 3`, "failed"},
		{`true`, "wrote no model to register"},
	} {
		submit(x.command)
		p.rows("m", 300*(i+1), 250, normal(r, float64(5*(i+1))))
		p.Eventually("the job's end is not answered", func() (bool, error) {
			acts := p.acts("canary")
			return len(acts) > i && acts[0].Text("outcome") != "claimed", fmt.Errorf("%v %v", acts, p.acts("retrain"))
		})
		act := p.acts("canary")[0]
		t.Log(act.Text("outcome"), act.Text("reason"))
		if act.Text("outcome") != "failed" && act.Text("outcome") != "skipped" || !strings.Contains(act.Text("reason"), x.says) {
			t.Errorf("%s: %v", x.command, act)
		}
	}
	// A spine without end is given up, and not tried again while others wait.
	jobs := len(p.jobs())
	before, rest, _ := strings.Cut(retraining, "spine: ")
	_, rest, _ = strings.Cut(rest, "\n")
	p.Apply(before + `spine: "SELECT 'JFK' AS origin, {{from}} AS at, sum(a.range * b.range) AS temp FROM range(100000000) a, range(100000000) b WHERE {{to}} > {{from}}"` + "\n" + rest)
	p.rows("m", 1500, 500, normal(r, 99))
	var act client.Object
	p.Eventually("the endless spine is not given up", func() (bool, error) {
		acts := p.acts("retrain")
		act = acts[0] // the next window may ask for another afterwards
		return act.Text("outcome") == "failed", fmt.Errorf("%v", acts)
	})
	if !strings.Contains(act.Text("reason"), "make training set") || len(p.jobs()) != jobs {
		t.Errorf("%v", act)
	} else {
		t.Log(act.Text("reason"))
	}
	if a, err := p.Infer(p.C, "m", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2)); err != nil || a.Version != "1" {
		t.Errorf("%+v %v", a, err)
	}
}
