package console

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/console"
)

// token is what the made-up server takes.
const token = "made-up-token-of-the-test"

type object = map[string]any

var (
	begin    = time.Date(2013, 1, 7, 0, 0, 0, 0, time.UTC)
	features = []string{
		"minute_of_day", "weekday", "distance", "carrier", "weather:temp", "weather:dewp", "weather:humid", "weather:wind_speed",
		"weather:precip", "weather:pressure", "weather:visib", "plane:built", "plane:seats",
	}
)

// weekly windows of the made-up monitor; the newest is the last.
const weeks = 32

// pretend is a server with the console's files and an API of fixed answers.
func pretend(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	files := console.Handler()
	mux.Handle("GET /{$}", files)
	mux.Handle("GET /console/", files)
	answer := func(path string, make func(r *http.Request) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+token {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(`{"status":401,"kind":"unauthenticated","detail":"who are you?"}`))
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(make(r))
		})
	}
	fixed := func(v any) func(*http.Request) any { return func(*http.Request) any { return v } }
	list := func(v ...any) func(*http.Request) any { return fixed(object{"items": v}) }
	const p = "/api/v1/projects/nyc"
	answer("/api/v1/whoami", fixed(object{"kind": "user", "id": "usr_1", "name": "layla"}))
	answer("/api/v1/projects", list(object{"name": "nyc"}, object{"name": "clinic"}))
	answer("/api/v1/audit", list(
		object{"index": 4211, "time": at(0, -2), "actor": object{"id": "usr_1"}, "actor_name": "layla", "action": "deployment.rollout", "object": "deployment delay", "outcome": "allowed"},
		object{"index": 4210, "time": at(0, -9), "actor": object{"id": "system"}, "actor_name": "falaj", "action": "monitor.finding", "object": "monitor delay", "outcome": "allowed"},
		object{"index": 4209, "time": at(0, -11), "actor": object{"id": "usr_2"}, "actor_name": "omar", "action": "dataset.import", "object": "dataset weather", "outcome": "denied", "reason": "omar has the role viewer"},
	))
	answer(p+"/deployments", list(deployment("delay", 3, 4, 5), deployment("diversion", 7, 0, 0), deployment("taxi-out", 2, 0, 0)))
	answer(p+"/deployments/delay", fixed(deployment("delay", 3, 4, 5)))
	answer(p+"/deployments/delay/status", fixed(status()))
	answer(p+"/monitors", list(monitor("delay", "drifted", "4 of 13 inputs drifted: weather:temp, weather:dewp, weather:pressure and the score."), monitor("diversion", "ok", "No input drifted in the newest window."),
		monitor("taxi-out", "waiting", "The first window closes when a later record was seen.")))
	answer(p+"/monitors/delay", fixed(monitor("delay", "drifted", "4 of 13 inputs drifted: weather:temp, weather:dewp, weather:pressure and the score.")))
	all := windows()
	answer(p+"/monitors/delay/windows", func(*http.Request) any {
		newest := make([]any, 0, len(all))
		for i := len(all) - 1; i >= 0; i-- {
			newest = append(newest, all[i])
		}
		return object{"items": newest}
	})
	answer(p+"/monitors/delay/windows/{id}", func(r *http.Request) any {
		n, _ := strconv.Atoi(strings.TrimPrefix(r.PathValue("id"), "3-"))
		w := object{}
		for k, v := range all[n] {
			w[k] = v
		}
		w["columns"], w["scores"] = summaries(float64(n)/weeks), column("score", 0.2+0.2*season(n), 0.1)
		return w
	})
	answer(p+"/monitors/delay/baseline", fixed(object{
		"version": 3, "source": "training set", "ref": "delays@3", "rows": 84_120, "columns": summaries(0), "score": column("score", 0.2, 0.1),
	}))
	answer(p+"/jobs", many)
	answer(p+"/jobs/{job}/why", fixed(object{"reasons": []string{"Waits for 2 cpu in pool gpu-dubai; 1.5 are free until job_01J7 ends."}}))
	answer(p+"/jobs/{job}", func(r *http.Request) any { return job(4) })
	answer(p+"/datasets", list())
	answer(p+"/feature-views", list())
	answer(p+"/models", list(object{"name": "delay", "latest_version": 5, "aliases": []string{"champion=3"}, "created_at": at(-40, 0)}))
	mux.HandleFunc("GET "+p+"/jobs/{job}/logs", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 400 {
			_, _ = fmt.Fprintf(w, "epoch %d loss %.4f auc %.4f\n", i, 0.6-0.0005*float64(i), 0.61+0.0003*float64(i))
		}
	})
	mux.HandleFunc("GET "+p+"/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "retry: 3000\n: watching\n\n")
		for i, e := range []object{
			{"name": "job.queued", "time": at(0, -3), "project": "nyc", "body": object{"job": "job_4", "name": "train-delay", "reason": "weather:temp drifted since 2013-06-10"}},
			{"name": "monitor.drifted", "time": at(0, -2), "project": "nyc", "body": object{"deployment": "delay", "reason": "weather:temp: Wasserstein 0.31 over 0.1"}},
			{"name": "rollout.started", "time": at(0, -1), "project": "nyc", "body": object{"deployment": "delay", "reason": "version 4 takes 20 %"}},
		} {
			b, _ := json.Marshal(e)
			_, _ = fmt.Fprintf(w, "id: 1-%d\nevent: %s\ndata: %s\n\n", i, e["name"], b)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// at is a time so many days and minutes from now.
func at(days, minutes int) string {
	return time.Now().UTC().AddDate(0, 0, days).Add(time.Duration(minutes) * time.Minute).Format(time.RFC3339)
}

func deployment(name string, version, canary, shadow int) object {
	targets := []object{{"role": "stable", "version": version, "weight": 100, "state": "ready"}}
	if canary > 0 {
		targets[0]["weight"] = 80
		targets = append(targets, object{"role": "canary", "version": canary, "weight": 20, "state": "ready"})
	}
	if shadow > 0 {
		targets = append(targets, object{"role": "shadow", "version": shadow, "weight": 0, "state": "loading"})
	}
	return object{
		"id": "dep_" + name, "project": "nyc", "name": name, "spec": object{"model": name}, "model": name, "version": version, "digest": "sha256:1", "residency": []string{"AE", "home"},
		"classification": "internal", "created_at": at(-60, 0), "updated_at": at(0, -7), "revision": 9, "state": "ready", "targets": targets,
	}
}

func status() object {
	targets := deployment("delay", 3, 4, 5)["targets"].([]object)
	for i, t := range targets {
		t["requests"], t["failures"], t["p50_ms"], t["p99_ms"] = []int{48211, 12034, 60190}[i], []int{11, 3, 0}[i], []float64{0.41, 0.44, 0.47}[i], []float64{1.9, 2.1, 2.4}[i]
	}
	var points []object
	r := rand.New(rand.NewPCG(1, 2))
	difference := 0.004
	for n := 200; n <= 9000; n += 100 {
		difference += (-0.0035 - difference) * 0.04
		d := difference + r.NormFloat64()*0.0006
		width := 0.42 * math.Sqrt(math.Log(float64(n))/float64(n)) * 0.3
		points = append(points, object{"labels": n, "at": begin.AddDate(0, 0, weeks*7).Format(time.RFC3339), "difference": d, "low": d - width, "high": d + width})
	}
	last := points[len(points)-1]
	decision := object{
		"outcome": "continue", "reason": "Brier differs by " + fmt.Sprintf("%.4f", last["difference"]) + "; the interval is not yet wholly below the margin of 0.0002.", "comparable": true,
		"difference": last["difference"], "low": last["low"], "high": last["high"], "alpha": 0.05, "margin": 0.0002, "p": 0.07, "srm": 0.83,
	}
	spec := object{"metric": "brier", "margin": 0.0002, "alpha": 0.05, "min_labels": 500, "max_duration": "14d"}
	return object{
		"targets": targets, "automation": object{"on": true},
		"rollout": object{"id": "rol_2", "stable": 3, "candidate": 4, "weight": 20, "spec": spec, "state": "running", "cause": "job job_4 finished", "started": at(0, -40), "started_at": "2013-08-05T10:00:00Z"},
		"progress": object{
			"rollout": "rol_2", "decision": decision, "trajectory": points, "at": "2013-08-12T09:00:00Z",
			"stable":    object{"version": 3, "share": 0.8, "assigned": 33120, "requests": 33120, "errors": 8, "loss": object{"n": 7204, "mean": 0.1484, "m2": 1}},
			"candidate": object{"version": 4, "share": 0.2, "assigned": 8260, "requests": 8260, "errors": 2, "loss": object{"n": 1796, "mean": 0.1449, "m2": 1}},
		},
		"rollouts": []object{
			{"id": "rol_1", "stable": 3, "candidate": 2, "weight": 20, "spec": spec, "state": "rolled_back", "cause": "layla tried an older version", "started": at(-3, 0), "ended": at(-2, 0), "reason": "Worse: the Brier score is higher by 0.021 (0.014 to 0.029) after 2 410 labels.", "evidence": decision},
		},
		"acts": []object{
			{"id": "act_3", "kind": "canary", "cause": "job_4", "at": "2013-08-05T10:00:00Z", "made": at(0, -41), "outcome": "done", "reason": "train-delay made version 4 of delay.", "result": "rol_2", "evidence": object{"job": "job_4", "auc": 0.741}},
			{"id": "act_2", "kind": "retrain", "cause": "event 1-2", "at": "2013-08-05T00:00:00Z", "made": at(0, -55), "outcome": "done", "reason": "4 of 13 inputs drifted in the week of 29 July, since 10 June.", "result": "job_4", "evidence": object{"share": 0.31}},
			{"id": "act_1", "kind": "retrain", "cause": "event 1-1", "at": "2013-07-29T00:00:00Z", "made": at(-1, 0), "outcome": "skipped", "reason": "The last retraining was 7 days ago; the cool-down is 30 days."},
		},
	}
}

func monitor(name, state, reason string) object {
	m := object{
		"name": name, "deployment": name, "state": state, "reason": reason, "windows": weeks, "late": 12, "skewed": 0, "version": 3,
		"spec": object{"window": object{"every": "7d"}, "drift": object{"threshold": 0.1}}, "watermark": begin.AddDate(0, 0, weeks*7).Format(time.RFC3339),
	}
	if state == "drifted" {
		m["since"] = "2013-06-10T00:00:00Z"
	}
	return m
}

// season is 0 in winter and 1 in summer.
func season(week int) float64 { return math.Max(0, math.Sin(float64(week-8)/weeks*math.Pi*1.1)) }

func windows() []object {
	r := rand.New(rand.NewPCG(3, 4))
	moves := map[string]float64{"weather:temp": 0.33, "weather:dewp": 0.27, "weather:pressure": 0.13, "weather:humid": 0.08, "weather:wind_speed": 0.06, "score": 0.16}
	out := make([]object, weeks)
	for i := range out {
		feature := func(name string) object {
			s := 0.01 + 0.02*r.Float64() + moves[name]*season(i)
			f := object{
				"name": name, "kind": "numeric", "method": "wasserstein_normed", "statistic": s, "p_value": nil, "threshold": 0.1, "drifted": s > 0.1, "rows": 6200, "missing": 0.004, "baseline_missing": 0.003,
				"mean": 40 + 35*season(i), "baseline_mean": 41.2,
			}
			if name == "carrier" {
				f["kind"], f["method"] = "categorical", "jensen_shannon"
			}
			if name == "plane:seats" && i < 3 {
				f["threshold"], f["statistic"], f["note"] = nil, nil, "all values are missing"
			}
			return f
		}
		var fs []object
		for _, name := range features {
			fs = append(fs, feature(name))
		}
		brier := 0.13 + 0.02*season(i) + 0.004*r.Float64()
		metrics := []object{{"name": "brier", "value": brier, "low": brier - 0.004, "high": brier + 0.004, "estimate": false, "limit": 0.158, "breached": brier > 0.158}, {"name": "auc", "value": 0.74 - 0.05*season(i), "low": 0.72 - 0.05*season(i), "high": 0.76 - 0.05*season(i), "estimate": false}}
		if i > weeks-3 {
			metrics = nil
		}
		metrics = append(metrics, object{"name": "brier", "value": brier - 0.003, "low": nil, "high": nil, "estimate": true})
		out[i] = object{
			"id": "3-" + strconv.Itoa(i), "version": 3, "replay": true, "from": begin.AddDate(0, 0, 7*i).Format(time.RFC3339), "to": begin.AddDate(0, 0, 7*i+7).Format(time.RFC3339), "closed_at": at(0, -weeks+i),
			"requests": 6200, "rows": 6200, "failed": 1, "late": 0, "judged": true, "drifted": season(i) > 0.4, "share": 0.3, "features": fs, "score": feature("score"),
			"performance": object{"labelled": 0.73, "rows": 4500, "state": "Labels of 73 % of the newest window have come.", "degraded": false, "metrics": metrics}, "latency": object{"p50_ms": 0.4, "p99_ms": 2.0},
		}
	}
	return out
}

func column(name string, mean, deviation float64) object {
	edges, shares := []float64{}, []float64{}
	for i := range 31 {
		x := mean - 4*deviation + 8*deviation*float64(i)/30
		edges = append(edges, x)
		if i < 30 {
			shares = append(shares, math.Exp(-math.Pow((x-mean)/deviation, 2)/2)/12)
		}
	}
	return object{"name": name, "summary": object{"kind": "numeric", "rows": 6200, "missing": 20, "histogram": object{"edges": edges, "shares": shares}}}
}

func summaries(warmth float64) []object {
	var out []object
	for i, name := range features {
		if name == "carrier" {
			categories := []object{}
			for k, c := range []string{"UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN"} {
				categories = append(categories, object{"text": c, "count": 900 - 90*k + int(warmth*100)*(k%2)})
			}
			out = append(out, object{"name": name, "summary": object{"kind": "categorical", "rows": 6200, "categories": categories}})
			continue
		}
		out = append(out, column(name, 40+30*warmth+float64(i), 12))
	}
	return out
}

func job(i int) object {
	state := []string{"succeeded", "succeeded", "failed", "succeeded", "running", "cancelled", "queued"}[i%7]
	j := object{
		"id": "job_" + strconv.Itoa(i), "project": "nyc", "name": "train-" + []string{"delay", "diversion", "taxi-out"}[i%3] + "-" + strconv.Itoa(i), "state": state, "pool": []string{"local", "gpu-dubai"}[i%2],
		"spec": object{}, "inputs": []object{{"name": "train", "ref": "delays@3"}}, "residency": []string{"home"}, "classification": "internal", "submitted_by": object{"id": "usr_1"}, "digest": "", "attempts": 1, "failures": 0,
		"submitted_at": at(0, -i*3), "started_at": at(0, -i*3+1), "revision": 1, "run_id": "run_" + strconv.Itoa(i),
	}
	switch state {
	case "succeeded":
		j["ended_at"], j["model"] = at(0, -i*3+3), "delay"
	case "failed":
		j["ended_at"], j["reason"] = at(0, -i*3+2), "The program ended with code 1: it used more memory than the 2 GiB that it asked for."
	case "cancelled":
		j["ended_at"], j["reason"] = at(0, -i*3+2), "layla cancelled it."
	case "queued":
		delete(j, "started_at")
		delete(j, "pool")
		j["reason"] = "Waits for 2 cpu in pool gpu-dubai; 1.5 are free."
	}
	j["tries"] = []object{{"id": "att_1", "number": 1, "state": "running", "pool": j["pool"], "started_at": j["started_at"]}}
	j["why"] = []string{"It runs in pool local since a minute."}
	return j
}

// rows is how many jobs there are.
const rows = 10_000

// many answers pages of jobs, as the API does.
func many(r *http.Request) any {
	size, _ := strconv.Atoi(r.URL.Query().Get("page_size"))
	from, _ := strconv.Atoi(r.URL.Query().Get("page_token"))
	if size == 0 {
		size = 100
	}
	end := min(from+size, rows)
	page := object{}
	var items []object
	for i := from; i < end; i++ {
		items = append(items, job(i))
	}
	page["items"] = items
	if end < rows {
		page["next_page_token"] = strconv.Itoa(end)
	}
	return page
}
