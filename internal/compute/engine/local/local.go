// Package local is the engine that runs workloads as sandboxed processes of
// this machine.
//
// Life of a workload. Start makes a directory DIR/ID with what to run and
// gives it to a shim, a falaj-worker in a session of its own that serves one
// workload after another; the shim runs the program in a sandbox and records how
// it goes (package sandbox/shim). The
// driver only reads the directory, so a restarted Falaj finds every workload
// again: it opens the workload's sockets anew and waits on the very process
// (number and start time) that the status names. A shim that was killed takes
// its program with it; the workload is then Lost.
//
// Parts: local.go (Driver), workload.go (one workload: spawn, attach, watch),
// unreadable.go (one whose directory cannot be read),
// shims.go (the processes that run them), gang.go (several workers), disk.go (what they
// keep on disk), tasks.go (processes and threads), hardware.go
// (accelerators and the pool's options), sharing.go (shares of a GPU),
// usage.go (what they use now), profile.go (a look inside), logs.go (following),
// network.go (the API and egress sockets inside).
//
// Under systemd the unit needs KillMode=process, else stopping Falaj stops its
// workloads.
package local

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/egress"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

const (
	errorFile = "shims.err" // beside the workloads
	netDir    = "net"

	startTime  = 30 * time.Second // for a shim to record its first status
	killMargin = 15 * time.Second // beyond the grace, before the shim itself is killed
	apiPort    = 7070
	proxyPort  = 7079
)

// Config of a Driver.
type Config struct {
	Dir    string // of the workloads' directories; made, for our user only
	Worker string // path of falaj-worker

	// Level is the least isolation; a workload that asks for more gets more.
	Level sandbox.Level
	// Limits are given to every workload beside what its Resources say: CPU,
	// CPUs, Memory and Wall here are ignored.
	Limits sandbox.Limits
	// Disk is what workloads may keep on disk.
	Disk Disk
	// LogLimit bounds one workload's log, in bytes; 0 is 64 MiB.
	LogLimit int64
	// API is served to workloads with Network.API.
	API http.Handler
	// Images gives the roots of workloads with an image; nil refuses them.
	// Runtime is the program that runs them; empty is runc on the PATH.
	Images  Images
	Runtime string
	// Guard lists paths (the server's data directory) of which an attempt to
	// open is a Denial. Dir is always among them.
	Guard []string
	// OnDenial is told, after the fact, that Denials has something new.
	OnDenial func(h engine.Handle)
	// Facts of this machine; read when they are zero.
	Facts machine.Facts
	// Accelerators of this machine; nil is none but what a pool declares.
	Accelerators machine.Inventory
	Log          *slog.Logger
	// Connections bounds those of the workloads to the API and the proxy; nil does not.
	Connections *share.Connections
}

// Driver is the engine. Close it when it is no longer used; the workloads run
// on.
type Driver struct {
	c      Config
	cpus   []int // that we may run on
	api    *http.Server
	tail   *tail
	shims  *shims
	askMPS func(pipe, command string) (string, error) // nil is the real one

	choosing   sync.Mutex    // one Start at a time chooses a user and cores
	startSlots chan struct{} // holds as many as may be started at once

	mu        sync.Mutex
	workloads map[engine.Handle]*workload
	open      map[engine.Handle]*workload // of these, those not known to have ended; there may be a million others
	starting  map[engine.Handle]*birth
	closed    bool
	stopped   chan struct{} // closed with it
}

// birth is a workload that is being started: its user and cores are allocated.
type birth struct {
	*workload
	described bool          // its directory existed already: the server stopped before it started the shim
	over      chan struct{} // closed when the start has succeeded or failed
}

// New opens the directory and finds the workloads in it again.
func New(c Config) (*Driver, error) {
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, err
	}
	if c.Worker, err = filepath.Abs(c.Worker); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.API == nil {
		c.API = http.NotFoundHandler()
	}
	if c.Facts.CPU.Threads == 0 {
		c.Facts = machine.Read("/")
	}
	if c.Accelerators == nil {
		c.Accelerators = machine.None{}
	}
	if c.Level > sandbox.Sandbox {
		return nil, fault.New(fault.Unsupported, "the local engine does not provide isolation %s", c.Level)
	}
	c.Runtime = cmp.Or(c.Runtime, "runc")
	c.Disk.setDefaults()
	c.Guard = append(slices.Clone(c.Guard), c.Dir)
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "making the directory of workloads")
	}
	d := &Driver{c: c, workloads: map[engine.Handle]*workload{}, open: map[engine.Handle]*workload{}, starting: map[engine.Handle]*birth{}, startSlots: make(chan struct{}, 2*runtime.NumCPU()), stopped: make(chan struct{})}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		for i := range 1024 {
			if set.IsSet(i) {
				d.cpus = append(d.cpus, i)
			}
		}
	}
	d.api = &http.Server{
		Handler: c.API, ReadHeaderTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog:  slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		Protocols: new(http.Protocols),
	}
	d.api.Protocols.SetHTTP1(true)
	d.api.Protocols.SetUnencryptedHTTP2(true) // Arrow Flight
	c.Connections.Serve(d.api)
	counted := d.api.ConnContext // nil without Connections
	d.api.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if counted != nil {
			ctx = counted(ctx, c)
		}
		if limited, ok := c.(*share.Conn); ok {
			c = limited.Conn
		}
		if of, ok := c.(ofWorkload); ok {
			return identity.Through(ctx, of.id)
		}
		return ctx
	}
	d.shims = &shims{worker: c.Worker, stderr: filepath.Join(c.Dir, errorFile)}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fault.Wrap(err, "watching the workloads' logs")
	}
	d.tail = newTail(watcher)
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "listing workloads"), d.Close())
	}
	for _, e := range entries {
		if !e.IsDir() || !idRE.MatchString(e.Name()) {
			continue
		}
		dir := filepath.Join(c.Dir, e.Name())
		w, err := d.load(e.Name())
		if errors.Is(err, fs.ErrNotExist) && d.newWorkload(e.Name(), shim.Spec{}, extras{}).never() {
			// Start died before it had written the specification; no handle exists.
			_ = os.RemoveAll(dir)
			continue
		}
		if err != nil {
			c.Log.Warn("a workload's directory cannot be read; the workload is unknown until its process has ended", slog.String("id", e.Name()), slog.Any("err", err))
			w = d.unreadable(e.Name(), err)
		}
		d.hold(w)
		d.attach(w)
	}
	go d.watchPressure()
	return d, nil
}

// Close stops serving and watching; workloads run on. It may be called twice.
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	close(d.stopped)
	all := slices.Collect(maps.Values(d.workloads))
	d.mu.Unlock()
	d.shims.close()
	err := errors.Join(d.api.Close(), d.tail.close())
	for _, w := range all {
		w.detach()
	}
	return err
}

// IDs name directories.
var idRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)

// Start starts a workload, or finds the one with the spec's ID again.
//
// Errors besides those of engine.Driver: fault.Invalid for a spec that makes no
// sense; fault.Unsupported when this machine does not reach the isolation.
func (d *Driver) Start(ctx context.Context, spec engine.Spec) (h engine.Handle, err error) {
	h = engine.Handle(spec.ID)
	if !idRE.MatchString(spec.ID) {
		return "", fault.New(fault.Invalid, "workload id %q cannot name a directory", spec.ID)
	}
	image, release, err := d.container(ctx, &spec)
	if err != nil {
		return "", err
	}
	defer release()
	// Room first: who waits for it needs no user yet, and a few users' sandboxes
	// are made faster than those of many.
	select {
	case d.startSlots <- struct{}{}:
		defer func() { <-d.startSlots }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	b, s, x, furnish, err := d.conceive(ctx, spec, image)
	if err != nil {
		return "", err
	}
	if b == nil {
		return h, nil
	}
	defer func() { d.born(b, err == nil) }()
	if err := sandbox.Check(ctx, d.c.Worker, min(s.Policy.Level, sandbox.Sandbox)); err != nil {
		return "", err
	}
	if spec.Secrets {
		if err := d.shims.speaks(protocol.Secrets); err != nil {
			return "", err
		}
	}
	if b.described {
		if err := os.RemoveAll(b.dir); err != nil {
			return "", fault.Wrap(err, "removing a workload that never started")
		}
	}
	if err := d.spawn(ctx, b.workload, s, x, furnish); err != nil {
		return "", err
	}
	return h, nil
}

// conceive gives a workload its user and cores, which are its own until born is
// called. It gives none when the workload runs or has run.
func (d *Driver) conceive(ctx context.Context, spec engine.Spec, image *sandbox.Image) (_ *birth, s shim.Spec, x extras, furnish func(dir string) error, err error) {
	h := engine.Handle(spec.ID)
	d.choosing.Lock()
	defer d.choosing.Unlock()
	for {
		d.mu.Lock()
		w, other, closed := d.workloads[h], d.starting[h], d.closed
		d.mu.Unlock()
		switch {
		case closed:
			return nil, s, x, nil, fault.New(fault.Unavailable, "the local engine is shutting down")
		case other != nil:
			d.choosing.Unlock()
			select {
			case <-other.over:
			case <-ctx.Done():
			}
			d.choosing.Lock()
			if ctx.Err() != nil {
				return nil, s, x, nil, ctx.Err()
			}
			continue
		case w != nil && !w.unborn():
			return nil, s, x, nil, nil
		}
		if s, x, furnish, err = d.translate(spec, image); err != nil {
			return nil, s, x, nil, err
		}
		b := &birth{workload: d.newWorkload(spec.ID, s, x), described: w != nil, over: make(chan struct{})}
		d.mu.Lock()
		d.starting[h] = b
		d.mu.Unlock()
		return b, s, x, furnish, nil
	}
}

// born ends a birth, well or not.
func (d *Driver) born(b *birth, well bool) {
	d.mu.Lock()
	delete(d.starting, b.handle)
	if well {
		d.hold(b.workload)
	}
	d.mu.Unlock()
	close(b.over)
}

// translate makes the shim's spec, what this driver remembers, and what puts
// the rest of what the workload needs into its directory.
func (d *Driver) translate(spec engine.Spec, image *sandbox.Image) (shim.Spec, extras, func(dir string) error, error) {
	p, err := d.policy(spec, image)
	if err != nil {
		return shim.Spec{}, extras{}, nil, err
	}
	cores, err := d.limit(spec, &p)
	if err != nil {
		return shim.Spec{}, extras{}, nil, err
	}
	if p.Limits.Nodes, err = d.near(spec.Options, p.Limits.CPUs, p.Limits.Memory); err != nil {
		return shim.Spec{}, extras{}, nil, err
	}
	files, shown, devices, err := d.equip(spec, p.Level, p.Env)
	if err != nil {
		return shim.Spec{}, extras{}, nil, err
	}
	p.Limits.Processes = d.tasks()
	disk := d.disk(spec)
	p.Limits.FileSize = cmp.Or(p.Limits.FileSize, fileSize(disk, p.Limits.Memory))
	p.Devices = files
	p.Mounts = append(p.Mounts, pipes(spec)...)
	x := extras{Network: spec.Network, Image: spec.Image, Gang: supervised(spec), Devices: devices, Project: spec.Project, Shared: spec.Total().Accelerators[machine.ResourceShared] > 0}
	argv, furnish := spec.Command, func(string) error { return nil }
	if x.Gang {
		var mounts []sandbox.Mount
		argv, mounts = d.supervise(spec.ID)
		p.Mounts = append(p.Mounts, mounts...)
		g := gangOf(spec, filepath.Join(d.c.Dir, spec.ID, gangDir), cores, shown)
		for i := range g.Members {
			if g.Members[i].Nodes, err = d.near(spec.Options, g.Members[i].CPUs, spec.Of(i).Memory); err != nil {
				return shim.Spec{}, extras{}, nil, err
			}
		}
		furnish = func(dir string) error { return place(dir, g, spec.Mounts) }
	}
	if err := p.Validate(); err != nil {
		return shim.Spec{}, extras{}, nil, err
	}
	return shim.Spec{
		ID: spec.ID, Argv: argv, Policy: p, Timeout: spec.Timeout, Grace: spec.Grace, LogLimit: d.c.LogLimit, Disk: disk,
	}, x, furnish, nil
}

// limit sets what all workers may use together, and gives the cores of each.
func (d *Driver) limit(spec engine.Spec, p *sandbox.Policy) ([][]int, error) {
	r := spec.Total()
	p.Limits.CPU, p.Limits.Memory, p.Limits.CPUs, p.Limits.Wall = r.CPU, r.Memory, nil, 0
	if r.CPU == 0 {
		return nil, d.tune(spec.Options, 0, p.Env)
	}
	threads := make([]int, spec.Size())
	for i := range threads {
		threads[i] = min(int((spec.Of(i).CPU+999)/1000), max(len(d.cpus), 1))
	}
	var cores [][]int
	p.Limits.CPUs, cores = d.pickCPUs(threads)
	return cores, d.tune(spec.Options, max(slices.Min(threads)/max(spec.Launch.Processes, 1), 1), p.Env)
}

// policy is what a workload may see and reach.
func (d *Driver) policy(spec engine.Spec, image *sandbox.Image) (sandbox.Policy, error) {
	none := sandbox.Policy{}
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return none, fault.New(fault.Invalid, "workload %s has no command", spec.ID)
	}
	if err := spec.CheckAmounts(); err != nil {
		return none, err
	}
	if spec.Timeout < 0 || spec.Grace < 0 {
		return none, fault.New(fault.Invalid, "workload %s: time-out and grace must not be negative", spec.ID)
	}
	if err := checkGang(spec); err != nil {
		return none, err
	}
	level := d.c.Level
	if spec.Isolation != "" {
		want, err := sandbox.ParseLevel(spec.Isolation)
		if err != nil {
			return none, err
		}
		level = max(level, want)
	}
	if image != nil {
		level = max(level, sandbox.Container)
	}
	p := sandbox.Policy{
		Level: level, Name: spec.ID, Dir: spec.Dir, Env: maps.Clone(spec.Env), Guard: d.c.Guard,
		Limits: d.c.Limits, Image: image,
	}
	if p.Env == nil {
		p.Env = map[string]string{}
	}
	if err := alone(spec, level, p.Env); err != nil {
		return none, err
	}
	for _, m := range spec.Mounts {
		if _, err := os.Stat(m.Path); err != nil {
			return none, fault.New(fault.Invalid, "mount %s: %w", m.Path, err)
		}
		p.Mounts = append(p.Mounts, sandbox.Mount{Path: m.Path, Writable: m.Writable})
	}
	p.UID = d.pickUID()
	allow, err := egress.ParseAllow(spec.Network.Allow)
	if err != nil {
		return none, err
	}
	dir := filepath.Join(d.c.Dir, spec.ID, netDir)
	if spec.Network.API {
		p.Network.Forwards = append(p.Network.Forwards, sandbox.Forward{
			Port: apiPort, Socket: filepath.Join(dir, apiSocket), Env: []string{"FALAJ_URL", "MLFLOW_TRACKING_URI"},
		})
	}
	if len(spec.Network.Allow) > 0 {
		p.Network.Names = allow.Hosts()
		p.Network.Forwards = append(p.Network.Forwards, sandbox.Forward{
			Port: proxyPort, Socket: filepath.Join(dir, proxySocket),
			Env: []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"},
		})
		for _, name := range []string{"NO_PROXY", "no_proxy"} {
			if _, given := p.Env[name]; !given {
				p.Env[name] = "127.0.0.1,localhost"
			}
		}
	}
	return p, nil
}

// pickCPUs chooses cores, so many for each worker, near each other among those that
// the fewest workloads are bound to; nil where that is all of them, and the workers
// share.
func (d *Driver) pickCPUs(counts []int) (all []int, each [][]int) {
	n := 0
	for _, c := range counts {
		n += c
	}
	if n > len(d.cpus) || n == len(d.cpus) && len(counts) == 1 {
		return nil, nil
	}
	use := map[int]int{}
	for _, w := range d.live() {
		for _, c := range w.cpus {
			use[c]++
		}
	}
	each = machine.Spread(d.c.Facts.CPU.Topology, d.cpus, use, counts...)
	return slices.Sorted(slices.Values(slices.Concat(each...))), each
}

// pickUID chooses a user that no live workload has.
func (d *Driver) pickUID() int {
	taken := map[int]bool{sandbox.DefaultUID: true}
	for _, w := range d.live() {
		taken[w.uid] = true
	}
	uid := sandbox.DefaultUID
	for taken[uid] {
		uid++
	}
	return uid
}

// live are the workloads that have a user and cores, also those on their way.
func (d *Driver) live() []*workload {
	d.mu.Lock()
	defer d.mu.Unlock()
	live := d.notOver()
	for _, b := range d.starting {
		live = append(live, b.workload)
	}
	return live
}

// hold registers a workload. The caller holds mu, or is the only user of the driver so far.
func (d *Driver) hold(w *workload) {
	d.workloads[w.handle], d.open[w.handle] = w, w
}

// notOver are the workloads of which something runs. The caller holds mu.
func (d *Driver) notOver() (all []*workload) {
	for h, w := range d.open {
		if w.over() {
			delete(d.open, h)
			continue
		}
		all = append(all, w)
	}
	return all
}

// acceleratorDevices are the device files of the accelerators asked for. Which
// of several GPUs is chosen by the program that sets CUDA_VISIBLE_DEVICES; numbers in it
// narrow what is visible.
func acceleratorDevices(accelerators map[string]int64, env map[string]string) []string {
	nvidia := false
	for name, n := range accelerators {
		nvidia = nvidia || n > 0 && strings.HasPrefix(name, "nvidia.com/")
	}
	if !nvidia {
		return nil
	}
	numbers := map[string]bool{}
	for n := range strings.SplitSeq(env["CUDA_VISIBLE_DEVICES"], ",") {
		if _, err := strconv.Atoi(n); err == nil {
			numbers["/dev/nvidia"+n] = true
		}
	}
	var devices []string
	found, _ := filepath.Glob("/dev/nvidia*")
	for _, p := range found {
		fi, err := os.Stat(p)
		if err != nil || fi.Mode()&fs.ModeCharDevice == 0 || p == "/dev/nvidia-modeset" {
			continue
		}
		if _, err := strconv.Atoi(strings.TrimPrefix(p, "/dev/nvidia")); err == nil && len(numbers) > 0 && !numbers[p] {
			continue
		}
		devices = append(devices, p)
	}
	return devices
}

func (d *Driver) find(h engine.Handle) (*workload, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.workloads[h]; w != nil {
		return w, nil
	}
	return nil, fault.New(fault.NotFound, "the local engine has no workload %q", string(h))
}

// Status reads what the shim has recorded.
func (d *Driver) Status(_ context.Context, h engine.Handle) (engine.Status, error) {
	w, err := d.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	return w.status(), nil
}

// Wait waits for the shim's end.
func (d *Driver) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
	w, err := d.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	select {
	case <-w.done:
		return w.status(), nil
	case <-w.detached:
		return engine.Status{}, fault.New(fault.Unavailable, "the local engine is shutting down")
	case <-ctx.Done():
		return engine.Status{}, ctx.Err()
	}
}

// Stop has the shim stop its program. If the shim does not answer in time it
// is killed, which kills the program.
func (d *Driver) Stop(ctx context.Context, h engine.Handle, grace time.Duration) error {
	w, err := d.find(h)
	if err != nil || w.over() {
		return err
	}
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	if err != nil && w.damaged != nil {
		st.Shim, _ = w.living()
		err = nil
	}
	if err != nil {
		return fault.New(fault.Unavailable, "workload %s is still being started", h)
	}
	// On a full disk the order may have no room: then the shim takes the grace of its spec.
	if err := shim.Write(w.dir, shim.StopFile, shim.Stop{Grace: max(grace, 0)}); err != nil {
		d.c.Log.WarnContext(ctx, "the order to stop a workload cannot be recorded", slog.String("id", w.id), slog.Any("err", err))
	}
	if err := w.signal(st.Shim, syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fault.Wrap(err, "stopping %s", h)
	}
	late := time.NewTimer(max(grace, 0) + killMargin)
	defer late.Stop()
	for {
		select {
		case <-w.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-w.detached:
			return fault.New(fault.Unavailable, "the local engine is shutting down")
		case <-late.C:
			d.c.Log.WarnContext(ctx, "a shim does not stop its workload; killing it", slog.String("id", w.id))
			_ = w.signal(st.Shim, syscall.SIGKILL)
			_ = w.signal(st.Init, syscall.SIGKILL)
			late.Reset(killMargin)
		}
	}
}

// Logs reads the log file.
func (d *Driver) Logs(ctx context.Context, h engine.Handle, offset int64, follow bool) (io.ReadCloser, error) {
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fault.New(fault.Invalid, "log offset %d is negative", offset)
	}
	return d.tail.open(ctx, filepath.Join(w.dir, shim.LogFile), offset, follow, w)
}

// List gives all workloads that were not forgotten, sorted.
func (d *Driver) List(context.Context) ([]engine.Handle, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.workloads)), nil
}

// Live implements engine.Liver.
func (d *Driver) Live(context.Context) ([]engine.Handle, error) {
	var all []engine.Handle
	for _, w := range d.live() {
		all = append(all, w.handle)
	}
	slices.Sort(all)
	return all, nil
}

// Forget removes the directory of an ended workload; fault.Conflict when it
// still runs.
func (d *Driver) Forget(_ context.Context, h engine.Handle) error {
	w, err := d.find(h)
	if err != nil {
		return err
	}
	if !w.over() {
		return fault.New(fault.Conflict, "workload %s is still running", h).WithHint("Stop it first.")
	}
	d.mu.Lock()
	delete(d.workloads, h)
	delete(d.open, h)
	d.mu.Unlock()
	d.tail.forget(w.dir)
	return fault.Wrap(os.RemoveAll(w.dir), "removing the traces of %s", h)
}

// Denials reads the refused attempts from an index on.
func (d *Driver) Denials(_ context.Context, h engine.Handle, from int) ([]engine.Denial, error) {
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(w.dir, shim.DenialsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "reading the denials of %s", h)
	}
	defer f.Close()
	var all []engine.Denial
	r := bufio.NewReader(f)
	for n := 0; ; n++ {
		line, err := r.ReadBytes('\n')
		if err != nil { // the rest is a line that is still being written
			return all, nil
		}
		if n < from {
			continue
		}
		var x sandbox.Denial
		if err := json.Unmarshal(line, &x); err != nil {
			x = sandbox.Denial{Kind: "open", Target: "(an unreadable record)"} // keeps the indexes true
		}
		all = append(all, engine.Denial(x))
	}
}

var (
	_ engine.Driver  = (*Driver)(nil)
	_ engine.Denials = (*Driver)(nil)
	_ engine.Liver   = (*Driver)(nil)
)
