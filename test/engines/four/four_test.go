package four

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
)

// steps of the example.
const steps = 120

// tolerance between the losses of two trainings at one step.
const tolerance = 1e-3

// TestFour runs the example on the four engines: unchanged, and with everything
// happening to it that its engine can make happen.
func TestFour(t *testing.T) {
	w := start(t)
	job := w.submit(home)
	w.succeeds(job)
	want := w.curve(job)
	w.undisturbed(job, home, want)
	t.Run("undisturbed", func(t *testing.T) {
		for _, engine := range []string{hpc, pods, actor} {
			t.Run(engine, func(t *testing.T) {
				t.Parallel()
				w := w.with(t)
				w.undisturbed(w.submit(engine), engine, want)
			})
		}
	})
	t.Run("disturbed", func(t *testing.T) {
		for engine, journey := range map[string]func(w *world, want map[int64]float64){
			home: (*world).fromHome, hpc: (*world).fromSlurm, pods: (*world).fromPods, actor: (*world).fromRay,
		} {
			t.Run(engine, func(t *testing.T) {
				t.Parallel()
				journey(w.with(t), want)
			})
		}
	})
}

// undisturbed checks what a user sees of a job that nothing happened to.
func (w *world) undisturbed(job, pool string, want map[int64]float64) {
	w.T.Helper()
	w.succeeds(job)
	_, tries := w.attempts(job)
	if len(tries) != 1 || tries[0].Pool != pool || tries[0].Workers < 2 {
		w.T.Errorf("the attempts are %+v", tries)
	}
	w.same(job, want)
	said := w.Run(0, "job", "describe", job)
	if !strings.Contains(said, "digits  succeeded") || !strings.Contains(said, pool) {
		w.T.Errorf("describe says\n%s", said)
	}
	log := w.Run(0, "job", "logs", job)
	if !strings.Contains(log, "[0] done: 120 steps") || !strings.Contains(log, fmt.Sprintf("[1] process 1 of %d goes on from step 0", tries[0].Workers)) {
		w.T.Errorf("the log is\n%s", log)
	}
}

// same compares the losses that the runs have, and those of the job's output,
// with others.
func (w *world) same(job string, want map[int64]float64) {
	w.T.Helper()
	got := w.curve(job)
	rows, err := csv.NewReader(strings.NewReader(string(w.artifact(job, "losses.csv")))).ReadAll()
	w.Must(err)
	left := map[int64]float64{}
	for _, row := range rows[1:] {
		step, err := strconv.ParseInt(row[0], 10, 64)
		w.Must(err)
		left[step], err = strconv.ParseFloat(row[1], 64)
		w.Must(err)
	}
	for what, losses := range map[string]map[int64]float64{"the runs": got, "the output": left} {
		if len(want) != steps || !slices.Equal(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(losses))) {
			w.T.Fatalf("%s have %d steps of %d: %v\n%s", what, len(losses), len(want), slices.Sorted(maps.Keys(losses)), w.story(job))
		}
		for step, loss := range want {
			if !(math.Abs(loss-losses[step]) < tolerance) {
				w.T.Errorf("%s: at step %d the loss is %g, undisturbed %g", what, step, losses[step], loss)
			}
		}
	}
	var o client.Object
	w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+job), nil, &o))
	if o.Text("model") == "" {
		w.T.Errorf("no model is kept: %v", o)
	}
}

// ended checks how the attempts of a job ended, and where the last one ran. A
// class may be one of several: whether the worker that was killed is heard of
// before the one that lost it is chance. So is whether another job's node takes
// this one with it.
func (w *world) ended(job, pool string, classes ...string) {
	w.T.Helper()
	w.succeeds(job)
	_, tries := w.attempts(job)
	next := 0
	for _, a := range tries {
		switch {
		case next < len(classes) && slices.Contains(strings.Split(classes[next], "|"), a.Class):
			next++
		case a.Class != "node_lost":
			next = len(classes) + 1
		}
	}
	if next != len(classes) || tries[len(tries)-1].Pool != pool {
		w.T.Errorf("the attempts did not end as %v, the last on %s:\n%s", classes, pool, w.story(job))
	}
}

const killed = "killed|infrastructure"

func (w *world) fromSlurm(want map[int64]float64) {
	w.T.Helper()
	w.onward("slurm", hpc, pods, want, func(job string) { w.slurm.Fail(w.node(job)) })
}

func (w *world) fromPods(want map[int64]float64) {
	w.T.Helper()
	w.onward("pods", pods, actor, want, func(job string) {
		w.kube.FailNode()
		w.eventually("the loss of the node", job, func() bool { return slices.Contains(w.classes(job), "node_lost") })
		w.kube.StartNode()
	})
}

func (w *world) fromRay(want map[int64]float64) {
	w.T.Helper()
	w.onward("ray", actor, hpc, want, func(job string) { w.ray.Fail(w.T, w.node(job)) })
}

// onward kills a worker on an engine, and then its node, while the pool closes:
// the job goes on with another engine.
func (w *world) onward(mark, engine, next string, want map[int64]float64, lose func(job string)) {
	w.T.Helper()
	from, to := mark+"-1", mark+"-2"
	w.pool(from, engine, "")
	w.pool(to, next, "not yet")
	job := w.submitSlow(mark, from, to)
	w.saves(job, 1)
	w.killWorker(mark)
	w.saves(job, 2)
	w.pool(to, next, "")
	w.pool(from, engine, "maintenance")
	lose(job)
	w.ended(job, to, killed, "node_lost", "succeeded")
	w.same(job, want)
}

func (w *world) fromHome(want map[int64]float64) {
	w.T.Helper()
	job := w.submitSlow("home", home)
	w.saves(job, 1)
	w.killWorker("home")
	w.saves(job, 2)
	w.Run(0, "job", "resize", job, "4")
	w.saves(job, 3)
	w.Run(0, "job", "resize", job, "2")
	w.saves(job, 4)
	w.Run(0, "job", "move", job, hpc)
	w.ended(job, hpc, killed, "resized", "resized", "moved", "succeeded")
	w.same(job, want)
}

func readAll(t *testing.T, r io.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(io.LimitReader(r, 16<<20))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
