package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/monitoring/drift"
	"github.com/falaj-ml/falaj/internal/monitoring/sketch"
)

const (
	windowColumns = 13
	windowRows    = 10_000
	driftedColumn = 3 // by one standard deviation
)

// windows measures the evaluation of a window of 13 numeric columns with 10,000
// rows against a baseline of as many, beside Evidently and scipy on the same
// numbers in the same rounds.
func (b *bench) windows(ctx context.Context) error {
	ref, cur := drawn(1, 0), drawn(2, 1)
	p, reason := b.startPeer(ctx, ref, cur)
	if p != nil {
		defer p.stop()
	}
	baseline := summarised(ref)
	tasks := []struct {
		name, peer, task, note string
		do                     func() (drifted int, err error)
	}{
		{
			"window from rows to verdict", "Evidently, DataDriftPreset on data frames", "preset",
			"ours: 130,000 values into sketches, then the automatic method (normed Wasserstein) and all checks; theirs: the same method on the raw rows, and a report",
			func() (int, error) { return judge(baseline, summarised(cur), drift.Auto) },
		},
		{
			"window verdict, Wasserstein", "scipy.stats.wasserstein_distance on raw rows", "wasserstein",
			"ours compares the sketches that a window keeps anyway; theirs sorts all rows",
			compare(baseline, summarised(cur), drift.WassersteinNormed),
		},
		{
			"window verdict, Kolmogorov-Smirnov", "scipy.stats.ks_2samp on raw rows", "ks",
			"ours is exact on uniform samples of 1,000 rows, so that it finds less; theirs is on all rows",
			compare(baseline, summarised(cur), drift.KS),
		},
	}
	for _, t := range tasks {
		var ours, theirs []float64
		for range b.rounds + 1 { // the first warms up
			n, began := 0, time.Now()
			for n == 0 || time.Since(began) < b.span {
				drifted, err := t.do()
				if err != nil {
					return err
				}
				if drifted != 1 {
					return fmt.Errorf("%s: %d columns drifted, not 1", t.name, drifted)
				}
				n++
			}
			ours = append(ours, float64(n)/time.Since(began).Seconds())
			if p == nil {
				continue
			}
			seconds, drifted, err := p.ask(t.task)
			if err != nil {
				return err
			}
			if drifted != 1 {
				return fmt.Errorf("%s: the peer sees drift in %d columns, not in 1", t.name, drifted)
			}
			theirs = append(theirs, 1/seconds)
		}
		r := row{Name: t.name, Unit: "windows/s", Better: "higher", Ours: median(ours[1:]), Peer: t.peer, Note: t.note}
		if p != nil {
			r.Theirs, r.Peer = median(theirs[1:]), t.peer+" ("+p.name+")"
		} else {
			r.Note += "; " + reason
		}
		b.result.Rows = append(b.result.Rows, r)
	}
	return nil
}

// drawn is normal columns, one of them shifted.
func drawn(seed uint64, shift float64) [][]float64 {
	rng := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // Repeatable, not secret.
	out := make([][]float64, windowColumns)
	for i := range out {
		out[i] = make([]float64, windowRows)
		for j := range out[i] {
			out[i][j] = rng.NormFloat64()
			if i == driftedColumn {
				out[i][j] += shift
			}
		}
	}
	return out
}

func summarised(columns [][]float64) []*sketch.Column {
	out := make([]*sketch.Column, len(columns))
	for i, values := range columns {
		out[i] = sketch.NewNumeric(uint64(i))
		for _, v := range values {
			out[i].Add(v)
		}
	}
	return out
}

func compare(baseline, window []*sketch.Column, method drift.Method) func() (int, error) {
	return func() (int, error) { return judge(baseline, window, method) }
}

func judge(baseline, window []*sketch.Column, method drift.Method) (drifted int, err error) {
	results := make([]drift.Result, len(window))
	for i, c := range window {
		if results[i], err = drift.Test(method, baseline[i], c, drift.Options{Alpha: 0.01}); err != nil {
			return 0, err
		}
		drift.Checks(baseline[i], c, drift.CheckOptions{})
	}
	if results, err = drift.Correct(results, drift.Holm); err != nil {
		return 0, err
	}
	for _, r := range results {
		if r.Drifted {
			drifted++
		}
	}
	return drifted, nil
}

// peer is windows.py, running.
type peer struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

func (b *bench) startPeer(ctx context.Context, ref, cur [][]float64) (_ *peer, reason string) {
	python := filepath.Join(b.root, ".tmp/venv/bench-monitoring/bin/python")
	if b.quick {
		if _, err := os.Stat(python); err != nil {
			return nil, "the peer is not installed"
		}
	} else {
		install := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", ". scripts/lib.sh; venv bench-monitoring bench/monitoring/peers.txt")
		install.Dir = b.root
		if err := install.Run(); err != nil {
			return nil, "the peer cannot be installed: " + err.Error()
		}
	}
	for name, columns := range map[string][][]float64{"ref": ref, "cur": cur} {
		var raw bytes.Buffer
		for _, values := range columns {
			if err := binary.Write(&raw, binary.LittleEndian, values); err != nil {
				return nil, err.Error()
			}
		}
		if err := os.WriteFile(filepath.Join(b.dir, name+".f64"), raw.Bytes(), 0o600); err != nil {
			return nil, err.Error()
		}
	}
	p := &peer{cmd: exec.CommandContext(ctx, python, filepath.Join(b.root, "bench/monitoring/windows.py"), b.dir)}
	p.cmd.Stderr = b.log
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err.Error()
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err.Error()
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, "the peer does not start: " + err.Error()
	}
	if !p.out.Scan() {
		p.stop()
		return nil, "the peer ended: " + p.cmd.ProcessState.String()
	}
	p.name = strings.TrimSpace(p.out.Text())
	return p, ""
}

func (p *peer) ask(task string) (seconds float64, drifted int, err error) {
	if _, err := fmt.Fprintln(p.in, task); err != nil {
		return 0, 0, err
	}
	if !p.out.Scan() {
		return 0, 0, errors.New("the peer ended")
	}
	_, err = fmt.Sscan(p.out.Text(), &seconds, &drifted)
	return seconds, drifted, err
}

// stop closes the peer's input, upon which it ends.
func (p *peer) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
