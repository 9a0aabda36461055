package monitoring

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// The permissions.
const (
	ActionRead  policy.Action = "monitor.read"
	ActionApply policy.Action = "monitor.apply"
)

// Predictions is the prediction log: records in append order after a place.
type Predictions interface {
	Read(ctx context.Context, project, deployment string, after prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error
}

// Sealer gives the primitives that encrypt a project's sketches. keys.Ring is
// one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Alerts tells people of findings: it queues what is sent after the transaction.
// alert.Sender is one.
type Alerts interface {
	Check(t alert.Target) error
	Enqueue(ctx context.Context, tx *store.Tx, a alert.Alert) error
}

// Config is what a Service is made of.
type Config struct {
	DB          *store.DB
	Store       Store
	Authz       Authorizer
	Journal     audit.Journal
	Sealer      Sealer
	Predictions Predictions
	Labels      Labels // nil: no labels are read
	Deployments Deployments
	Sources     Sources
	Alerts      Alerts      // nil: nobody is told
	Classifiers Classifiers // nil: no domain classifiers are trained
	Log         *slog.Logger

	Checkpoint time.Duration    // open windows are written at least so often; 0 is 30 s
	Batch      int              // and after so many records; 0 is 20,000
	Keep       time.Duration    // how long windows are kept; 0 is 400 days
	Elect      bool             // take the lease also where nobody shares the database
	Holder     string           // names this process in the lease
	Now        func() time.Time // nil is time.Now
}

// Service is the only way into monitoring. Safe for concurrent use.
type Service struct {
	Config

	running sync.Mutex // one round at a time
	watches map[ID]*watch
	lease   *store.Lease
	renewed time.Time
	trimmed time.Time

	classifying *share.Pool // slots of requests that read a window
}

// New makes a service; call RunOnce in a loop.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Checkpoint == 0 {
		c.Checkpoint = 30 * time.Second
	}
	if c.Batch == 0 {
		c.Batch = 20_000
	}
	if c.Keep == 0 {
		c.Keep = 400 * 24 * time.Hour
	}
	if c.Holder == "" {
		c.Holder = "monitor"
	}
	return &Service{Config: c, watches: map[ID]*watch{}, classifying: share.New(share.Limits{Name: "classifications", What: "window reads", Slots: maxClassifying, PerProject: 1, Wait: classifyWait})}
}

func (s *Service) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func object(project, name string) policy.Object {
	return policy.Object{Project: project, Kind: "monitor", Name: name}
}

// Apply makes a monitor or changes it. What it found stays; windows of another
// length begin anew. Errors: fault.Invalid; fault.NotFound when the deployment or
// the baseline's dataset does not exist; fault.PermissionDenied, also for a
// dataset that the caller may not see.
func (s *Service) Apply(ctx context.Context, p, name string, spec Spec, dryRun bool) (Monitor, project.Change, error) {
	if err := s.Authz.Allow(ctx, ActionApply, object(p, name)); err != nil {
		return Monitor{}, "", err
	}
	explicit := spec.Baseline == baselineTraining
	spec = spec.WithDefaults(name)
	if err := errors.Join(id.CheckMixedName("monitor name", name), spec.Validate()); err != nil {
		return Monitor{}, "", err
	}
	watched, err := s.Deployments.Watched(ctx, p, spec.Deployment)
	if err != nil {
		return Monitor{}, "", fault.Wrap(err, "monitor %s", name)
	}
	// The loop reads what is named with rights of its own: whoever names it has to
	// have some, too.
	if ref, ok := cutDataset(spec.Baseline); ok {
		q := OriginQuery{Project: p, Deployment: spec.Deployment, Version: watched.Version, Prediction: spec.Prediction}
		if _, err := s.Sources.Dataset(ctx, q, ref); err != nil {
			return Monitor{}, "", fault.Wrap(err, "monitor %s: spec.baseline", name)
		}
	}
	if explicit {
		q := OriginQuery{Project: p, Deployment: spec.Deployment, Version: watched.Version, Prediction: spec.Prediction}
		if _, err := s.Sources.Training(ctx, q); fault.Is(err, fault.Conflict) {
			return Monitor{}, "", fault.Wrap(err, "monitor %s: spec.baseline", name)
		}
	}
	if err := spec.names(watched.Columns); err != nil {
		return Monitor{}, "", fault.Wrap(err, "monitor %s", name)
	}
	for i, t := range spec.Alerts {
		if s.Alerts == nil {
			return Monitor{}, "", fault.New(fault.Unsupported, "this server does not support alerts")
		}
		if err := s.Alerts.Check(t); err != nil {
			return Monitor{}, "", fault.Wrap(err, "spec.alerts[%d]", i)
		}
	}
	var m Monitor
	change := project.Unchanged
	record := func(ctx context.Context, tx *store.Tx) error {
		old, err := s.Store.One(ctx, tx, p, name)
		now := s.now().UTC()
		switch {
		case fault.Is(err, fault.NotFound):
			change = project.Created
			all, err := s.Store.List(ctx, tx, p, "", maxMonitors)
			if err != nil {
				return err
			}
			if len(all) == maxMonitors {
				return share.Refused("monitors", fmt.Sprintf("the project has %d monitors, the limit", len(all)), "Delete unused monitors: each one reads all predictions of its deployment.", 0)
			}
			m = Monitor{ID: ID(id.New("mon")), Project: p, Name: name, CreatedAt: now, Status: Status{State: Waiting, Reason: "no prediction was read yet"}}
		case err != nil:
			return err
		case reflect.DeepEqual(old.Spec, spec) && (spec.Retrain == nil || actsFor(old.By, author(ctx))):
			m, change = old, project.Unchanged
			return nil
		default:
			m, change = old, project.Updated
		}
		m.Spec, m.Deployment, m.Automatic, m.UpdatedAt, m.Revision = spec, spec.Deployment, false, now, m.Revision+1
		m.By = author(ctx)
		if dryRun {
			return nil
		}
		if old.ID != "" && old.Deployment != m.Deployment { // another log: it begins anew
			if err := s.Store.Delete(ctx, tx, old); err != nil {
				return err
			}
			m.ID, m.Status = ID(id.New("mon")), Status{State: Waiting, Reason: "no prediction was read yet"}
		}
		return s.put(ctx, tx, m)
	}
	if dryRun {
		err = s.DB.View(ctx, record)
	} else {
		err = s.DB.Update(ctx, p, record)
	}
	return m, change, fault.Wrap(err, "monitor %s", name)
}

// author is who applies a monitor, without the token: what the token may not do,
// the monitor may not begin.
func author(ctx context.Context) identity.Principal {
	p := identity.From(ctx)
	return identity.Principal{Kind: p.Kind, ID: p.ID, Name: p.Name, Project: p.Project, Scopes: p.Scopes}
}

// actsFor reports whether what one may do is what the other may.
func actsFor(p, other identity.Principal) bool {
	return p.Kind == other.Kind && p.ID == other.ID && p.Project == other.Project && slices.Equal(p.Scopes, other.Scopes)
}

func (s *Service) put(ctx context.Context, tx *store.Tx, m Monitor) error {
	if err := s.Store.Put(ctx, tx, m); err != nil {
		return err
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: m.Project, Action: string(ActionApply), Object: "monitor " + m.Name,
		Detail: map[string]any{"deployment": m.Deployment, "automatic": m.Automatic, "baseline": m.Spec.Baseline, "alerts": receivers(m.Spec.Alerts)},
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, m.Project, EventApplied, Changed{Monitor: m.ID, Name: m.Name, Deployment: m.Deployment})
}

// receivers are who is told, and where they are said to stand.
func receivers(targets []alert.Target) []string {
	out := make([]string, len(targets))
	for i, t := range targets {
		if out[i] = t.String(); t.Zone != "" {
			out[i] += " in " + string(t.Zone)
		}
	}
	return out
}

// Ensure makes the monitor of a new deployment, in the transaction that learns of
// it, unless the name is taken or the deployment is watched already.
func (s *Service) Ensure(ctx context.Context, tx *store.Tx, p, deployment string) error {
	all, err := s.Store.List(ctx, tx, p, "", 1<<20)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Name == deployment || m.Deployment == deployment {
			return nil
		}
	}
	now := s.now().UTC()
	return s.put(ctx, tx, Monitor{
		ID: ID(id.New("mon")), Project: p, Name: deployment, Deployment: deployment, Spec: Spec{}.WithDefaults(deployment), Automatic: true, By: author(ctx),
		CreatedAt: now, UpdatedAt: now, Revision: 1,
	})
}

// Forget deletes the monitor that was made with a deployment, in the transaction
// that learns that it is gone. Monitors that people made stay, and wait.
func (s *Service) Forget(ctx context.Context, tx *store.Tx, p, deployment string) error {
	m, err := s.Store.One(ctx, tx, p, deployment)
	if fault.Is(err, fault.NotFound) || err == nil && (!m.Automatic || m.Deployment != deployment) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.drop(ctx, tx, m)
}

func (s *Service) drop(ctx context.Context, tx *store.Tx, m Monitor) error {
	if err := s.Store.Delete(ctx, tx, m); err != nil {
		return err
	}
	if err := s.Store.DropBaselines(ctx, tx, m.Project, m.Deployment); err != nil {
		return err
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: m.Project, Action: string(ActionApply), Object: "monitor " + m.Name, Detail: map[string]any{"deleted": true},
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, m.Project, EventDeleted, Changed{Monitor: m.ID, Name: m.Name, Deployment: m.Deployment})
}

// Delete ends a monitor and forgets what it found; the audit log keeps its
// findings.
func (s *Service) Delete(ctx context.Context, p, name string) error {
	if err := s.Authz.Allow(ctx, ActionApply, object(p, name)); err != nil {
		return err
	}
	return s.DB.Update(ctx, p, func(ctx context.Context, tx *store.Tx) error {
		m, err := s.Store.One(ctx, tx, p, name)
		if err != nil {
			return err
		}
		return s.drop(ctx, tx, m)
	})
}

// One is a monitor with what it found so far.
func (s *Service) One(ctx context.Context, p, name string) (m Monitor, err error) {
	if err := s.Authz.Allow(ctx, ActionRead, object(p, name)); err != nil {
		return m, err
	}
	return s.one(ctx, p, name)
}

func (s *Service) one(ctx context.Context, p, name string) (m Monitor, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		m, err = s.Store.One(ctx, tx, p, name)
		return err
	})
	return m, err
}

// List is a page of monitors by name, after a name.
func (s *Service) List(ctx context.Context, p, after string, limit int) (ms []Monitor, err error) {
	if err := s.Authz.Allow(ctx, ActionRead, object(p, "")); err != nil {
		return nil, err
	}
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		ms, err = s.Store.List(ctx, tx, p, after, limit)
		return err
	})
	return ms, err
}

// SearchFields are what a search finds a monitor by, besides its name and owner.
func (m Monitor) SearchFields() []store.Field { return store.FieldsOf("from", m.Deployment) }

// Find reads those monitors, by name after a name, of which may says that they may be what is
// looked for: limit of them at most.
func (s *Service) Find(ctx context.Context, p, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Monitor], err error) {
	if err := s.Authz.Allow(ctx, ActionRead, object(p, "")); err != nil {
		return found, err
	}
	return store.Find(ctx, s.DB, store.Lookup[Monitor]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.Store.Lines(ctx, tx, p, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]Monitor, error) {
			return store.Each(names, func(name string) (Monitor, error) { return s.Store.One(ctx, tx, p, name) })
		},
		Key: func(m Monitor) string { return m.Name },
	}, after, limit, may)
}

// Windows is a page of a monitor's windows, newest end first. token is empty for
// the first page; next is empty after the last. A read of what comes of classified
// data is recorded: a page is one read.
func (s *Service) Windows(ctx context.Context, p, name string, f WindowFilter, token string) (ws []Window, next string, err error) {
	m, watched, err := s.classified(ctx, p, name)
	if err != nil {
		return nil, "", err
	}
	if f.Limit <= 0 || f.Limit > 1000 {
		f.Limit = 100
	}
	if token != "" {
		if f.Before, f.BeforeTo, err = parseToken(token); err != nil {
			return nil, "", err
		}
	}
	f.Limit++
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		ws, err = s.Store.Windows(ctx, tx, m.ID, f)
		return err
	}); err != nil {
		return nil, "", err
	}
	if len(ws) == f.Limit {
		ws = ws[:f.Limit-1]
		last := ws[len(ws)-1]
		next = strconv.FormatInt(last.To.UnixMicro(), 10) + "_" + last.String()
	}
	for i := range ws {
		if err := s.openSegments(ctx, m, &ws[i]); err != nil {
			return nil, "", err
		}
	}
	if len(ws) == 0 {
		return ws, next, nil
	}
	return ws, next, s.recordRead(ctx, m, watched.Classification, strconv.Itoa(len(ws))+" windows up to "+ws[0].To.Format(time.RFC3339))
}

func parseToken(token string) (k WindowKey, to time.Time, err error) {
	at, key, _ := strings.Cut(token, "_")
	us, err := strconv.ParseInt(at, 10, 64)
	k, ok := parseKey(key)
	if !ok || err != nil {
		return k, to, fault.New(fault.Invalid, "page token %.40q is invalid", token)
	}
	return k, time.UnixMicro(us).UTC(), nil
}

// parseKey reads what WindowKey.String writes.
func parseKey(text string) (k WindowKey, ok bool) {
	rest, replay := strings.CutSuffix(text, "r")
	version, start, _ := strings.Cut(rest, "-")
	var errs [2]error
	k.Replay = replay
	k.Version, errs[0] = strconv.ParseInt(version, 10, 64)
	k.Start, errs[1] = strconv.ParseInt(start, 10, 64)
	return k, errors.Join(errs[:]...) == nil
}

// Window is one window with the summaries of its inputs and scores. A read of
// what comes of classified data is recorded.
func (s *Service) Window(ctx context.Context, p, name, window string) (out Summaries, err error) {
	m, watched, err := s.classified(ctx, p, name)
	if err != nil {
		return out, err
	}
	k, ok := parseKey(window)
	if !ok {
		return out, fault.New(fault.NotFound, "no window %.60q", window)
	}
	var sealed []byte
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		out.Window, sealed, err = s.Store.Window(ctx, tx, m.ID, k)
		return err
	}); err != nil {
		return out, err
	}
	if err := s.openSegments(ctx, m, &out.Window); err != nil {
		return out, err
	}
	if err := s.recordRead(ctx, m, watched.Classification, "window "+window); err != nil || len(sealed) == 0 {
		return out, err
	}
	plain, err := s.open(ctx, p, summaryBound(m.ID, k), sealed)
	if err != nil {
		return out, err
	}
	names, columns, score, err := decodeColumns(plain)
	if err != nil {
		return out, err
	}
	for i, c := range columns {
		one, err := picture(names[i], c)
		if err != nil {
			return out, err
		}
		out.Columns = append(out.Columns, one)
	}
	if score != nil {
		one, err := picture("score", score)
		if err != nil {
			return out, err
		}
		out.Scores = &one
	}
	return out, nil
}

// classified finds a monitor and asks for its reading with the label of what the
// deployment sees.
func (s *Service) classified(ctx context.Context, p, name string) (Monitor, Watched, error) {
	if err := s.Authz.Allow(ctx, ActionRead, object(p, name)); err != nil {
		return Monitor{}, Watched{}, err
	}
	m, err := s.one(ctx, p, name)
	if err != nil {
		return m, Watched{}, err
	}
	w, err := s.Deployments.Watched(ctx, p, m.Deployment)
	if fault.Is(err, fault.NotFound) {
		w, err = Watched{Classification: string(project.Restricted)}, nil // nobody knows any more
	}
	if err != nil {
		return m, w, err
	}
	o := object(p, name)
	o.Classification, o.Residency = w.Classification, w.Residency
	return m, w, s.Authz.Allow(ctx, ActionRead, o)
}

func (s *Service) recordRead(ctx context.Context, m Monitor, classification, what string) error {
	return audit.RecordRead(ctx, s.Journal, classification, audit.Entry{
		Project: m.Project, Action: string(ActionRead), Object: "monitor " + m.Name, Detail: map[string]any{"what": what, "classification": classification},
	})
}

// Baseline is what windows of a version are compared with; version 0 is the one
// judged last, or else the one that answers. It is computed when it was not yet.
// Error: fault.NotFound when there is none yet.
func (s *Service) Baseline(ctx context.Context, p, name string, version int64) (Baseline, error) {
	m, watched, err := s.classified(ctx, p, name)
	if err != nil {
		return Baseline{}, err
	}
	if version == 0 {
		version = m.Version
	}
	if version == 0 {
		version = watched.Version
	}
	var progress Progress
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		progress, err = s.Store.Progress(ctx, tx, m.ID)
		return err
	}); err != nil {
		return Baseline{}, err
	}
	b, err := s.baselineOf(asMonitor(ctx), m, version, nil, progress.Compared[version], nil)
	if err != nil {
		return Baseline{}, err
	}
	if b.baseline == nil {
		if b.why == "" {
			b.why = "the first window becomes the baseline"
		}
		err := fault.New(fault.NotFound, "version %d of %s has no baseline: %s", version, m.Deployment, b.why)
		if b.first {
			return Baseline{}, err.WithHint("The first closed window becomes the baseline.")
		}
		return Baseline{}, err.WithHint("Set the Monitor's spec.baseline to dataset:NAME@VERSION or window:first.")
	}
	// A manifest may name data that not everybody may see who sees the deployment.
	o := object(p, name)
	o.Classification, o.Residency = b.facts.Classification, b.facts.Residency
	o.Contents = true // pictures of columns
	if b.facts.Ref != "" {
		o.Sources = policy.DatasetSources([]string{b.facts.Ref})
	}
	if err := s.Authz.Allow(ctx, ActionRead, o); err != nil {
		return Baseline{}, err
	}
	if err := s.recordRead(ctx, m, b.facts.Classification, "baseline of version "+strconv.FormatInt(version, 10)); err != nil {
		return Baseline{}, err
	}
	out := b.facts
	for _, n := range b.names {
		one, err := picture(n, b.columns[n])
		if err != nil {
			return Baseline{}, err
		}
		out.Columns = append(out.Columns, one)
	}
	if b.score != nil {
		one, err := picture("score", b.score)
		if err != nil {
			return Baseline{}, err
		}
		out.Score = &one
	}
	return out, nil
}

// owner is the key scope that seals sketches.
const owner = "monitoring"

func (s *Service) seal(ctx context.Context, p, bound string, plain []byte) ([]byte, error) {
	a, err := s.Sealer.AEAD(ctx, p, owner)
	if err != nil {
		return nil, err
	}
	return a.Encrypt(plain, []byte(bound))
}

func (s *Service) open(ctx context.Context, p, bound string, sealed []byte) ([]byte, error) {
	a, err := s.Sealer.AEAD(ctx, p, owner)
	if err != nil {
		return nil, err
	}
	plain, err := a.Decrypt(sealed, []byte(bound))
	return plain, fault.Wrap(err, "decrypting monitoring data")
}

// sealSegments seals the values by which a window's rows are told apart: else they
// would be values of the data in what is stored of it in the clear. The window
// shares no segments with another one afterwards.
func (s *Service) sealSegments(ctx context.Context, m Monitor, w *Window) error {
	w.Performance.Segments = slices.Clone(w.Performance.Segments)
	for i := range w.Performance.Segments {
		one := &w.Performance.Segments[i]
		b, err := s.seal(ctx, m.Project, segmentBound(m.ID, one.Column), []byte(one.Value))
		if err != nil {
			return err
		}
		one.Value = base64.StdEncoding.EncodeToString(b)
	}
	return nil
}

func (s *Service) openSegments(ctx context.Context, m Monitor, w *Window) error {
	for i := range w.Performance.Segments {
		one := &w.Performance.Segments[i]
		b, err := base64.StdEncoding.DecodeString(one.Value)
		if err != nil {
			return fault.Wrap(err, "segment %d of window %s", i, w.ID)
		}
		if b, err = s.open(ctx, m.Project, segmentBound(m.ID, one.Column), b); err != nil {
			return err
		}
		one.Value = string(b)
	}
	return nil
}

func segmentBound(m ID, column string) string { return "segment/" + string(m) + "/" + column }

func summaryBound(m ID, k WindowKey) string { return "window/" + string(m) + "/" + k.String() }

// page is how many monitors are read at a time.
const page = 500

// each visits the monitors of a project, by name.
func (s *Service) each(ctx context.Context, tx *store.Tx, project string, visit func(Monitor) error) error {
	for after := ""; ; {
		some, err := s.Store.List(ctx, tx, project, after, page)
		if err != nil {
			return err
		}
		for _, m := range some {
			after = m.Name
			if err := visit(m); err != nil {
				return err
			}
		}
		if len(some) < page {
			return nil
		}
	}
}

// Keeping names the monitors that keep distributions of columns: windows or a baseline. It
// asks no permission.
func (s *Service) Keeping(ctx context.Context, tx *store.Tx, project string) (names []string, err error) {
	err = s.each(ctx, tx, project, func(m Monitor) error {
		some, err := s.Store.Keeps(ctx, tx, m)
		if some {
			names = append(names, m.Name)
		}
		return err
	})
	return names, err
}

// WatchersOf names the monitors of a deployment that people made, as "monitor NAME". It asks
// no permission.
func (s *Service) WatchersOf(ctx context.Context, tx *store.Tx, project, deployment string) (by []string, err error) {
	err = s.each(ctx, tx, project, func(m Monitor) error {
		if m.Deployment == deployment && !m.Automatic {
			by = append(by, "monitor "+m.Name)
		}
		return nil
	})
	return by, err
}

// DeploymentOf names the deployment that a monitor watches. It asks no permission.
func (s *Service) DeploymentOf(ctx context.Context, tx *store.Tx, project, monitor string) (string, error) {
	m, err := s.Store.One(ctx, tx, project, monitor)
	return m.Deployment, err
}
