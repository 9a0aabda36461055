// Package local runs the example of examples/digits-ddp on the local engine with
// real PyTorch: its losses are the same with any number of workers, through
// resizes and killed workers.
package local

import (
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var lossRE = regexp.MustCompile(`(?m)step (\d+) loss (\S+)$`)

type world struct{ *live.Project }

func start(t *testing.T) world {
	t.Helper()
	live.Torch(t)
	s := live.New(t, "")
	s.Up(t)
	w := world{s.Project(t, "digits")}
	env, err := os.ReadFile(filepath.Join(s.Bin.Root, "examples/digits-ddp/env.yaml"))
	w.Must(err)
	w.Apply(strings.Replace(string(env), "name: torch", "name: torch\nproject: PROJECT", 1))
	w.Run(0, "env", "wait", "torch")
	return w
}

// submit sends the example's manifest with changes.
func (w world) submit(change func(spec map[string]any)) string {
	w.T.Helper()
	train, err := os.ReadFile(filepath.Join(w.Bin.Root, "examples/digits-ddp/train.py"))
	w.Must(err)
	spec := map[string]any{
		"environment": "torch", "framework": "torchrun", "workers": 2, "command": []string{"python", "train.py", "--steps", "60", "--every", "10"},
		"resources": map[string]string{"cpu": "400m", "memory": "1GiB"}, "source": w.Source("train.py", train), "max_attempts": 4,
	}
	change(spec)
	var o client.Object
	w.Must(w.C.Do(w.T.Context(), http.MethodPost, w.Path("jobs"), map[string]any{"name": "digits", "spec": spec}, &o))
	return o.Text("id")
}

// losses of a job by step, of all its attempts.
func (w world) losses(job string) map[int]float64 {
	w.T.Helper()
	var o client.Object
	w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+job), nil, &o))
	n, err := strconv.Atoi(o.Text("attempts"))
	w.Must(err)
	out := map[int]float64{}
	for a := 1; a <= n; a++ {
		text, code := w.Command(w.T.Context(), "job", "logs", job, "--attempt", strconv.Itoa(a), "-p", w.Name)
		if code != 0 {
			w.T.Fatalf("logs of attempt %d: %s", a, text)
		}
		for _, m := range lossRE.FindAllStringSubmatch(text, -1) {
			step, err := strconv.Atoi(m[1])
			w.Must(err)
			out[step], err = strconv.ParseFloat(m[2], 64)
			w.Must(err)
		}
	}
	return out
}

func (w world) reaches(job string, step int) {
	w.T.Helper()
	w.Eventually("step "+strconv.Itoa(step)+" is not reached", func() (bool, error) { return w.losses(job)[step] != 0, nil })
}

func (w world) succeeds(job string) {
	w.T.Helper()
	w.Eventually("job "+job+" does not end", func() (bool, error) {
		var o client.Object
		err := w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+job+"?wait=30s"), nil, &o)
		return slices.Contains([]string{"failed", "succeeded", "cancelled"}, o.Text("state")), err
	})
	if text := w.Run(0, "job", "describe", job); !strings.Contains(text, "digits  succeeded") {
		w.T.Fatalf("%s\n%s", text, w.Run(0, "job", "logs", job))
	}
}

// same compares the losses of two jobs.
func (w world) same(what string, a, b map[int]float64) {
	w.T.Helper()
	if !slices.Equal(slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))) || len(a) != 60 {
		w.T.Fatalf("%s: %d steps and %d", what, len(a), len(b))
	}
	for step, v := range a {
		if !(math.Abs(v-b[step]) < 1e-3) {
			w.T.Errorf("%s: at step %d the loss is %g, undisturbed %g", what, step, b[step], v)
		}
	}
}

// TestLossesAreTheSame with one worker, with four, with processes of one worker,
// without torchrun, through resizes, and when a worker is killed.
func TestLossesAreTheSame(t *testing.T) {
	w := start(t)
	alone := w.submit(func(s map[string]any) { s["workers"] = 1 })
	w.succeeds(alone)
	want := w.losses(alone)

	four := w.submit(func(s map[string]any) { s["workers"] = 4 })
	w.succeeds(four)
	w.same("four workers", want, w.losses(four))

	processes := w.submit(func(s map[string]any) { s["workers"], s["processes"] = 1, 2 })
	w.succeeds(processes)
	w.same("two processes of one worker", want, w.losses(processes))

	plain := w.submit(func(s map[string]any) { s["framework"] = "plain" })
	w.succeeds(plain)
	w.same("without torchrun", want, w.losses(plain))

	slow := []string{"python", "train.py", "--steps", "60", "--every", "10", "--pause", "0.2"}
	slower := append(slices.Clone(slow[:len(slow)-1]), "0.4") // time enough for the second resize
	resized := w.submit(func(s map[string]any) { s["command"] = slower })
	w.reaches(resized, 12)
	w.Run(0, "job", "resize", resized, "4")
	w.reaches(resized, 35)
	w.Run(0, "job", "resize", resized, "2")
	w.succeeds(resized)
	w.same("resized from 2 to 4 to 2", want, w.losses(resized))
	if text := w.Run(0, "job", "describe", resized); strings.Count(text, " resized ") < 2 {
		t.Errorf("the timeline does not have both:\n%s", text)
	}

	w.Mark = "FALAJ_TEST_VICTIM"
	hit := w.submit(func(s map[string]any) {
		s["command"], s["env"] = slow, map[string]string{"MARK": w.Mark}
	})
	w.reaches(hit, 15)
	victim := w.victim()
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.succeeds(hit)
	w.same("a worker was killed", want, w.losses(hit))
	var d struct {
		Tries []struct{ Class, Reason string }
	}
	w.Must(w.C.Do(t.Context(), http.MethodGet, w.Path("jobs/"+hit+"?view=full"), nil, &d))
	// Those who lost it may say so before the launcher that saw it die.
	if len(d.Tries) != 2 || d.Tries[0].Class != "killed" && d.Tries[0].Class != "infrastructure" {
		t.Errorf("the attempts are %+v", d.Tries)
	}
}

// victim is a process of the program, below its launcher.
func (w world) victim() (pid int) {
	w.T.Helper()
	w.Eventually("there is nobody to kill", func() (bool, error) {
		for _, p := range w.Processes() {
			line, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
			if err == nil && strings.Contains(string(line), "\x00train.py\x00") && !strings.Contains(string(line), "--no_python") &&
				!strings.Contains(string(line), "falaj-worker") {
				pid = p.PID
				return true, nil
			}
		}
		return false, nil
	})
	return pid
}
