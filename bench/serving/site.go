package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// peer is a server of others, set up as its documentation advises for one core:
// one process that runs models, one thread in each run.
type peer struct {
	dir     string // of peers, with serve.py and requirements.txt
	title   string
	ask     dialect
	raw     bool     // whether it takes a tensor's bytes over HTTP
	options []string // of uv, for its environment
}

var (
	mlserver = peer{dir: "mlserver", title: "MLServer", ask: oip}
	bentoml  = peer{dir: "bentoml", title: "BentoML", ask: method}
	// The stub in the wheel is of an older 3.11 than others that a machine may have.
	pytriton = peer{dir: "pytriton", title: "Triton core with Python backend", ask: oip, raw: true, options: []string{"--python", "/usr/bin/python3.11"}}
	rayServe = peer{dir: "ray", title: "Ray Serve", ask: nested, raw: true}

	peers = []peer{
		mlserver, bentoml,
		{dir: "kserve", title: "KServe's Python server", ask: oip, raw: true},
		{dir: "fastapi", title: "FastAPI and ONNX Runtime", ask: nested, raw: true},
		pytriton,
	}
	batching = []peer{mlserver, bentoml, pytriton}
)

// side is a server that is measured.
type side struct {
	title  string
	ask    dialect
	raw    bool
	header string          // of each request
	on     *harness.Server // nil for none
	reason string          // for none
}

// site is the servers of a measurement and their models.
type site struct {
	*bench

	dir         string
	models      []model
	core, mine  int // of the servers and of the load; -1 where there is one only
	loop        *raw
	echo        *side
	ours, apart *side // with the models in the server's process, and in processes of their own
	again       bool  // ours alone was measured by another step
	peers       []*side
}

// on starts servers with models, measures, and stops them.
func (b *bench) on(ctx context.Context, measure func(*site, context.Context) error, peers []peer, names []string) (err error) {
	s := &site{bench: b, core: -1, mine: -1}
	if all := harness.Allowed(); len(all) > 1 {
		s.mine, s.core = all[0], all[1]
	}
	if s.dir, err = os.MkdirTemp(b.Dir, "serving-"); err != nil {
		return err
	}
	if s.models, err = b.made(ctx, s.dir, names); err != nil {
		return err
	}
	defer s.stop()
	if s.loop, err = b.startRaw(ctx, s.core); err != nil {
		return err
	}
	if err := s.startEcho(ctx); err != nil {
		return err
	}
	if s.ours, err = s.falaj(ctx, true); err != nil {
		return err
	}
	if s.apart, err = s.falaj(ctx, false); err != nil {
		return err
	}
	for _, p := range peers {
		began := time.Now()
		d := s.start(ctx, p)
		s.peers = append(s.peers, d)
		if d.on == nil {
			s.Say("%s: %s", d.title, d.reason)
			continue
		}
		s.Say("%s took %.0f s to start", d.title, time.Since(began).Seconds())
	}
	if s.mine >= 0 {
		undo, err := harness.PinSelf(s.mine)
		if err != nil {
			return err
		}
		defer undo()
	}
	return measure(s, ctx)
}

func (s *site) stop() {
	if s.loop != nil {
		s.loop.stop()
	}
	for _, d := range append(s.peers, s.echo, s.ours, s.apart) {
		if d != nil && d.on != nil {
			d.stop()
		}
	}
}

// stop ends a server and what it started; some leave processes behind.
func (d *side) stop() {
	tree := harness.Tree(d.on.PID())
	kill := func() {
		for _, pid := range tree[1:] {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	late := time.AfterFunc(20*time.Second, kill)
	_ = d.on.Stop() // peers end with codes of their own
	if late.Stop() {
		kill()
	}
}

func (s *site) startEcho(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	echo, err := s.Launch(exec.CommandContext(ctx, self, "echo"), s.core, "ready at ")
	s.echo = &side{title: "an HTTP echo of the same bytes", ask: oip, raw: true, on: echo}
	return err
}

// start installs and starts a peer, and waits until it gives the models' answers.
func (s *site) start(ctx context.Context, p peer) *side {
	d := &side{title: p.title, ask: p.ask, raw: p.raw}
	if s.Quick {
		d.reason = "a quick run starts no peer"
		return d
	}
	python, reason := s.Install(ctx, "bench-serving-"+p.dir, filepath.Join("bench/serving/peers", p.dir, "requirements.txt"), nil, p.options...)
	if reason != "" {
		d.reason = reason
		return d
	}
	address, err := freeAddress(ctx)
	if err != nil {
		d.reason = err.Error()
		return d
	}
	_, port, _ := net.SplitHostPort(address)
	here := filepath.Join(s.Root, "bench/serving/peers")
	cmd := exec.CommandContext(ctx, python, filepath.Join(here, p.dir, "serve.py"), s.dir, port)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1")
	if d.on, err = s.Launch(cmd, s.core, "ready at "); err != nil {
		d.reason = "the peer does not start: " + err.Error()
		return d
	}
	for i := range s.models {
		if err := until(ctx, patience, func() error { return s.check(ctx, d, &s.models[i]) }); err != nil {
			d.stop()
			d.on, d.reason = nil, fmt.Sprintf("the peer does not answer for %s: %v", s.models[i].Name, err)
			return d
		}
	}
	return d
}

// check refuses a server whose answers are not those of the model.
func (s *site) check(ctx context.Context, d *side, m *model) error {
	want, err := s.loop.run(m, 1, 0)
	if err != nil {
		return err
	}
	for _, raw := range []bool{false, true} {
		if raw && !d.raw {
			continue
		}
		got, err := d.target(m, m.Name, 1, raw).once(ctx)
		if err == nil {
			err = same(got, want.Output)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", form(raw), err)
		}
	}
	return nil
}

// form is what a request's numbers are in.
func form(raw bool) string {
	if raw {
		return "binary"
	}
	return "JSON"
}

// target is requests of a number of rows to a model by the name that it has there.
func (d *side) target(m *model, name string, rows int, raw bool) *target {
	t := &target{on: d.on, side: d.title, address: strings.TrimPrefix(d.on.URL, "http://")}
	for n := range 8 {
		path, header, body := d.ask(name, input{of: m, rows: rows, n: n}, raw)
		t.requests = append(t.requests, request(t.address, path, d.header+header, body))
	}
	return t
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// until tries again while a server begins.
func until(ctx context.Context, most time.Duration, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
