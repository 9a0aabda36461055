package chaos

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/client"
)

// width is how many jobs are under way at a time, for each pool.
const width = 2

// program computes a number in steps. The first worker saves it now and then; all
// go on from what was saved. It forks nothing that looks like itself.
const program = `echo "begin $FALAJ_ATTEMPT"
i=0 sum=0
for f in "$FALAJ_CHECKPOINT_DIR"/step*/state; do
	if [ -e "$f" ]; then read i sum <"$f"; fi
done
if [ $i -gt 0 ]; then echo "resumed at $i"; fi
while [ $i -lt $STEPS ]; do
	sleep 0.2
	i=$((i + 1)) sum=$(((sum * 31 + i) % 1000003))
	if [ "$SAVES$RANK" = yes0 ] && [ $((i % 5)) = 0 ] && [ ! -e "$FALAJ_CHECKPOINT_DIR/step$((1000 + i))" ]; then
		mkdir -p "$FALAJ_CHECKPOINT_DIR/.new" && echo "$i $sum" >"$FALAJ_CHECKPOINT_DIR/.new/state" && mv "$FALAJ_CHECKPOINT_DIR/.new" "$FALAJ_CHECKPOINT_DIR/step$((1000 + i))"
	fi
done
if [ $CODE != 0 ]; then echo "gives up"; exit $CODE; fi
echo "$sum" >"$FALAJ_OUTPUT_DIR/result$RANK" && echo "result $sum"
`

type job struct {
	id, name, pool string
	workers, steps int
	saves          bool
	fails          bool // by itself
	cancelled      bool // was asked for
}

// result is what the program computes.
func (j *job) result() string {
	sum := 0
	for i := 1; i <= j.steps; i++ {
		sum = (sum*31 + i) % 1000003
	}
	return strconv.Itoa(sum)
}

// fill keeps jobs under way, if the server is there.
func (w *world) fill() {
	w.T.Helper()
	if w.out("server") {
		return
	}
	for w.underWay() < width*len(w.pools) {
		w.submit()
	}
	if w.r.IntN(12) == 0 { // somebody changes their mind
		j := w.jobs[w.open+w.r.IntN(len(w.jobs)-w.open)]
		j.cancelled = true
		_ = w.C.Do(w.T.Context(), http.MethodPost, w.Path("jobs/"+j.id+"/cancel"), map[string]any{}, nil) // it may have ended
	}
}

func (w *world) underWay() (n int) {
	w.T.Helper()
	states := map[string]string{}
	w.Must(w.C.List(w.T.Context(), w.Path("jobs"), nil, func(o client.Object) error {
		states[o.Text("id")] = o.Text("state")
		return nil
	}))
	for i, j := range w.jobs {
		switch states[j.id] {
		case "queued", "running":
			n++
		case "":
			w.T.Fatalf("job %s is lost", j.name)
		default:
			if i == w.open {
				w.open++
			}
		}
	}
	return n
}

func (w *world) submit() {
	w.T.Helper()
	n := len(w.jobs)
	j := &job{
		name: "j" + strconv.Itoa(n), pool: w.pools[n%len(w.pools)], workers: 1 + max(0, w.r.IntN(5)-2), steps: 5 + w.r.IntN(25),
		saves: w.r.IntN(2) == 0, fails: w.r.IntN(10) == 0,
	}
	if j.saves {
		j.steps += 15
	}
	env := map[string]string{mark: j.name, "STEPS": strconv.Itoa(j.steps), "SAVES": "no", "CODE": "0"}
	if j.saves {
		env["SAVES"] = "yes"
	}
	if j.fails {
		env["CODE"] = "3"
	}
	var o client.Object
	w.Must(w.C.Do(w.T.Context(), http.MethodPost, w.Path("jobs"), map[string]any{"name": j.name, "spec": map[string]any{
		"command": []string{"/bin/sh", "-c", program}, "env": env, "pools": []string{j.pool}, "workers": j.workers, "grace": "3s", "max_attempts": 50,
		"resources": map[string]any{"cpu": "50m", "memory": "32MiB"},
	}}, &o))
	j.id = o.Text("id")
	w.jobs = append(w.jobs, j)
}

// finish waits until all jobs have ended.
func (w *world) finish() {
	w.T.Helper()
	defer func() {
		if w.T.Failed() {
			for _, j := range w.jobs[w.open:] {
				w.tell(j)
			}
		}
	}()
	w.Within(5*time.Minute, "the end of all jobs", func() (bool, error) {
		n := w.underWay()
		return n == 0, fmt.Errorf("%d jobs have not ended", n)
	})
}

// tell prints what Falaj knows of a job.
func (w *world) tell(j *job) {
	w.T.Helper()
	var d struct{ State string }
	w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+j.id), nil, &d))
	if d.State != "queued" && d.State != "running" && !w.T.Failed() {
		return
	}
	said, _ := w.Command(w.T.Context(), "job", "describe", j.id, "-p", w.Name)
	w.T.Logf("%+v\n%s", *j, said)
}

// told is what describe answers.
type told struct {
	State, Class, Reason string
	Tries                []struct {
		ID, Class, Reason string
		Number            int
		Run               string `json:"run_id"`
	}
}

// outside are the classes of ends that the job has no part in.
var outside = []string{"killed", "node_lost", "infrastructure"}

// verify holds every job against what it is to become.
func (w *world) verify() {
	w.T.Helper()
	classes, states, resumed := map[string]int{}, map[string]int{}, 0
	for _, j := range w.jobs {
		bad := func(format string, args ...any) {
			w.T.Helper()
			w.T.Errorf("%s (%s): %s", j.name, j.id, fmt.Sprintf(format, args...))
		}
		var d told
		w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("jobs/"+j.id+"?view=full"), nil, &d))
		states[d.State]++
		switch {
		case d.State == "succeeded" && !j.fails:
		case d.State == "failed" && j.fails && d.Class == "user_error":
		case d.State == "cancelled" && j.cancelled:
		default:
			bad("is %s, %s: %s", d.State, d.Class, d.Reason)
		}
		for i, a := range d.Tries {
			classes[a.Class]++
			last := i == len(d.Tries)-1
			if !last && !slices.Contains(outside, a.Class) {
				bad("attempt %d ended as %s, and was repeated: %s", a.Number, a.Class, a.Reason)
			}
			log := w.log(j, a.Number)
			begins, results := map[string]int{}, map[string]string{}
			for line := range strings.Lines(log) {
				who, text := "", strings.TrimSuffix(line, "\n")
				if n, rest, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(n, "[") {
					who, text = n[1:], rest
				}
				if _, ok := strings.CutPrefix(text, "begin "); ok {
					if begins[who]++; text != "begin "+a.ID {
						bad("the log of attempt %s has %q", a.ID, text)
					}
				}
				if strings.HasPrefix(text, "resumed at ") {
					resumed++
				}
				if r, ok := strings.CutPrefix(text, "result "); ok {
					results[who] = r
				}
			}
			for who, n := range begins {
				if n > 1 {
					bad("worker %s of attempt %d began %d times:\n%s", who, a.Number, n, log)
				}
			}
			if last && d.State == "succeeded" && (len(begins) != j.workers || len(results) != j.workers) {
				bad("%d of %d workers began, %d have a result:\n%s", len(begins), j.workers, len(results), log)
			}
			for who, r := range results {
				if r != j.result() {
					bad("worker %s of attempt %d has the result %s, not %s", who, a.Number, r, j.result())
				}
			}
		}
		if d.State == "succeeded" {
			for rank := range j.workers {
				if got, err := w.output(d.Tries[len(d.Tries)-1].Run, "result"+strconv.Itoa(rank)); err != nil || got != j.result()+"\n" {
					bad("worker %d left %q, not %s: %v", rank, got, j.result(), err)
				}
			}
		}
	}
	w.T.Logf("%d jobs: %v; attempts: %v; workers that went on from a checkpoint: %d", len(w.jobs), states, classes, resumed)
	wrong, n, looks := w.witness.said()
	w.T.Logf("%d workers were seen in %d looks", n, looks)
	for _, text := range wrong {
		w.T.Error(text)
	}
	if n < len(w.jobs)/3 {
		w.T.Error("so few workers were seen that the witness proves nothing")
	}
	if hit := maps.Collect(maps.All(classes)); hit["killed"]+hit["node_lost"]+hit["infrastructure"] == 0 {
		w.T.Error("no attempt was hit: the test tests nothing")
	}
}

func (w *world) log(j *job, attempt int) string {
	w.T.Helper()
	resp, err := w.C.Send(w.T.Context(), http.MethodGet, w.Path("jobs/"+j.id+"/logs?attempt="+strconv.Itoa(attempt)), nil, nil)
	w.Must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	w.Must(err)
	return string(b)
}

// output is a file of what a run left.
func (w *world) output(run, name string) (string, error) {
	var o client.Object
	if err := w.Foreign(w.C, http.MethodGet, "/api/2.0/mlflow/runs/get?run_id="+run, nil, &o); err != nil {
		return "", err
	}
	resp, err := w.C.Send(w.T.Context(), http.MethodGet, "/api/2.0/mlflow-artifacts/artifacts/"+o.Text("run.info.experiment_id")+"/"+run+"/artifacts/"+name, nil, http.Header{"Falaj-Project": {w.Name}})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// audit exports the log and verifies it as somebody without the server does.
func (w *world) audit() {
	w.T.Helper()
	file := filepath.Join(w.T.TempDir(), "audit.jsonl")
	for _, args := range [][]string{
		{"audit", "export", "-f", file},
		{"audit", "verify", file, "--checkpoints", filepath.Join(w.Data, "checkpoints")},
	} {
		if out, code := w.Command(w.T.Context(), args...); code != 0 {
			w.T.Errorf("falaj %s: exit code %d\n%s", strings.Join(args, " "), code, out)
		}
	}
}
