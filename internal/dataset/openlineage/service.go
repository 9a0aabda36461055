package openlineage

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionReport is the reporting of external runs by OpenLineage.
const ActionReport policy.Action = "lineage.report"

// Limits on stored lineage.
const (
	keepRuns    = 100     // of a job; the oldest go
	maxThings   = 50_000  // of a project
	maxAllLinks = 200_000 // of a project
	maxLinks    = 2000    // that are followed from one thing
	keepDigests = 64      // of a run: an event that comes again so late counts as new
)

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Datasets are Falaj's own.
type Datasets interface {
	Version(ctx context.Context, p project.Name, ref dataset.Ref) (dataset.Version, error)
	Descendants(ctx context.Context, p project.Name, ref dataset.Ref) ([]dataset.Version, error)
}

// Config is what a Service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	Datasets   Datasets
	Tables     string // directory of the open tables, by which others call them
	// Objects prepares a walk over what Falaj has beside datasets; nil: there is nothing.
	Objects func(p project.Name) Objects
}

// Objects are features, jobs, models and deployments, for one walk. What the caller
// may not see is left out.
type Objects interface {
	// Object finds one by kind and name. Errors: fault.NotFound, fault.PermissionDenied.
	Object(ctx context.Context, kind Kind, name string) (Object, error)
	// Step finds what is one step from an object, or from a dataset version.
	Step(ctx context.Context, kind Kind, name string, up bool) (Step, error)
}

// Object is something of Falaj's. Of a dataset version Name is its ref, and the rest,
// but for Columns, is not read.
type Object struct {
	Kind    Kind
	Name    string // with its version
	State   string
	Digest  string
	By      string
	Fields  []Field
	Columns Columns // sources that are no datasets are named by their node's ID
}

// ID is that of its node.
func (o Object) ID() string { return string(o.Kind) + " " + o.Name }

// Step is what lies around an object, one step away or on the way to that.
type Step struct {
	Edges  [][2]Object // the way of the data
	Follow []Object    // position from which the walk resumes
	More   bool
}

// Service stores external lineage. Safe for concurrent use.
type Service struct{ cfg Config }

// New makes a service.
func New(cfg Config) *Service { return &Service{cfg} }

// Taken is the result of an event.
type Taken struct {
	Run       string   `json:"run_id,omitempty"`
	Unchanged bool     `json:"unchanged,omitempty" doc:"The event was received before; nothing changed"`
	Left      []string `json:"left_out,omitempty" doc:"Facets that were too large to store"`
}

// Take keeps an event. Needs lineage.report. Errors: as Parse; fault.Exhausted when
// the project has more jobs and datasets of others than are kept.
func (s *Service) Take(ctx context.Context, p project.Name, body []byte) (Taken, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionReport, policy.Object{Project: string(p), Kind: "lineage"}); err != nil {
		return Taken{}, err
	}
	e, left, err := Parse(body)
	share.TurnOf(ctx).End() // of a large event, at a processor
	if err != nil {
		return Taken{}, err
	}
	out := Taken{Left: left}
	if e.Run != nil {
		out.Run = e.Run.ID
	}
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) (err error) {
		k := keeper{s.cfg.Store, tx, p, e, s.cfg.Tables, identity.From(ctx).ID}
		out.Unchanged, err = k.keep(ctx)
		return err
	})
	return out, err
}

// keeper keeps one event in a transaction.
type keeper struct {
	store Store
	tx    *store.Tx
	p     project.Name
	e     Event
	dir   string // of the open tables
	by    string
}

func (k keeper) keep(ctx context.Context) (unchanged bool, err error) {
	e := k.e
	if e.Run != nil {
		if unchanged, err = k.run(ctx); err != nil || unchanged {
			return unchanged, err
		}
	}
	if e.Job != nil {
		err = k.thing(ctx, Thing{Kind: JobKind, Name: Name{e.Job.Namespace, e.Job.Name}, Facets: e.Job.Facets})
	}
	datasets := slices.Concat(e.Inputs, e.Outputs)
	if e.Dataset != nil {
		datasets = append(datasets, *e.Dataset)
	}
	for _, d := range datasets {
		if err == nil {
			err = k.dataset(ctx, d)
		}
	}
	links := -1 // of the project: counted once, for the first that is new
	for i, d := range slices.Concat(e.Inputs, e.Outputs) {
		if err == nil {
			err = k.link(ctx, d, i >= len(e.Inputs), &links)
		}
	}
	if err != nil {
		return false, err
	}
	return false, audit.Append(ctx, k.tx, audit.Entry{Project: string(k.p), Action: string(ActionReport), Object: k.object(), Detail: map[string]any{
		"event": e.Type, "inputs": len(e.Inputs), "outputs": len(e.Outputs), "digest": e.digest(),
	}})
}

func (k keeper) object() string {
	switch {
	case k.e.Run != nil:
		return "run " + k.e.Run.ID + " of job " + clip(k.e.Job.Name)
	case k.e.Job != nil:
		return "job " + clip(k.e.Job.Name)
	}
	return "dataset " + clip(k.e.Dataset.Name)
}

// run adds the event to what is known of its run. Events may come in any order: the
// state is that of the latest, and what has ended stays ended.
func (k keeper) run(ctx context.Context) (unchanged bool, err error) {
	e, digest := k.e, string(k.e.Type)+" "+k.e.digest()
	r, err := k.store.Run(ctx, k.tx, k.p, e.Run.ID)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return false, err
	}
	if slices.Contains(r.Digests, digest) {
		return true, nil
	}
	before := r.Job
	r.Project, r.ID, r.By = k.p, e.Run.ID, k.by
	r.Facets = merged(r.Facets, e.Run.Facets)
	r.Digests = append(r.Digests, digest)
	if n := len(r.Digests) - keepDigests; n > 0 {
		r.Digests = r.Digests[n:]
	}
	if e.Type == Start && (r.Started.IsZero() || e.Time.Before(r.Started)) {
		r.Started = e.Time
	}
	if e.Type.ended() && e.Time.After(r.Ended) {
		r.Ended = e.Time
	}
	if !e.Time.Before(r.Last) {
		// Spark gives a job its full name once it knows what it writes.
		r.Last, r.Producer, r.Job = e.Time, e.Producer, Name{e.Job.Namespace, e.Job.Name}
		if e.Type != "" && e.Type != Other && (e.Type.ended() || !r.State.ended()) {
			r.State = e.Type
		}
	}
	if err := k.store.PutRun(ctx, k.tx, r); err != nil || before == r.Job {
		return false, err
	}
	return false, k.store.DropRuns(ctx, k.tx, k.p, r.Job, keepRuns)
}

func (k keeper) dataset(ctx context.Context, d Dataset) error {
	facets := merged(d.Facets, nil)
	for _, own := range []string{columnFacet, schemaFacet} { // kept as links and fields
		delete(facets, own)
	}
	return k.thing(ctx, Thing{Kind: DatasetKind, Name: Name{d.Namespace, d.Name}, Own: k.own(d), Fields: d.fields(), Facets: facets})
}

// thing adds what the event says of a job or dataset to what is known.
func (k keeper) thing(ctx context.Context, t Thing) error {
	old, err := k.store.Thing(ctx, k.tx, k.p, t.Kind, t.Name)
	switch {
	case fault.Is(err, fault.NotFound):
		n, err := k.store.Things(ctx, k.tx, k.p)
		if err != nil {
			return err
		}
		if n >= maxThings {
			return fault.New(fault.Exhausted, "project %s has lineage of %d external jobs and datasets, the limit", k.p, n).
				WithHint("Use stable names: jobs and datasets with a new name for each run exhaust the limit.")
		}
	case err != nil:
		return err
	}
	t.Project, t.Last, t.Facets = k.p, k.e.Time, merged(old.Facets, t.Facets)
	if t.Own == "" {
		t.Own = old.Own
	}
	if len(t.Fields) == 0 || k.e.Time.Before(old.Last) {
		t.Fields = old.Fields
	}
	if old.Last.After(t.Last) {
		t.Last = old.Last
	}
	return k.store.PutThing(ctx, k.tx, t)
}

// own is the name of Falaj's dataset that is meant, also by the place of its files.
func (k keeper) own(d Dataset) string {
	if own := d.own(k.p); own != "" || k.dir == "" {
		return own
	}
	const name = "*"
	before, _ := strings.CutSuffix(filepath.Join(k.dir, dataset.TableKey(k.p, name)), name)
	at, inside := strings.CutPrefix(strings.TrimPrefix(d.Name, "file://"), before)
	if d.Namespace != "file" && !strings.HasPrefix(d.Namespace, "file:") || !inside {
		return ""
	}
	at, _, _ = strings.Cut(at, "/")
	return ownName(at)
}

func (k keeper) link(ctx context.Context, d Dataset, output bool, links *int) error {
	l := Link{Project: k.p, Job: Name{k.e.Job.Namespace, k.e.Job.Name}, Output: output, Dataset: Name{d.Namespace, d.Name}, Own: k.own(d), Last: k.e.Time}
	if k.e.Run != nil {
		l.Run = k.e.Run.ID
	}
	if output {
		l.Columns = d.columns()
	}
	_, err := k.store.Columns(ctx, k.tx, l)
	if fault.Is(err, fault.NotFound) {
		if *links < 0 {
			if *links, err = k.store.Links(ctx, k.tx, k.p); err != nil {
				return err
			}
		}
		if *links++; *links > maxAllLinks {
			return fault.New(fault.Exhausted, "project %s has %d links between external jobs and datasets, the limit", k.p, maxAllLinks).
				WithHint("Use stable names: jobs and datasets with a new name for each run exhaust the limit.")
		}
		err = nil
	}
	if err != nil {
		return err
	}
	return k.store.PutLink(ctx, k.tx, l)
}

// Find reads those external jobs and datasets, by name after a cursor that After returned, of
// which may says that they may be what is looked for: limit of them at most. Needs dataset.read.
func (s *Service) Find(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (store.Found[Thing], error) {
	if err := s.cfg.Authorizer.Allow(ctx, dataset.ActionRead, policy.Object{Project: string(p), Kind: "dataset"}); err != nil {
		return store.Found[Thing]{}, err
	}
	return store.Find(ctx, s.cfg.DB, store.Lookup[Thing]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			at, err := thingAt(after)
			if err != nil {
				return nil, err
			}
			return s.cfg.Store.Lines(ctx, tx, p, at, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, keys []string) ([]Thing, error) {
			return store.Each(keys, func(key string) (Thing, error) {
				at, err := thingAt(key)
				if err != nil {
					return Thing{}, err
				}
				return s.cfg.Store.Thing(ctx, tx, p, at.Kind, at.Name)
			})
		},
		Key: After,
	}, after, limit, may)
}

// After is the place after a thing in the list of them.
func After(t Thing) string { return t.Name.Name + "\x00" + t.Namespace + "\x00" + string(t.Kind) }

// thingAt reads what After returned; empty is before all things.
func thingAt(after string) (t Thing, err error) {
	if after == "" {
		return t, nil
	}
	parts := strings.Split(after, "\x00")
	if len(parts) != 3 {
		return t, fault.New(fault.Invalid, "the cursor is invalid")
	}
	return Thing{Kind: Kind(parts[2]), Name: Name{Name: parts[0], Namespace: parts[1]}}, nil
}

// Forget removes the external lineage of a project that is being deleted.
func (s *Service) Forget(ctx context.Context, tx *store.Tx, p project.Name) error {
	return s.cfg.Store.Forget(ctx, tx, p)
}
