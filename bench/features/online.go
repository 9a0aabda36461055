package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/dataset/table"
)

// Rows of one time, of entities that have a number, and features that are numbers
// of three digits, so that files of them are small.
func wideSchema(features int) table.Schema {
	s := table.Schema{{ID: 1, Name: "id", Type: table.Int64}, {ID: 2, Name: "at", Type: table.Timestamp}}
	for i := range features {
		s = append(s, table.Field{ID: 3 + i, Name: fmt.Sprintf("f%03d", i), Type: table.Float64})
	}
	return s
}

func wideRow(features int) func(*array.RecordBuilder, int) {
	row := make([]any, 2+features)
	return func(b *array.RecordBuilder, i int) {
		row[0], row[1] = int64(i), int64(firstRide)
		for f := range features {
			row[2+f] = math.Floor(noise(i*features+f)*1000) / 1000
		}
		values(b, row...)
	}
}

const wideManifests = `
api_version: falaj/v1
kind: Project
name: bench
spec: {display_name: Measurements}
---
api_version: falaj/v1
kind: Entity
name: id
project: bench
spec: {type: int64}
`

// scale is how much there is.
type scale struct {
	entities int // of ours
	cells    int // of a view of the peer, which takes its time to write them
	batches  []int
	closed   time.Duration // one request after the other
	open     time.Duration // requests at fixed times
}

// site is a server of ours and one of the peer on the same store.
type site struct {
	*bench
	scale
	store  string // embedded or redis
	ours   *harness.Server
	client *client.Client
	theirs *harness.Server // nil for none
	reason string          // for none
	redis  *harness.Server
}

// online measures reads of features over HTTP, on one of the stores.
func (b *bench) online(store string) func(context.Context) error {
	return func(ctx context.Context) error { return b.onlineOn(ctx, store) }
}

func (b *bench) onlineOn(ctx context.Context, store string) error {
	sc := scale{entities: 1_000_000, cells: 1_000_000, batches: []int{1, 10, 50, 100, 500}, closed: 3 * time.Second, open: 5 * time.Second}
	if b.Quick {
		sc = scale{entities: 2_000, cells: 5_000, batches: []int{10}, closed: 200 * time.Millisecond, open: 200 * time.Millisecond}
	}
	dir := filepath.Join(b.Dir, "wide")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	for _, n := range wides {
		if err := write([]string{filepath.Join(dir, fmt.Sprintf("wide%d.parquet", n))}, wideSchema(n), sc.entities, wideRow(n)); err != nil {
			return err
		}
		if err := write([]string{filepath.Join(dir, fmt.Sprintf("peer%d.parquet", n))}, wideSchema(n), sc.cells/n, wideRow(n)); err != nil {
			return err
		}
	}
	s := &site{bench: b, scale: sc, store: store}
	if err := errors.Join(s.measure(ctx, dir), s.down()); err != nil {
		return fmt.Errorf("%s: %w", store, err)
	}
	return nil
}

// wides are the views by their number of features.
var wides = []int{50, 250}

// The server and what it stores in have a core for themselves where there are two.
func cores() (servers, requests int) {
	if all := harness.Allowed(); len(all) > 1 {
		return all[1], all[0]
	}
	return -1, -1
}

func (s *site) measure(ctx context.Context, dir string) error {
	on, mine := cores()
	var env []string
	address := ""
	if s.store == "redis" {
		var err error
		if address, err = freeAddress(ctx); err != nil {
			return err
		}
		if s.redis, err = s.startRedis(ctx, address, on); err != nil {
			s.Say("no Redis: %v", err)
			return nil
		}
		env = []string{"FALAJ_ONLINE_URL=redis://" + address + "/0", "FALAJ_ONLINE_ACKNOWLEDGED=in-memory"}
	}
	var err error
	if s.ours, err = s.Up(ctx, filepath.Join(s.Dir, "data"), on, env...); err != nil {
		return err
	}
	if s.client, err = s.ours.Client(); err != nil {
		return err
	}
	if err := s.load(ctx, dir); err != nil {
		return err
	}
	s.theirs, s.reason = s.startFeast(ctx, dir, address, on)
	if mine >= 0 {
		undo, err := harness.PinSelf(mine)
		if err != nil {
			return err
		}
		defer undo()
	}
	for _, features := range wides {
		for _, batch := range s.batches {
			if err := s.compare(ctx, features, batch); err != nil {
				return fmt.Errorf("%d × %d: %w", batch, features, err)
			}
		}
	}
	return s.freshness(ctx)
}

func (s *site) down() error {
	var err error
	for _, p := range []*harness.Server{s.theirs, s.ours, s.redis} {
		if p != nil {
			err = errors.Join(err, p.Stop())
		}
	}
	return err
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// startRedis starts a Redis that keeps nothing on disk: both read from memory.
func (s *site) startRedis(ctx context.Context, address string, core int) (*harness.Server, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	script := `"$0" --bind 127.0.0.1 --port "$1" --save '' --appendonly no --daemonize no >/dev/null & redis=$!
		trap 'kill $redis; exit 0' TERM
		until "${0%-server}-cli" -p "$1" ping >/dev/null 2>&1; do kill -0 $redis; done
		echo "Redis is ready at $1"; wait $redis`
	return s.Launch(exec.CommandContext(ctx, "bash", "-ec", script, path, port), core, "Redis is ready at ")
}

// startFeast starts Feast's feature server on the same kind of store.
func (s *site) startFeast(ctx context.Context, dir, redis string, core int) (*harness.Server, string) {
	python, reason := s.Install(ctx, "bench-feast", "bench/features/feast.txt", nil)
	if reason != "" {
		return nil, reason
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err.Error()
	}
	_, port, _ := net.SplitHostPort(address)
	args := []string{"bench/features/online.py", "sqlite", dir, port}
	if redis != "" {
		args = append(args[:1], "redis", dir, port, redis)
	}
	began := time.Now()
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Dir = s.Root
	f, err := s.Launch(cmd, core, "Feast is ready at ")
	if err != nil {
		return nil, "the peer does not start: " + err.Error()
	}
	s.Say("Feast has written its rows in %.0f s", time.Since(began).Seconds())
	return f, ""
}

// load brings the rows into a dataset, which only the first server has to, and
// from there online.
func (s *site) load(ctx context.Context, dir string) error {
	if _, err := s.client.Apply(ctx, "", []byte(wideManifests), false); err != nil {
		return err
	}
	for _, features := range wides {
		name := fmt.Sprintf("wide%d", features)
		var text strings.Builder
		fmt.Fprintf(&text, "{api_version: falaj/v1, kind: Dataset, name: %s, project: bench, spec: {}}\n", name)
		if _, err := s.client.Apply(ctx, "bench", []byte(text.String()), false); err != nil {
			return err
		}
		began := time.Now()
		if err := s.importFile(ctx, name, filepath.Join(dir, name+".parquet")); err != nil {
			return err
		}
		if s.store == "embedded" {
			s.Add(harness.Row{
				Name: fmt.Sprintf("ingest of a Parquet file, %d columns", features+2), Unit: "rows/s", Better: harness.Higher,
				Ours: harness.Value(float64(s.entities) / time.Since(began).Seconds()), Note: "uploaded, parsed by the child, checked, digested, sealed and synced; the server on one core",
			})
		}
		fmt.Fprintf(&text, "---\n{api_version: falaj/v1, kind: FeatureView, name: %s, project: bench, spec: {source: {dataset: %s}, entities: [id], timestamp: at, features: [", name, name)
		for i, f := range wideSchema(features)[2:] {
			if i > 0 {
				text.WriteString(", ")
			}
			fmt.Fprintf(&text, "{name: %s, type: float64}", f.Name)
		}
		text.WriteString("]}}\n")
		if _, err := s.client.Apply(ctx, "bench", []byte(text.String()), false); err != nil {
			return err
		}
		began = time.Now()
		if err := s.materialise(ctx, name); err != nil {
			return err
		}
		s.Add(harness.Row{
			Name: fmt.Sprintf("materialisation, %s, %d features", s.store, features), Unit: "rows/s", Better: harness.Higher,
			Ours: harness.Value(float64(s.entities) / time.Since(began).Seconds()), Note: "sealed dataset to sealed online rows, resumable at each chunk",
		})
	}
	return nil
}

func (s *site) importFile(ctx context.Context, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	v, err := s.client.Import(ctx, "bench", name, name+".parquet", f)
	if err == nil && v.Text("state") != "accepted" {
		err = fmt.Errorf("%s is %s: %s", name, v.Text("state"), v.Text("reason"))
	}
	return err
}

// materialise waits until a view is online.
func (s *site) materialise(ctx context.Context, view string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	var run client.Object
	if err := s.client.Do(ctx, http.MethodPost, "/api/v1/projects/bench/feature-views/"+view+"/materialise", map[string]any{}, &run); err != nil {
		return err
	}
	for {
		if err := s.client.Do(ctx, http.MethodGet, "/api/v1/projects/bench/feature-runs/"+run.Text("id")+"?wait=30s", nil, &run); err != nil {
			return err
		}
		switch run.Text("state") {
		case "succeeded":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("materialising %s %s: %s", view, run.Text("state"), run.Text("error"))
		}
	}
}

// question is a request that both servers take.
func question(features int, keys []int) []byte {
	view := fmt.Sprintf("wide%d", features)
	names := make([]string, features)
	for i, f := range wideSchema(features)[2:] {
		names[i] = view + ":" + f.Name
	}
	body, err := json.Marshal(map[string]any{"features": names, "entities": map[string]any{"id": keys}})
	if err != nil {
		panic(err)
	}
	return body
}

// questions ask for random entities out of a number of them.
func questions(features, batch, entities int) [][]byte {
	rnd := rand.New(rand.NewPCG(11, uint64(batch))) //nolint:gosec // drawn again the same
	out := make([][]byte, 256)
	for i := range out {
		keys := make([]int, batch)
		for k := range keys {
			keys[k] = rnd.IntN(entities)
		}
		out[i] = question(features, keys)
	}
	return out
}

// side is one of the two that are compared.
type side struct {
	on     *harness.Server
	token  string
	bodies [][]byte
	http   *http.Client

	perCPU, perSecond, p50, p99 []float64
	asked                       int // for p99
}

func newSide(on *harness.Server, token string, bodies [][]byte) *side {
	return &side{on: on, token: token, bodies: bodies, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute}}
}

// ask sends the nth question and reads the answer to its end.
func (d *side) ask(ctx context.Context, n int, keep io.Writer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.on.URL+"/get-online-features", bytes.NewReader(d.bodies[n%len(d.bodies)]))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if d.token != "" {
		r.Header.Set("Authorization", "Bearer "+d.token)
		r.Header.Set("Falaj-Project", "bench")
	}
	resp, err := d.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	_, err = io.Copy(keep, resp.Body)
	return err
}

// closed asks one after the other; it gives the requests a second of time and of
// CPU of all processes of the side.
func (d *side) closed(ctx context.Context, span time.Duration, more ...*harness.Server) (perSecond, perCPU float64, err error) {
	processes := append([]*harness.Server{d.on}, more...)
	before, err := cpuOf(processes)
	if err != nil {
		return 0, 0, err
	}
	began, n := time.Now(), 0
	for ; n < 5 || time.Since(began) < span; n++ {
		if err := d.ask(ctx, n, io.Discard); err != nil {
			return 0, 0, err
		}
	}
	took := time.Since(began).Seconds()
	after, err := cpuOf(processes)
	return float64(n) / took, float64(n) / (after - before), err
}

// open asks at fixed times, whether or not the answer before has come, and gives
// the times from when each was due.
func (d *side) open(ctx context.Context, rate float64, span time.Duration) ([]time.Duration, error) {
	n := max(int(rate*span.Seconds()), 10)
	times, fails := make([]time.Duration, n), make([]error, n)
	began := time.Now()
	var all sync.WaitGroup
	for i := range n {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		wait := time.NewTimer(time.Until(due))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, ctx.Err()
		}
		all.Go(func() {
			fails[i] = d.ask(ctx, i, io.Discard)
			times[i] = time.Since(due)
		})
	}
	all.Wait()
	return times, errors.Join(fails...)
}

// tail asks so often at half of what the side can that p99 is more than the
// slowest answer, or for three times the span where that would take longer.
func (d *side) tail(ctx context.Context, span time.Duration) error {
	rate := harness.Median(d.perSecond) / 2
	span = min(max(span, time.Duration(1000/rate*float64(time.Second))), 3*span)
	times, err := d.open(ctx, rate, span)
	d.asked = len(times)
	d.p99 = append(d.p99, harness.Quantile(harness.AllMillis(times), 0.99))
	return err
}

// cpuOf is the CPU time of processes and those that they started.
func cpuOf(processes []*harness.Server) (total float64, err error) {
	for _, p := range processes {
		if p == nil {
			continue
		}
		spent, err := harness.TreeCPUSeconds(p.PID())
		if err != nil {
			return 0, err
		}
		total += spent
	}
	return total, nil
}

// compare asks both the same many times.
func (s *site) compare(ctx context.Context, features, batch int) error {
	ours := newSide(s.ours, s.ours.Token, questions(features, batch, s.entities))
	sides := []*side{ours}
	var theirs *side
	if s.theirs != nil {
		theirs = newSide(s.theirs, "", questions(features, batch, s.cells/features))
		sides = append(sides, theirs)
		if err := s.same(ctx, features, batch); err != nil {
			return err
		}
	}
	for range min(s.Rounds, 3) {
		rate := math.Inf(1)
		for _, d := range sides {
			perSecond, perCPU, err := d.closed(ctx, s.closed, s.redis)
			if err != nil {
				return err
			}
			d.perCPU, d.perSecond = append(d.perCPU, perCPU), append(d.perSecond, perSecond)
			rate = min(rate, perSecond/2)
		}
		for _, d := range sides {
			times, err := d.open(ctx, rate, s.open)
			if err != nil {
				return err
			}
			d.p50 = append(d.p50, harness.Quantile(harness.AllMillis(times), 0.5))
		}
	}
	for _, d := range sides {
		if err := d.tail(ctx, s.open); err != nil {
			return err
		}
	}
	name := fmt.Sprintf("online, %s, %d × %d features", s.store, batch, features)
	peer := map[string]string{"embedded": "Feast's feature server on SQLite", "redis": "Feast's feature server on the same Redis"}[s.store]
	note := fmt.Sprintf("the same requests by HTTP; ours out of %d entities, theirs out of %d; a core for the servers", s.entities, s.cells/features)
	if s.reason != "" {
		note += "; " + s.reason
	}
	add := func(r harness.Row, of func(*side) []float64) {
		r.Name = name + r.Name
		r.Ours = harness.Value(harness.Median(of(ours)))
		if theirs != nil {
			r.Theirs, r.Peer = harness.Value(harness.Median(of(theirs))), peer
		}
		s.Add(r)
	}
	rates := harness.Row{Name: ": requests", Unit: "1/CPU-s", Better: harness.Higher, Note: note + "; CPU of all processes of the side, Redis included"}
	if s.store == "embedded" {
		rates.Aim = &harness.Aim{Ratio: harness.Value(20)}
	}
	add(rates, func(d *side) []float64 { return d.perCPU })
	add(harness.Row{Name: ": p50", Unit: "ms", Better: harness.Lower, Note: "at half of what the slower of the two can, at fixed times"}, func(d *side) []float64 { return d.p50 })
	p99 := harness.Row{Name: ": p99", Unit: "ms", Better: harness.Lower, Note: fmt.Sprintf("each at half of what it can, at fixed times; %d requests of ours", ours.asked)}
	if theirs != nil {
		p99.Note += fmt.Sprintf(", %d of theirs", theirs.asked)
	}
	if batch == 100 && features == 50 {
		p99.Aim = &harness.Aim{Value: harness.Value(5)}
	}
	add(p99, func(d *side) []float64 { return d.p99 })
	return nil
}

// same refuses to compare servers that answer differently.
func (s *site) same(ctx context.Context, features, batch int) error {
	asked := questions(features, batch, s.cells/features)[:1]
	var answers [2]map[string]string
	for i, d := range []*side{newSide(s.ours, s.ours.Token, asked), newSide(s.theirs, "", asked)} {
		var text bytes.Buffer
		if err := until(ctx, time.Minute, func() error { text.Reset(); return d.ask(ctx, 0, &text) }); err != nil {
			return err
		}
		var a struct {
			Metadata struct {
				Names []string `json:"feature_names"`
			} `json:"metadata"`
			Results []struct {
				Values []any `json:"values"`
			} `json:"results"`
		}
		if err := json.Unmarshal(text.Bytes(), &a); err != nil {
			return err
		}
		answers[i] = map[string]string{}
		for n, name := range a.Metadata.Names {
			answers[i][name] = fmt.Sprint(a.Results[n].Values)
		}
	}
	for name, got := range answers[0] {
		if got != answers[1][name] {
			return fmt.Errorf("%s: ours answers %.80s, Feast %.80s", name, got, answers[1][name])
		}
	}
	if len(answers[0]) != features+1 || len(answers[1]) != features+1 {
		return fmt.Errorf("%d and %d columns instead of %d", len(answers[0]), len(answers[1]), features+1)
	}
	return nil
}

// until tries again while a server begins.
func until(ctx context.Context, most time.Duration, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// freshness is from a push to an answer that has it.
func (s *site) freshness(ctx context.Context) error {
	n := 500
	if s.Quick {
		n = 20
	}
	features := wides[0]
	view := fmt.Sprintf("wide%d", features)
	d := newSide(s.ours, s.ours.Token, nil)
	times := make([]time.Duration, n)
	for i := range n {
		row := map[string]any{"id": []int{i}, "at": []string{time.Now().UTC().Format(time.RFC3339Nano)}}
		for f, c := range wideSchema(features)[2:] {
			row[c.Name] = []float64{float64(i) + float64(f)/1000}
		}
		began := time.Now()
		if err := s.ours.Do(ctx, s.client, "bench", http.MethodPost, "/push", map[string]any{"push_source_name": view, "df": row}, nil); err != nil {
			return err
		}
		d.bodies = [][]byte{question(features, []int{i})}
		var text bytes.Buffer
		if err := d.ask(ctx, 0, &text); err != nil {
			return err
		}
		times[i] = time.Since(began)
		if want := strconv.FormatFloat(float64(i)+0.001, 'g', -1, 64); !strings.Contains(text.String(), want) {
			return fmt.Errorf("the answer after a push does not have %s: %.200s", want, text.String())
		}
	}
	all := harness.AllMillis(times)
	s.Add(harness.Row{
		Name: "freshness, " + s.store + ": a pushed row to an answer that has it, p99", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Quantile(all, 0.99)),
		Note: fmt.Sprintf("p50 %.3g ms; pushes of one row one after the other, each acknowledged before it is asked for; with %s", harness.Quantile(all, 0.5),
			map[string]string{"embedded": "fsync", "redis": "a Redis that keeps nothing on disk"}[s.store]),
	})
	return nil
}
