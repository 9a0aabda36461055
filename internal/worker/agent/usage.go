package agent

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/tree"
)

// usage samples what the worker uses.
type usage struct {
	at      time.Time
	cpu     time.Duration
	in, out int64
	gpus    accelerators
}

func newUsage() *usage { return &usage{} }

// sample is what is used since the sample before.
func (u *usage) sample(ctx context.Context, t *tree.Tree) (protocol.Usage, time.Duration) {
	now, tu := time.Now(), t.Usage()
	in, out := network()
	s := protocol.Usage{Memory: tu.RSS, Accelerators: u.gpus.sample(ctx)}
	cpu := max(tu.CPU, u.cpu) // what was buried between two reads would count back
	if since := now.Sub(u.at).Seconds(); !u.at.IsZero() && since > 0 {
		s.CPU = (cpu - u.cpu).Seconds() / since
		s.NetworkIn, s.NetworkOut = float64(max(in-u.in, 0))/since, float64(max(out-u.out, 0))/since
	}
	u.at, u.cpu, u.in, u.out = now, cpu, in, out
	return s, cpu
}

// network is what came in and went out of this network namespace, but for
// loopback.
func network() (in, out int64) {
	b, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return 0, 0
	}
	return parseNetwork(string(b))
}

func parseNetwork(dev string) (in, out int64) {
	for line := range strings.Lines(dev) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || strings.TrimSpace(name) == "lo" || len(f) < 9 {
			continue
		}
		i, _ := strconv.ParseInt(f[0], 10, 64)
		o, _ := strconv.ParseInt(f[8], 10, 64)
		in, out = in+i, out+o
	}
	return in, out
}

// accelerators asks nvidia-smi, where there is one, now and then.
type accelerators struct {
	once sync.Once
	path string

	mu   sync.Mutex
	busy bool
	at   time.Time
	last []protocol.Accelerator
}

const (
	smiEvery = 5 * time.Second
	smiTime  = 10 * time.Second
)

// sample gives what was known last, and has it asked again.
func (a *accelerators) sample(ctx context.Context) []protocol.Accelerator {
	a.once.Do(func() { a.path, _ = exec.LookPath("nvidia-smi") })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.path == "" || a.busy || time.Since(a.at) < smiEvery {
		return a.last
	}
	a.busy = true
	go func() {
		ctx, cancel := context.WithTimeout(ctx, smiTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, a.path, "--query-gpu=index,name,utilization.gpu,memory.used,power.draw,temperature.gpu", "--format=csv,noheader,nounits")
		b, err := cmd.Output()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.busy, a.at, a.last = false, time.Now(), nil
		if err == nil {
			a.last = parseSMI(string(b))
		}
	}()
	return a.last
}

// parseSMI reads "0, NVIDIA H100, 87, 40536, 512.30, 61"; what is not known is
// "[N/A]".
func parseSMI(csv string) []protocol.Accelerator {
	var out []protocol.Accelerator
	for line := range strings.Lines(csv) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if len(f) != 6 {
			continue
		}
		number := func(i int) float64 {
			v, err := strconv.ParseFloat(strings.TrimSpace(f[i]), 64)
			if err != nil {
				return 0
			}
			return v
		}
		a := protocol.Accelerator{
			Index: int(number(0)), Name: strings.TrimSpace(f[1]), Memory: int64(number(3)) << 20, Watts: number(4), Celsius: number(5),
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(f[2]), 64); err == nil {
			a.Utilisation = new(v / 100)
		}
		out = append(out, a)
	}
	return out
}
