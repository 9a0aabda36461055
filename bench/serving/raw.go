package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
)

// child is what this program is when it was started by itself: the echo, or the
// models in a loop.
func child(args []string) bool {
	var err error
	switch {
	case len(args) == 1 && args[0] == "echo":
		err = serveEcho(os.Stdout)
	case len(args) == 2 && args[0] == "raw":
		err = serveRaw(args[1], os.Stdin, os.Stdout)
	default:
		return false
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
	return true
}

// serveEcho answers with what it was sent.
func serveEcho(out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it lives as long as the process
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "ready at http://%s\n", l.Addr())
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = w.Write(body)
	})}
	return s.Serve(l)
}

// loop is what the process of the models is asked for: runs of some rows for a
// time, one after the other, or the answer to the first input.
type loop struct {
	Model   model   `json:"model"`
	Rows    int     `json:"rows"`
	Seconds float64 `json:"seconds"`
}

// looped is what it tells.
type looped struct {
	CPU    float64   `json:"cpu"`  // seconds a run
	Wall   float64   `json:"wall"` // seconds of the middle run
	Output []float32 `json:"output"`
	Error  string    `json:"error"`
}

func serveRaw(library string, in io.Reader, out io.Writer) error {
	r, sessions := onnx.New(library), map[string]runtime.Session{}
	fmt.Fprintln(out, "ready")
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() {
		var l loop
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return err
		}
		done, err := l.run(r, sessions)
		if err != nil {
			done.Error = err.Error()
		}
		if err := answers.Encode(done); err != nil {
			return err
		}
	}
	return errors.Join(lines.Err(), io.EOF)
}

func (l *loop) run(r *onnx.Runtime, sessions map[string]runtime.Session) (looped, error) {
	ctx, m := context.Background(), &l.Model
	s := sessions[m.File]
	if s == nil {
		file, err := os.ReadFile(m.File)
		if err != nil {
			return looped{}, err
		}
		if s, err = r.Load(ctx, file, runtime.Options{}); err != nil {
			return looped{}, err
		}
		sessions[m.File] = s
	}
	x := runtime.Tensor{Name: "x", Datatype: runtime.Datatype(m.Datatype), Shape: m.shape(l.Rows)}
	if first := (input{of: m, rows: l.Rows}); m.Classes > 0 {
		x.Data = first.ints()
	} else {
		x.Data = first.floats()
	}
	var done looped
	var times []float64
	before, began := ownTime(), time.Now()
	for n := 0; n < 3 || time.Since(began).Seconds() < l.Seconds; n++ {
		at := time.Now()
		y, err := s.Infer(ctx, []runtime.Tensor{x}, []string{"y"})
		if err != nil {
			return done, err
		}
		times = append(times, time.Since(at).Seconds())
		if n == 0 {
			done.Output = y[0].Data.([]float32)
		}
	}
	done.CPU = (ownTime() - before) / float64(len(times))
	done.Wall = harness.Median(times)
	return done, nil
}

// raw is that process, to who asks it.
type raw struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (b *bench) startRaw(ctx context.Context, core int) (*raw, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &raw{cmd: exec.CommandContext(ctx, self, "raw", filepath.Join(b.Root, "lib", "libonnxruntime.so"))}
	p.cmd.Stderr = b.Log
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 1<<20)
	if err := harness.StartOn(core, p.cmd.Start); err != nil {
		return nil, err
	}
	_, err = p.out.ReadString('\n')
	return p, err
}

func (p *raw) run(m *model, rows int, span time.Duration) (looped, error) {
	if err := json.NewEncoder(p.in).Encode(loop{Model: *m, Rows: rows, Seconds: span.Seconds()}); err != nil {
		return looped{}, err
	}
	text, err := p.out.ReadBytes('\n')
	if err != nil {
		return looped{}, err
	}
	var done looped
	if err := json.Unmarshal(text, &done); err != nil {
		return done, err
	}
	if done.Error != "" {
		return done, errors.New(done.Error)
	}
	return done, nil
}

func (p *raw) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait() // it ends with its input
}
