package console

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/console"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	"github.com/falaj-ml/falaj/internal/sketch"
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
	answer := func(path string, of func(r *http.Request) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+token {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(`{"status":401,"kind":"unauthenticated","detail":"who are you?"}`))
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(of(r))
		})
	}
	fixed := func(v any) func(*http.Request) any { return func(*http.Request) any { return v } }
	list := func(v ...any) func(*http.Request) any { return fixed(object{"items": v}) }
	const p = "/api/v1/projects/nyc"
	answer("/api/v1/whoami", fixed(object{"kind": "user", "id": "usr_1", "name": "layla"}))
	answer("/api/v1/projects", list(object{"name": "nyc"}, object{"name": "clinic"}))
	answer("/api/v1/audit", list(
		object{"index": 4211, "time": at(0, -2), "actor": object{"kind": "user", "id": "usr_1", "name": "layla"}, "actor_name": "layla", "action": "deployment.rollout", "object": "deployment delay", "outcome": "done"},
		object{"index": 4210, "time": at(0, -9), "actor": object{"kind": "system", "id": "monitor"}, "actor_name": "falaj", "action": "monitor.finding", "object": "monitor delay", "outcome": "done"},
		object{"index": 4209, "time": at(0, -11), "actor": object{"kind": "user", "id": "usr_2", "name": "omar"}, "actor_name": "omar", "action": "dataset.import", "object": "dataset weather", "outcome": "refused", "reason": "omar has the role viewer"},
	))
	answer(p+"/deployments", list(deployment("delay", 3, 4, 5), deployment("diversion", 7, 0, 0), deployment("taxi-out", 2, 0, 0)))
	answer(p+"/deployments/delay", fixed(deployment("delay", 3, 4, 5)))
	answer(p+"/deployments/delay/status", fixed(status()))
	answer(p+"/gateways", func(*http.Request) any { // asked now: a minute later the first would be away
		return object{"items": []any{
			gateway.Gateway{Name: "branch-7", Spec: gateway.Spec{Zone: "home"}, Seen: &gateway.Seen{
				At: ago(0, 0), Report: gateway.Report{Instance: "gwi_1", Zone: "home", Holds: []gateway.Held{{Deployment: "delay", Version: 3, State: serving.Ready}}},
				LeftOut: []gateway.LeftOut{{Deployment: "diversion", Reason: "version 7 has the residency DE, but the gateway is in home"}},
			}},
			gateway.Gateway{Name: "ship", Spec: gateway.Spec{Zone: "AE"}, Seen: &gateway.Seen{
				At: ago(-3*day, 0), Report: gateway.Report{Instance: "gwi_2", Zone: "AE", Waiting: 5 << 20, Holds: []gateway.Held{{Deployment: "taxi-out", Version: 2, State: serving.Ready}}},
			}},
			gateway.Gateway{Name: "plant", Spec: gateway.Spec{Zone: "home"}},
		}}
	})
	answer(p+"/monitors", list(monitor("delay", "drifted", "4 of 13 inputs drifted: weather:temp, weather:dewp, weather:pressure and the score."), monitor("diversion", "ok", "No input drifted in the newest window."),
		monitor("taxi-out", "waiting", "The first window closes when a later record was seen.")))
	answer(p+"/monitors/delay", fixed(monitor("delay", "drifted", "4 of 13 inputs drifted: weather:temp, weather:dewp, weather:pressure and the score.")))
	answer(p+"/deployments/delay/rollout", fixed(progress()))
	all := windows()
	newest := slices.Clone(all)
	slices.Reverse(newest)
	answer(p+"/monitors/delay/windows", fixed(object{"items": newest}))
	answer(p+"/monitors/delay/windows/{id}", func(r *http.Request) any {
		n := slices.IndexFunc(all, func(w monitoring.Window) bool { return w.ID == r.PathValue("id") })
		scores := column("score", 0.2+0.2*season(n), 0.1)
		return monitoring.Summaries{Window: all[n], Columns: summaries(float64(n) / weeks), Scores: &scores}
	})
	scores := column("score", 0.2, 0.1)
	answer(p+"/monitors/delay/baseline", fixed(monitoring.Baseline{Version: 3, Source: "training set", Ref: "delays@3", Rows: 84_120, Columns: summaries(0), Score: &scores}))
	answer(p+"/jobs", many)
	answer(p+"/jobs/{job}/why", fixed(object{"reasons": []string{"Waits for 2 cpu in pool gpu-dubai; 1.5 are free until job_01J7 ends."}}))
	answer(p+"/jobs/{job}", func(r *http.Request) any {
		j := job(4)
		j["spec"] = object{"roles": []object{{"name": "chief", "workers": 1}, {"name": "worker", "workers": 60}, {"name": "ps", "workers": 1, "until": "end"}, {"name": "evaluator", "workers": 1}}}
		return j
	})
	answer(p+"/jobs/{job}/top", fixed(object{"job": "job_4", "name": "train", "state": "running", "number": 1, "workers": workers()}))
	answer(p+"/datasets", list())
	answer(p+"/datasets/{name}/versions", list(orders(3), orders(2), orders(1)))
	answer(p+"/datasets/{ref}/version", func(r *http.Request) any { return orders(int64(r.PathValue("ref")[len("orders@")] - '0')) })
	answer(p+"/datasets/{ref}/profile", fixed(ordersProfile()))
	answer(p+"/feature-views", list())
	answer(p+"/feature-services", list())
	featureAnswers(p, answer)
	answer(p+"/models", list(object{"name": "delay", "latest_version": 5, "aliases": []string{"champion=3"}, "created_at": at(-40, 0)}))
	seen := &looks{all: profiles()}
	answer(p+"/jobs/{job}/profiles", func(*http.Request) any { return object{"items": seen.list()} })
	mux.HandleFunc("POST "+p+"/jobs/{job}/profiles", seen.look)
	mux.HandleFunc("GET /get-artifact", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+token && r.Header.Get("Falaj-Project") == "nyc" {
			_, _ = w.Write([]byte(stacks))
		}
	})
	mux.HandleFunc("GET "+p+"/jobs/{job}/logs", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 400 {
			_, _ = fmt.Fprintf(w, "epoch %d loss %.4f auc %.4f\n", i, 0.6-0.0005*float64(i), 0.61+0.0003*float64(i))
		}
	})
	mux.HandleFunc("GET "+p+"/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "retry: 500\n: watching\n\n")
		if last := r.Header.Get("Last-Event-ID"); last != "" {
			_, _ = fmt.Fprintf(w, "id: 1-9\nevent: job.finished\ndata: {\"name\":\"job.finished\",\"time\":%q,\"project\":\"nyc\",\"body\":{\"name\":\"told after %s\"}}\n\n", at(0, 0), last)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
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

const day = 24 * 60 // minutes

// ago is a time so many minutes from now, in two summands.
func ago(minutes, more int) time.Time {
	return time.Now().UTC().Add(time.Duration(minutes+more) * time.Minute).Truncate(time.Second)
}

func at(days, minutes int) string { return ago(days*day, minutes).Format(time.RFC3339) }

func deployment(name string, version, canary, shadow int64) serving.Deployment {
	d := serving.Deployment{
		ID: serving.ID("dep_" + name), Project: "nyc", Name: name, Spec: serving.Spec{Model: name}, Model: name, Version: version, Digest: "sha256:1", Residency: residency.Of("AE", "home"),
		Classification: "internal", CreatedAt: ago(-60*day, 0), UpdatedAt: ago(0, -7), Revision: 9, State: serving.Ready, Before: []int64{1},
		Targets: []serving.Target{{Role: serving.Stable, Version: version, Weight: 100, State: serving.Ready}},
	}
	if canary > 0 {
		d.Targets[0].Weight = 80
		d.Targets = append(d.Targets, serving.Target{Role: serving.Canary, Version: canary, Weight: 20, State: serving.Ready})
	}
	if shadow > 0 {
		d.Targets = append(d.Targets, serving.Target{Role: serving.Shadow, Version: shadow, State: serving.Loading})
	}
	return d
}

func evidence(v any) json.RawMessage {
	b, _ := json.Marshal(v)
	return b
}

func status() serving.Status {
	spec := rollout.Spec{Metric: "brier", Margin: 0.002, Alpha: 0.05, MinLabels: 500, MaxDuration: "14d"}
	s := serving.Status{Deployment: deployment("delay", 3, 4, 5), Since: ago(-2*day, 0), Automation: serving.Automation{On: true}}
	for i, t := range s.Deployment.Targets {
		s.Versions = append(s.Versions, serving.Counted{
			Target: t, Requests: []int64{48_211, 12_034, 60_190}[i], Failures: []int64{11, 3, 0}[i],
			P50: []time.Duration{410_000, 440_000, 470_000}[i], P99: []time.Duration{1_900_000, 2_100_000, 2_400_000}[i],
		})
	}
	s.Versions = append(s.Versions, serving.Counted{Target: serving.Target{Version: 2}, Requests: 902, P50: 400_000, P99: 1_800_000})
	s.History = []serving.Rollout{
		{ID: "rol_2", Stable: 3, Candidate: 4, Weight: 20, Spec: spec, State: serving.Running, Cause: "job job_4 finished", Started: ago(0, -40), StartedAt: begin.AddDate(0, 0, 210)},
		{
			ID: "rol_1", Stable: 3, Candidate: 2, Weight: 20, Spec: spec, State: serving.RolledBack, Cause: "layla tried an older version", Started: ago(-3*day, 0), Ended: ago(-2*day, 0),
			Reason: "Worse: the Brier score is higher by 0.021 (0.014 to 0.029) after 2 410 labels.", Evidence: evidence(object{"difference": 0.021, "low": 0.014, "high": 0.029}),
		},
	}
	s.Rollout = &s.History[0]
	s.Acts = []serving.AutoAction{
		{ID: "act_3", Kind: serving.AutoCanary, Cause: "job_4", At: begin.AddDate(0, 0, 210), Made: ago(0, -41), Outcome: serving.AutoActionDone, Reason: "train-delay made version 4 of delay.", Result: "rol_2", Evidence: evidence(object{"job": "job_4", "auc": 0.741})},
		{ID: "act_2", Kind: serving.AutoRetrain, Cause: "event 1-2", At: begin.AddDate(0, 0, 210), Made: ago(0, -55), Outcome: serving.AutoActionDone, Reason: "4 of 13 inputs drifted in the week of 29 July, since 10 June.", Result: "job_4", Evidence: evidence(object{"share": 0.31})},
		{ID: "act_1", Kind: serving.AutoRetrain, Cause: "event 1-1", At: begin.AddDate(0, 0, 203), Made: ago(-day, 0), Outcome: serving.AutoActionSkipped, Reason: "The last retraining was 7 days ago; the cool-down is 30 days."},
	}
	return s
}

// progress is a candidate that turns out better, as labels come.
func progress() label.Progress {
	p := label.Progress{
		Rollout: "rol_2", Labels: 9000, StartedAt: begin.AddDate(0, 0, 210), Newest: begin.AddDate(0, 0, weeks*7),
		Stable:    rollout.Arm{Version: 3, Share: 0.8, Assigned: 33_120, Requests: 33_120, Errors: 8, Loss: rollout.Moments{N: 7204, Mean: 0.1484, M2: 1}},
		Candidate: rollout.Arm{Version: 4, Share: 0.2, Assigned: 8260, Requests: 8260, Errors: 2, Loss: rollout.Moments{N: 1796, Mean: 0.1449, M2: 1}},
	}
	r := rand.New(rand.NewPCG(1, 2))
	difference := 0.004
	for n := 200; n <= 9000; n += 100 {
		difference += (-0.0035 - difference) * 0.04
		d, width := difference+r.NormFloat64()*0.0004, 0.19*math.Sqrt(math.Log(float64(n))/float64(n))
		p.Trajectory = append(p.Trajectory, label.Point{Labels: int64(n), At: p.StartedAt, Difference: d, Low: d - width, High: d + width})
	}
	last := p.Trajectory[len(p.Trajectory)-1]
	p.Decision = rollout.Decision{
		Outcome: rollout.Continue, Comparable: true, Difference: last.Difference, Low: last.Low, High: last.High, Alpha: 0.05, Margin: 0.002, P: 0.07, SRM: 0.83,
		Reason: fmt.Sprintf("The Brier score differs by %.4f; the interval is not yet wholly below the margin of 0.002.", last.Difference),
	}
	return p
}

func monitor(name string, state monitoring.State, reason string) monitoring.Monitor {
	watermark, since := begin.AddDate(0, 0, weeks*7), begin.AddDate(0, 0, 154)
	m := monitoring.Monitor{
		ID: monitoring.ID("mon_" + name), Project: "nyc", Name: name, Deployment: name, Spec: monitoring.Spec{Window: monitoring.WindowSpec{Every: "7d"}}.WithDefaults(name),
		Status: monitoring.Status{State: state, Reason: reason, Version: 3, Watermark: &watermark, Windows: weeks, Late: 12},
	}
	if state == monitoring.Drifted {
		m.Since = &since
	}
	return m
}

// season is 0 in winter and 1 in summer.
func season(week int) float64 { return math.Max(0, math.Sin(float64(week-8)/weeks*math.Pi*1.1)) }

// windows are the made-up monitor's, oldest first, each also with a few rows of
// the canary.
func windows() []monitoring.Window {
	r := rand.New(rand.NewPCG(3, 4))
	moves := map[string]float64{"weather:temp": 0.33, "weather:dewp": 0.27, "weather:pressure": 0.13, "weather:humid": 0.08, "weather:wind_speed": 0.06, "score": 0.16}
	p := func(x float64) *float64 { return &x }
	var out []monitoring.Window
	for i := range weeks {
		feature := func(name string) monitoring.Feature {
			s := 0.01 + 0.02*r.Float64() + moves[name]*season(i)
			f := monitoring.Feature{
				Name: name, Kind: "numeric", Method: "wasserstein_normed", Statistic: &s, Threshold: p(0.1), Drifted: s > 0.1, Rows: 6200, Missing: 0.004, BaseMissing: 0.003,
				Mean: p(40 + 35*season(i)), BaselineMean: p(41.2),
			}
			if name == "carrier" {
				f.Kind, f.Method = "categorical", "jensen_shannon"
			}
			if name == "plane:seats" && i < 3 {
				f.Threshold, f.Statistic, f.Note = nil, nil, "all values are missing"
			}
			return f
		}
		w := monitoring.Window{
			ID: "3-" + strconv.Itoa(i), WindowKey: monitoring.WindowKey{Version: 3, Replay: true}, From: begin.AddDate(0, 0, 7*i), To: begin.AddDate(0, 0, 7*i+7), ClosedAt: ago(0, i-weeks),
			Requests: 6200, Rows: 6200, Failed: 1, Judged: true, Drifted: season(i) > 0.4, Share: 0.3, Latency: monitoring.Latency{P50: p(0.4), P99: p(2)},
			Performance: monitoring.Performance{Labelled: 0.73, Rows: 4500, State: "Labels of 73 % of the newest window have come."},
		}
		for _, name := range features {
			w.Features = append(w.Features, feature(name))
		}
		score := feature("score")
		w.Score = &score
		brier := 0.13 + 0.02*season(i) + 0.004*r.Float64()
		auc := 0.74 - 0.05*season(i)
		if i < weeks-2 {
			w.Performance.Metrics = []monitoring.Metric{
				{Name: "brier", Value: &brier, Low: p(brier - 0.004), High: p(brier + 0.004), Limit: p(0.158)}, {Name: "auc", Value: &auc, Low: p(auc - 0.02), High: p(auc + 0.02)},
			}
		}
		for k, carrier := range []string{"UA", "B6", "EV"} {
			w.Performance.Segments = append(w.Performance.Segments, monitoring.SegmentScore{
				Column: "carrier", Value: carrier, Rows: int64(1000 - 300*k), Metrics: []monitoring.Metric{{Name: "brier", Value: p(brier + 0.01*float64(k)), Low: p(brier - 0.01), High: p(brier + 0.03)}},
			})
		}
		w.Performance.Metrics = append(w.Performance.Metrics, monitoring.Metric{Name: "brier", Value: p(brier - 0.003), Estimate: true})
		out = append(out, w)
		if i > weeks-3 {
			w.ID, w.Version, w.Rows = "4-"+strconv.Itoa(i), 4, 1500
			out = append(out, w)
		}
	}
	return out
}

func column(name string, mean, deviation float64) monitoring.NamedColumn {
	h := &sketch.Histogram{}
	for i := range 21 {
		x := mean - 4*deviation + 8*deviation*float64(i)/20
		h.Edges = append(h.Edges, x)
		if i < 20 {
			z := (x - mean) / deviation
			h.Shares = append(h.Shares, math.Exp(-z*z/2)/12)
		}
	}
	return monitoring.NamedColumn{Name: name, Summary: evidence(sketch.Summary{Kind: sketch.Numeric, Rows: 6200, Missing: 20, Histogram: h})}
}

func summaries(warmth float64) []monitoring.NamedColumn {
	var out []monitoring.NamedColumn
	for i, name := range features {
		if name == "carrier" {
			s := sketch.Summary{Kind: sketch.Categorical, Rows: 6200}
			for k, c := range []string{"UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN"} {
				s.Categories = append(s.Categories, sketch.Category{Text: c, Count: uint64(900 - 90*k + int(warmth*100)*(k%2))})
			}
			out = append(out, monitoring.NamedColumn{Name: name, Summary: evidence(s)})
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
	j["tries"] = []object{{"id": "att_1", "number": 1, "state": "running", "workers": 4, "pool": j["pool"], "started_at": j["started_at"]}}
	j["why"] = []string{"It runs in pool local since a minute."}
	return j
}

// workers are those of a job with roles: one has ended, one is lost, the last has yet
// to come.
func workers() (all []object) {
	for i := range 62 {
		m := object{"index": i, "state": "running", "node": "gpu-" + strconv.Itoa(1+i/8), "exit_code": 0, "cpu_ns": 1, "peak_rss": "1GiB", "role": "worker"}
		switch i {
		case 0:
			m["role"], m["notes"] = "chief", []string{"the server's disk is full"}
		case 1:
			m["state"], m["reason"] = "ended", "exited"
		case 2:
			m["state"], m["reason"], m["message"] = "lost", "node_failed", "no heartbeat for 5m0s"
		case 61:
			m["role"] = "ps"
		}
		all = append(all, m)
	}
	return all
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

// orders is a version of a dataset: the first classified, the second rejected.
func orders(n int64) dataset.Version {
	v := dataset.Version{
		ID: dataset.VersionID(fmt.Sprintf("dsv_%d", n)), Dataset: "orders", Number: n, State: dataset.Accepted, Rows: 184_310, Quarantined: 212,
		Classification: dataset.Internal, Protection: dataset.Sealed, Residency: residency.Of("AE"), Created: begin,
		Expectations: []expectation.Result{
			{Expectation: expectation.Rule{Check: expectation.Between, Column: "price", Otherwise: expectation.Quarantine}, Passed: true, Checked: 184_522, Failed: 212, Examples: []expectation.Example{{Row: 1204, Column: "price", Value: "-3.5"}}},
			{Expectation: expectation.Rule{Check: expectation.Refers, Column: "customer"}, Passed: true, Checked: 184_310, Against: "customers@7"},
			{Expectation: expectation.Rule{Check: expectation.Drift, Column: "price"}, Passed: n != 2, Against: "orders@1", Note: "psi is 0.021, with the drift threshold 0.25"},
			{Expectation: expectation.Rule{Check: expectation.RowCount}, Passed: true, Checked: 184_310},
			{Expectation: expectation.Rule{Check: expectation.NotNull, Column: "country", Mostly: 0.9}, Passed: true, Checked: 184_310, Failed: 5},
		},
	}
	switch n {
	case 1:
		v.Classification = dataset.Confidential
	case 2:
		v.State, v.Reason = dataset.Rejected, "drift(price, psi) fails: psi is 0.612, with the drift threshold 0.25, against orders@1"
		v.Expectations[2].Note, v.Expectations[2].Problem = "", "psi is 0.612, with the drift threshold 0.25, against orders@1"
	}
	return v
}

func ordersProfile() dataset.Profile {
	p := dataset.Profile{Version: "orders@3", Rows: 184_310, Quarantined: 212, Sampled: 32_768}
	heights := func(from, step float64, text func(v float64) string) *statistics.ValueHistogram {
		h := &statistics.ValueHistogram{Edges: []string{text(from)}}
		for i := range 20 {
			h.Edges = append(h.Edges, text(from+step*float64(i+1)))
			h.Shares = append(h.Shares, math.Exp(-math.Pow(float64(i-7)/5, 2))/8.8)
		}
		return h
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 5, 64) }
	day := func(v float64) string { return begin.AddDate(0, 0, int(v)).Format(time.RFC3339) }
	mean, std := 41.38, 12.9
	p.Columns = []statistics.ColumnProfile{
		{Summary: statistics.Summary{Column: "price", Count: 184_310, Distinct: 4120, Min: "0.25", Max: "412.9", Mean: &mean, Std: &std}, Type: "float64", Histogram: heights(0, 5.12, number)},
		{Summary: statistics.Summary{Column: "sold_at", Count: 184_310, Distinct: 90_200, Min: day(0), Max: day(365)}, Type: "timestamp", Histogram: heights(0, 18, day)},
		{Summary: statistics.Summary{Column: "country", Count: 181_000, Nulls: 3310, Distinct: 212}, Type: "string", Top: []statistics.TopValue{
			{Value: "AE", Share: 0.61},
			{Value: "SA", Share: 0.2},
			{Value: "OM", Share: 0.08},
			{Value: "a country with a name that is longer than its place", Share: 0.004},
			{Value: "DE", Share: 0.0002},
		}},
		{Summary: statistics.Summary{Column: "returned", Count: 184_310, Distinct: 2}, Type: "bool", Top: []statistics.TopValue{{Value: "false", Share: 0.97}, {Value: "true", Share: 0.03}}},
		{Summary: statistics.Summary{Column: "remark", Nulls: 184_310}, Type: "string"},
	}
	return p
}
