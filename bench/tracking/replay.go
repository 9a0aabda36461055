package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// request is what the client sent; see record.py.
type request struct {
	Name   string `json:"name"`
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   string `json:"body"`
}

func recorded(file string) (out []request, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, lines.Err()
}

// caller sends requests to a side on connections of its own.
type caller struct {
	*side
	http *http.Client
	tag  string // of names that nothing has
	n    int
}

func (s *side) caller(tag string) *caller {
	return &caller{side: s, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 5 * time.Minute}, tag: tag}
}

// ask sends a request for a run and gives the answer and the time that it took, of the
// last byte.
func (c *caller) ask(ctx context.Context, r request, run, name string) ([]byte, time.Duration, error) {
	fill := strings.NewReplacer("${run}", run, "${name}", name)
	var body io.Reader
	if r.Body != "" {
		body = strings.NewReader(fill.Replace(r.Body))
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, c.url+fill.Replace(r.Path), body)
	if err != nil {
		return nil, 0, err
	}
	if r.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	began := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	took := time.Since(began)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.500s", r.Name, resp.Status, text)
	}
	return text, took, err
}

// newRun makes a run by the recorded request.
func (c *caller) newRun(ctx context.Context, create request) (string, error) {
	text, _, err := c.ask(ctx, create, "", c.name())
	if err != nil {
		return "", err
	}
	var made struct {
		Run struct {
			Info struct {
				ID string `json:"run_id"`
			} `json:"info"`
		} `json:"run"`
	}
	if err := json.Unmarshal(text, &made); err != nil || made.Run.Info.ID == "" {
		return "", fmt.Errorf("create run answers %.200s: %w", text, err)
	}
	return made.Run.Info.ID, nil
}

func (c *caller) name() string {
	c.n++
	return fmt.Sprintf("%s-%d", c.tag, c.n)
}

// taken are the times of one kind of request, in milliseconds, and its CPU seconds.
type taken struct {
	times []float64
	cpu   float64
	n     int
}

// pass sends every recorded request n times, one after the other, each batch to a run
// of its own.
func (c *caller) pass(ctx context.Context, cases []request, n int, into map[string]*taken) error {
	create := cases[0]
	whole := "" // a run with a history
	for _, r := range cases {
		t := into[r.Name]
		if t == nil {
			t = &taken{}
			into[r.Name] = t
		}
		times := n
		if r.Name == "search" || strings.HasSuffix(r.Name, "00") {
			times = max(n/4, 3)
		}
		if r.Name == "search" && c.server == nil { // which takes the peer seconds
			times = 3
		}
		runs := make([]string, times)
		for i := range runs {
			if strings.HasPrefix(r.Name, "log_batch") {
				var err error
				if runs[i], err = c.newRun(ctx, create); err != nil {
					return err
				}
				whole = runs[i]
				continue
			}
			runs[i] = whole
		}
		before, err := c.cpu()
		if err != nil {
			return err
		}
		for i := range times {
			name := c.name()
			if r.Name == "registered" || r.Name == "tag model" {
				name = c.registered()
			}
			_, took, err := c.ask(ctx, r, runs[i], name)
			if err != nil {
				return err
			}
			if r.Name == "register" {
				c.tagged(name)
			}
			t.times = append(t.times, harness.Millis(took))
		}
		after, err := c.cpu()
		if err != nil {
			return err
		}
		t.cpu, t.n = t.cpu+after-before, t.n+times
	}
	return nil
}

var registeredNames sync.Map // of a side its last model

func (c *caller) tagged(name string) { registeredNames.Store(c.side, name) }

func (c *caller) registered() string {
	name, _ := registeredNames.Load(c.side)
	s, _ := name.(string)
	return s
}

// rate is what a side answered of mixed requests, eight at a time.
type rate struct {
	perSecond, perCPU float64 // answers
	refused           int     // requests that the peer answered with a fault of its own
}

// crowd sends mixed requests, eight at a time. The peer may refuse some, such as when its
// database is locked; Falaj may not.
func (s *side) crowd(ctx context.Context, cases []request, rounds int, tag string) (got rate, err error) {
	before, err := s.cpu()
	if err != nil {
		return got, err
	}
	began := time.Now()
	var mu sync.Mutex
	answered := 0
	var wait sync.WaitGroup
	const callers = 8
	for w := range callers {
		wait.Go(func() {
			c := s.caller(fmt.Sprintf("%s-%d", tag, w))
			for range rounds {
				run, failed := c.newRun(ctx, cases[0])
				said := []error{failed}
				for _, r := range cases[1:] {
					if failed == nil && (r.Name == "log_batch 10" || r.Name == "history" || r.Name == "search") {
						_, _, failed := c.ask(ctx, r, run, "")
						said = append(said, failed)
					}
				}
				mu.Lock()
				for _, failed := range said {
					switch {
					case failed == nil:
						answered++
					case s.server == nil && ctx.Err() == nil:
						got.refused++
					default:
						err = errors.Join(err, failed)
					}
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if err != nil {
		return got, err
	}
	seconds := time.Since(began).Seconds()
	after, err := s.cpu()
	got.perSecond, got.perCPU = float64(answered)/seconds, float64(answered)/(after-before)
	return got, err
}

// logged is about what Falaj's SQLite writes to its log for a batch of ten: 35 pages.
const logged = 140 << 10

// requests is a step on a database with contents, by callers on the other core.
func (b *bench) requests(database string, all ...measurement) func(context.Context) error {
	return func(ctx context.Context) error {
		size := b.contents()
		if database == "PostgreSQL" && !b.Quick {
			size.points = 10 // of history nothing else is asked
		}
		if cores := harness.Allowed(); len(cores) > 1 {
			undo, err := harness.PinSelf(cores[1])
			if err != nil {
				return err
			}
			defer undo()
		}
		err := b.both(ctx, database, size, func(ours, theirs *side) error {
			for _, do := range all {
				if err := do(ctx, database, size, ours, theirs); err != nil {
					return err
				}
			}
			return nil
		})
		if database == "PostgreSQL" && err != nil && ctx.Err() == nil {
			b.Add(harness.Row{Name: database, Unit: "ms", Better: harness.Lower, Note: "not measured: " + firstLine(err)})
			return nil
		}
		return err
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// measure measures the recorded requests.
func (b *bench) measure(ctx context.Context, database string, size size, ours, theirs *side) error {
	sides := []*side{ours}
	if theirs != nil {
		sides = append(sides, theirs)
	}
	idle, loaded := map[*side]float64{}, map[*side]float64{}
	for _, s := range sides {
		idle[s] = s.anon()
	}
	n := 60
	if b.Quick {
		n = 4
	}
	took := map[*side]map[string]*taken{}
	speed, share := map[*side][]float64{}, map[*side][]float64{}
	refused := 0
	var syncs, large []float64
	for round := range b.Rounds {
		for _, s := range sides {
			if took[s] == nil {
				took[s] = map[string]*taken{}
			}
			c := s.caller(fmt.Sprintf("%s-%d", strings.ToLower(database), round))
			if round == 0 { // what is made on first use
				if err := c.pass(ctx, b.cases, 2, map[string]*taken{}); err != nil {
					return err
				}
			}
			if err := c.pass(ctx, b.cases, n, took[s]); err != nil {
				return err
			}
			rounds := max(n/12, 2)
			if s.server == nil {
				rounds = 1 // a minute of searches
			}
			got, err := s.crowd(ctx, b.cases, rounds, fmt.Sprintf("crowd-%d", round))
			if err != nil {
				return err
			}
			speed[s], share[s] = append(speed[s], got.perSecond), append(share[s], got.perCPU)
			refused += got.refused
			loaded[s] = max(loaded[s], s.anon())
		}
		for bytes, times := range map[int]*[]float64{4 << 10: &syncs, logged: &large} {
			took, err := b.fsync(n, bytes)
			if err != nil {
				return err
			}
			*times = append(*times, took...)
		}
	}
	sync95 := harness.Quantile(syncs, 0.95)
	what := fmt.Sprintf("; %d runs × %d metrics × %d points", size.runs, size.metrics, size.points)
	add := func(row harness.Row, value func(*side) float64) {
		row.Name = database + ": " + row.Name
		row.Ours = harness.Value(value(ours))
		if theirs != nil {
			row.Theirs, row.Peer = harness.Value(value(theirs)), "`mlflow server`, default workers"
		} else {
			row.Note = b.absent
		}
		b.Add(row)
	}
	seen := map[string]bool{}
	for _, r := range b.cases {
		if seen[r.Name] {
			continue
		}
		seen[r.Name] = true
		row := harness.Row{Name: r.Name + ", p95", Unit: "ms", Better: harness.Lower}
		if r.Name == "search" {
			row.Aim, row.Note = &harness.Aim{Value: harness.Value(5)}, "100 of those with m0 > 5, by m1"+what
		}
		add(row, func(s *side) float64 { return harness.Quantile(took[s][r.Name].times, 0.95) })
		add(harness.Row{Name: r.Name + ", p50", Unit: "ms", Better: harness.Lower, Detail: true}, func(s *side) float64 { return harness.Quantile(took[s][r.Name].times, 0.5) })
		if !slices.ContainsFunc(sides, func(s *side) bool { return took[s][r.Name].cpu <= 0 }) { // a worker that was replaced took its time along
			add(harness.Row{Name: r.Name + ": requests per CPU second", Unit: "1/s", Better: harness.Higher, Detail: true}, func(s *side) float64 {
				return float64(took[s][r.Name].n) / took[s][r.Name].cpu
			})
		}
		if strings.HasPrefix(r.Name, "log_batch") {
			row := harness.Row{Name: r.Name + ", p95 over that of a same-run fsync", Unit: "×", Better: harness.Lower, Note: fmt.Sprintf("an append of 4 KiB and its fsync: p95 %.3g ms", sync95)}
			if r.Name == "log_batch 10" {
				row.Aim = &harness.Aim{Value: harness.Value(3)}
				row.Note += fmt.Sprintf("; of %d KiB, what SQLite logs of it: %.3g ms", logged>>10, harness.Quantile(large, 0.95))
			}
			add(row, func(s *side) float64 { return harness.Quantile(took[s][r.Name].times, 0.95) / sync95 })
		}
	}
	refusals := ""
	if refused > 0 {
		refusals = fmt.Sprintf("the peer refused %d of its requests, such as for a locked database; only answers count", refused)
	}
	add(harness.Row{Name: "mixed, 8 at a time: requests per CPU second", Unit: "1/s", Better: harness.Higher, Note: refusals, Aim: &harness.Aim{Ratio: harness.Value(20)}}, func(s *side) float64 { return harness.Median(share[s]) })
	add(harness.Row{Name: "mixed, 8 at a time: requests", Unit: "1/s", Better: harness.Higher}, func(s *side) float64 { return harness.Median(speed[s]) })
	add(harness.Row{Name: "RssAnon idle", Unit: "MiB", Better: harness.Lower}, func(s *side) float64 { return idle[s] })
	add(harness.Row{Name: "RssAnon loaded", Unit: "MiB", Better: harness.Lower, Aim: &harness.Aim{Value: harness.Value(100)}}, func(s *side) float64 { return loaded[s] })
	return nil
}
