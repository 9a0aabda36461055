package ray

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/resource"
)

// group is a placement group as Ray's state API shows it.
type group struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Bundles []struct {
		Node      string             `json:"node_id"`
		Resources map[string]float64 `json:"unit_resources"`
	} `json:"bundles"`
	Stats struct {
		State string `json:"scheduling_state"`
	} `json:"stats"`
}

// Observe asks Ray once for all jobs, and once for the groups that wait.
func (l *Launcher) Observe(ctx context.Context, ids []string) (map[string]remote.Observed, error) {
	jobs, err := l.jobs(ctx)
	if err != nil {
		return nil, err
	}
	byID := map[string]job{}
	running := false
	for _, j := range jobs {
		byID[j.ID] = j
		running = running || j.Status == "RUNNING" && j.ours(l.mark())
	}
	waiting := map[string]group{}
	if running {
		all, err := state[group](ctx, l, "placement_groups", url.Values{
			"filter_keys": {"state"}, "filter_predicates": {"="}, "filter_values": {"PENDING"},
		})
		if err != nil {
			return nil, err
		}
		for _, g := range all {
			waiting[g.Name] = g
		}
	}
	out := make(map[string]remote.Observed, len(ids))
	for _, id := range ids {
		j, ok := byID[id]
		if !ok {
			out[id] = remote.Observed{State: engine.Lost}
			continue
		}
		o := observe(j)
		if g, ok := waiting[id]; ok && o.State == engine.Running {
			o.State, o.Words = engine.Pending, []string{wait(g)}
		}
		out[id] = o
	}
	return out, nil
}

// wait says in words what a group waits for.
func wait(g group) string {
	shapes := map[string]int{}
	for _, b := range g.Bundles {
		shapes[shape(b.Resources)]++
	}
	var parts []string
	for _, s := range slices.Sorted(maps.Keys(shapes)) {
		parts = append(parts, fmt.Sprintf("%d × (%s)", shapes[s], s))
	}
	why := "Ray has no capacity now for " + strings.Join(parts, ", ") + " together"
	if g.Stats.State == "INFEASIBLE" {
		why = "no node of this Ray cluster can ever fit " + strings.Join(parts, ", ")
	}
	return why
}

// shape is a bundle for people: "2 CPU, 1 GPU, 4GiB memory".
func shape(r map[string]float64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(r)) {
		v := strconv.FormatFloat(r[k], 'f', -1, 64)
		if k == "memory" {
			v = resource.Bytes(r[k]).String()
		}
		parts = append(parts, v+" "+k)
	}
	return strings.Join(parts, ", ")
}

// observe is what Ray's account of a job means.
func observe(j job) remote.Observed {
	o := remote.Observed{Started: milliseconds(j.Start), Ended: milliseconds(j.End)}
	switch j.Status {
	case "PENDING":
		o.State, o.Words = engine.Pending, []string{words("Ray has not started the job's driver yet", j.Message)}
	case "RUNNING":
		o.State = engine.Running
	case "SUCCEEDED":
		o.State, o.Reason = engine.Ended, engine.Exited
	case "STOPPED":
		o.State, o.Reason, o.Message = engine.Ended, engine.Stopped, "the job was stopped on Ray"
	case "FAILED":
		o.State = engine.Ended
		o.Reason, o.Message = failure(j)
	default:
		o.State, o.Message = engine.Lost, "Ray calls the job "+j.Status
	}
	return o
}

// reasons of gang.py's verdict. Those that are not here say no more than that
// it is over.
var reasons = map[string]engine.Reason{
	"out_of_memory": engine.OutOfMemory, "node_failed": engine.NodeFailed, "not_started": engine.NotStarted, "killed": engine.Signalled,
}

const verdictMark = "falaj-verdict "

// failure finds out why a job failed: by the verdict of our driver, which is the
// last line that it wrote and Ray repeats, else by Ray's kind of error.
func failure(j job) (engine.Reason, string) {
	lines := strings.Split(j.Message, "\n")
	for _, line := range slices.Backward(lines) {
		var v struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		}
		text, ok := strings.CutPrefix(line, verdictMark)
		if !ok || json.Unmarshal([]byte(text), &v) != nil {
			continue
		}
		if r, ok := reasons[v.Reason]; ok {
			return r, "Ray: " + v.Message
		}
		return engine.Exited, "Ray: " + v.Message
	}
	switch {
	case strings.Contains(j.Message, "INTENDED_USER_EXIT"): // how it tells of a stop that came while it started
		return engine.Stopped, "the job was stopped on Ray"
	case strings.Contains(j.Message, "No module named 'ray'"):
		return engine.NotStarted, "the cluster's python has no ray: set the pool's option python to the interpreter that Ray runs with"
	case j.ErrorType == "JOB_ENTRYPOINT_COMMAND_ERROR" && strings.Contains(j.Message, "not found"):
		return engine.NotStarted, words("the cluster has no such python: set the pool's option python", tail(j.Message))
	case strings.HasPrefix(j.ErrorType, "RUNTIME_ENV"), j.ErrorType == "JOB_ENTRYPOINT_COMMAND_START_ERROR",
		strings.HasPrefix(j.ErrorType, "JOB_SUPERVISOR_ACTOR_START"):
		return engine.NotStarted, words("Ray could not start the job", tail(j.Message))
	case strings.HasPrefix(j.ErrorType, "JOB_SUPERVISOR_ACTOR"):
		return engine.NodeFailed, words("Ray lost the job's driver, with its node or its head", tail(j.Message))
	}
	return engine.NodeFailed, words("the job's driver on Ray ended without a message", tail(j.Message))
}

func words(what, more string) string {
	if more = strings.TrimSpace(more); more == "" {
		return what
	}
	return what + ": " + more
}

// tail is the last line of what Ray says, its nodes' own diaries left out.
func tail(message string) string {
	const most = 400
	last := ""
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "(raylet)") {
			last = line
		}
	}
	return last[:min(len(last), most)]
}

func milliseconds(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(n).UTC()
}
