package scheduler

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output in testdata")

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestDecisions runs testdata/*.txt: each case is a world in lines, "----", and
// the plan for it in words.
func TestDecisions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for block := range strings.SplitSeq(strings.TrimRight(string(b), "\n"), "\n\n\n") {
				world, _, ok := strings.Cut(block, "\n----")
				if !ok {
					t.Fatalf("a case without ----:\n%s", block)
				}
				d, tries := parseWorld(t, world)
				s, plan := Decide(d)
				texts := []string{render(s, plan)}
				for _, w := range tries {
					texts = append(texts, forecast(w.ID, s.DryRun(w)))
				}
				fmt.Fprintf(&out, "%s\n----\n%s\n\n\n", world, strings.TrimRight(strings.Join(texts, ""), "\n"))
			}
			got := strings.TrimRight(out.String(), "\n") + "\n"
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(b) {
				t.Errorf("plan differs (run with -rewrite to accept)\n--- want\n%s\n--- got\n%s", b, got)
			}
		})
	}
}

func render(s *State, p Plan) string {
	var out strings.Builder
	for _, pl := range p.Place {
		where := strings.Join(pl.Nodes, ",")
		if where == "" && pl.Workers > 1 {
			where = fmt.Sprintf("with %d workers", pl.Workers)
		}
		fmt.Fprintln(&out, strings.TrimRight(fmt.Sprintf("place %s in %s %s", pl.Workload, pl.Pool, where), " "))
		for _, r := range pl.Passed {
			fmt.Fprintf(&out, "  %s: %s\n", r.Step, r.Text)
		}
	}
	for _, pr := range p.Preempt {
		fmt.Fprintf(&out, "%s %s for %s: %s\n", map[bool]string{true: "end", false: "preempt"}[pr.Ends], pr.Workload, pr.For, pr.Why)
	}
	for _, rs := range p.Resize {
		if len(rs.Evict) > 0 {
			fmt.Fprintf(&out, "evict %v of %s, which goes on with %d, for %s: %s\n", rs.Evict, rs.Workload, rs.Workers, rs.For, rs.Why)
			continue
		}
		fmt.Fprintf(&out, "resize %s to %d for %s: %s\n", rs.Workload, rs.Workers, rs.For, rs.Why)
	}
	for _, id := range slices.Sorted(maps.Keys(s.waiting)) {
		wait, _ := s.Why(id)
		possible := "waits"
		if !wait.Possible {
			possible = "cannot run"
		}
		fmt.Fprintf(&out, "%s %s:\n", id, possible)
		for _, r := range wait.Reasons {
			fmt.Fprintf(&out, "  %s: %s\n", r.Step, r.Text)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.running)) {
		if words := s.Idle(id); words != "" {
			fmt.Fprintf(&out, "%s: %s\n", id, words)
		}
		if n := s.Growth(id); n > 0 {
			fmt.Fprintf(&out, "%s may grow by %d\n", id, n)
		}
	}
	if !p.Wake.IsZero() {
		fmt.Fprintln(&out, "wake", p.Wake.Format(time.RFC3339))
	}
	return out.String()
}

func forecast(id ID, f Forecast) string {
	var out strings.Builder
	if f.Place != nil {
		fmt.Fprintf(&out, "%s would run in %s %v\n", id, f.Place.Pool, f.Place.Nodes)
	} else {
		fmt.Fprintf(&out, "%s would wait: %s\n", id, f.Wait)
	}
	for _, r := range f.Pools {
		at := "at a time that nobody knows"
		if !r.At.IsZero() {
			at = "by " + r.At.Format(time.RFC3339)
		}
		fmt.Fprintf(&out, "  %s: %d workers now, room %s, at %g an hour\n", r.Pool, r.Workers, at, r.Price)
	}
	return out.String()
}

// parseWorld reads lines "pool NAME k=v…", "work ID k=v…", "running ID k=v…",
// "quota PROJECT k=v…". Works are submitted a second apart in file order.
func parseWorld(t *testing.T, world string) (d Delta, tries []Workload) {
	t.Helper()
	d = Delta{Now: start.Add(time.Hour), Quotas: map[string]resource.Limit{}}
	for i, line := range strings.Split(world, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		kv := map[string]string{}
		for _, pair := range f[2:] {
			k, v, _ := strings.Cut(pair, "=")
			kv[k] = v
		}
		after := func(key string) time.Time {
			if kv[key] == "" {
				return time.Time{}
			}
			s, err := time.ParseDuration(kv[key])
			if err != nil {
				t.Fatal(err)
			}
			return d.Now.Add(s)
		}
		w := Workload{
			ID: ID(f[1]), Project: cmpOr(kv["project"], "p"), Request: amount(t, line, kv),
			Residency: strings.Split(cmpOr(kv["zones"], "home"), ","), Isolation: Isolation(cmpOr(kv["isolation"], "sandbox")),
			Submitted: start.Add(time.Duration(i) * time.Second), NotBefore: after("after"),
		}
		w.Priority, _ = strconv.Atoi(kv["priority"])
		w.Workers, _ = strconv.Atoi(kv["workers"])
		w.MaxWorkers, _ = strconv.Atoi(kv["most"])
		w.Roles = roles(t, line, kv["roles"])
		w.InPlace, w.EvictableWorkers = kv["inplace"] != "", kv["evictable"] != ""
		w.User, w.Queue, w.Preemptible = kv["user"], kv["queue"], kv["preemptible"] != ""
		w.Timeout = after("timeout").Sub(d.Now)
		if kv["timeout"] == "" {
			w.Timeout = 0
		}
		w.Within = kv["within"]
		w.PerNode, _ = strconv.Atoi(kv["pernode"])
		w.Due = after("due")
		w.Expected, _ = time.ParseDuration(kv["expected"])
		served, _ := time.ParseDuration(kv["served"])
		w.Served = served.Seconds()
		w.Target, _ = strconv.Atoi(kv["target"])
		w.Restart, _ = time.ParseDuration(kv["restart"])
		for text := range strings.SplitSeq(kv["speed"], ",") {
			if v, err := strconv.ParseFloat(text, 64); err == nil {
				w.Speed = append(w.Speed, v)
			}
		}
		if kv["submitted"] != "" {
			w.Submitted = after("submitted")
		}
		if kv["pools"] != "" {
			w.Pools = strings.Split(kv["pools"], ",")
		}
		switch f[0] {
		case "pool":
			p := Pool{Name: f[1], Zone: cmpOr(kv["zone"], "home"), Isolation: Isolation(cmpOr(kv["isolation"], "sandbox")), Closed: kv["closed"], Delegated: kv["delegated"] != ""}
			p.PricePerHour, _ = strconv.ParseFloat(kv["price"], 64)
			p.Remote, p.Alike = kv["remote"] != "", kv["alike"] != ""
			p.Ahead, _ = strconv.ParseFloat(kv["ahead"], 64)
			for n := range atLeastOne(kv["nodes"]) {
				name := fmt.Sprintf("n%d", n+1)
				node := Node{Name: name, Amount: w.Request, Closed: kv[name], Closes: after(name + ".closes")}
				node.Leave = node.Closed == "maintenance"
				if racks := strings.Split(kv["racks"], ","); n < len(racks) && racks[n] != "" {
					node.Where, p.Levels = []string{racks[n]}, []string{"rack"}
				}
				p.Nodes = append(p.Nodes, node)
			}
			d.Pools = append(d.Pools, p)
		case "try":
			tries = append(tries, w)
		case "work":
			d.Submitted = append(d.Submitted, w)
		case "running":
			r := Running{
				Workload: w, Pool: kv["pool"], Placed: placed(kv, w), Nodes: strings.FieldsFunc(kv["node"], func(r rune) bool { return r == ',' }), Deadline: after("deadline"),
				Started: after("started"), Saved: after("saved"), Idle: after("idle"), Leaving: kv["leaving"] != "", LeavingSince: after("since"),
			}
			for text := range strings.FieldsFuncSeq(kv["evicted"], func(r rune) bool { return r == ',' }) {
				n, _ := strconv.Atoi(text)
				r.Evicted = append(r.Evicted, Eviction{Worker: n, Since: after("since")})
			}
			d.Started = append(d.Started, r)
		case "quota":
			d.Quotas[f[1]] = limitIn(t, line, kv)
		case "policy":
			d.Policy = Policy(f[1])
			d.Sizes = d.Policy == Goodput
		case "queue":
			q := Queue{Name: f[1], Parent: kv["parent"], Quota: limitIn(t, line, kv), Order: Order(kv["order"]), NeverPreempts: kv["patient"] != ""}
			q.Weight, _ = strconv.ParseFloat(kv["weight"], 64)
			q.MinRuntime, _ = time.ParseDuration(kv["min"])
			q.IdleReclaim, _ = time.ParseDuration(kv["reclaim"])
			q.IdleEnd = kv["end"] != ""
			for prefix, set := range map[string]func(a resource.Amount){
				"borrow": func(a resource.Amount) { q.Borrow = &a }, "lend": func(a resource.Amount) { q.Lend = &a },
			} {
				if part := under(kv, prefix); len(part) > 0 {
					set(amount(t, line, part))
				}
			}
			q.PerUser, q.PerProject = limitIn(t, line, under(kv, "user")), limitIn(t, line, under(kv, "project"))
			d.Queues = append(d.Queues, q)
		default:
			t.Fatalf("line %q", line)
		}
	}
	return d, tries
}

// roles reads "chief:1:cpu:4:nvidia.com/gpu:1,ps:2:cpu:8".
func roles(t *testing.T, line, text string) (out []Role) {
	t.Helper()
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		f := strings.Split(part, ":")
		n, err := strconv.Atoi(f[1])
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		kv := map[string]string{}
		for i := 2; i+1 < len(f); i += 2 {
			kv[f[i]] = f[i+1]
		}
		out = append(out, Role{Name: f[0], Workers: n, Request: amount(t, line, kv)})
	}
	return out
}

func placed(kv map[string]string, w Workload) int {
	if n, err := strconv.Atoi(kv["placed"]); err == nil {
		return n
	}
	return w.most()
}

func amount(t *testing.T, line string, kv map[string]string) (a resource.Amount) {
	t.Helper()
	var err1, err2, err3 error
	a.CPU, err1 = resource.ParseCPU(cmpOr(kv["cpu"], "0"))
	a.Memory, err2 = resource.ParseBytes(cmpOr(kv["memory"], "0"))
	a.MemoryBandwidth, err3 = resource.ParseBandwidth(cmpOr(kv["bandwidth"], "0"))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatalf("line %q: %v", line, err)
	}
	for k, v := range kv {
		if !strings.Contains(k, "/") || strings.HasPrefix(k, "borrow.") || strings.HasPrefix(k, "lend.") || strings.HasPrefix(k, "user.") || strings.HasPrefix(k, "project.") {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		a = a.Plus(resource.Amount{Accelerators: map[string]int64{k: n}})
	}
	return a
}

// under are the values of PREFIX.NAME, by name.
func under(kv map[string]string, prefix string) map[string]string {
	out := map[string]string{}
	for k, v := range kv {
		if of, name, ok := strings.Cut(k, "."); ok && of == prefix {
			out[name] = v
		}
	}
	return out
}

// limitIn limits what is named, also to 0.
func limitIn(t *testing.T, line string, kv map[string]string) resource.Limit {
	t.Helper()
	a := amount(t, line, kv)
	l := resource.Limit{Accelerators: a.Accelerators}
	if kv["cpu"] != "" {
		l.CPU = &a.CPU
	}
	if kv["memory"] != "" {
		l.Memory = &a.Memory
	}
	if kv["bandwidth"] != "" {
		l.MemoryBandwidth = &a.MemoryBandwidth
	}
	return l
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func atLeastOne(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 1
	}
	return n
}
