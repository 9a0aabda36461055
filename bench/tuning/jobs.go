package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
)

//go:embed trial.py
var program string

const project = "bench"

// ended is what a sweep took and found.
type ended struct {
	wall, busy float64 // seconds, and seconds of all jobs together
	best       float64
	stopped    int
}

// jobs measures what stopping early saves: the same random trials of a network that is
// trained in jobs of a real server, all to their end and by ASHA.
func (b *bench) jobs(ctx context.Context) error {
	trials, epochs, points := 40, 27, 3000
	if b.Quick {
		trials, epochs, points = 4, 2, 20
	}
	s, err := b.Up(ctx, filepath.Join(b.Dir, "falaj"), -1)
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	c, err := s.Client()
	if err != nil {
		return err
	}
	if _, err := c.Apply(ctx, "", []byte("{api_version: falaj/v1, kind: Project, name: "+project+"}"), false); err != nil {
		return err
	}
	var all, asha []ended
	for round := range b.Rounds {
		for kind, to := range map[string]*[]ended{"none": &all, "asha": &asha} {
			one, err := sweep(ctx, c, fmt.Sprintf("%s-%d", kind, round), map[string]any{
				"job": map[string]any{
					"command": []string{"python3", "-c", program}, "resources": map[string]any{"cpu": "900m", "memory": "256MiB"},
					"env": map[string]string{"EPOCHS": strconv.Itoa(epochs), "POINTS": strconv.Itoa(points)},
				},
				"parameters": []map[string]any{
					{"name": "lr", "type": "float", "low": 1e-4, "high": 1, "log": true},
					{"name": "units", "type": "int", "low": 4, "high": 24},
					{"name": "momentum", "type": "float", "high": 0.95},
					{"name": "decay", "type": "float", "low": 1e-7, "high": 1e-2, "log": true},
				},
				"objectives": []map[string]any{{"metric": "loss"}},
				"search":     map[string]any{"algorithm": "random", "seed": round},
				"stop":       map[string]any{"kind": kind},
				"budget":     map[string]any{"trials": trials},
				"parallel":   2,
			})
			if err != nil {
				return err
			}
			*to = append(*to, one)
			b.Say("%s, round %d: %.0f s, %.0f s of jobs, best %.3f, %d stopped", kind, round, one.wall, one.busy, one.best, one.stopped)
		}
	}
	of := func(ends []ended, what func(ended) float64) *float64 {
		var values []float64
		for _, e := range ends {
			values = append(values, what(e))
		}
		return harness.Value(harness.Median(values))
	}
	note := fmt.Sprintf("%d random trials, the same of both, of %d epochs, 2 at once; medians of %d seeds; ASHA stopped %.0f", trials, epochs, b.Rounds, *of(asha, func(e ended) float64 { return float64(e.stopped) }))
	for _, row := range []harness.Row{{
		Name: fmt.Sprintf("sweep of %d jobs with ASHA: time", trials), Unit: "s", Better: harness.Lower, Note: note,
		Ours: of(asha, func(e ended) float64 { return e.wall }), Theirs: of(all, func(e ended) float64 { return e.wall }), Peer: "the same trials to their end",
	}, {
		Name: fmt.Sprintf("sweep of %d jobs with ASHA: seconds of jobs", trials), Unit: "s", Better: harness.Lower,
		Ours: of(asha, func(e ended) float64 { return e.busy }), Theirs: of(all, func(e ended) float64 { return e.busy }), Peer: "the same trials to their end",
	}, {
		Name: fmt.Sprintf("sweep of %d jobs with ASHA: best loss", trials), Unit: "loss", Better: harness.Lower,
		Ours: of(asha, func(e ended) float64 { return e.best }), Theirs: of(all, func(e ended) float64 { return e.best }), Peer: "the same trials to their end",
	}} {
		b.Add(row)
	}
	return nil
}

// sweep runs a sweep to its end.
func sweep(ctx context.Context, c *client.Client, name string, spec map[string]any) (end ended, err error) {
	manifest, err := json.Marshal(map[string]any{"api_version": "falaj/v1", "kind": "Sweep", "name": name, "project": project, "spec": spec})
	if err != nil {
		return end, err
	}
	began := time.Now()
	if _, err := c.Apply(ctx, project, manifest, false); err != nil {
		return end, err
	}
	path := "/api/v1/projects/" + project + "/sweeps/" + url.PathEscape(name)
	for {
		var o client.Object
		if err := c.Do(ctx, http.MethodGet, path, nil, &o); err != nil {
			return end, err
		}
		if state := o.Text("state"); state == "complete" {
			break
		} else if state != "running" {
			return end, errors.New("sweep " + name + " is " + state + ": " + o.Text("reason"))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return end, ctx.Err()
		}
	}
	end.wall, end.best = time.Since(began).Seconds(), math.Inf(1)
	return end, c.List(ctx, path+"/trials", nil, func(t client.Object) error {
		from, err := time.Parse(time.RFC3339, t.Text("started_at"))
		if err != nil {
			return err
		}
		to, err := time.Parse(time.RFC3339, t.Text("ended_at"))
		if err != nil {
			return err
		}
		end.busy += to.Sub(from).Seconds()
		if t.Text("state") == "stopped" {
			end.stopped++
		}
		if values, _ := t["values"].([]any); len(values) == 1 {
			v, err := strconv.ParseFloat(fmt.Sprint(values[0]), 64)
			if err != nil {
				return err
			}
			end.best = min(end.best, v)
		}
		return nil
	})
}
