package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// extras are what the driver needs to attach again and the shim does not.
type extras struct {
	Network engine.Network `json:"network"`
	Image   string         `json:"image,omitempty"`
	Gang    bool           `json:"gang,omitempty"`    // the program is the supervisor
	Devices [][]string     `json:"devices,omitempty"` // accelerators of each worker, by UUID
	Shared  bool           `json:"shared,omitempty"`  // a share of each only
	Project string         `json:"project,omitempty"`
}

// workload is one workload as this driver holds it; all state is on disk.
type workload struct {
	id     string
	handle engine.Handle
	dir    string
	uid    int
	cpus   []int
	tasks  int // processes and threads that it may have
	disk   shim.Disk
	extras extras
	// damaged is why its directory cannot be read; nil when it can.
	damaged error

	done     chan struct{} // closed when nothing of it runs any more
	detached chan struct{} // closed when the driver was closed
	once     sync.Once

	mu     sync.Mutex
	served []func() // closes the sockets

	shim  *keeper // nil when an earlier driver started it
	owner sync.Mutex
	left  bool // the shim is no longer this workload's
	asked bool // the shim was signalled

	sampling sync.Mutex
	last     sample
	resident machine.Resident

	profiling sync.Mutex // held while a profile is in progress
}

func (w *workload) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// detach ends what the driver does for the workload.
func (w *workload) detach() {
	w.once.Do(func() { close(w.detached) })
	if w.shim != nil {
		w.shim.leave()
	}
	w.closeSockets()
}

func (w *workload) closeSockets() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.served {
		c()
	}
	w.served = nil
}

// unborn reports whether the workload was described but never got a shim.
func (w *workload) unborn() bool {
	_, err := os.Stat(filepath.Join(w.dir, shim.StatusFile))
	return errors.Is(err, fs.ErrNotExist) && !shim.Held(w.dir) && (w.damaged == nil || w.never())
}

func (d *Driver) newWorkload(id string, s shim.Spec, x extras) *workload {
	return &workload{
		id: id, handle: engine.Handle(id), dir: filepath.Join(d.c.Dir, id),
		uid: s.Policy.UID, cpus: s.Policy.Limits.CPUs, tasks: s.Policy.Limits.Processes, disk: s.Disk, extras: x,
		done: make(chan struct{}), detached: make(chan struct{}),
	}
}

// load reads a workload that an earlier driver started.
func (d *Driver) load(id string) (*workload, error) {
	dir := filepath.Join(d.c.Dir, id)
	s, err := shim.Read[shim.Spec](dir, shim.SpecFile)
	if err != nil {
		return nil, err
	}
	var x extras
	if err := json.Unmarshal(s.Owner, &x); err != nil { //nolint:musttag // the fields of engine.Network have their own names
		return nil, err
	}
	return d.newWorkload(id, s, x), nil
}

// spawn describes the workload on disk and starts its shim. It returns when
// the shim has recorded itself, so that a later attach finds it. furnish
// puts what else the program needs into the workload's directory.
func (d *Driver) spawn(ctx context.Context, w *workload, s shim.Spec, x extras, furnish func(dir string) error) error {
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		return fault.Wrap(err, "making the directory of %s", w.id)
	}
	born := false
	defer func() {
		if !born {
			w.detach()
			_ = os.RemoveAll(w.dir)
		}
	}()
	// Others may pass through this one: the sandbox's forwarder is another user.
	passage := filepath.Join(w.dir, netDir)
	if err := errors.Join(os.Mkdir(passage, 0o711), os.Chmod(passage, 0o711)); err != nil { //nolint:gosec // See above, whatever the umask; the parent is private.
		return fault.Wrap(err, "making the directory of %s", w.id)
	}
	if err := furnish(w.dir); err != nil {
		return fault.Wrap(err, "preparing %s", w.id)
	}
	if err := d.serve(w); err != nil {
		return err
	}
	var err error
	if s.Owner, err = json.Marshal(x); err != nil { //nolint:musttag // as in load
		return fault.Wrap(err, "describing %s", w.id)
	}
	if err := shim.Spare(w.dir, shim.StopFile); err != nil {
		return fault.Wrap(err, "reserving disk space for the order to stop %s", w.id)
	}
	// The shim's first status, before anything runs, syncs the directory.
	if err := errors.Join(shim.Place(w.dir, shim.SpecFile, s), fsync.Dir(d.c.Dir)); err != nil {
		return fault.Wrap(err, "describing %s", w.id)
	}
	k, err := d.shims.run(w.dir)
	if err != nil {
		return fault.New(fault.Unavailable, "starting the shim of %s: %w", w.id, err)
	}
	w.shim = k
	born = true
	d.watch(ctx, w)
	return nil
}

// attach takes up a workload that was loaded.
func (d *Driver) attach(w *workload) {
	if w.damaged != nil {
		d.attachUnreadable(w)
		return
	}
	if st, err := shim.Read[shim.Status](w.dir, shim.StatusFile); err == nil && st.State == shim.Ended && !shim.Held(w.dir) {
		close(w.done)
		return
	}
	if w.unborn() {
		close(w.done) // Lost, until Start comes again with its ID
		return
	}
	if err := d.serve(w); err != nil {
		d.c.Log.Warn("a workload's sockets cannot be opened again", slog.String("id", w.id), slog.Any("err", err))
	}
	d.watch(context.Background(), w)
}

// watch closes done when the workload has ended.
func (d *Driver) watch(ctx context.Context, w *workload) {
	if d.c.OnDenial != nil {
		stop := d.tail.notify(w.dir, shim.DenialsFile, func() { d.c.OnDenial(w.handle) })
		w.mu.Lock()
		w.served = append(w.served, stop)
		w.mu.Unlock()
	}
	go func() {
		if w.shim != nil && w.shim.over() {
			d.release(w)
		} else {
			if !w.awaitShim() {
				return // detached
			}
			if w.shim != nil {
				w.shim.leave() // it ended without a word, as after a signal: the connection is ours to close
			}
			w.settle(context.WithoutCancel(ctx), d.c.Log)
		}
		w.closeSockets()
		close(w.done)
		if d.c.OnDenial != nil {
			d.c.OnDenial(w.handle)
		}
	}()
}

// release returns the shim of a workload that is over for reuse. A shim that was signalled is
// ended instead, because the signal may reach it late.
func (d *Driver) release(w *workload) {
	w.owner.Lock()
	w.left = true
	asked := w.asked
	w.owner.Unlock()
	if asked {
		w.shim.leave()
		return
	}
	d.shims.keep(w.shim)
}

// signal signals the workload's shim while it is that, or the first process of
// its sandbox.
func (w *workload) signal(p shim.Process, s syscall.Signal) error {
	w.owner.Lock()
	defer w.owner.Unlock()
	if w.left {
		return os.ErrProcessDone
	}
	w.asked = true
	return p.Signal(s)
}

// awaitShim waits for the end of the shim; false when the driver was closed.
func (w *workload) awaitShim() bool {
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	if err == nil {
		return awaitProcess(st.Shim, w.detached)
	}
	// A shim lives but has not recorded itself yet (the server died while it
	// started): its lock tells when it ends.
	free := make(chan struct{})
	go func() {
		defer close(free)
		shim.Await(w.dir)
	}()
	select {
	case <-free:
		return true
	case <-w.detached:
		return false
	}
}

// settle makes sure that nothing runs after the end of the shim, which can
// only be when it was killed.
func (w *workload) settle(ctx context.Context, log *slog.Logger) {
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	if err == nil && st.State == shim.Ended {
		return
	}
	log.WarnContext(ctx, "a shim was killed", slog.String("id", w.id))
	// The sandbox ends with its caller; its first process is the last to go.
	if !awaitFor(st.Init, killMargin) {
		_ = st.Init.Signal(syscall.SIGKILL)
		_ = awaitFor(st.Init, killMargin)
	}
	sandbox.RemoveCgroups(st.Cgroups)
	sandbox.RemoveNamedCgroups(w.id) // the shim may have died before it recorded them
	if err := shim.JoinLog(w.dir); err != nil {
		log.WarnContext(ctx, "the end of a log cannot be read", slog.String("id", w.id), slog.Any("err", err))
	}
	if _, err := os.Stat(filepath.Join(w.dir, shim.StopFile)); err == nil {
		// It was us who killed it, by the order of Stop.
		st.State, st.Reason, st.ExitCode, st.Ended = shim.Ended, shim.Stopped, -1, time.Now()
		st.Message = "the shim did not answer and was killed"
		if err := shim.Write(w.dir, shim.StatusFile, st); err != nil {
			log.ErrorContext(ctx, "a status cannot be written", slog.String("id", w.id), slog.Any("err", err))
		}
	}
}

// status translates what the shim has recorded.
func (w *workload) status() engine.Status {
	over := w.over() // before reading: the last status is written before that
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	switch {
	case err == nil:
	case w.damaged != nil && over:
		return engine.Status{State: engine.Lost, ExitCode: -1, Message: fmt.Sprintf("its record cannot be read (%v), and none of its processes runs any more", w.damaged)}
	case w.damaged != nil:
		return engine.Status{State: engine.Running, Message: w.unknown()}
	case over:
		return engine.Status{State: engine.Lost, ExitCode: -1, Message: "it was never started"}
	default:
		return engine.Status{State: engine.Pending}
	}
	out := engine.Status{
		Reason: engine.Reason(st.Reason), ExitCode: st.ExitCode, Signal: st.Signal, Message: st.Message,
		Started: st.Started, Ended: st.Ended, CPU: st.CPU, PeakRSS: st.PeakRSS, Isolated: st.Isolated.String(),
	}
	if len(st.Notes) > 0 {
		out.Message = strings.TrimSpace(fmt.Sprintf("%s\nnot applied: %s", out.Message, strings.Join(st.Notes, "; ")))
	}
	if w.damaged != nil && !over {
		out.Message = w.unknown()
	}
	switch {
	case st.State == shim.Ended && over:
		out.State = engine.Ended
	case over:
		out.State, out.Reason, out.ExitCode = engine.Lost, "", -1
		out.Message = "its shim was killed, and the program with it"
	case st.State == shim.Starting:
		out.State = engine.Pending
	default: // recorded as ended while the shim is leaving: Wait is not done either
		out.State, out.Reason, out.ExitCode, out.Signal, out.Ended = engine.Running, "", 0, "", time.Time{}
	}
	return out
}

// awaitProcess waits until this very process has ended; false when stop came
// first.
func awaitProcess(p shim.Process, stop <-chan struct{}) bool {
	if p.PID <= 0 {
		return true
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return true
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if !p.Alive() { // the number belongs to another process now
		return true
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		raw, err := f.SyscallConn()
		if err != nil {
			return
		}
		// The descriptor becomes readable when the process ends, reaped or not.
		_ = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // A descriptor.
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}()
	select {
	case <-ended:
		return true
	case <-stop:
		_ = f.Close() // ends the read
		<-ended
		return false
	}
}

// awaitFor is awaitProcess with a time limit.
func awaitFor(p shim.Process, limit time.Duration) bool {
	stop := make(chan struct{})
	t := time.AfterFunc(limit, func() { close(stop) })
	defer t.Stop()
	return awaitProcess(p, stop)
}
