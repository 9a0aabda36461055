package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
)

const (
	users       = 1000
	connections = 8
	labelBatch  = 1000
)

const manifests = `
api_version: falaj/v1
kind: Project
name: bench
spec: {display_name: Measurements}
---
api_version: falaj/v1
kind: Dataset
name: facts
project: bench
spec:
  columns:
  - {name: known_at, type: timestamp}
`

const features = `
api_version: falaj/v1
kind: Entity
name: person
project: bench
spec: {description: Somebody}
---
api_version: falaj/v1
kind: FeatureView
name: user
project: bench
spec:
  entities: [person]
  source:
    sql: SELECT person, known_at, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12 FROM facts
  timestamp: known_at
  features: [%s]
---
api_version: falaj/v1
kind: FeatureService
name: user
project: bench
spec: {features: [%s]}
`

const deployment = `
api_version: falaj/v1
kind: Deployment
name: %s
project: bench
spec:
  model: logistic
  version: "1"
  prediction: {log: %t}
%s`

const lookup = `  features: {service: user, input: X, columns: [f0, f1, f2, %s]}
`

// arm is one deployment under load.
type arm struct {
	name  string
	keys  bool // requests carry keys, and not the tensor
	log   bool
	path  string
	asked int // requests so far
}

// site is the server with what is deployed on it.
type site struct {
	*bench
	on     *harness.Server
	client *client.Client
	http   *http.Client
	data   string
}

// predictions measures what the prediction log costs: the same requests to two
// deployments of the same model, of which one is not logged.
func (b *bench) predictions(ctx context.Context) error {
	cores := harness.Allowed()
	core, pinned := -1, "not pinned: one core only"
	if len(cores) > 1 {
		core, pinned = cores[0], "the server on one core, the load on another"
	}
	s := &site{bench: b, data: filepath.Join(b.Dir, "serving"), http: &http.Client{
		Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections},
	}}
	var err error
	if s.on, err = b.Up(ctx, s.data, core); err != nil {
		return err
	}
	defer func() { _ = s.on.Stop() }()
	if s.client, err = s.on.Client(); err != nil {
		return err
	}
	arms := []*arm{{name: "tensor"}, {name: "tensor-logged", log: true}, {name: "keys", keys: true}, {name: "keys-logged", keys: true, log: true}}
	if err := s.deploy(ctx, arms); err != nil {
		return err
	}
	if core >= 0 {
		undo, err := harness.PinSelf(cores[1])
		if err != nil {
			return err
		}
		defer undo()
	}
	if err := s.cost(ctx, "tensor in the request", connections, pinned, arms[1], arms[0]); err != nil {
		return err
	}
	if err := s.cost(ctx, "features looked up by key", connections, pinned, arms[3], arms[2]); err != nil {
		return err
	}
	if err := s.bytes(arms[1]); err != nil {
		return err
	}
	if err := s.labels(ctx, arms[1]); err != nil {
		return err
	}
	if err := s.cost(ctx, "tensor, one request at a time", 1, pinned, arms[1], arms[0]); err != nil {
		return err
	}
	return s.watched(ctx, arms[1], arms[0])
}

// cost measures what the log costs, from rounds beside each other.
func (s *site) cost(ctx context.Context, what string, connections int, pinned string, logged, bare *arm) error {
	n, rounds := 2000, 4*s.Rounds
	if s.Quick {
		n, rounds = 200, 1
	}
	if connections == 1 { // each takes longer
		n /= 2
	}
	var with, without, added []float64
	for round := range rounds + 1 { // in the first, connections, caches and the garbage collector warm up
		first, second := bare, logged
		if round%2 == 1 {
			first, second = second, first
		}
		one, err := s.load(ctx, first, n, connections)
		if err != nil {
			return err
		}
		two, err := s.load(ctx, second, n, connections)
		if err != nil {
			return err
		}
		if round%2 == 1 {
			one, two = two, one
		}
		if round > 0 {
			with, without, added = append(with, two), append(without, one), append(added, 100*(two/one-1))
		}
	}
	s.Add(harness.Row{
		Name: "prediction logging, " + what + ", added CPU", Unit: "%", Better: harness.Lower,
		Ours: harness.Value(harness.Median(added)), Aim: &harness.Aim{Value: harness.Value(3)},
		Note: fmt.Sprintf("median over pairs of rounds, quartiles %.2g and %.2g; one row of 13 columns to a logistic regression, %d rounds of %d requests, connections: %d; %s",
			harness.Quantile(added, 0.25), harness.Quantile(added, 0.75), rounds, n, connections, pinned),
	})
	s.Add(harness.Row{
		Name: "prediction logging, " + what + ", CPU per 1,000 requests", Unit: "s", Better: harness.Lower,
		Ours: harness.Value(harness.Median(with)), Theirs: harness.Value(harness.Median(without)),
		Peer: "the same with prediction.log: false", Note: "user and kernel time of the server process, its background loops included",
	})
	return nil
}

// deploy brings the model, the features and the deployments, without monitors.
func (s *site) deploy(ctx context.Context, arms []*arm) error {
	apply := func(text string) error {
		_, err := s.client.Apply(ctx, project, []byte(text), false)
		return err
	}
	if err := apply(manifests); err != nil {
		return err
	}
	if err := s.on.Register(ctx, s.client, project, "logistic", harness.Logistic(windowColumns, "X", "probability")); err != nil {
		return err
	}
	names := make([]string, 0, 10)
	var csv strings.Builder
	csv.WriteString("person,known_at")
	for i := 3; i < windowColumns; i++ {
		names = append(names, "f"+strconv.Itoa(i))
		csv.WriteString(",f" + strconv.Itoa(i))
	}
	for u := range users {
		fmt.Fprintf(&csv, "\nu%d,2013-01-01T00:00:00Z", u)
		for i := range names {
			fmt.Fprintf(&csv, ",%.3f", float64((u*31+i*17)%1000)/250)
		}
	}
	facts := filepath.Join(s.Dir, "facts.csv")
	if err := os.WriteFile(facts, []byte(csv.String()+"\n"), 0o600); err != nil {
		return err
	}
	if err := s.falaj(ctx, "dataset", "import", "facts", facts); err != nil {
		return err
	}
	var columns, typed []string
	for _, name := range names {
		columns, typed = append(columns, strconv.Quote("user:"+name)), append(typed, "{name: "+name+", type: float64}")
	}
	if err := apply(fmt.Sprintf(features, strings.Join(typed, ", "), strings.Join(columns, ", "))); err != nil {
		return err
	}
	if err := s.falaj(ctx, "feature", "materialise", "user"); err != nil {
		return err
	}
	for _, a := range arms {
		a.path = "/v2/models/" + a.name + "/infer"
		by := ""
		if a.keys {
			by = fmt.Sprintf(lookup, strings.Join(columns, ", "))
		}
		if err := apply(fmt.Sprintf(deployment, a.name, a.log, by)); err != nil {
			return err
		}
		// A monitor comes with each deployment; what it costs is measured apart.
		if err := s.until(ctx, func() (bool, error) {
			err := s.client.Do(ctx, http.MethodDelete, "/api/v1/projects/bench/monitors/"+a.name+"?yes=true", nil, nil)
			return err == nil, nil
		}); err != nil {
			return fmt.Errorf("the monitor of %s: %w", a.name, err)
		}
	}
	return nil
}

// falaj runs the command line.
func (s *site) falaj(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Root, "bin", "falaj"), args...)
	cmd.Env = append(os.Environ(), "FALAJ_URL="+s.on.URL, "FALAJ_TOKEN="+s.on.Token, "FALAJ_PROJECT="+project)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("falaj %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return nil
}

// until asks every 100 ms, for at most 30 s.
func (s *site) until(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New("it did not happen in time")
		}
	}
}

// question is the request number i; its answer's id is "p-" and the number.
func (a *arm) question(i int) []byte {
	if a.keys {
		return fmt.Appendf(nil, `{"id":"p-%d","inputs":[{"name":"person","datatype":"BYTES","shape":[1],"data":["u%d"]},`+
			`{"name":"f0","datatype":"FP32","shape":[1],"data":[%d]},{"name":"f1","datatype":"FP32","shape":[1],"data":[0.5]},`+
			`{"name":"f2","datatype":"FP32","shape":[1],"data":[1.5]}],"outputs":[{"name":"probability"}]}`, i, i%users, i%7)
	}
	return fmt.Appendf(nil, `{"id":"p-%d","inputs":[{"name":"X","datatype":"FP32","shape":[1,13],`+
		`"data":[%d,0.5,1.5,0.25,3.125,1020,5,944,55.03,8.05546,10,60.25,2004]}],"outputs":[{"name":"probability"}]}`, i, i%7)
}

// load sends n requests, as many at a time as there are connections, and returns the server's CPU seconds for
// 1,000 of them.
func (s *site) load(ctx context.Context, a *arm, n, connections int) (float64, error) {
	bodies := make([][]byte, n)
	for i := range bodies {
		bodies[i] = a.question(a.asked + i)
	}
	a.asked += n
	before, err := harness.CPUSeconds(s.on.PID())
	if err != nil {
		return 0, err
	}
	failed := make([]error, connections)
	var next atomic.Int64
	var wg sync.WaitGroup
	for c := range connections {
		wg.Go(func() {
			for failed[c] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				_, failed[c] = s.ask(ctx, a.path, bodies[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return 0, err
	}
	spent, err := harness.CPUSeconds(s.on.PID())
	return (spent - before) / float64(n) * 1000, err
}

func (s *site) ask(ctx context.Context, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.on.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+s.on.Token)
	r.Header.Set("Falaj-Project", project)
	resp, err := s.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	return text, err
}

// bytes measures what the log of a deployment has on disk.
func (s *site) bytes(a *arm) error {
	files, err := filepath.Glob(filepath.Join(s.data, "predictions", project, a.name, "*"))
	if err != nil {
		return err
	}
	size := int64(0)
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return err
		}
		size += info.Size()
	}
	if size == 0 {
		return errors.New("the log is empty")
	}
	answer, err := s.ask(context.Background(), a.path, a.question(a.asked))
	if err != nil {
		return err
	}
	a.asked++
	s.Add(harness.Row{
		Name: "prediction log, bytes of a record", Unit: "bytes", Better: harness.Lower,
		Ours: harness.Value(float64(size) / float64(a.asked-1)), Theirs: harness.Value(float64(len(a.question(a.asked)) + len(answer))),
		Peer: "the request and the answer as JSON",
		Note: "one row of 13 columns with names, times and latency, sealed; some records share a frame, as the load makes them",
	})
	return nil
}

// labels measures labels over HTTP, of predictions that are in the log.
func (s *site) labels(ctx context.Context, a *arm) error {
	var rates, cpu []float64
	sent := 0
	for range s.Rounds + 1 {
		var bodies [][]byte
		for range 4 {
			var b bytes.Buffer
			b.WriteString(`{"labels":[`)
			for i := range labelBatch {
				if i > 0 {
					b.WriteByte(',')
				}
				fmt.Fprintf(&b, `{"id":"p-%d","value":%d}`, sent, sent%2)
				sent++
			}
			b.WriteString(`]}`)
			bodies = append(bodies, b.Bytes())
		}
		if sent > a.asked && !s.Quick {
			break // labels of predictions that do not exist wait, which is another path
		}
		before, err := harness.CPUSeconds(s.on.PID())
		if err != nil {
			return err
		}
		began := time.Now()
		for _, body := range bodies {
			if _, err := s.ask(ctx, "/api/v1/projects/bench/deployments/"+a.name+"/labels", body); err != nil {
				return err
			}
		}
		took := time.Since(began).Seconds()
		after, err := harness.CPUSeconds(s.on.PID())
		if err != nil {
			return err
		}
		n := float64(len(bodies) * labelBatch)
		rates, cpu = append(rates, n/took), append(cpu, (after-before)/n*1000)
	}
	s.Add(harness.Row{
		Name: "labels over HTTP", Unit: "labels/s", Better: harness.Higher, Ours: harness.Value(harness.Median(rates[1:])),
		Note: fmt.Sprintf("requests of 1,000 labels one after the other, each committed before its answer; %.3g ms of CPU a label", harness.Median(cpu[1:])),
	})
	return nil
}

// watched measures logging together with a monitor that reads the log.
func (s *site) watched(ctx context.Context, logged, bare *arm) error {
	const spec = "api_version: falaj/v1\nkind: Monitor\nname: %s\nproject: bench\nspec: {deployment: %s, window: {rows: 1000}, baseline: \"window:first\"}\n"
	if _, err := s.client.Apply(ctx, project, fmt.Appendf(nil, spec, logged.name, logged.name), false); err != nil {
		return err
	}
	n, rounds, rest := 4000, min(s.Rounds, 3), 5*time.Second // the monitor looks every two seconds
	if s.Quick {
		n, rest = 1000, 100*time.Millisecond
	}
	read := func() (bool, error) {
		m, err := s.client.Monitor(ctx, project, logged.name)
		return fmt.Sprint(m["windows"]) == strconv.Itoa(logged.asked/1000), err
	}
	if err := s.until(ctx, read); err != nil {
		return fmt.Errorf("reading what was there: %w", err)
	}
	var with, without []float64
	for range rounds {
		for _, a := range []*arm{bare, logged} {
			before, err := harness.CPUSeconds(s.on.PID())
			if err != nil {
				return err
			}
			if _, err := s.load(ctx, a, n, connections); err != nil {
				return err
			}
			timer := time.NewTimer(rest)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			}
			after, err := harness.CPUSeconds(s.on.PID())
			if err != nil {
				return err
			}
			cpu := (after - before) / float64(n) * 1000
			if a == bare {
				without = append(without, cpu)
			} else {
				with = append(with, cpu)
			}
		}
		if err := s.until(ctx, read); err != nil {
			return fmt.Errorf("reading what was logged: %w", err)
		}
	}
	s.Add(harness.Row{
		Name: "prediction logging and its monitor, CPU per 1,000 requests", Unit: "s", Better: harness.Lower,
		Ours: harness.Value(harness.Median(with)), Theirs: harness.Value(harness.Median(without)), Peer: "the same with prediction.log: false",
		Note: fmt.Sprintf("%d requests with the tensor and %v after them, in which the monitor reads, closes and judges windows of 1,000 rows", n, rest),
	})
	return nil
}
