package simulation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// tinyProfile writes an application with two epochs of ten seconds.
func tinyProfile(t *testing.T) (dir, workload string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"traces/tiny/placements.csv":    "placement,local_bsz,step_time,sync_time\n1,8,1,0.1\n1,16,2,0.1\n2,8,1,0.2\n2,16,2,0.2\n",
		"traces/tiny/scalability.csv":   "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,2,8,1.5,0.5\n",
		"traces/tiny/validation-8.csv":  "progress,grad_sqr,grad_var\n10,1,1\n20,1,1\n",
		"traces/tiny/validation-64.csv": "progress,grad_sqr,grad_var\n11,1,4\n22,1,4\n",
		"jobs.csv":                      "name,time,application,num_replicas,batch_size\na,0,tiny,1,8\nb,100,tiny,2,16\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "traces"), filepath.Join(dir, "jobs.csv")
}

func TestSimulate(t *testing.T) {
	profiles, workload := tinyProfile(t)
	page := filepath.Join(t.TempDir(), "out.html")
	s := Traces{
		Workloads: []string{workload, workload}, Profiles: profiles, Policy: "goodput", Compare: "fifo",
		Nodes: 2, GPUs: 2, Interval: time.Minute, Load: 1, HTML: page,
	}
	last := 0.0
	got, err := Run(t.Context(), s, func(share float64) { last = share })
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Workloads) != 2 || got.Workloads[0].Name != "jobs" || got.Pooled.Jobs != 4 || got.Compared == nil || last < 0 || last > 1 {
		t.Errorf("%+v, %v done", got, last)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "</html>") {
		t.Error(err)
	}
	for name, change := range map[string]func(s *Traces){
		"policy":   func(s *Traces) { s.Policy = "best" },
		"compare":  func(s *Traces) { s.Compare = "best" },
		"nodes":    func(s *Traces) { s.Nodes = -1 },
		"interval": func(s *Traces) { s.Interval = 1500 * time.Millisecond },
		"no time":  func(s *Traces) { s.Interval = 0 },
		"rigid":    func(s *Traces) { s.Rigid = 2 },
		"load":     func(s *Traces) { s.Load = -1 },
		"no load":  func(s *Traces) { s.Load = 0 },
		"deadline": func(s *Traces) { s.Deadline = -1 },
		"meet":     func(s *Traces) { s.Smallest, s.Deadline, s.MostNodes = true, time.Hour, 4 },
		"most":     func(s *Traces) { s.Smallest, s.Deadline, s.Meet = true, time.Hour, 1 },
		"group":    func(s *Traces) { s.Smallest, s.Deadline, s.Meet, s.MostNodes, s.Group = true, time.Hour, 1, 4, "x" },
		"page":     func(s *Traces) { s.HTML = filepath.Join(page, "below") },
	} {
		wrong := s
		change(&wrong)
		if _, err := Run(t.Context(), wrong, func(float64) {}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	sized := s
	sized.Smallest, sized.Deadline, sized.Meet, sized.MostNodes = true, 10*time.Minute, 1, 8
	got, err = Run(t.Context(), sized, func(float64) {})
	if err != nil || got.Smallest == nil || got.Smallest.Nodes < 1 || len(got.Smallest.Tried) < 2 || got.Pooled.Late != 0 {
		t.Errorf("%+v, %v", got.Smallest, err)
	}
	s.Workloads = []string{profiles + "/absent.csv"}
	if _, err := Run(t.Context(), s, func(float64) {}); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}
