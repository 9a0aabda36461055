package profile

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

var rewrite = flag.Bool("rewrite", false, "write what was seen into testdata")

// TestRead holds what is said of profiles in testdata, NAME.in: all stacks with
// those that ran, or traces; "loader" is py-spy's of a program that waits for PyTorch's
// DataLoader, "several" in the name is a gang's, "nsys" what nsys
// 2022.4 made of a simulated H100's second.
func TestRead(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/*.in")
	if err != nil || len(inputs) == 0 {
		t.Fatal(inputs, err)
	}
	for _, path := range inputs {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r := profiler.Result{Tool: profiler.Torch}
			if all, running, ok := strings.Cut(string(b), "--- running\n"); ok {
				r = profiler.Result{Tool: profiler.PySpy, Files: []profiler.File{
					{Name: profiler.AllStacks, Data: []byte(all)}, {Name: profiler.RunningStacks, Data: []byte(running)},
				}}
			} else if strings.Contains(path, "nsys") {
				r = profiler.Result{Tool: profiler.Nsys, Processes: 2, Lasted: time.Second, Files: []profiler.File{{Name: profiler.NsysTrace, Data: b}}}
			} else {
				for i, trace := range strings.Split(string(b), "--- next\n") {
					r.Files = append(r.Files, profiler.File{Name: fmt.Sprintf("trace-%d.json.gz", i), Data: zipped(trace)})
				}
			}
			s, err := Read(t.Context(), share.Owner{}, r.Tool, r, strings.Contains(path, "several"))
			var text strings.Builder
			fmt.Fprintf(&text, "compute %.3f  memory %.3f  communication %.3f  idle %.3f  basis %d  processes %d\n", s.Compute, s.Memory, s.Communication, s.Idle, s.Basis, s.Processes)
			for _, f := range s.Top {
				fmt.Fprintf(&text, "%.3f (%.3f waiting)  %s  %s  %s\n", f.Share, f.Waiting, f.Kind, f.Name, f.Where)
			}
			got := text.String()
			if err != nil {
				got = err.Error() + "\n"
			}
			golden := strings.TrimSuffix(path, ".in") + ".out"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func zipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return b.Bytes()
}

// whole fails unless the shares are shares of a whole.
func whole(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, s Summary,
) {
	t.Helper()
	sum := s.Compute + s.Memory + s.Communication + s.Idle
	if math.Abs(sum-1) > 1e-6 || min(s.Compute, s.Memory, s.Communication, s.Idle) < 0 {
		t.Fatalf("the shares of %+v add up to %v", s, sum)
	}
	last := math.Inf(1)
	for _, f := range s.Top {
		if f.Share > last || f.Share > 1+1e-6 || f.Waiting > f.Share+1e-6 || f.Waiting < 0 || len(f.Name) > maxText || strings.ContainsAny(f.Name+f.Where, "\x00\x1b\n") {
			t.Fatalf("%+v", f)
		}
		last = f.Share
	}
}

func FuzzFolded(f *testing.F) {
	f.Add([]byte("process 7:\"python a;b.py\";thread (7): MainThread;<module> (t.py:10);step (t.py:6) 87\n"), []byte("x 1\n"), true)
	f.Add([]byte("process 1:\"a\";process 2:\"b\";thread (2): MainThread;all_reduce (torch/distributed/x.py:1) 3\n"), []byte(""), false)
	f.Add([]byte("process 1:\"a\";thread (1): MainThread;_get_data (torch/utils/data/dataloader.py:1);get (queue.py:1) 3\nprocess 1:\"a\";process 2:\"a\";thread (2): MainThread;_worker_loop (torch/utils/data/_utils/worker.py:2);fetch (torch/utils/data/_utils/fetch.py:1);f (t.py:1) 5\n"), []byte(""), false)
	f.Add([]byte(" 5\nprocess \nthread (a 9223372036854775807\n;;;; 1\n"), []byte("\xff\x00 1"), false)
	f.Fuzz(func(t *testing.T, all, running []byte, several bool) {
		s, err := readStacks(all, running, several)
		if err == nil {
			whole(t, s)
		} else if !fault.Is(err, fault.Invalid) {
			t.Fatal(err)
		}
	})
}

func FuzzTrace(f *testing.F) {
	f.Add(`{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5}]}`)
	f.Add(`{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclKernel", "ts": 1e17, "dur": 5}, {"ph": "X", "cat": "kernel", "ts": 3, "dur": 1e12}]}`)
	f.Add(`{"traceEvents": {}}`)
	f.Fuzz(func(t *testing.T, trace string) {
		s, err := readTraces(t.Context(), []profiler.File{{Name: "trace-0.json.gz", Data: zipped(trace)}})
		if err == nil {
			whole(t, s)
		}
		if _, err := readTrace(&unpacked{ctx: t.Context(), left: maxTrace, events: maxEvents}, []byte(trace)); err == nil {
			t.Error("read what is not packed")
		}
	})
}

func FuzzNsys(f *testing.F) {
	f.Add("Start (ns),Duration (ns),Device,Name\n100,50,H100 (0),gemm\n120,60,H100 (0),\"nccl(int, int)\"\n", int64(1000))
	f.Add("Start (ns),Duration (ns),Device,Name\n-1,NaN,,\n1e300,1e300,x,y\n", int64(-1))
	f.Fuzz(func(t *testing.T, trace string, lasted int64) {
		s, err := readNsys(profiler.Result{Lasted: time.Duration(lasted), Files: []profiler.File{{Name: profiler.NsysTrace, Data: []byte(trace)}}})
		if err == nil {
			whole(t, s)
		} else if !fault.Is(err, fault.Invalid) {
			t.Fatal(err)
		}
	})
}

// TestExclusive: the parts do not lie over each other, and cover what the spans
// cover.
func TestExclusive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var spans []span
		covered := map[int]bool{}
		for range rapid.IntRange(0, 12).Draw(t, "spans") {
			from := rapid.IntRange(0, 40).Draw(t, "from")
			to := from + rapid.IntRange(1, 15).Draw(t, "lasts")
			spans = append(spans, span{float64(from), float64(to), rapid.SampledFrom([]Kind{Compute, Memory, Communication}).Draw(t, "kind"), "x"})
			for i := from; i < to; i++ {
				covered[i] = true
			}
		}
		best := map[int]int{} // what goes first at a moment
		for i := range covered {
			best[i] = 9
			for _, s := range spans {
				if s.from <= float64(i) && s.to > float64(i) {
					best[i] = min(best[i], order(s.kind))
				}
			}
		}
		nested := rapid.Bool().Draw(t, "nested")
		at, length := -1.0, 0.0
		for _, p := range exclusive(spans, nested) {
			if p.from < at || p.to <= p.from {
				t.Fatalf("%+v begins before %v", p, at)
			}
			if !nested && order(p.kind) != best[int(p.from)] {
				t.Fatalf("%+v is not what goes first", p)
			}
			at, length = p.to, length+p.to-p.from
		}
		if int(length) != len(covered) {
			t.Fatalf("%v of %d", length, len(covered))
		}
	})
}

func TestReadTooMuch(t *testing.T) {
	t.Parallel()
	events := make([]event, 3)
	b, err := json.Marshal(map[string]any{"traceEvents": events})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), share.Owner{}, profiler.Torch, profiler.Result{Files: []profiler.File{{Name: "trace-0.json.gz", Data: zipped(string(b))}}}, false); !fault.Is(err, fault.Invalid) {
		t.Errorf("a trace of nothing: %v", err)
	}
	many := bytes.Repeat([]byte("a 1\n"), maxStacks+1)
	if _, err := Read(t.Context(), share.Owner{}, profiler.PySpy, profiler.Result{Tool: profiler.Torch, Files: []profiler.File{{Name: profiler.AllStacks, Data: many}}}, false); !fault.Is(err, fault.Invalid) {
		t.Errorf("too many stacks: %v", err)
	}
	// Each of two traces is small enough; both together are not.
	for what, trace := range map[string]string{
		"bytes":  `{"x": "` + strings.Repeat("x", maxTrace/2) + `", "traceEvents": []}`,
		"events": `{"traceEvents": [{}` + strings.Repeat(",{}", maxEvents/2) + `]}`,
	} {
		f := zipped(trace)
		r := profiler.Result{Files: []profiler.File{{Name: "trace-0.json.gz", Data: f}, {Name: "trace-1.json.gz", Data: f}}}
		if _, err := Read(t.Context(), share.Owner{}, profiler.Torch, r, false); !fault.Is(err, fault.TooLarge) {
			t.Errorf("too many %s: %v", what, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := readTraces(ctx, r.Files); !errors.Is(err, context.Canceled) {
			t.Errorf("nobody waits: %v", err)
		}
	}
}
