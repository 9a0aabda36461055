package remote

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/egress"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// Driver is the engine. Close it when it is no longer used; the workloads run on.
type Driver struct {
	c     Config
	level sandbox.Level
	down  chan struct{} // closed by Close
	wake  chan struct{}
	loops sync.WaitGroup

	nodes *book

	starting [64]sync.Mutex // by id: one Start of a workload at a time

	// gate is held for reading while an agent's request writes: after Close
	// nothing is written, since another process may have opened the directory.
	gate sync.RWMutex

	mu     sync.Mutex
	works  map[string]*work
	unread map[string]*unreadable // workloads with directories that cannot be read
	closed bool
}

// writing lets a request write, until done is called.
func (d *Driver) writing() (done func(), err error) {
	d.gate.RLock()
	select {
	case <-d.down:
		d.gate.RUnlock()
		return nil, fault.New(fault.Unavailable, "engine %s is shutting down", d.c.Name)
	default:
		return d.gate.RUnlock, nil
	}
}

// New opens the directory, finds the workloads in it again and begins to watch
// them.
func New(c Config) (*Driver, error) {
	c = c.orDefault()
	level, err := sandbox.ParseLevel(c.Isolation)
	if err != nil {
		return nil, err
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "making the directory of %s's workloads", c.Name)
	}
	d := &Driver{c: c, level: level, down: make(chan struct{}), wake: make(chan struct{}, 1), works: map[string]*work{}, unread: map[string]*unreadable{}, nodes: openBook(c.Dir, c.Log)}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fault.Wrap(err, "listing %s's workloads", c.Name)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), hidden) { // a start without a handle, or a forgotten workload
			_ = os.RemoveAll(filepath.Join(c.Dir, e.Name()))
			continue
		}
		if !e.IsDir() || !idRE.MatchString(e.Name()) {
			continue
		}
		w, err := load(&d.c, e.Name())
		if err != nil {
			c.Log.Warn("a workload's directory cannot be read; the workload is unknown until its engine says that it has ended",
				slog.String("engine", c.Name), slog.String("id", e.Name()), slog.Any("error", err))
			d.unread[e.Name()] = &unreadable{id: e.Name(), err: err}
			continue
		}
		d.works[w.id] = w
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-d.down; cancel() }()
	d.loops.Go(func() { d.watch(ctx) })
	return d, nil
}

// Hub is where the agents of this driver's workloads report.
func (d *Driver) Hub() *Hub { return &Hub{d} }

// Close stops watching; workloads run on. It may be called twice.
func (d *Driver) Close() error {
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed {
		return nil
	}
	d.gate.Lock()
	close(d.down)
	d.gate.Unlock()
	d.loops.Wait()
	var errs []error
	for _, w := range d.all() {
		if !w.over() {
			errs = append(errs, w.log.close())
		}
	}
	if c, ok := d.c.Launcher.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// IDs name directories and jobs.
var idRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)

// Start starts a workload, or finds the one with the spec's ID again.
//
// Errors besides those of engine.Driver: fault.Invalid for a spec that makes no
// sense; fault.Unsupported when the engine does not reach the isolation.
func (d *Driver) Start(ctx context.Context, spec engine.Spec) (engine.Handle, error) {
	if !idRE.MatchString(spec.ID) {
		return "", fault.New(fault.Invalid, "workload id %q cannot name a job", spec.ID)
	}
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, spec.ID)
	lock := &d.starting[sum.Sum32()%uint32(len(d.starting))]
	lock.Lock()
	defer lock.Unlock()
	h := engine.Handle(spec.ID)
	d.mu.Lock()
	w, closed := d.works[spec.ID], d.closed
	d.mu.Unlock()
	if closed {
		return "", fault.New(fault.Unavailable, "engine %s is shutting down", d.c.Name)
	}
	if u := d.unreadable(h); u != nil {
		if started, err := d.adopt(ctx, u); err != nil || started {
			return h, err
		}
	}
	if w == nil {
		if err := d.check(spec); err != nil {
			return "", err
		}
		w = newWork(&d.c, spec)
		if err := w.record(); err != nil {
			return "", fault.Wrap(err, "recording what to run for %s", spec.ID)
		}
		d.mu.Lock()
		d.works[spec.ID] = w
		d.mu.Unlock()
	}
	w.mu.Lock()
	settled := !w.state.Launched.IsZero() || w.state.Stop != nil || w.state.Final != nil
	w.mu.Unlock()
	if settled {
		return h, nil
	}
	if err := d.c.Launcher.Start(ctx, d.launch(w.spec)); err != nil {
		if !transient(err) { // the engine has refused it: there is nothing to find again
			d.drop(w)
			err = engine.Refuse(err)
		}
		return "", fault.Wrap(err, "starting on %s", d.c.Name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Launched = d.c.Now().UTC()
	if err := w.save(); err != nil {
		return "", err
	}
	d.nudge()
	return h, nil
}

func transient(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.Unsupported, fault.PermissionDenied, fault.TooLarge:
		return false
	default:
		return true
	}
}

func (d *Driver) check(spec engine.Spec) error {
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return fault.New(fault.Invalid, "workload %s has no command", spec.ID)
	}
	if spec.Workers < 0 || spec.Workers > launch.MaxWorkers {
		return fault.New(fault.Invalid, "workload %s: %d workers are not between 1 and %d", spec.ID, spec.Workers, launch.MaxWorkers)
	}
	if err := spec.CheckAmounts(); err != nil {
		return err
	}
	if spec.Timeout < 0 || spec.Grace < 0 {
		return fault.New(fault.Invalid, "workload %s: time-out and grace must not be negative", spec.ID)
	}
	if spec.Isolation != "" {
		want, err := sandbox.ParseLevel(spec.Isolation)
		if err != nil {
			return err
		}
		if want > d.level {
			return fault.New(fault.Unsupported, "engine %s does not provide isolation %s, only %s", d.c.Name, want, d.level)
		}
	}
	for _, m := range spec.Mounts {
		if !filepath.IsAbs(m.Path) {
			return fault.New(fault.Invalid, "mount %q is not an absolute path", m.Path)
		}
		if _, err := os.Stat(m.Path); err != nil {
			return fault.New(fault.Invalid, "mount %s: %w", m.Path, err)
		}
	}
	for k, v := range spec.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fault.New(fault.Invalid, "%q is not the name of a variable, or its value has a NUL byte", k)
		}
	}
	_, err := egress.ParseAllow(spec.Network.Allow)
	return err
}

// launch is what the launcher starts.
func (d *Driver) launch(spec engine.Spec) Launch {
	agent := map[string]string{
		protocol.EnvURL:   strings.TrimSuffix(d.c.URL, "/") + "/api/v1/projects/" + spec.Project + "/workloads/" + spec.ID + "/worker/",
		protocol.EnvToken: spec.Env["FALAJ_TOKEN"],
		protocol.EnvLease: d.c.Lease.String(),
	}
	if ca := d.c.CA(); ca != "" {
		agent[protocol.EnvCA] = ca
	}
	for option, name := range map[string]string{"node_dir": protocol.EnvDir, "node_cache": protocol.EnvCache, "node_cache_size": protocol.EnvLimit} {
		if v := spec.Options[option]; v != "" {
			agent[name] = v
		}
	}
	return Launch{ID: spec.ID, Spec: spec, Workers: max(spec.Workers, 1), Agent: agent}
}

func (d *Driver) find(h engine.Handle) (*work, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fault.New(fault.Unavailable, "engine %s is shutting down", d.c.Name)
	}
	if w := d.works[string(h)]; w != nil {
		return w, nil
	}
	if u := d.unread[string(h)]; u != nil {
		return nil, fault.New(fault.Unavailable, "workload %s: %s", h, u.words(d.c.Name))
	}
	return nil, fault.New(fault.NotFound, "engine %s has no workload %q", d.c.Name, string(h))
}

func (d *Driver) all() []*work {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.works))
}

func (d *Driver) drop(w *work) {
	d.mu.Lock()
	delete(d.works, w.id)
	d.mu.Unlock()
	if !w.over() {
		_ = w.log.close()
	}
	// Out of sight first: half a directory would be another workload after a
	// crash. What is left is removed at the next start.
	gone := filepath.Join(d.c.Dir, hidden+"gone-"+w.id)
	_ = os.RemoveAll(gone)
	if os.Rename(w.dir, gone) == nil {
		_ = os.RemoveAll(gone)
	}
}

// background runs f unless the driver was closed, which waits for it.
func (d *Driver) background(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.loops.Go(f)
	}
}

// nudge asks the loop to look soon.
func (d *Driver) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// watch polls the engine for all workloads that have not ended, and acts on the changes.
func (d *Driver) watch(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lastError, last := "", time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
			// Many starts and ends within a moment need only one poll.
			if early := d.c.Poll/4 - time.Since(last); early > 0 {
				timer.Reset(early)
				continue
			}
		case <-timer.C:
		}
		live, err := d.poll(ctx)
		last = time.Now()
		switch {
		case err != nil && ctx.Err() == nil && err.Error() != lastError: // once, not every second
			lastError = err.Error()
			d.c.Log.WarnContext(ctx, "the engine does not respond", slog.String("engine", d.c.Name), slog.Any("error", err))
		case err == nil:
			lastError = ""
		}
		if live {
			timer.Reset(d.c.Poll)
		}
	}
}

// look is one round; false when there is nothing to watch.
func (d *Driver) poll(ctx context.Context) (live bool, err error) {
	var ids []string
	works := d.all()
	works = slices.DeleteFunc(works, func(w *work) bool { return w.over() })
	for _, w := range works {
		w.mu.Lock()
		if !w.state.Launched.IsZero() || w.state.Stop != nil {
			ids = append(ids, w.id)
		}
		w.mu.Unlock()
	}
	if len(works) == 0 {
		return false, nil
	}
	var seen map[string]Observed
	if len(ids) > 0 {
		octx, cancel := context.WithTimeout(ctx, 30*time.Second)
		seen, err = d.c.Launcher.Observe(octx, ids)
		cancel()
	}
	now := d.c.Now()
	var stops errgroup.Group // an engine that hangs holds up one of its workloads as long as all
	stops.SetLimit(8)
	for _, w := range works {
		w.mu.Lock()
		if o, ok := seen[w.id]; ok && err == nil {
			w.observe(o, now)
			for _, m := range w.place(o) {
				d.nodes.learn(m.Join.Node, m.Join.Facts, d.c.Log)
			}
		}
		act := d.advance(w, now)
		w.mu.Unlock()
		if act.force {
			stops.Go(func() error { d.force(ctx, w, act.grace); return nil })
		}
	}
	_ = stops.Wait()
	return true, err
}

// observe takes what the engine says. The caller holds mu.
func (w *work) observe(o Observed, now time.Time) {
	if !w.state.Forced.IsZero() && w.observed.Reason != "" && o.Reason == "" {
		return // it is being taken away: what was said before counts
	}
	over := o.State == engine.Ended || o.State == engine.Lost
	switch {
	case !over:
		w.gone = time.Time{}
	case w.gone.IsZero():
		w.gone = now
	}
	if o.State == engine.Lost && o.Reason == "" && w.observed.Reason != "" {
		return // the engine has forgotten it: its earlier report counts
	}
	w.observed = o
}

// advance settles and records. It returns what remains to be done without the lock. The caller holds
// mu.
func (d *Driver) advance(w *work, now time.Time) next {
	n := w.settle(now)
	for i, why := range n.lose {
		w.members[i].Lost, w.members[i].Ended = why, now.UTC()
		if err := w.saveMember(i); err != nil {
			d.c.Log.Error("a workload cannot be recorded", slog.String("id", w.id), slog.Any("error", err))
			return next{}
		}
	}
	if len(n.lose) > 0 {
		w.notify()
	}
	if n.stop != nil {
		w.state.Stop = n.stop
		if err := w.save(); err != nil {
			w.state.Stop = nil
			d.c.Log.Error("a workload cannot be recorded", slog.String("id", w.id), slog.Any("error", err))
			return next{}
		}
		w.notify()
	}
	if n.final != nil && !w.finish {
		w.finish = true
		final := *n.final
		d.background(func() { d.finish(w, final) })
	}
	return n
}

// force has the engine end a launch.
func (d *Driver) force(ctx context.Context, w *work, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := d.c.Launcher.Stop(ctx, w.id, grace); err != nil && !fault.Is(err, fault.NotFound) {
		d.c.Log.WarnContext(ctx, "the engine did not stop a workload", slog.String("engine", d.c.Name), slog.String("id", w.id), slog.Any("error", err))
		return // the next round tries again
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Forced = d.c.Now().UTC()
	if err := w.save(); err != nil {
		w.state.Forced = time.Time{}
	}
	d.nudge()
}

// finish takes what the members left, and records the end. What cannot be taken
// is tried again by the next rounds for as long as the lease.
func (d *Driver) finish(w *work, final engine.Status) {
	err := w.takeOutputs()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := d.c.Now(); err != nil {
		if w.failed.IsZero() {
			w.failed = now
			d.c.Log.Warn("the files of a workload cannot be stored yet", slog.String("id", w.id), slog.Any("error", err))
		}
		if now.Sub(w.failed) < d.c.Lease {
			w.finish = false
			return
		}
	}
	if err != nil {
		final.State, final.Reason, final.ExitCode = engine.Lost, "", -1
		final.Message = strings.TrimSpace(final.Message + "\nits output cannot be stored: " + err.Error())
	}
	w.clearTrees()
	w.state.Final = &final
	if err := w.save(); err != nil {
		w.state.Final, w.finish = nil, false
		d.c.Log.Error("a workload's end cannot be recorded", slog.String("id", w.id), slog.Any("error", err))
		return
	}
	_ = w.log.close()
	close(w.done)
	w.notify()
}

// Status says what is known now.
func (d *Driver) Status(ctx context.Context, h engine.Handle) (engine.Status, error) {
	if u := d.unreadable(h); u != nil {
		st, _, err := d.ended(ctx, u)
		return st, err
	}
	w, err := d.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now(), nil
}

// Wait waits for the end.
func (d *Driver) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
	if u := d.unreadable(h); u != nil {
		return d.await(ctx, u)
	}
	w, err := d.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	select {
	case <-w.done:
		return d.Status(ctx, h)
	case <-d.down:
		return engine.Status{}, fault.New(fault.Unavailable, "engine %s is shutting down", d.c.Name)
	case <-ctx.Done():
		return engine.Status{}, ctx.Err()
	}
}

// Stop tells the members, and the engine if they do not end in time.
func (d *Driver) Stop(ctx context.Context, h engine.Handle, grace time.Duration) error {
	if u := d.unreadable(h); u != nil {
		if err := d.c.Launcher.Stop(ctx, u.id, max(grace, 0)); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		_, err := d.await(ctx, u)
		return err
	}
	w, err := d.find(h)
	if fault.Is(err, fault.NotFound) {
		return d.stopUnknown(ctx, h, grace, err)
	}
	if err != nil || w.over() {
		return err
	}
	grace = max(grace, 0)
	w.mu.Lock()
	before := w.state.Stop
	now := d.c.Now()
	if before == nil || grace < before.Grace-now.Sub(before.At) {
		st := stop{At: now.UTC(), Grace: grace, Why: "it is stopping", Asked: true}
		if before != nil { // only sooner: why stays
			st.Why, st.Asked, st.Done, st.Cause = before.Why, before.Asked, before.Done, before.Cause
		}
		w.state.Stop = &st
		if err := w.save(); err != nil {
			w.state.Stop = before
			w.mu.Unlock()
			return err
		}
		w.notify()
	}
	w.mu.Unlock()
	d.nudge()
	_, err = d.Wait(ctx, h)
	return err
}

// stopUnknown stops what the engine holds for this Falaj and no directory knows.
func (d *Driver) stopUnknown(ctx context.Context, h engine.Handle, grace time.Duration, unknown error) error {
	held, err := d.c.Launcher.List(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(held, string(h)) {
		return unknown
	}
	return d.c.Launcher.Stop(ctx, string(h), grace)
}

// Logs reads the log of all members.
func (d *Driver) Logs(ctx context.Context, h engine.Handle, offset int64, follow bool) (io.ReadCloser, error) {
	if u := d.unreadable(h); u != nil {
		return nil, fault.New(fault.Gone, "the log of workload %s cannot be read: %w", h, u.err)
	}
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fault.New(fault.Invalid, "log offset %d is negative", offset)
	}
	return w.read(ctx, offset, follow, d.down)
}

// List gives what has a directory and what the engine holds, sorted.
func (d *Driver) List(ctx context.Context) ([]engine.Handle, error) {
	held, err := d.c.Launcher.List(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "listing what %s holds", d.c.Name)
	}
	all := map[engine.Handle]bool{}
	for _, id := range held {
		all[engine.Handle(id)] = true
	}
	for _, w := range d.all() {
		all[engine.Handle(w.id)] = true
	}
	d.mu.Lock()
	for id := range d.unread {
		all[engine.Handle(id)] = true
	}
	d.mu.Unlock()
	return slices.Sorted(maps.Keys(all)), nil
}

// Forget removes what is kept of an ended workload, here and on the engine;
// fault.Conflict when it still runs.
func (d *Driver) Forget(ctx context.Context, h engine.Handle) error {
	if u := d.unreadable(h); u != nil {
		if _, over, err := d.ended(ctx, u); err != nil || !over {
			return errors.Join(err, fault.New(fault.Conflict, "workload %s may still be running", h).WithHint("Stop it first."))
		}
		if err := d.c.Launcher.Forget(ctx, u.id); err != nil && !fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "removing %s on %s", h, d.c.Name)
		}
		d.discard(u)
		return nil
	}
	w, err := d.find(h)
	if fault.Is(err, fault.NotFound) {
		held, lerr := d.c.Launcher.List(ctx)
		if lerr != nil || !slices.Contains(held, string(h)) {
			return errors.Join(err, lerr)
		}
		return d.c.Launcher.Forget(ctx, string(h))
	}
	if !w.over() {
		return fault.New(fault.Conflict, "workload %s is still running", h).WithHint("Stop it first.")
	}
	if err := d.c.Launcher.Forget(ctx, w.id); err != nil && !fault.Is(err, fault.NotFound) {
		return fault.Wrap(err, "removing %s on %s", h, d.c.Name)
	}
	d.drop(w)
	return nil
}

// Members says what is known of each worker.
func (d *Driver) Members(ctx context.Context, h engine.Handle) ([]engine.Member, error) {
	if u := d.unreadable(h); u != nil {
		st, over, err := d.ended(ctx, u)
		if err != nil || over {
			return nil, err
		}
		return []engine.Member{{State: st.State, Started: st.Started, Notes: []string{st.Message}}}, nil
	}
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	return w.known(), nil
}

// Facts are what the agents found on the nodes of a workload, by worker.
func (d *Driver) Facts(_ context.Context, h engine.Handle) ([]map[string]string, error) {
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	out := make([]map[string]string, len(w.members))
	for i := range out {
		out[i] = w.facts(i)
	}
	return out, nil
}

// Explain says why a workload waits on its engine.
func (d *Driver) Explain(_ context.Context, h engine.Handle) ([]string, error) {
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.state.Begun.IsZero() {
		return nil, nil
	}
	return append(slices.Clone(w.observed.Words), w.unjoined(d.c.Now())...), nil
}

// unjoinedSoon is how long an agent may take to report after the engine has started it
// before the words say what may keep it from it.
const unjoinedSoon = 15 * time.Second

// unjoined says which workers of a launch that the engine has started have not joined.
// The caller holds mu.
func (w *work) unjoined(now time.Time) []string {
	if w.observed.State != engine.Running {
		return nil
	}
	missing, who := w.missing(), "the worker has"
	if w.gang() {
		who = fmt.Sprintf("%d of %d workers have", missing, len(w.members))
	}
	if missing == 0 {
		return nil
	}
	since := w.observed.Started
	if since.IsZero() {
		since = w.state.Launched
	}
	words := []string{fmt.Sprintf("%s runs it since %s, and %s not joined", w.c.Name, since.UTC().Format(time.RFC3339), who)}
	if now.Sub(since) > unjoinedSoon {
		words = append(words, fmt.Sprintf("A node must reach %s (engines.%s.url) and trust its certificate (engines.%s.ca)", w.c.URL, w.c.Name, w.c.Name))
	}
	return words
}

// Inventory gives the engine's nodes, with what agents found there; fault.Unsupported where it has no list.
func (d *Driver) Inventory(ctx context.Context, options map[string]string) ([]engine.Node, error) {
	if i, ok := d.c.Launcher.(engine.Inventory); ok {
		nodes, err := i.Inventory(ctx, options)
		d.nodes.addLabels(nodes)
		return nodes, err
	}
	return nil, fault.New(fault.Unsupported, "engine %s does not list its nodes", d.c.Name)
}

var (
	_ engine.Driver    = (*Driver)(nil)
	_ engine.Members   = (*Driver)(nil)
	_ engine.Explainer = (*Driver)(nil)
	_ engine.Inventory = (*Driver)(nil)
)
