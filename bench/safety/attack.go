package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/heavy"
)

const loudProject = `
{api_version: falaj/v1, kind: Project, name: loud}
---
{api_version: falaj/v1, kind: Dataset, name: rows, project: loud, spec: {}}
`

// attack is what one tenant does to a server while others are measured.
type attack struct {
	name  string
	lanes int // of it, side by side
	// do is one time of it; it comes back when the context ends. A refusal is no error.
	do func(ctx context.Context) error
}

// heavies are the requests that are sent again and again, of those that package heavy has.
var heavies = []string{"deep YAML", "wide YAML", "wide JSON", "wide MLflow", "large SQL answer", "large SQL row", "long filter", "large inference", "inference bomb", "online features"}

// loud is who attacks.
type loud struct {
	on    *harness.Server
	token string
	c     *client.Client
	admin *client.Client
	http  *http.Client
}

// attacks measures what a quiet tenant gets while another attacks: a model that is asked
// without pause on one connection, before each attack and during it.
func (b *bench) attacks(ctx context.Context) error {
	s, err := b.serve(ctx, "attacked", -1, "")
	if err != nil {
		return err
	}
	defer func() { _ = s.on.Stop() }()
	l := loud{on: s.on, http: &http.Client{Timeout: time.Minute}}
	if l.admin, err = s.on.Client(); err != nil {
		return err
	}
	if _, err := l.admin.Apply(ctx, "", []byte(loudProject), false); err != nil {
		return err
	}
	if err := s.on.Register(ctx, l.admin, "loud", "mine", models()[0].file); err != nil {
		return err
	}
	if _, err := l.admin.Apply(ctx, "loud", []byte("{api_version: falaj/v1, kind: Deployment, name: mine, project: loud, spec: {model: mine, version: \"1\"}}\n"), false); err != nil {
		return err
	}
	var token client.Object
	if err := l.admin.Do(ctx, http.MethodPost, "/api/v1/tokens", map[string]any{"name": "loud", "role": "engineer", "project": "loud", "expires_in": "24h"}, &token); err != nil {
		return err
	}
	l.token = token.Text("secret")
	if l.c, err = client.New(s.on.URL, l.token); err != nil {
		return err
	}
	all, err := l.all()
	if err != nil {
		return err
	}
	span := 5 * time.Second
	if b.Quick {
		all, span = []attack{all[0], all[len(all)-1]}, 300*time.Millisecond
	}
	for _, a := range all {
		if !b.Does(a.name) {
			continue
		}
		b.Say("%s", a.name)
		if err := b.under(ctx, a, s, span); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
	}
	return nil
}

// under measures the quiet tenant beside one attack.
func (b *bench) under(ctx context.Context, a attack, s side, span time.Duration) error {
	m := models()[0]
	ask := m.ask(s.on, s.header, false)
	var p99, p50, rate [2][]float64
	peak, failed := 0.0, 0
	for range b.Rounds {
		for i := range 2 {
			stop := func() error { return nil }
			if i == 1 {
				stop = b.start(ctx, a, s.on)
				select { // the attack is under way
				case <-ctx.Done():
				case <-time.After(span / 5):
				}
			}
			most, looked := watch(s.on.PID())
			f, err := closed(ctx, s.on, ask, 1, span)
			looked()
			if err := errors.Join(err, stop()); err != nil {
				return err
			}
			if i == 1 {
				peak, failed = max(peak, most()), failed+f.failed
			} else if f.failed > 0 {
				return fmt.Errorf("%d requests were refused before the attack", f.failed)
			}
			p99[i], p50[i], rate[i] = append(p99[i], f.p99), append(p50[i], f.p50), append(rate[i], f.rate)
		}
	}
	note := fmt.Sprintf("p50 %.4g µs, and %.4g without; %.4g requests a second, and %.4g without; %d were not answered; at most %.0f MiB of the server and its processes",
		*middle(p50[1]), *middle(p50[0]), *middle(rate[1]), *middle(rate[0]), failed, peak)
	b.Add(harness.Row{
		Name: "p99 of a model's answer while another tenant sends: " + a.name, Unit: "µs", Better: harness.Lower, Ours: middle(p99[1]), Theirs: middle(p99[0]),
		Peer: "the same without the attack", Aim: &harness.Aim{Ratio: harness.Value(0.5)}, Note: note,
	})
	b.Add(harness.Row{
		Name: "requests not answered while another tenant sends: " + a.name, Unit: "requests", Better: harness.Lower, Ours: harness.Value(float64(failed)),
		Aim: &harness.Aim{Value: harness.Value(0)}, Detail: true,
	})
	b.Add(harness.Row{Name: "memory at the peak of: " + a.name, Unit: "MiB", Better: harness.Lower, Ours: harness.Value(peak), Detail: true, Note: "of the server and its processes"})
	return nil
}

// start begins an attack; what it returns ends it, and says why it went wrong.
func (b *bench) start(ctx context.Context, a attack, s *harness.Server) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	fails := make([]error, a.lanes)
	for i := range a.lanes {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := a.do(ctx); err != nil && ctx.Err() == nil {
					fails[i] = err
					return
				}
			}
		})
	}
	return func() error {
		cancel()
		all.Wait()
		return errors.Join(errors.Join(fails...), s.MustBeReady(context.WithoutCancel(ctx)))
	}
}

// watch samples the memory of a process and of those it started, in MiB.
func watch(pid int) (most func() float64, stop func()) {
	var peak atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			peak.Store(max(peak.Load(), int64(harness.TreeMemory(pid))))
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() float64 { return float64(peak.Load()) }, func() { close(done); <-ended }
}

// all are the attacks.
func (l loud) all() ([]attack, error) {
	requests, err := heavy.Requests("loud")
	if err != nil {
		return nil, err
	}
	var all []attack
	for _, name := range heavies {
		r, ok := requests[name]
		if !ok {
			return nil, fmt.Errorf("there is no request %q", name)
		}
		all = append(all, attack{name, 2, func(ctx context.Context) error { return l.send(ctx, r.Path, r.Encoding, bytes.NewReader(r.Body)) }})
	}
	host, mine := strings.TrimPrefix(l.on.URL, "http://"), models()[0].json()
	return append(all,
		attack{"8 slow SQL statements", 8, func(ctx context.Context) error {
			body := `{"sql":"SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b"}`
			return l.send(ctx, "/api/v1/projects/loud/query", "", strings.NewReader(body))
		}},
		attack{"files to import", 2, func(ctx context.Context) error {
			return l.send(ctx, "/api/v1/projects/loud/datasets/rows/versions?filename=a.csv", "", strings.NewReader("a,b\n"+strings.Repeat("1,2\n", 2<<20)))
		}},
		attack{"8 uploads of a byte a second", 8, func(ctx context.Context) error {
			return hold(ctx, host, fmt.Sprintf("POST /api/v1/projects/loud/datasets/rows/versions?filename=a.csv HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\na,b\n", host, l.token))
		}},
		attack{"1,000 connections without a token", 1000, func(ctx context.Context) error { return hold(ctx, host, "GET /healthz HTTP/1.1\r\nX-") }},
		attack{"tokens that are wrong", 4, func(ctx context.Context) error {
			return loud{on: l.on, token: "falaj_wrong", http: l.http}.send(ctx, "/v2/models/linear/infer", "", strings.NewReader("{}"))
		}},
		attack{"requests on objects of others", 4, func(ctx context.Context) error {
			return l.send(ctx, "/api/v1/projects/bench/query", "", strings.NewReader(`{"sql":"SELECT 1"}`))
		}},
		attack{"requests of its own model, 64 at a time", 64, func(ctx context.Context) error {
			return l.send(ctx, "/v2/models/mine/infer", "", bytes.NewReader(mine))
		}},
		l.job("a job that forks without end", `while :; do sleep 60 & done`),
		l.job("a job that writes without end", `while :; do dd if=/dev/zero of="$FALAJ_SCRATCH_DIR/f" bs=1M count=256 conv=fsync 2>/dev/null; done`),
		l.job("a job that calculates without end", `while :; do :; done`),
	), nil
}

// job is an attack by a job, that is cancelled at the end and ends.
func (l loud) job(name, script string) attack {
	return attack{name, 1, func(ctx context.Context) error {
		manifest := fmt.Sprintf("api_version: falaj/v1\nkind: Job\nname: loud\nproject: loud\nspec:\n  resources: {cpu: 1, memory: 512MiB}\n  command: [/bin/bash, -c, %q]\n  grace: 1s\n", script)
		results, err := l.admin.Apply(ctx, "loud", []byte(manifest), false)
		if err != nil || len(results) != 1 {
			return fmt.Errorf("the job was not taken: %w", err)
		}
		path := "/api/v1/projects/loud/jobs/" + results[0].ID
		left, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		for ended := false; !ended; {
			if ctx.Err() != nil {
				_ = l.admin.Do(left, http.MethodPost, path+"/cancel", nil, nil)
			}
			var got client.Object
			if err := l.admin.Do(left, http.MethodGet, path, nil, &got); err != nil {
				return err
			}
			switch got.Text("state") {
			case "succeeded", "failed", "cancelled":
				ended = true
			default:
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
		}
		return nil
	}}
}

// send sends one request and reads the answer.
func (l loud) send(ctx context.Context, path, encoding string, body io.Reader) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.on.URL+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+l.token)
	if encoding != "" {
		r.Header.Set("Content-Encoding", encoding)
	}
	resp, err := l.http.Do(r)
	if err != nil {
		return nil // the connection was ended before all was sent
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return nil
}

// hold opens a connection, says how it begins, and goes on with a byte a second until it
// is ended.
func hold(ctx context.Context, host, begin string) error {
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil // refused, which is one of the answers
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if _, err := io.WriteString(c, begin); err != nil {
		return nil
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, bufio.NewReader(c))
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-gone:
			return nil
		case <-tick.C:
			_, _ = io.WriteString(c, "1")
		}
	}
}
