package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/settled"
	"github.com/falaj-ml/falaj/internal/worker/tree"
)

// tempFail is EX_TEMPFAIL of sysexits.h: "saved, run me again".
const tempFail = 75

// ended says how the worker ended.
func (a *agent) ended(x tree.Exit, oom *oomWatch) protocol.End {
	h := a.isHalted()
	a.mu.Lock()
	e := protocol.End{Reason: "exited", ExitCode: x.Code, CPU: x.CPU, PeakRSS: max(a.peak, x.RSS), Ran: time.Since(a.started)}
	a.mu.Unlock()
	if x.Signal != 0 {
		e.Reason, e.Signal, e.ExitCode = "signalled", unix.SignalName(x.Signal), -1
	}
	killed := x.Signal == unix.SIGKILL || x.Code == 128+int(unix.SIGKILL)
	switch {
	case x.Failed != "":
		e.Reason, e.ExitCode, e.Message = "not_started", -1, x.Failed
	case h == nil && oom.happened() && e.ExitCode != 0:
		e.Reason, e.Message = "out_of_memory", "the kernel killed one of its processes because memory ran out"
	case h == nil && killed && a.order.Memory > 0 && e.PeakRSS > a.order.Memory/100*95:
		e.Reason = "out_of_memory"
		e.Message = fmt.Sprintf("it was killed with %s of %s resident", resource.Bytes(e.PeakRSS).Words(), resource.Bytes(a.order.Memory).Words())
	case h != nil:
		e.Reason, e.Message = h.reason, h.why
	}
	return e
}

// finish brings back what the worker left, for as long as the lease, and tells
// its end. What cannot be brought back makes a success none.
func (a *agent) finish(ctx context.Context, e protocol.End) (end protocol.End, told bool) {
	ended := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if a.sender != nil {
		left := &settled.End{At: ended, InOrder: e.Signal == "" && (e.ExitCode == 0 || e.ExitCode == tempFail)}
		err := a.c.retry(ctx, func(ctx context.Context) error { return a.sender.send(ctx, left) })
		if err == nil {
			err = a.sendOutputs(ctx)
		}
		if err != nil && e.ExitCode == 0 && e.Signal == "" && (e.Reason == "exited" || e.Reason == "stopped" || e.Reason == "timed_out") {
			e.Reason, e.ExitCode = "not_started", -1
		}
		if err != nil {
			e.Message = strings.TrimSpace(e.Message + "; what it left was not brought back: " + err.Error())
			a.say("the files of the worker were not sent back: %v", err)
		}
	}
	if a.out != nil {
		a.out.end()
		<-a.out.sent
		e.LogSize = a.out.length()
	}
	if a.dir != "" { // what counts is at the server: nothing is here when it knows the end
		a.clear()
	}
	err := a.c.retry(ctx, func(ctx context.Context) error {
		e.Ago = time.Since(ended)
		return a.c.end(ctx, e)
	})
	if err != nil {
		a.say("reporting its end to the server: %v", err)
	}
	return e, err == nil
}

func (a *agent) sendOutputs(ctx context.Context) error {
	for n, m := range a.places {
		if m.Role != protocol.RoleOutput || m.InPlace {
			continue
		}
		if entries, err := os.ReadDir(m.here); err != nil || len(entries) == 0 {
			continue
		}
		err := a.c.retry(ctx, func(ctx context.Context) error {
			err := a.sendTree(ctx, n, m.here, "", nil)
			if fault.Is(err, fault.Exhausted) {
				a.note("output", err.Error())
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// code is the exit code that says how a worker ended.
func code(e protocol.End) int {
	switch {
	case e.Signal != "":
		return 128 + int(unix.SignalNum(e.Signal))
	case e.ExitCode >= 0:
		return e.ExitCode
	default:
		return 1
	}
}

// oomWatch counts the processes that the kernel killed for want of memory in our
// own cgroup.
type oomWatch struct {
	file   string
	before int64
}

func newOOM() *oomWatch {
	w := &oomWatch{}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return w
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			w.file = filepath.Join("/sys/fs/cgroup", f[2], "memory.events")
		case f[1] == "memory":
			w.file = filepath.Join("/sys/fs/cgroup/memory", f[2], "memory.oom_control")
		}
		if n, ok := oomKills(w.file); ok { // else another hierarchy has it
			w.before = n
			return w
		}
	}
	return w
}

func (w *oomWatch) happened() bool {
	n, ok := oomKills(w.file)
	return ok && n > w.before
}

func oomKills(file string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
