package local

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// Rates cover the time since the last request for them, or a short
// while where that is too long or too little ago.
const (
	shortWhile = 250 * time.Millisecond
	longWhile  = 30 * time.Second
)

// sample is what a workload had used at a moment.
type sample struct {
	at      time.Time
	cpu     time.Duration
	in, out uint64
	engine.Usage
}

// usage takes a sample of a running workload; false when nothing of it can be
// seen.
func (w *workload) usage(ctx context.Context) (sample, bool) {
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	if err != nil || !st.Init.Alive() {
		return sample{}, false
	}
	w.sampling.Lock()
	defer w.sampling.Unlock()
	before := w.last
	if age := time.Since(before.at); age < shortWhile || age > longWhile {
		before = w.take(st)
		wait := time.NewTimer(shortWhile)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-w.done:
			return sample{}, false
		case <-ctx.Done():
			return sample{}, false
		}
	}
	now := w.take(st)
	if s := now.at.Sub(before.at).Seconds(); s > 0 {
		now.CPU = max((now.cpu-before.cpu).Seconds()/s, 0)
		now.NetworkIn, now.NetworkOut = float64(now.in-min(before.in, now.in))/s, float64(now.out-min(before.out, now.out))/s
	}
	w.last = now
	return now, true
}

// take adds up what runs below the sandbox's first process.
func (w *workload) take(st shim.Status) sample {
	s := sample{at: time.Now()}
	s.cpu, s.Memory, _ = shim.TreeUsage(st.Init.PID, &w.resident)
	if st.Isolated >= sandbox.Sandbox { // else the network is everybody's
		s.in, s.out = netBytes(st.Init.PID)
	}
	return s
}

// netBytes is what went through the interfaces of a process's network.
func netBytes(pid int) (in, out uint64) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/net/dev")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		_, figures, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		n := strings.Fields(figures)
		const received, sent = 0, 8
		if len(n) <= sent {
			continue
		}
		r, _ := strconv.ParseUint(n[received], 10, 64)
		s, _ := strconv.ParseUint(n[sent], 10, 64)
		in, out = in+r, out+s
	}
	return in, out
}
