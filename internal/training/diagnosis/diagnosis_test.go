package diagnosis_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/resource"
	. "github.com/falaj-ml/falaj/internal/training/diagnosis"
)

var begin = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func exited(code int) engine.Status {
	return engine.Status{State: engine.Ended, Reason: engine.Exited, ExitCode: code}
}

func killed(signal string) engine.Status {
	return engine.Status{State: engine.Ended, Reason: engine.Signalled, Signal: signal}
}

// member ended so many seconds after the others began.
func member(i int, st engine.Status, after int) engine.Member {
	return engine.Member{
		Index: i, Node: fmt.Sprintf("n%d", i+1), State: st.State, Reason: st.Reason, ExitCode: st.ExitCode, Signal: st.Signal,
		Ended: begin.Add(time.Duration(after) * time.Second),
	}
}

// TestPlanted has a failure of each kind, with what its program really printed
// where this machine can make it.
func TestPlanted(t *testing.T) {
	lost := engine.Member{Index: 1, Node: "n2", State: engine.Lost, Heard: begin}
	busy := func(i int, cpu time.Duration) engine.Member {
		m := member(i, killed("SIGTERM"), 9)
		m.CPU = cpu
		return m
	}
	for name, c := range map[string]struct {
		log    string
		in     Input
		class  Class
		words  string // part of the words or the evidence
		hint   string
		lines  []int
		worker int
		blamed []string
	}{
		"exception":       {log: "traceback", in: Input{Status: exited(1)}, class: UserError, words: "json.decoder.JSONDecodeError: Expecting property name", hint: "last lines show the location", lines: []int{7, 8, 19}},
		"chained":         {log: "chained", in: Input{Status: exited(1)}, class: UserError, words: "RuntimeError: no weights", lines: []int{13, 14, 15}},
		"nan is noted":    {log: "chained", in: Input{Status: exited(1)}, class: UserError, words: "not a number at line 2", lines: []int{13, 14, 15}},
		"no module":       {log: "module", in: Input{Status: exited(1)}, class: Environment, words: "No module named 'torchvision_of_mine'", hint: "requirements"},
		"no main guard":   {log: "mainguard", in: Input{Status: exited(1)}, class: UserError, words: "starts processes when they import it", hint: "__main__"},
		"no script":       {log: "script", in: Input{Status: exited(2)}, class: UserError, words: "nope.py does not exist", hint: "source", lines: []int{1}},
		"no file":         {log: "file", in: Input{Status: exited(1)}, class: UserError, words: "/data/train.parquet", hint: "FALAJ_DATA_NAME"},
		"permission":      {log: "permission", in: Input{Status: exited(1)}, class: UserError, words: "/etc/results.txt", hint: "FALAJ_OUTPUT_DIR"},
		"disk":            {log: "disk", in: Input{Status: exited(1)}, class: Infrastructure, words: "a disk was full", hint: "Free space", lines: []int{3, 4, 7}},
		"cuda memory":     {log: "cudaoom", in: Input{Status: exited(1)}, class: OutOfMemory, words: "out of accelerator memory", hint: "smaller batch", lines: []int{4, 5, 8}},
		"allocator":       {log: "allocator", in: Input{Status: exited(1)}, class: OutOfMemory, words: "out of memory", hint: "resources.memory"},
		"driver":          {log: "driver", in: Input{Status: exited(1)}, class: Environment, words: "driver is incompatible", hint: "falaj env check"},
		"no cuda":         {log: "nocuda", in: Input{Status: exited(1)}, class: Environment, words: "not built for this accelerator", hint: "falaj env check"},
		"library":         {log: "library", in: Input{Status: exited(127)}, class: Environment, words: "libcudnn.so.8", lines: []int{1}},
		"network":         {log: "network", in: Input{Status: exited(1), Denials: 3}, class: UserError, words: "3 refused attempts", hint: "network"},
		"api":             {log: "api", in: Input{Status: exited(1)}, class: UserError, words: "a server refused", hint: "The job's token"},
		"port":            {log: "port", in: Input{Status: exited(1)}, class: Infrastructure, words: "rendezvous was in use", lines: []int{1}},
		"rendezvous":      {log: "rendezvous", in: Input{Status: exited(1)}, class: Infrastructure, words: "did not find each other", hint: "pool doctor"},
		"segfault":        {log: "quiet", in: Input{Status: killed("SIGSEGV"), Outcome: "killed by SIGSEGV"}, class: UserError, words: "killed by SIGSEGV", hint: "PYTHONFAULTHANDLER", lines: []int{1, 2}},
		"segfault, shell": {log: "quiet", in: Input{Status: exited(139)}, class: UserError, hint: "PYTHONFAULTHANDLER", lines: []int{1, 2}},
		"instruction":     {log: "quiet", in: Input{Status: killed("SIGILL")}, class: Environment, hint: "AVX-512", lines: []int{1, 2}},
		"killed":          {log: "quiet", in: Input{Status: killed("SIGKILL")}, class: Killed, hint: "killed by a user", lines: []int{1, 2}},
		"no program":      {log: "quiet", in: Input{Status: exited(127), Outcome: "exited with code 127"}, class: UserError, words: "does not exist", lines: []int{1, 2}},
		"host memory":     {in: Input{Status: engine.Status{State: engine.Ended, Reason: engine.OutOfMemory, PeakRSS: resource.GiB}, Memory: resource.GiB}, class: OutOfMemory, words: "memory reached 1GiB of 1GiB", hint: "more than 1GiB"},
		"near its memory": {in: Input{Status: engine.Status{State: engine.Ended, Reason: engine.Exited, ExitCode: 137, PeakRSS: resource.GiB}, Memory: resource.GiB}, class: OutOfMemory, hint: "more than 1GiB"},
		"killed in a gang": {
			log: "quiet", class: Killed, worker: 0, hint: "killed by a user",
			in: Input{
				Memory: resource.GiB, Status: engine.Status{State: engine.Ended, Reason: engine.Exited, ExitCode: 137, PeakRSS: resource.GiB},
				Members: []engine.Member{member(0, exited(137), 1), member(1, killed("SIGTERM"), 2)},
			},
		},
		"timeout":   {log: "quiet", in: Input{Status: engine.Status{State: engine.Ended, Reason: engine.TimedOut}}, class: TimedOut, hint: "Raise timeout"},
		"preempted": {in: Input{Status: engine.Status{State: engine.Ended, Reason: engine.Preempted, Message: "by QOS high"}}, class: Preempted, words: "by QOS high", hint: "resumes"},
		"more disk than it may": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.OutOfDisk}, Outcome: "used 5GiB of its disk limit of 4GiB (scratch)"},
			class: OutOfDisk, words: "used 5GiB of its disk limit of 4GiB (scratch)", hint: "spec.disk",
		},
		"more processes than it may": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.OutOfTasks}, Outcome: "had 5000 processes and threads, its limit is 4096"},
			class: OutOfTasks, words: "had 5000 processes", hint: "fewer",
		},
		"a file as large as its disk limit": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.Exited, ExitCode: 153}, Outcome: "exited with code 153"},
			class: OutOfDisk, words: "a file exceeded the disk limit", hint: "spec.disk",
		},
		"its own disk": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.Preempted, Message: `Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.`}},
			class: OutOfDisk, words: "exceeded its disk limit", hint: "Write less",
		},
		"its own scratch": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.Preempted, Message: `Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".`}},
			class: OutOfDisk, words: "exceeded its disk limit",
		},
		"the node's disk": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.Preempted, Message: `The node was low on resource: ephemeral-storage.`}},
			class: Preempted,
		},
		"not brought back": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.NotStarted, Message: "what it left was not brought back: giving up after 5m0s: the server's disk is full"}},
			class: Infrastructure, words: "", hint: "Free space",
		},
		"image": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.NotStarted, Message: "GET …: MANIFEST_UNKNOWN: manifest unknown"}, Failure: "not_found"},
			class: Environment, hint: "image's name",
		},
		"no such file in source": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.NotStarted, Message: `file "train.py" is not in the job's source`}, Failure: "invalid", Hint: "Submit with it."},
			class: UserError, hint: "Submit with it",
		},
		"not answered": {in: Input{Status: engine.Status{State: engine.Ended, Reason: engine.NotStarted}, Failure: "unavailable"}, class: Infrastructure},
		"hung":         {log: "quiet", in: Input{Status: engine.Status{State: engine.Ended, Reason: engine.Stopped}, Asked: Hung, Why: "made no progress for 10m0s", Job: "job_1"}, class: Hung, words: "made no progress for 10m", hint: "job logs job_1"},
		"resized":      {in: Input{Status: exited(75), Asked: Resized, Why: "resized to 4"}, class: Resized, words: "resized to 4"},
		"straggler": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.Stopped}, Asked: Hung, Why: "made no progress", Members: []engine.Member{busy(0, time.Hour), busy(1, time.Minute), busy(2, time.Hour)}},
			class: Straggler, words: "worker 1 made less progress", hint: "slow or busy", worker: 1, blamed: []string{"n2"},
		},
		"one lost, of which the engine knows nothing": {
			in:    Input{Status: engine.Status{State: engine.Ended, Reason: engine.Signalled, Signal: "SIGTERM"}, Members: []engine.Member{member(0, killed("SIGTERM"), 5), lost}},
			class: NodeLost, words: "lost worker 1 on node n2", hint: "resumes on another node", worker: 1, blamed: []string{"n2"},
		},
		"node lost": {
			in:    Input{Status: engine.Status{State: engine.Lost}, Members: []engine.Member{member(0, exited(1), 5), lost}},
			class: NodeLost, words: "lost worker 1 on node n2, last heartbeat at 2026-11-01T12:00:00Z", hint: "resumes on another node", worker: 1, blamed: []string{"n2"},
		},
		"the first failure, not its echo": {
			log: "peer", in: Input{Status: exited(1), Members: []engine.Member{member(0, exited(1), 1), member(1, exited(1), 2)}},
			class: UserError, words: "worker 1 on node n2 exited with code 1: ValueError: batch 17", hint: "last lines show the location", lines: []int{8, 9, 10}, worker: 1,
		},
		"killed, and its peers": {
			log: "peer", in: Input{Status: exited(1), Members: []engine.Member{member(0, exited(1), 1), member(1, killed("SIGSEGV"), 2)}},
			class: UserError, words: "worker 1 on node n2 was killed by SIGSEGV", worker: 1, lines: []int{8, 9, 10},
		},
		"the cause was stopped before it could end": {
			log: "peer", in: Input{Status: exited(1), Members: []engine.Member{
				member(0, exited(1), 1), member(1, engine.Status{State: engine.Ended, Reason: engine.Stopped}, 2),
			}},
			class: UserError, words: "worker 1 on node n2 failed and was stopped: ValueError: batch 17", lines: []int{8, 9, 10}, worker: 1,
		},
		"one was killed, and its peer ended first": {
			log: "launcher", in: Input{Status: exited(1), Members: []engine.Member{
				member(0, engine.Status{State: engine.Ended, Reason: engine.Stopped}, 2), member(1, exited(1), 1),
			}},
			class: Killed, words: "worker 0 on node n1 failed and was stopped: one of its processes was killed by signal 9", lines: []int{8}, worker: 0,
			hint: "the kernel because the node ran out of memory",
		},
		"collective": {
			log: "collective", in: Input{Status: exited(1), Members: []engine.Member{member(0, exited(1), 1), member(1, exited(1), 2)}},
			class: Hung, words: "timed out waiting for one of them", lines: []int{2, 3, 6}, worker: 0,
		},
		"nccl": {
			log: "nccl", in: Input{Status: exited(134), Members: []engine.Member{member(0, exited(134), 1), member(1, killed("SIGTERM"), 2)}},
			class: Hung, words: "Watchdog caught", lines: []int{3}, worker: 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.log != "" {
				b, err := os.ReadFile(filepath.Join("testdata", c.log+".log"))
				if err != nil {
					t.Fatal(err)
				}
				if c.in.Log, err = Read(bytes.NewReader(b), len(c.in.Members) > 1); err != nil {
					t.Fatal(err)
				}
			}
			f := Find(c.in)
			var lines []int
			for _, l := range f.Lines {
				lines = append(lines, l.Number)
			}
			said := f.Words + "\n" + strings.Join(f.Evidence, "\n")
			if f.Class != c.class || !strings.Contains(said, c.words) || !strings.Contains(f.Hint, c.hint) || c.lines != nil && !slices.Equal(lines, c.lines) || !slices.Equal(f.Blamed, c.blamed) {
				t.Errorf("%+v", f)
			}
			if c.in.Members != nil && f.Worker != c.worker {
				t.Errorf("worker %d, not %d", f.Worker, c.worker)
			}
			if f.Hint == "" && f.Class != Infrastructure && f.Class != Resized {
				t.Error("nobody is told what to do")
			}
		})
	}
}

func TestEndsThatAreNoFailures(t *testing.T) {
	for name, c := range map[string]struct {
		in   Input
		want Class
	}{
		"done":              {Input{Status: exited(0), Asked: Resized}, Done},
		"saved":             {Input{Status: exited(75), Saved: true}, Saved},
		"saved nothing":     {Input{Status: exited(75)}, Idle},
		"cancelled":         {Input{Status: engine.Status{State: engine.Ended, Reason: engine.Stopped}, Asked: Unwanted, Why: "cancelled"}, Unwanted},
		"stopped by others": {Input{Status: engine.Status{State: engine.Ended, Reason: engine.Stopped}}, Killed},
	} {
		if f := Find(c.in); f.Class != c.want {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestOneLongLine of a hundred megabytes is read without keeping it.
func TestOneLongLine(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 100<<20)
	l, err := Read(bytes.NewReader(append(long, "\nTraceback (most recent call last):\n  File \"a.py\", line 1\nValueError: after it\n"...)), false)
	if err != nil {
		t.Fatal(err)
	}
	f := Find(Input{Status: exited(1), Log: l})
	if len(f.Lines) == 0 || f.Lines[len(f.Lines)-1].Number != 4 || !strings.Contains(f.Words, "after it") {
		t.Fatalf("%+v", f)
	}
}

// FuzzFind: whatever a program prints and however it ends, something is said.
func FuzzFind(f *testing.F) {
	logs, err := filepath.Glob("testdata/*.log")
	if err != nil || len(logs) == 0 {
		f.Fatal(err)
	}
	for i, file := range logs {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, i%3 == 0, i)
	}
	f.Fuzz(func(t *testing.T, log []byte, gang bool, code int) {
		l, err := Read(bytes.NewReader(log), gang)
		if err != nil {
			t.Fatal(err)
		}
		in := Input{Status: exited(code), Outcome: "ended", Log: l}
		if gang {
			in.Members = []engine.Member{member(0, exited(code), 1), member(1, exited(1), 2)}
		}
		got := Find(in)
		if got.Class == "" || got.Words == "" && got.Class != Done {
			t.Fatalf("%+v", got)
		}
		for _, line := range got.Lines {
			if line.Number < 1 || len(line.Text) > 4000 {
				t.Fatalf("%+v", line)
			}
		}
	})
}
