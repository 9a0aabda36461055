package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions that gateways ask for.
const (
	ActionRead  policy.Action = "gateway.read"
	ActionApply policy.Action = "gateway.apply"
	ActionPull  policy.Action = "gateway.pull" // be a gateway: a scope for its token
)

// Authorizer decides who may.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Models gives signed versions.
type Models interface {
	// Signed is a version's signature, a sigstore bundle, by the model's present name.
	Signed(ctx context.Context, project, model string, version int64) ([]byte, error)
	// Open opens a file of a version, which is checked while it is read.
	Open(ctx context.Context, project, model string, version int64, file string) (io.ReadCloser, int64, error)
	// MayPull refuses who may not have the files of a version: of a restricted one that
	// takes what reading its files takes elsewhere.
	MayPull(ctx context.Context, project, model string, version int64) error
	// PublicKey is the PEM of the key that signs the project's models.
	PublicKey(ctx context.Context, project string) (string, error)
}

// Log keeps predictions. prediction.Log is one.
type Log interface {
	Append(ctx context.Context, r *prediction.Record) error
	Sync(ctx context.Context, project, deployment string) error
	End(ctx context.Context, project, deployment string) (prediction.Cursor, error)
	Read(ctx context.Context, project, deployment string, after prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error
	Erase(ctx context.Context, p prediction.Person, done func(deployment string, rows int64) error) error
}

// Zones knows which zones there are.
type Zones interface {
	Known(ctx context.Context, tx *store.Tx, label residency.Label) error
}

// Config is what a Service is made of.
type Config struct {
	DB          *store.DB
	Store       Store
	Deployments serving.Store
	Authz       Authorizer
	Guard       residency.Guard
	Zones       Zones
	Models      Models
	Log         Log
	// Project is a project's label and classification.
	Project func(ctx context.Context, name string) (residency.Label, string, error)
	// Erased lists the persons of a project whose rows must not come back, as they are
	// found in records, each with the time until which it is so.
	Erased func(ctx context.Context, project string) ([]Erased, error)
	Logger *slog.Logger
	Now    func() time.Time // nil is time.Now
}

// Erased is a person who was erased.
type Erased struct {
	Person prediction.Person
	Until  time.Time // records that were received later are of a new relation
}

// Service is this side of gateways. Safe for concurrent use.
type Service struct {
	Config
	turns sync.Map // project/gateway/deployment → *sync.Mutex
	one   *share.Pool
}

// New makes a service.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{Config: c, one: share.New(share.Limits{Name: "gateway_batches", What: "batches of gateways", Slots: 1, Wait: batchWait})}
}

func object(project, name string) policy.Object {
	return policy.Object{Project: project, Kind: "gateway", Name: name}
}

// Apply makes a gateway known, or changes what it may have. Needs gateway.apply.
// Error: fault.Invalid, also for an unknown zone.
func (s *Service) Apply(ctx context.Context, p, name string, spec Spec, dryRun bool) (Gateway, project.Change, error) {
	if err := s.Authz.Allow(ctx, ActionApply, object(p, name)); err != nil {
		return Gateway{}, "", err
	}
	if err := id.CheckName("gateway name", name); err != nil {
		return Gateway{}, "", err
	}
	if err := spec.Validate(); err != nil {
		return Gateway{}, "", err
	}
	spec.Zone = spec.zone()
	var g Gateway
	change := project.Unchanged
	apply := func(ctx context.Context, tx *store.Tx) error {
		if err := s.Zones.Known(ctx, tx, residency.Of(spec.Zone)); err != nil {
			return err
		}
		old, err := s.Store.One(ctx, tx, p, name)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		now := s.Now().UTC().Truncate(time.Microsecond)
		g = Gateway{Project: p, Name: name, Spec: spec, CreatedAt: now, UpdatedAt: now, Revision: old.Revision + 1, Seen: old.Seen}
		switch {
		case old.Name == "":
			change = project.Created
		case same(old.Spec, spec):
			g, change = old, project.Unchanged
			return nil
		case old.Spec.Zone != spec.Zone:
			return fault.New(fault.Conflict, "gateway %s is in zone %s; the zone of a gateway cannot change", name, old.Spec.Zone).
				WithHint("Create a gateway with another name, and delete this one.")
		default:
			g.CreatedAt, change = old.CreatedAt, project.Updated
		}
		if dryRun {
			return nil
		}
		if err := s.Store.Put(ctx, tx, g); err != nil {
			return err
		}
		return s.audited(ctx, tx, ActionApply, p, name, map[string]any{"zone": spec.Zone, "deployments": spec.Deployments})
	}
	run := func() error { return s.DB.Update(ctx, p, apply) }
	if dryRun {
		run = func() error { return s.DB.View(ctx, apply) }
	}
	if err := run(); err != nil {
		return Gateway{}, "", err
	}
	return g, change, nil
}

func same(a, b Spec) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

func (s *Service) audited(ctx context.Context, tx *store.Tx, action policy.Action, p, name string, detail map[string]any) error {
	return audit.Append(ctx, tx, audit.Entry{Project: p, Action: string(action), Object: "gateway " + name, Detail: detail})
}

// One is a gateway. Needs gateway.read.
func (s *Service) One(ctx context.Context, p, name string) (g Gateway, err error) {
	if err := s.Authz.Allow(ctx, ActionRead, object(p, name)); err != nil {
		return g, err
	}
	return s.look(ctx, p, name)
}

func (s *Service) look(ctx context.Context, p, name string) (g Gateway, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		g, err = s.Store.One(ctx, tx, p, name)
		return err
	})
	return g, err
}

// List is a page of the gateways that the caller may read, by name, after a name. Needs
// gateway.read.
func (s *Service) List(ctx context.Context, p, after string, limit int) (gs []Gateway, err error) {
	if err := s.Authz.Allow(ctx, ActionRead, object(p, "")); err != nil {
		return nil, err
	}
	for len(gs) < limit {
		var next []Gateway
		if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			next, err = s.Store.List(ctx, tx, p, after, limit)
			return err
		}); err != nil {
			return nil, err
		}
		for _, g := range next {
			after = g.Name
			err := s.Authz.Allow(ctx, ActionRead, object(p, g.Name)) // listed is what One would show
			if err == nil && len(gs) < limit {
				gs = append(gs, g)
			}
			if err != nil && !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
		}
		if len(next) < limit {
			break
		}
	}
	return gs, nil
}

// Delete ends a gateway: when it comes next it hears so, and serves nothing any more.
// Needs gateway.apply.
func (s *Service) Delete(ctx context.Context, p, name string) error {
	if err := s.Authz.Allow(ctx, ActionApply, object(p, name)); err != nil {
		return err
	}
	return s.DB.Update(ctx, p, func(ctx context.Context, tx *store.Tx) error {
		if _, err := s.Store.One(ctx, tx, p, name); err != nil {
			return err
		}
		if err := s.Store.Delete(ctx, tx, p, name); err != nil {
			return err
		}
		return s.audited(ctx, tx, ActionApply, p, name, map[string]any{"deleted": true})
	})
}

// pulling is the gateway that asks. Error: fault.NotFound when there is none of the name.
func (s *Service) pulling(ctx context.Context, p, name string) (Gateway, error) {
	if err := s.Authz.Allow(ctx, ActionPull, object(p, name)); err != nil {
		return Gateway{}, err
	}
	g, err := s.look(ctx, p, name)
	if fault.Is(err, fault.NotFound) {
		err = fault.New(fault.NotFound, "project %s has no gateway %q", p, name).WithHint("It was deleted, or never created: `falaj apply` a manifest of kind Gateway.")
	}
	return g, err
}

// answersFor reports whether a gateway answers for a deployment of a name.
func (g Gateway) answersFor(deployment string) bool {
	return len(g.Spec.Deployments) == 0 || slices.Contains(g.Spec.Deployments, deployment)
}

// Sync hears what a gateway holds and says what it should hold. Needs gateway.pull.
// Errors: fault.Gone for a gateway that was deleted; fault.Conflict when it stands in
// another zone than its manifest says.
func (s *Service) Sync(ctx context.Context, p, name string, r Report) (Wanted, error) {
	g, err := s.pulling(ctx, p, name)
	if fault.Is(err, fault.NotFound) { // it serves nothing any more
		err = fault.New(fault.Gone, "%w", err)
	}
	if err != nil {
		return Wanted{}, err
	}
	if residency.Zone(r.Zone) != g.Spec.Zone {
		return Wanted{}, fault.New(fault.Conflict, "gateway %s is in zone %s by its manifest, but is configured with %s", name, g.Spec.Zone, r.Zone).
			WithHint("Set gateway.zone in the gateway's configuration, or apply a Gateway with its zone.")
	}
	w := Wanted{Project: p, Deployments: []Served{}}
	if w.Residency, w.Classification, err = s.Project(ctx, p); err != nil {
		return Wanted{}, err
	}
	loop := identity.With(ctx, identity.Loop("gateways"))
	if w.PublicKey, err = s.Models.PublicKey(loop, p); err != nil {
		return Wanted{}, err
	}
	all, runs, err := s.deployments(ctx, g)
	if err != nil {
		return Wanted{}, err
	}
	has := map[string]bool{}
	for _, version := range r.Has {
		has[version] = true
	}
	r.Has = nil
	for i, d := range all {
		served, out, err := s.served(loop, g, d, runs[i], has)
		if err != nil {
			return Wanted{}, err
		}
		w.LeftOut = append(w.LeftOut, out...)
		if served != nil {
			w.Deployments = append(w.Deployments, *served)
		}
	}
	for _, name := range g.Spec.Deployments {
		if !slices.ContainsFunc(all, func(d serving.Deployment) bool { return d.Name == name }) {
			w.LeftOut = append(w.LeftOut, LeftOut{Deployment: name, Reason: "no deployment has this name"})
		}
	}
	seen := Seen{At: s.Now().UTC().Truncate(time.Microsecond), Report: r, LeftOut: w.LeftOut}
	if g.Seen != nil && seen.At.Sub(g.Seen.At) < seenEvery {
		if last := *g.Seen; alike(last, seen) {
			return w, nil
		}
	}
	return w, s.DB.Update(ctx, p, func(ctx context.Context, tx *store.Tx) error { return s.Store.Saw(ctx, tx, p, name, seen) })
}

// seenEvery is how exact the time is at which a gateway that says nothing new was seen.
const seenEvery = 30 * time.Second

// alike reports whether a gateway says what it said.
func alike(a, b Seen) bool {
	a.At = b.At
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// deployments are those that a gateway is for, each with the rollout that runs.
func (s *Service) deployments(ctx context.Context, g Gateway) (all []serving.Deployment, runs []*serving.Rollout, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, runs = nil, nil
		for after := ""; ; {
			page, err := s.Deployments.List(ctx, tx, g.Project, after, 100)
			if err != nil {
				return err
			}
			for _, d := range page {
				after = d.Name
				if !g.answersFor(d.Name) {
					continue
				}
				var run *serving.Rollout
				last, err := s.Deployments.Rollouts(ctx, tx, g.Project, d.Name, 1)
				if err != nil {
					return err
				}
				if len(last) > 0 && last[0].State == serving.Running {
					run = &last[0]
				}
				all, runs = append(all, d), append(runs, run)
			}
			if len(page) < 100 || len(all) > maxDeployments {
				break
			}
		}
		if len(all) > maxDeployments {
			return fault.New(fault.TooLarge, "gateway %s would serve more than %d deployments", g.Name, maxDeployments).WithHint("List the required deployments in spec.deployments.")
		}
		return nil
	})
	return all, runs, err
}

// served is a deployment as a gateway gets it; nil when it may not have it, or could
// not answer.
func (s *Service) served(ctx context.Context, g Gateway, d serving.Deployment, run *serving.Rollout, has map[string]bool) (*Served, []LeftOut, error) {
	no := func(format string, args ...any) (*Served, []LeftOut, error) {
		return nil, []LeftOut{{Deployment: d.Name, Reason: fmt.Sprintf(format, args...)}}, nil
	}
	if why := d.Spec.Tied(); why != "" {
		return no("%s", why)
	}
	if !d.Residency.Allows(g.Spec.Zone) {
		return no("version %d has the residency %s, but the gateway is in %s", d.Version, d.Residency, g.Spec.Zone)
	}
	out := &Served{Deployment: d, Rollout: run}
	var without []LeftOut
	for _, t := range d.Trials {
		if t.Residency.Allows(g.Spec.Zone) {
			out.Trials = append(out.Trials, t)
			continue
		}
		without = append(without, LeftOut{
			Deployment: d.Name, Version: t.Version,
			Reason: fmt.Sprintf("version %d, the %s, has the residency %s, but the gateway is in %s", t.Version, t.Role, t.Residency, g.Spec.Zone),
		})
	}
	needs := []Version{{Model: d.Model, Number: d.Version, Digest: d.Digest}}
	for _, t := range out.Trials {
		needs = append(needs, Version{Model: d.Model, Number: t.Version, Digest: t.Digest})
	}
	for _, m := range d.Steps {
		needs = append(needs, Version{Model: m.Model, Number: m.Version, Digest: m.Digest})
	}
	for i := range needs {
		if has[needs[i].String()] {
			continue
		}
		bundle, err := s.Models.Signed(ctx, d.Project, needs[i].Model, needs[i].Number)
		if fault.Is(err, fault.NotFound) {
			return no("version %d of %s does not exist any more", needs[i].Number, needs[i].Model)
		}
		if fault.Is(err, fault.Unsupported) {
			return no("version %d of %s: %v", needs[i].Number, needs[i].Model, err)
		}
		if err != nil { // it says nothing of the version: who takes it for its end removes what answers
			return nil, nil, fault.Wrap(err, "deployment %s", d.Name)
		}
		needs[i].Bundle = bundle
	}
	out.Versions = needs
	return out, without, nil
}

// File opens a file of a version that a gateway should hold; it is checked against
// its signature while it is read. Needs gateway.pull. Errors: fault.NotFound when no
// deployment of the gateway needs the version; fault.PermissionDenied by residency.
// Close it.
func (s *Service) File(ctx context.Context, p, name, model, version, file string) (io.ReadCloser, int64, error) {
	g, err := s.pulling(ctx, p, name)
	if err != nil {
		return nil, 0, err
	}
	if file != ModelFile {
		return nil, 0, fault.New(fault.NotFound, "a gateway may fetch only %s of a version", ModelFile)
	}
	number, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return nil, 0, fault.New(fault.Invalid, "%.20q is not a version number", version)
	}
	all, _, err := s.deployments(ctx, g)
	if err != nil {
		return nil, 0, err
	}
	label, needed := neededBy(all, model, number, g.Spec.Zone)
	if !needed {
		return nil, 0, fault.New(fault.NotFound, "no deployment of gateway %s needs version %d of that model", name, number)
	}
	if err := s.Guard.Pass(ctx, residency.Transfer{
		Project: p, What: "model " + model, Label: label, Where: "gateway " + name, Zone: g.Spec.Zone, Action: string(ActionPull),
	}); err != nil {
		return nil, 0, err
	}
	if err := s.Models.MayPull(ctx, p, model, number); err != nil {
		return nil, 0, err
	}
	r, size, err := s.Models.Open(identity.With(ctx, identity.Loop("gateways")), p, model, number, file)
	if err != nil {
		return nil, 0, err
	}
	if err := s.DB.Update(ctx, p, func(ctx context.Context, tx *store.Tx) error {
		return s.audited(ctx, tx, ActionPull, p, name, map[string]any{"model": model, "version": number, "file": file, "zone": g.Spec.Zone})
	}); err != nil {
		_ = r.Close()
		return nil, 0, err
	}
	return r, size, nil
}

// neededBy is the label of a version that one of the deployments needs: of one that may
// be in the zone, if there is one. With steps, a deployment's label is of all its models.
func neededBy(all []serving.Deployment, model string, version int64, zone residency.Zone) (label residency.Label, needed bool) {
	for _, d := range all {
		if d.Spec.Tied() != "" {
			continue
		}
		uses := []serving.StepModel{{Model: d.Model, Version: d.Version, Residency: d.Residency}}
		for _, t := range d.Trials {
			uses = append(uses, serving.StepModel{Model: d.Model, Version: t.Version, Residency: t.Residency})
		}
		for _, m := range append(uses, d.Steps...) {
			if m.Model != model || m.Version != version {
				continue
			}
			if m.Residency.Allows(zone) && d.Residency.Allows(zone) {
				return m.Residency, true
			}
			if !needed || m.Residency.Allows(zone) {
				label, needed = m.Residency, true
			}
			if m.Residency.Allows(zone) { // the deployment's is not
				label = d.Residency
			}
		}
	}
	return label, needed
}

// batchWait is the longest wait of a batch for the one before it.
const batchWait = time.Minute

// Accept takes a batch of a gateway's predictions over into our log, and answers how
// far that gateway's log is taken over: where the batch ends, or, when it does not begin
// where the one before ended, where the next has to begin. It returns when they are on
// disk. Needs gateway.pull. Errors: fault.Invalid; fault.NotFound for a gateway that is
// not there, or not for the deployment: they wait; fault.Gone for a deployment that was
// deleted: its predictions are of no more use.
func (s *Service) Accept(ctx context.Context, p, name string, b Batch) (position string, err error) {
	g, err := s.pulling(ctx, p, name)
	if err != nil {
		return "", err
	}
	for _, text := range []string{b.From, b.To, b.Instance, string(b.DeploymentID)} {
		if len(text) > maxText {
			return "", fault.New(fault.Invalid, "a position, an instance or an id has %d bytes", len(text))
		}
	}
	if len(b.Records) > MaxBatch || b.To == "" || b.Instance == "" {
		return "", fault.New(fault.Invalid, "a batch has at most %d bytes, an instance, and an end position", MaxBatch)
	}
	if _, _, err := s.position(ctx, g, b); err != nil {
		return "", err
	}
	turn, _ := s.turns.LoadOrStore(p+"/"+name+"/"+string(b.DeploymentID), &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()
	free, err := s.one.Take(ctx, identity.Share(ctx, project.Name(p))) // decoded it may take twenty times the memory
	if err != nil {
		return "", err
	}
	defer free()
	records, err := prediction.DecodeRecords(b.Records)
	if err != nil {
		return "", fault.New(fault.Invalid, "the batch is corrupted: %w", err)
	}
	b.Records = nil
	at, d, err := s.position(ctx, g, b)
	if err != nil {
		return "", err
	}
	if at.At != b.From { // also when the answer was lost
		return at.At, nil
	}
	there, more, err := s.begin(ctx, &at, g, d, b, records)
	if err != nil {
		return "", err
	}
	if err := s.take(ctx, g, d, b, records[there:]); err != nil {
		return "", err
	}
	at.At = b.To
	if !more {
		at.Next, at.Before = "", ""
	}
	return at.At, s.put(ctx, at)
}

// begin notes where our log ends before a batch is written to it, or, when one was begun
// from the same position, finds out how many records of it are there. more says that
// there are others behind those of this batch: it is shorter than the one that was begun.
func (s *Service) begin(ctx context.Context, at *Position, g Gateway, d serving.Deployment, b Batch, records []*prediction.Record) (there int, more bool, err error) {
	if at.Next == "" {
		end, err := s.Log.End(ctx, g.Project, d.Name)
		if err != nil {
			return 0, false, err
		}
		at.Next, at.Before = b.To, placeText(end)
		return 0, false, s.put(ctx, *at)
	}
	last, remote, apart := placeOf(at.Before), remoteOf(g.Name), false
	err = s.Log.Read(ctx, g.Project, d.Name, last, func(c prediction.Cursor, r *prediction.Record) error {
		switch {
		case r.Remote != remote || apart:
		case there == len(records):
			more = true
		case r.ID == records[there].ID && r.Version == records[there].Version && r.Shadow == records[there].Shadow:
			there++
			last = c
		default: // what was written then is not in the gateway's log any more
			apart = true
		}
		return nil
	})
	at.Before = placeText(last)
	return there, more, err
}

// take writes records to our log, in its terms, and returns when they are on disk.
func (s *Service) take(ctx context.Context, g Gateway, d serving.Deployment, b Batch, records []*prediction.Record) error {
	erased, err := s.Erased(ctx, g.Project)
	if err != nil {
		return err
	}
	now := s.Now()
	ahead := time.Duration(0) // how far the gateway's clock is
	if x := b.Clock.Sub(now); !b.Clock.IsZero() && (x > sameClock || x < -sameClock) {
		ahead = x
	}
	for _, r := range records {
		r.Project, r.Deployment, r.Owner = g.Project, d.Name, prediction.OwnerOf(string(d.ID))
		r.Remote, r.Zone = remoteOf(g.Name), string(g.Spec.Zone)
		r.Received = r.Received.Add(-ahead)
		if !r.Replay {
			r.At = r.At.Add(-ahead)
		}
		late := r.Received.After(now) // its clock was wrong then, and nobody knows when it was
		for _, e := range erased {
			if late || !r.Received.After(e.Until.Add(sameClock)) {
				r.Erase(e.Person)
			}
		}
		if late {
			r.Received = now
			if !r.Replay {
				r.At = now
			}
		}
		if err := s.Log.Append(ctx, r); err != nil {
			return err
		}
	}
	if err := s.Log.Sync(ctx, g.Project, d.Name); err != nil {
		return err
	}
	since, err := s.Erased(ctx, g.Project)
	if err != nil {
		return err
	}
	for _, e := range since[min(len(erased), len(since)):] { // whose erasure may have looked before the records were there
		if err := s.Log.Erase(ctx, e.Person, func(string, int64) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// sameClock is how far two clocks may be apart that are taken for the same.
const sameClock = 10 * time.Second

// remoteOf is what records of a gateway name as the server that ran the model. No
// remote of the configuration is called so.
func remoteOf(gateway string) string { return "gateway/" + gateway }

// placeText and placeOf write and read a place in our log. Index is -1 at an end.
func placeText(c prediction.Cursor) string {
	return fmt.Sprintf("%d %d %d %d", c.Segment, c.Offset, c.Frame, c.Index)
}

func placeOf(text string) prediction.Cursor {
	var c prediction.Cursor
	if n, err := fmt.Sscanf(text, "%d %d %d %d", &c.Segment, &c.Offset, &c.Frame, &c.Index); err != nil || n != 4 {
		return prediction.Cursor{} // all of it is read
	}
	return c
}

// position is how far a log of a deployment was taken over, and the deployment.
func (s *Service) position(ctx context.Context, g Gateway, b Batch) (at Position, d serving.Deployment, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if !g.answersFor(b.Deployment) { // it may be again: they wait
			return fault.New(fault.NotFound, "gateway %s does not serve deployment %q", g.Name, b.Deployment).WithHint("Add it to spec.deployments of the Gateway.")
		}
		d, err = s.Deployments.One(ctx, tx, g.Project, b.Deployment)
		if fault.Is(err, fault.NotFound) || err == nil && d.ID != b.DeploymentID {
			return fault.New(fault.Gone, "deployment %s was deleted", b.Deployment)
		}
		if err != nil {
			return err
		}
		at, err = s.Store.Position(ctx, tx, g.Project, g.Name, d.ID, b.Instance)
		if fault.Is(err, fault.NotFound) {
			at, err = Position{Project: g.Project, Gateway: g.Name, Deployment: d.ID, Instance: b.Instance}, nil
		}
		return err
	})
	return at, d, err
}

func (s *Service) put(ctx context.Context, at Position) error {
	return s.DB.Update(context.WithoutCancel(ctx), at.Project, func(ctx context.Context, tx *store.Tx) error { return s.Store.PutPosition(ctx, tx, at) })
}

// Offering names the gateways that offer a deployment, as "gateway NAME". It asks no
// permission.
func (s *Service) Offering(ctx context.Context, tx *store.Tx, project, deployment string) (by []string, err error) {
	const page = 500
	for after := ""; ; {
		some, err := s.Store.List(ctx, tx, project, after, page)
		if err != nil {
			return nil, err
		}
		for _, g := range some {
			after = g.Name
			if slices.Contains(g.Spec.Deployments, deployment) {
				by = append(by, "gateway "+g.Name)
			}
		}
		if len(some) < page {
			return by, nil
		}
	}
}
