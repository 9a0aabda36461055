package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/sketch"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	leaseName = "monitoring"
	leaseTime = 30 * time.Second
)

// watch is what this process knows of a monitor beyond the database: records read
// since the last write. It is thrown away, and read again, after any error.
type watch struct {
	m         Monitor
	watched   Watched
	progress  Progress
	panes     *panes
	cursor    prediction.Cursor
	labels    string
	skewed    int64
	dirty     int // records since written
	written   time.Time
	baselines map[int64]*baseline
}

// asMonitor is the principal that the loop reads with.
func asMonitor(ctx context.Context) context.Context {
	return identity.With(ctx, identity.Loop("monitor"))
}

func cutDataset(text string) (string, bool) { return strings.CutPrefix(text, "dataset:") }

// RunOnce reads what is new of every deployment that is watched, and closes the
// windows that are over. Where processes share the database, one of them does; the
// others return at once. A monitor that fails holds up no other; all errors come
// back.
func (s *Service) RunOnce(ctx context.Context) error {
	s.running.Lock()
	defer s.running.Unlock()
	ctx = asMonitor(ctx)
	if elected, err := s.elected(ctx); err != nil || !elected {
		return err
	}
	var all []Monitor
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.Store.All(ctx, tx)
		return err
	}); err != nil {
		return err
	}
	there := make(map[ID]bool, len(all))
	for _, m := range all {
		there[m.ID] = true
	}
	for id := range s.watches {
		if !there[id] {
			delete(s.watches, id)
		}
	}
	var failed error
	for len(all) > 0 && ctx.Err() == nil {
		if elected, err := s.elected(ctx); err != nil || !elected { // a long round renews the lease
			return errors.Join(failed, err)
		}
		more := all[:0]
		for _, m := range all {
			again, err := s.step(ctx, m)
			if err != nil {
				delete(s.watches, m.ID)
				if fault.Is(err, fault.Conflict) {
					continue // somebody changed something: the next round reads it anew
				}
				s.trouble(ctx, m, err)
				if !fault.Is(err, fault.Gone) { // a destroyed key comes back never: the status says so, the log need not
					failed = errors.Join(failed, fault.Wrap(err, "monitor %s in %s", m.Name, m.Project))
				}
			} else if again {
				more = append(more, m)
			}
		}
		all = more
	}
	return errors.Join(failed, s.trim(ctx))
}

// elected takes or renews the lease, and forgets what it knows without it.
func (s *Service) elected(ctx context.Context) (bool, error) {
	if !s.Elect && !s.DB.Shared() {
		return true, nil
	}
	if s.lease != nil && s.now().Sub(s.renewed) < leaseTime/3 {
		return true, nil
	}
	var err error
	if s.lease != nil {
		if err = s.lease.Renew(ctx); err == nil {
			s.renewed = s.now()
			return true, nil
		}
		s.lease = nil
		clear(s.watches)
		return false, err
	}
	lease, err := s.DB.Lease(ctx, leaseName, s.Holder, leaseTime)
	if fault.Is(err, fault.Conflict) {
		return false, nil // another process does it
	}
	if err != nil {
		return false, err
	}
	clear(s.watches) // another one may have gone on meanwhile
	s.lease, s.renewed = lease, s.now()
	return true, nil
}

// Release gives the lease back, so that another process takes over at once. It
// writes what is open first.
func (s *Service) Release(ctx context.Context) error {
	s.running.Lock()
	defer s.running.Unlock()
	var failed error
	for _, w := range s.watches {
		if w.dirty > 0 {
			failed = errors.Join(failed, s.commit(asMonitor(ctx), w, nil, nil))
		}
	}
	clear(s.watches)
	if s.lease != nil {
		failed = errors.Join(failed, s.lease.Release(ctx))
		s.lease = nil
	}
	return failed
}

// trim forgets old windows, once a day.
func (s *Service) trim(ctx context.Context) error {
	now := s.now()
	if now.Sub(s.trimmed) < 24*time.Hour {
		return nil
	}
	err := s.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		return s.Store.TrimWindows(ctx, tx, now.Add(-s.Keep))
	})
	if err == nil {
		s.trimmed = now
	}
	return err
}

func (s *Service) fence(ctx context.Context, tx *store.Tx) error {
	if s.lease == nil {
		return nil
	}
	return s.lease.Fence(ctx, tx)
}

// trouble shows people why a monitor does not go on.
func (s *Service) trouble(ctx context.Context, m Monitor, cause error) {
	if ctx.Err() != nil || m.Problem == cause.Error() {
		return // it ends, or is known
	}
	err := s.DB.Update(ctx, m.Project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		p, err := s.Store.Progress(ctx, tx, m.ID)
		if err != nil {
			return err
		}
		p.Seq++
		if p.Status.State == "" {
			p.Status = Status{State: Waiting, Reason: "no prediction was read yet"}
		}
		p.Status.Problem = cause.Error()
		return s.Store.PutProgress(ctx, tx, m.ID, p)
	})
	if err != nil {
		s.Log.ErrorContext(ctx, "the error of a monitor was not recorded", slog.String("monitor", m.Name), slog.String("error", err.Error()))
	}
}

// load is what is known of a monitor, from memory or the database.
func (s *Service) load(ctx context.Context, m Monitor) (*watch, error) {
	if w := s.watches[m.ID]; w != nil && w.m.Revision == m.Revision {
		return w, nil
	}
	l, err := layoutOf(m.Spec)
	if err != nil {
		return nil, err
	}
	w := &watch{m: m, baselines: map[int64]*baseline{}, written: s.now()}
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		w.progress, err = s.Store.Progress(ctx, tx, m.ID)
		return err
	}); err != nil {
		return nil, err
	}
	if w.progress.Status.State == "" {
		w.progress.Status = Status{State: Waiting, Reason: "no prediction was read yet"}
	}
	if w.progress.Cursor != "" {
		if w.cursor, err = prediction.ParseCursor(w.progress.Cursor); err != nil {
			return nil, err
		}
	}
	w.labels = w.progress.Labels
	var plain []byte
	if len(w.progress.Open) > 0 {
		if plain, err = s.open(ctx, m.Project, openBound(m.ID), w.progress.Open); err != nil {
			return nil, err
		}
	}
	if w.panes, err = decodePanes(plain, l, m.Spec.Detectors); err != nil {
		return nil, err
	}
	s.watches[m.ID] = w
	return w, nil
}

func openBound(m ID) string { return "open/" + string(m) }

// errPause ends the reading of the log for now.
var errPause = errors.New("enough for now")

// step reads at most a batch of records, up to the first that closes a window. It
// reports whether there is more to do at once.
func (s *Service) step(ctx context.Context, m Monitor) (again bool, err error) {
	watched, err := s.Deployments.Watched(ctx, m.Project, m.Deployment)
	if fault.Is(err, fault.NotFound) {
		return false, s.gone(ctx, m)
	}
	if err != nil {
		return false, err
	}
	w, err := s.load(ctx, m)
	if err != nil {
		return false, err
	}
	if w.progress.Of != watched.ID && w.progress.Of != "" {
		delete(s.watches, m.ID)
		return true, s.anew(ctx, m, "no prediction was read yet", watched.ID)
	}
	if w.watched.Revision != watched.Revision {
		clear(w.baselines)
	}
	w.watched, w.progress.Of = watched, watched.ID
	now := s.now()
	future := now.Add(futureSlack)
	owner := prediction.OwnerOf(watched.ID)
	var done []closed
	n := 0
	err = s.Predictions.Read(ctx, m.Project, m.Deployment, w.cursor, func(at prediction.Cursor, r *prediction.Record) error {
		w.cursor = at
		w.dirty++
		n++
		if !r.By(owner) {
			return nil
		}
		if !r.Replay && r.At.After(future) {
			w.skewed++ // the gateway's clock is wrong: it must not close windows
			return nil
		}
		done = w.panes.Add(r)
		if len(done) > 0 || n >= s.Batch {
			return errPause
		}
		return nil
	})
	paused := errors.Is(err, errPause)
	if err != nil && !paused {
		return false, err
	}
	if !paused { // the end of the log: only now may the wall clock close windows
		done = w.panes.Tick(now)
	}
	if len(done) > 0 {
		if err := s.finish(ctx, w, done, watched); err != nil {
			return false, err
		}
	} else if w.dirty >= s.Batch || w.dirty > 0 && now.Sub(w.written) >= s.Checkpoint {
		if err := s.commit(ctx, w, nil, nil); err != nil {
			return false, err
		}
	}
	if paused {
		return true, nil
	}
	return s.label(ctx, w, watched)
}

// gone shows that the deployment does not exist.
func (s *Service) gone(ctx context.Context, m Monitor) error {
	why := fmt.Sprintf("deployment %s does not exist", m.Deployment)
	if m.State == Waiting && m.Reason == why {
		return nil
	}
	delete(s.watches, m.ID)
	return s.anew(ctx, m, why, "")
}

// anew forgets the places in the log and among the labels: they are of a
// deployment that is gone. Its windows stay.
func (s *Service) anew(ctx context.Context, m Monitor, why, deployment string) error {
	return s.DB.Update(ctx, m.Project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		p, err := s.Store.Progress(ctx, tx, m.ID)
		if err != nil {
			return err
		}
		was := p.Status
		return s.Store.PutProgress(ctx, tx, m.ID, Progress{
			Seq: p.Seq + 1, Of: deployment, Status: Status{State: Waiting, Reason: why, Windows: was.Windows, Late: was.Late, Skewed: was.Skewed},
		})
	})
}

// recorded is a window with all that commits with it.
type recorded struct {
	window  Window
	summary []byte // sealed
}

// finish evaluates closed windows and records them with what they tell.
func (s *Service) finish(ctx context.Context, w *watch, done []closed, watched Watched) error {
	var out []recorded
	var fresh []*baseline
	var tell []told
	for _, c := range done {
		f, err := s.baselineFor(ctx, w, c.Key.Version, c.all.Names)
		if err != nil {
			return err
		}
		if f.first && c.all.Rows >= w.m.Spec.Drift.MinRows { // fewer are no baseline either
			f.baseline = fromWindow(w.m, c, f.why, watched, s.now())
			w.baselines[c.Key.Version] = f.baseline
			fresh = append(fresh, f.baseline)
		}
		a := against{baseline: f.baseline, why: f.why, hide: hidden(watched.Classification)}
		if f.baseline != nil {
			a.hide = a.hide || hidden(f.facts.Classification)
			a.itself = f.itself(w.panes.layout, c)
			w.progress.compared(c.Key.Version, Compared{Spec: w.m.Spec.Baseline, Name: f.name()})
		}
		one := evaluate(w.m, c, a)
		one.ClosedAt = s.now().UTC()
		if err := s.performanceOf(ctx, w, &one, c); err != nil {
			return err
		}
		summary, err := encodeColumns(c.all.Names, func(i int) *sketch.Column { return c.all.Columns[i] }, c.all.Score)
		if err != nil {
			return err
		}
		sealed, err := s.seal(ctx, w.m.Project, summaryBound(w.m.ID, c.Key), summary)
		if err != nil {
			return err
		}
		out = append(out, recorded{one, sealed})
		w.progress.Status.Windows++
		if one.Version == watched.Version {
			tell = append(tell, w.progress.observe(w.m, one)...)
			tell = append(tell, w.progress.perform(w.m, one)...)
		}
	}
	return s.commit(ctx, w, &writing{windows: out, baselines: fresh}, tell)
}

// baselineFor is the baseline of a version. It is computed once, and asked for anew for
// each window: the data that it is of may have been deleted since, or a person erased
// from them.
func (s *Service) baselineFor(ctx context.Context, w *watch, version int64, inputs []string) (found, error) {
	f, err := s.baselineOf(ctx, w.m, version, w.baselines[version], w.progress.Compared[version], inputs)
	if err == nil && f.baseline != nil {
		if len(w.baselines) >= 16 { // versions come and go
			clear(w.baselines)
		}
		w.baselines[version] = f.baseline
	}
	return f, err
}

// maxCompared bounds the versions of which is remembered what they were compared with.
const maxCompared = 256

// compared remembers what the windows of a version are compared with.
func (p *Progress) compared(version int64, c Compared) {
	if p.Compared[version] == c {
		return
	}
	next := maps.Clone(p.Compared) // an earlier progress may share it
	if next == nil {
		next = map[int64]Compared{}
	}
	if len(next) >= maxCompared {
		delete(next, slices.Min(slices.Collect(maps.Keys(next))))
	}
	next[version] = c
	p.Compared = next
}

// hidden reports whether values of such data stay out of what is told: findings,
// and with them alerts, the audit log and the status.
func hidden(classification string) bool { return project.Classification(classification).Journalled() }

func at(us int64) time.Time { return time.UnixMicro(us).UTC() }

// writing is what commits beside the progress.
type writing struct {
	windows   []recorded
	baselines []*baseline
	pairs     []sealedPairs
}

// commit writes the place in the log, the open windows, and what was found, in one
// transaction. It fails with fault.Conflict when another writer was faster or the
// manifest has changed; what was read is then read again.
func (s *Service) commit(ctx context.Context, w *watch, add *writing, tell []told) error {
	plain, err := w.panes.encode()
	if err != nil {
		return err
	}
	next := w.progress
	next.Seq++
	next.Cursor, next.Labels = w.cursor.String(), w.labels
	if next.Open, err = s.seal(ctx, w.m.Project, openBound(w.m.ID), plain); err != nil {
		return err
	}
	next.Status.Problem = ""
	next.Status.Skewed += w.skewed
	next.Status.Lost = w.panes.lost
	if watermark, replayed := w.panes.marks(); watermark != nil { // another window begins with none
		next.Status.Watermark, next.Status.Replayed = watermark, replayed
	}
	for _, n := range w.panes.late {
		next.Status.Late += n
	}
	if next.Status.State == Waiting && next.Status.Windows == 0 && w.panes.clocks != [2]clock{{never, never}, {never, never}} {
		next.Status.Reason = "no window has closed yet"
	}
	if add == nil {
		add = &writing{}
	}
	var baselines []StoredBaseline
	for _, b := range add.baselines {
		sealed, err := s.sealBaseline(ctx, b)
		if err != nil {
			return err
		}
		baselines = append(baselines, sealed)
	}
	for i := range add.windows {
		if err := s.sealSegments(ctx, w.m, &add.windows[i].window); err != nil {
			return err
		}
	}
	err = s.DB.Update(ctx, w.m.Project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		if err := s.unchanged(ctx, tx, w); err != nil {
			return err
		}
		for i, b := range add.baselines {
			if err := s.Store.PutBaseline(ctx, tx, b.key, baselines[i]); err != nil {
				return err
			}
		}
		for _, p := range add.pairs {
			if err := s.Store.PutPairs(ctx, tx, w.m.ID, p.key, p.sealed, s.now()); err != nil {
				return err
			}
		}
		for _, one := range add.windows {
			if err := s.Store.PutWindow(ctx, tx, w.m.ID, one.window, one.summary); err != nil {
				return err
			}
		}
		for k, n := range w.panes.late {
			if _, err := s.Store.AddLate(ctx, tx, w.m.ID, k, n); err != nil {
				return err
			}
		}
		for _, t := range tell {
			if err := s.tell(ctx, tx, w.m, t, w.watched.Residency, next.Seq); err != nil {
				return err
			}
		}
		return s.Store.PutProgress(ctx, tx, w.m.ID, next)
	})
	if err != nil {
		return err
	}
	w.progress, w.dirty, w.skewed, w.written = next, 0, 0, s.now()
	clear(w.panes.late)
	for _, t := range tell {
		s.Log.InfoContext(ctx, "finding", slog.String("event", t.name), slog.String("monitor", w.m.Name), slog.String("reason", t.finding.Reason))
	}
	return nil
}

// unchanged refuses to write over what somebody else wrote meanwhile.
func (s *Service) unchanged(ctx context.Context, tx *store.Tx, w *watch) error {
	m, err := s.Store.One(ctx, tx, w.m.Project, w.m.Name)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	if err != nil || m.ID != w.m.ID || m.Revision != w.m.Revision {
		return fault.New(fault.Conflict, "the monitor was changed or deleted by another request")
	}
	p, err := s.Store.Progress(ctx, tx, w.m.ID)
	if err != nil {
		return err
	}
	if p.Seq != w.progress.Seq {
		return fault.New(fault.Conflict, "another server has updated the monitor")
	}
	return nil
}

// tell publishes a finding, with its audit row and the alerts. seq is that of the
// write: a window may be told of in several, and of drift and performance in one.
func (s *Service) tell(ctx context.Context, tx *store.Tx, m Monitor, t told, label residency.Label, seq int64) error {
	f := t.finding
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: m.Project, Action: t.name, Object: "monitor " + m.Name, Reason: f.Reason,
		Detail: map[string]any{
			"deployment": f.Deployment, "version": f.Version, "window": f.Window.ID, "rows": f.Window.Rows, "since": f.Since,
			"share": f.Share, "features": len(f.Features), "repeated": f.Repeated,
		},
	}); err != nil {
		return err
	}
	if err := event.Publish(ctx, tx, m.Project, t.name, f); err != nil {
		return err
	}
	if s.Alerts == nil || len(m.Spec.Alerts) == 0 {
		return nil
	}
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return s.Alerts.Enqueue(ctx, tx, alert.Alert{
		Project: m.Project, Key: fmt.Sprintf("%s/%s/%s/%s/%d", t.name, f.Kind, m.ID, f.Window.ID, seq), Type: t.name, Source: "/projects/" + m.Project + "/monitors/" + m.Name,
		Subject: "deployment " + m.Deployment, Time: s.now().UTC(), Label: label, Data: data, Targets: m.Spec.Alerts,
	})
}
