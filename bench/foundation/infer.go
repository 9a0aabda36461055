package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

const inferProject = `
api_version: falaj/v1
kind: Project
name: bench
spec: {display_name: Measurements}
`

const inferDeployment = `
api_version: falaj/v1
kind: Deployment
name: logistic
project: bench
spec: {model: logistic, version: "1"}
`

// question is one row for the model.
const question = `{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[0.5,1.5]}],"outputs":[{"name":"probabilities"}]}`

// serveEcho is the baseline of inference: a plain net/http server that answers
// with what it was sent.
func serveEcho(out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it lives as long as the process
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Echo is ready at http://%s\n", l.Addr())
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})}
	return s.Serve(l)
}

// inference measures a prediction over the Open Inference Protocol beside an
// echo of the same bytes; both servers on one core, the load on another.
func (b *bench) inference(ctx context.Context) error {
	cores := harness.Allowed()
	serverCore, pinned := -1, "not pinned: one core only"
	if len(cores) > 1 {
		serverCore, pinned = cores[0], "servers on one core, load on another"
	}
	s, err := b.Up(ctx, filepath.Join(b.Dir, "infer"), serverCore)
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	if err := b.deploy(ctx, s); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	echo, err := b.Launch(exec.CommandContext(ctx, self, "echo"), serverCore, "Echo is ready at ")
	if err != nil {
		return err
	}
	defer func() { _ = echo.Stop() }()
	if serverCore >= 0 {
		undo, err := harness.PinSelf(cores[1])
		if err != nil {
			return err
		}
		defer undo()
	}
	rate, n := 400, 1600
	if b.Quick {
		rate, n = 200, 60
	}
	targets := []*load{{on: s, path: "/v2/models/logistic/infer"}, {on: echo, path: "/echo"}}
	for _, l := range targets { // connections, caches and the garbage collector warm up
		if err := l.round(ctx, rate, n/4); err != nil {
			return err
		}
		l.p50, l.p99, l.cpu = nil, nil, nil
	}
	for range b.Rounds {
		for _, l := range targets {
			if err := l.round(ctx, rate, n); err != nil {
				return err
			}
		}
	}
	ours, theirs := targets[0], targets[1]
	added := make([]float64, b.Rounds)
	for i := range added {
		added[i] = ours.p50[i] - theirs.p50[i]
	}
	const peer = "net/http echo of the same request bytes"
	how := fmt.Sprintf("one row, %d requests at an open-loop %d/s in each round; %s", n, rate, pinned)
	b.Add(harness.Row{
		Name: "OIP REST added p50", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(added)),
		Note: "p50 of the prediction less that of the echo in the same round; " + how,
	})
	// Medians sort, so the differences above come first.
	b.Add(harness.Row{Name: "OIP REST p50", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(ours.p50)), Theirs: harness.Value(harness.Median(theirs.p50)), Peer: peer})
	b.Add(harness.Row{Name: "OIP REST p99", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(ours.p99)), Theirs: harness.Value(harness.Median(theirs.p99)), Peer: peer})
	b.Add(harness.Row{
		Name: "OIP REST CPU per 1,000 requests", Unit: "s", Better: harness.Lower, Ours: harness.Value(harness.Median(ours.cpu)), Theirs: harness.Value(harness.Median(theirs.cpu)), Peer: peer,
		Note: "user and kernel time of the server process, its background loops included",
	})
	return nil
}

// deploy brings the model of the ONNX tests through MLflow's API to a deployment.
func (b *bench) deploy(ctx context.Context, s *harness.Server) error {
	c, err := s.Client()
	if err != nil {
		return err
	}
	if _, err := c.Apply(ctx, "", []byte(inferProject), false); err != nil {
		return err
	}
	model, err := os.ReadFile(filepath.Join(b.Root, "internal/serving/runtime/onnx/testdata/logistic.onnx"))
	if err != nil {
		return err
	}
	if err := s.Register(ctx, c, "bench", "logistic", model); err != nil {
		return err
	}
	_, err = c.Apply(ctx, "bench", []byte(inferDeployment), false) // answers when the model has answered once
	return err
}

// load is a server under load and what was measured, one value for each round.
type load struct {
	on   *harness.Server
	path string
	http *http.Client

	p50, p99 []float64 // ms
	cpu      []float64 // s for 1,000 requests
}

// round sends n requests at a steady rate, whether or not earlier ones were
// answered. A latency counts from the sending, waiting for a connection included.
func (l *load) round(ctx context.Context, rate, n int) error {
	if l.http == nil {
		l.http = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64}}
	}
	before, err := harness.CPUSeconds(l.on.PID())
	if err != nil {
		return err
	}
	times, failed := make([]time.Duration, n), make([]error, n)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		timer.Reset(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		wg.Go(func() {
			began := time.Now()
			failed[i] = l.ask(ctx)
			times[i] = time.Since(began)
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	after, err := harness.CPUSeconds(l.on.PID())
	if err != nil {
		return err
	}
	ms := harness.AllMillis(times)
	l.p50, l.p99 = append(l.p50, harness.Quantile(ms, 0.5)), append(l.p99, harness.Quantile(ms, 0.99))
	l.cpu = append(l.cpu, (after-before)/float64(n)*1000)
	return nil
}

func (l *load) ask(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.on.URL+l.path, bytes.NewReader([]byte(question)))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+l.on.Token)
	r.Header.Set("Falaj-Project", "bench")
	resp, err := l.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", l.path, resp.Status, text)
	}
	return err
}
