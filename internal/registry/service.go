package registry

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// The actions that the registry asks for. Promote moves aliases and stages.
const (
	ActionRead    policy.Action = "model.read"
	ActionWrite   policy.Action = "model.write"
	ActionPromote policy.Action = "model.promote"
)

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Runs reads runs; *tracking.Runs does.
type Runs interface {
	Run(ctx context.Context, p project.Name, run tracking.RunID) (tracking.Run, error)
}

// LoggedModels reads logged models; *tracking.LoggedModels does.
type LoggedModels interface {
	LoggedModel(ctx context.Context, p project.Name, model tracking.LoggedModelID) (tracking.LoggedModel, error)
}

// Artifacts reads the files of runs and logged models; *tracking.Artifacts does.
type Artifacts interface {
	Files(ctx context.Context, p project.Name, place tracking.Place, prefix string) ([]tracking.File, error)
	OpenArtifact(ctx context.Context, p project.Name, place tracking.Place, path string) (*blob.Reader, tracking.File, error)
	MayRead(ctx context.Context, p project.Name, place tracking.Place) error
}

// Origins says what job attempts pass on to what they make; *tracking.Origins does.
type Origins interface {
	OriginOf(ctx context.Context, p project.Name) (tracking.Origin, error)
	Admit(ctx context.Context, p project.Name, what string, label residency.Label, classification string) error
}

// Objects keeps the files of versions; it is *blob.Store.
type Objects interface {
	Put(ctx context.Context, ref blob.Ref, body io.Reader, opts ...blob.Option) (blob.Info, error)
	Open(ctx context.Context, ref blob.Ref) (*blob.Reader, error)
	Delete(ctx context.Context, ref blob.Ref) error
	List(ctx context.Context, prefix blob.Key, yield func(blob.Key) error) error
}

// Sealer seals signing keys; keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Config is what the services need.
type Config struct {
	DB      *store.DB
	Store   Store
	Authz   Authorizer
	Journal audit.Journal // refused verifications and classified reads
	Objects Objects
	Sealer  Sealer

	// What tracking has of versions' sources.
	Runs         Runs
	LoggedModels LoggedModels
	Artifacts    Artifacts
	Origins      Origins

	// Erased names the erasures of persons who had rows in one of the dataset versions,
	// in the transaction in which a model becomes known that was trained on them; nil
	// knows of none.
	Erased func(ctx context.Context, tx *store.Tx, p project.Name, datasets []string) ([]string, error)

	// Users names what runs a version, such as "deployment delay", in the
	// transaction that would take it away; number 0 asks for any version. Empty or
	// nil: nothing does. What has a user is neither deleted nor renamed.
	Users func(ctx context.Context, tx *store.Tx, p project.Name, model string, number int) (string, error)

	// Authors are the principals beside its owner who made a version, such as who
	// submitted its job; nil knows of none.
	Authors func(ctx context.Context, tx *store.Tx, v Version) ([]string, error)

	// May is whether the context's principal could do something, without a record of
	// it; nil: whoever approved may still approve.
	May func(ctx context.Context, action policy.Action, object policy.Object) (bool, error)

	// Second decides who is another person than the authors of a version; nil: who is none
	// of them.
	Second policy.SecondPerson
	// TwoPeople says when a looser policy takes two people; nil: never.
	TwoPeople policy.TwoPeople

	// Told hears of a change in its transaction; nil: nobody does.
	Told func(ctx context.Context, tx *store.Tx, c Change) error

	MaxSize int64            // bytes of one version's files; 0 is 64 GiB
	Now     func() time.Time // nil is time.Now
}

// Services are the ways to registered models, by what their callers do. Safe for concurrent
// use.
//
// Every method may fail with fault.PermissionDenied; those that name an object
// with fault.NotFound; those that take data with fault.Invalid.
type Services struct {
	Models      *Models
	Versions    *Versions
	Files       *Files
	Approvals   *Approvals
	Erasure     *Erasure
	Maintenance *Maintenance
	Imports     *Imports
}

// core is what all services share: configuration, permission checks, how a model and a version
// are found, changed and shown, and the project's key.
type core struct {
	db      *store.DB
	store   Store
	authz   Authorizer
	journal audit.Journal
	objects Objects
	sealer  Sealer

	runs         Runs
	loggedModels LoggedModels
	artifacts    Artifacts
	origins      Origins

	erased  func(ctx context.Context, tx *store.Tx, p project.Name, datasets []string) ([]string, error)
	users   func(ctx context.Context, tx *store.Tx, p project.Name, model string, number int) (string, error)
	authors func(ctx context.Context, tx *store.Tx, v Version) ([]string, error)
	may     func(ctx context.Context, action policy.Action, object policy.Object) (bool, error)
	told    func(ctx context.Context, tx *store.Tx, c Change) error
	second  policy.SecondPerson
	two     policy.TwoPeople
	maxSize int64
	now     func() time.Time

	anew sync.Mutex // held while a version that failed may be made again, and while files of failed ones go

	scanning *share.Pool
}

// Models creates, changes, finds and lists registered models and their aliases. Its callers are
// the HTTP API, MLflow's protocol, jobs, and deployments, which point the champion at what they
// serve.
type Models struct {
	*core
	approvals *Approvals
}

// New makes the services.
func New(cfg Config) Services {
	s := &core{
		db: cfg.DB, store: cfg.Store, authz: cfg.Authz, journal: cfg.Journal, runs: cfg.Runs, loggedModels: cfg.LoggedModels, artifacts: cfg.Artifacts, origins: cfg.Origins,
		objects: cfg.Objects, sealer: cfg.Sealer, erased: cfg.Erased, users: cfg.Users, told: cfg.Told, second: cfg.Second, two: cfg.TwoPeople,
		authors: cfg.Authors, may: cfg.May, scanning: share.New(share.Limits{Name: "model_scans", What: "model scans", Slots: scans}), maxSize: cfg.MaxSize, now: cfg.Now,
	}
	if s.told == nil {
		s.told = func(context.Context, *store.Tx, Change) error { return nil }
	}
	if s.maxSize == 0 {
		s.maxSize = 64 << 30
	}
	if s.now == nil {
		s.now = time.Now
	}
	approvals := &Approvals{core: s}
	files := &Files{core: s}
	if s.two != nil {
		s.two.Register("model policy", approvals.approvedPolicy)
	}
	models, versions := &Models{core: s, approvals: approvals}, &Versions{core: s, approvals: approvals, files: files}
	return Services{
		Models:      models,
		Versions:    versions,
		Imports:     &Imports{core: s, models: models, versions: versions},
		Files:       files,
		Approvals:   approvals,
		Erasure:     &Erasure{core: s},
		Maintenance: &Maintenance{core: s},
	}
}

var (
	modelGrammar = search.Grammar{
		Of: search.Registry,
		Attributes: map[string]search.Column{
			"name":                   {Name: "name", List: true, Filter: true, Sort: true},
			"creation_timestamp":     {Name: "creation_timestamp", Numeric: true, Sort: true},
			"last_updated_timestamp": {Name: "last_updated_timestamp", Numeric: true, Sort: true},
			"timestamp":              {Name: "last_updated_timestamp", Numeric: true, Sort: true},
		},
		Entities:  []search.Entity{search.Tag},
		OrderKeys: []string{"name", "timestamp"},
	}
	versionGrammar = search.Grammar{
		Of: search.Registry,
		Attributes: map[string]search.Column{
			"name":                   {Name: "name", List: true, Filter: true, Sort: true},
			"version_number":         {Name: "version_number", Numeric: true, Filter: true, Sort: true},
			"run_id":                 {Name: "run_id", List: true, Filter: true},
			"source_path":            {Name: "source_path", Filter: true},
			"creation_timestamp":     {Name: "creation_timestamp", Numeric: true, Sort: true},
			"last_updated_timestamp": {Name: "last_updated_timestamp", Numeric: true, Sort: true},
		},
		Entities: []search.Entity{search.Tag},
	}
)

// Search is a search as a client asks it.
type Search struct {
	Filter  string
	OrderBy []string
	Max     int // results per page, at least 1
	Page    string
}

func (s Search) query(g search.Grammar, limit int) (Query, error) {
	var q Query
	if s.Max < 1 {
		return q, fault.New(fault.Invalid, "Invalid value for max_results. It must be a positive integer, but got %d", s.Max)
	}
	if s.Max > limit {
		return q, fault.New(fault.Invalid, "Invalid value for request parameter max_results. It must be at most %d, but got value %d", limit, s.Max)
	}
	var err error
	if q.Offset, err = search.Offset(s.Page); err != nil {
		return q, err
	}
	q.Limit = s.Max + 1
	if q.Where, err = g.Parse(s.Filter); err != nil {
		return q, err
	}
	// Nothing here is a prompt, so what excludes prompts holds and goes.
	q.Where = slices.DeleteFunc(q.Where, func(c search.Comparison) bool {
		return c.Entity == search.Tag && c.Key == promptTag &&
			(c.Op == search.NotEqual && c.Text == "true" || c.Op == search.Equal && c.Text == "false")
	})
	q.Order, err = g.ParseOrder(s.OrderBy)
	return q, err
}

func page[T any](rows []T, s Search, q Query) ([]T, string) {
	if len(rows) <= s.Max {
		return rows, ""
	}
	return rows[:s.Max], search.Token(q.Offset + s.Max)
}

// CreateModel registers a name. Error: fault.Conflict when it is taken.
func (s *Models) CreateModel(ctx context.Context, p project.Name, name, description string, tags []tracking.Pair) (Model, error) {
	if err := s.allow(ctx, ActionWrite, p, name); err != nil {
		return Model{}, err
	}
	if err := CheckName(name); err != nil {
		return Model{}, err
	}
	if err := checkText("description", description, MaxDescription); err != nil {
		return Model{}, err
	}
	if err := checkTags(tags); err != nil {
		return Model{}, err
	}
	if identity.From(ctx).Kind == identity.Attempt && (description != "" || len(tags) > 0) {
		if err := s.untold(ctx, p, "a registered model"); err != nil {
			return Model{}, err
		}
	}
	m := Model{
		Project: p, ID: ModelID(id.New("mdl")), Name: name, Description: description,
		Owner: identity.From(ctx).Owner(), Created: s.now(), Tags: tags,
	}
	m.Updated = m.Created
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if err := s.nameFree(ctx, tx, p, name); err != nil {
			return err
		}
		if err := s.store.PutModel(ctx, tx, m); err != nil {
			return err
		}
		if err := s.store.PutModelTags(ctx, tx, m.ID, tags); err != nil {
			return err
		}
		if err := s.told(ctx, tx, Change{Kind: ModelCreated, Project: p, Model: name, Description: description, Tags: tags}); err != nil {
			return err
		}
		return s.audit(ctx, tx, ActionWrite, p, "model "+name, map[string]any{"act": "create", "id": string(m.ID)})
	})
	return m, err
}

// Writable refuses a model of which the caller may register no versions. Errors:
// fault.PermissionDenied; fault.NotFound.
func (s *Models) Writable(ctx context.Context, p project.Name, name string) error {
	if err := s.allow(ctx, ActionWrite, p, name); err != nil {
		return err
	}
	return s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		_, err := s.store.Model(ctx, tx, p, name)
		return err
	})
}

// Model gives a model with its tags, aliases and latest versions.
func (s *Models) Model(ctx context.Context, p project.Name, name string) (Model, error) {
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return Model{}, err
	}
	if err := CheckName(name); err != nil {
		return Model{}, err
	}
	var m Model
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		if m, err = s.store.Model(ctx, tx, p, name); err != nil {
			return err
		}
		m.Latest, err = s.latest(ctx, tx, m.ID, nil)
		return err
	})
	if err == nil {
		m.Latest, err = s.listed(ctx, p, m.Latest)
	}
	return m, err
}

// SearchModels gives a page of the models that the caller may read, by name unless ordered
// otherwise.
func (s *Models) SearchModels(ctx context.Context, p project.Name, in Search) ([]Model, string, error) {
	if err := s.allow(ctx, ActionRead, p, ""); err != nil {
		return nil, "", err
	}
	q, err := in.query(modelGrammar, 1000)
	if err != nil {
		return nil, "", err
	}
	var found []Model
	next := ""
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if found, err = s.store.SearchModels(ctx, tx, p, q); err != nil {
			return err
		}
		found, next = page(found, in, q)
		for i := range found {
			if found[i].Latest, err = s.latest(ctx, tx, found[i].ID, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	found, err = s.shownModels(ctx, p, found)
	return found, next, err
}

// shownModels are those of models that the caller may read, as Model would show them.
func (s *Models) shownModels(ctx context.Context, p project.Name, found []Model) ([]Model, error) {
	out := found[:0]
	for _, m := range found {
		err := s.allow(ctx, ActionRead, p, m.Name)
		if err == nil {
			if m.Latest, err = s.listed(ctx, p, m.Latest); err == nil {
				out = append(out, m)
				continue
			}
		}
		if !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound) {
			return nil, err
		}
	}
	return out, nil
}

// SearchFields are what a search finds a model by, besides its name, description and owner: its
// tags, and what its latest versions came from.
func (m Model) SearchFields() []store.Field {
	out := tracking.TagFields(m.Tags...)
	for _, v := range m.Latest {
		out = append(out, v.SearchFields()...)
	}
	return out
}

// SearchFields are what a search finds a model by that has the version.
func (v Version) SearchFields() []store.Field {
	return store.FieldsOf("from", append(append(slices.Clone(v.Datasets), v.FeatureViews...), v.Job)...)
}

// FindModels reads those models that the caller may read, by name after a name, of which may
// says that they may be what is looked for: limit of them at most. Needs model.read.
func (s *Models) FindModels(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Model], err error) {
	if err := s.allow(ctx, ActionRead, p, ""); err != nil {
		return found, err
	}
	found, err = store.Find(ctx, s.db, store.Lookup[Model]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.store.ModelLines(ctx, tx, p, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]Model, error) {
			models, err := s.store.ModelsOf(ctx, tx, p, names)
			for i := range models {
				if err == nil {
					models[i].Latest, err = s.latest(ctx, tx, models[i].ID, nil)
				}
			}
			return models, err
		},
		Key: func(m Model) string { return m.Name },
	}, after, limit, may)
	if err != nil {
		return found, err
	}
	found.Objects, err = s.shownModels(ctx, p, found.Objects)
	return found, err
}

// RenameModel gives a model another name; versions, aliases and signatures stay.
func (s *Models) RenameModel(ctx context.Context, p project.Name, name, to string) (Model, error) {
	if err := CheckName(to); err != nil {
		return Model{}, err
	}
	return s.changeModel(ctx, ActionWrite, p, name, map[string]any{"act": "rename", "to": to}, func(ctx context.Context, tx *store.Tx, m *Model) error {
		if to != name {
			if err := s.nameFree(ctx, tx, p, to); err != nil {
				return err
			}
			if err := s.unused(ctx, tx, p, name, 0); err != nil {
				return err
			}
			if err := s.renamePolicy(ctx, tx, p, name, to); err != nil {
				return err
			}
		}
		m.Name, m.Updated = to, s.now()
		return nil
	})
}

// DescribeModel sets a model's description.
func (s *Models) DescribeModel(ctx context.Context, p project.Name, name, description string) (Model, error) {
	if err := checkText("description", description, MaxDescription); err != nil {
		return Model{}, err
	}
	return s.changeModel(ctx, ActionWrite, p, name, map[string]any{"act": "describe"}, func(_ context.Context, _ *store.Tx, m *Model) error {
		m.Description, m.Updated = description, s.now()
		return nil
	})
}

// DeleteModel removes a model and deletes its versions. The records of the
// versions and what they came from stay. Error: fault.Conflict while something
// runs one of them.
func (s *Models) DeleteModel(ctx context.Context, p project.Name, name string) error {
	if err := s.allow(ctx, ActionWrite, p, name); err != nil {
		return err
	}
	if err := CheckName(name); err != nil {
		return err
	}
	var gone []Version
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		m, err := s.store.Model(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if err := s.madeBy(ctx, tx, m); err != nil {
			return err
		}
		if err := s.keepsChampion(ctx, tx, m); err != nil {
			return err
		}
		if gone, err = s.store.Versions(ctx, tx, m.ID); err != nil {
			return err
		}
		for _, v := range gone {
			if v.State == Pending {
				return v.stillPending()
			}
			if err := s.deleteVersion(ctx, tx, v); err != nil {
				return err
			}
		}
		if err := s.store.DeleteModel(ctx, tx, m.ID); err != nil {
			return err
		}
		return s.audit(ctx, tx, ActionWrite, p, "model "+name, map[string]any{"act": "delete", "versions": len(gone)})
	})
	if err != nil {
		return err
	}
	for _, v := range gone {
		s.dropFiles(ctx, v)
	}
	return nil
}

// SetModelTag sets a tag of a model.
func (s *Models) SetModelTag(ctx context.Context, p project.Name, name string, tag tracking.Pair) error {
	tags := []tracking.Pair{tag}
	if err := checkTags(tags); err != nil {
		return err
	}
	_, err := s.changeModel(ctx, ActionWrite, p, name, map[string]any{"act": "tag", "key": tag.Key}, func(ctx context.Context, tx *store.Tx, m *Model) error {
		return s.store.PutModelTags(ctx, tx, m.ID, tags)
	})
	return err
}

// DeleteModelTag removes a tag; that there is none is no error.
func (s *Models) DeleteModelTag(ctx context.Context, p project.Name, name, key string) error {
	_, err := s.changeModel(ctx, ActionWrite, p, name, map[string]any{"act": "untag", "key": clip(key)}, func(ctx context.Context, tx *store.Tx, m *Model) error {
		return s.store.DeleteModelTag(ctx, tx, m.ID, key)
	})
	return err
}

// SetAlias points an alias at a ready version. Error: fault.Conflict for one that its
// model's policy does not let there yet.
func (s *Models) SetAlias(ctx context.Context, p project.Name, name, alias string, number int) error {
	if err := checkAlias(alias); err != nil {
		return err
	}
	detail := map[string]any{"act": "alias", "alias": alias, "version": number}
	_, err := s.changeModel(ctx, ActionPromote, p, name, detail, func(ctx context.Context, tx *store.Tx, m *Model) error {
		if m.aliased(alias) != number {
			if err := s.approvals.Cleared(ctx, tx, p, name, number, alias, "", false); err != nil {
				return err
			}
			if err := s.withMetrics(ctx, tx, p, name, number, detail); err != nil {
				return err
			}
		}
		return s.point(ctx, tx, p, m, alias, number, true)
	})
	return err
}

// DeleteAlias removes an alias; that there is none is no error.
func (s *Models) DeleteAlias(ctx context.Context, p project.Name, name, alias string) error {
	_, err := s.changeModel(ctx, ActionPromote, p, name, map[string]any{"act": "unalias", "alias": clip(alias)}, func(ctx context.Context, tx *store.Tx, m *Model) error {
		from := m.aliased(alias)
		if from == 0 {
			return nil
		}
		if alias == champion {
			if err := s.keepsChampion(ctx, tx, *m); err != nil {
				return err
			}
		}
		if err := s.store.DeleteAlias(ctx, tx, m.ID, alias); err != nil {
			return err
		}
		v, err := s.store.Version(ctx, tx, p, m.Name, from)
		if err != nil {
			return err
		}
		c := v.change(AliasDeleted) // with its label: who heard where it was set hears that it went
		c.Alias = alias
		if err := s.told(ctx, tx, c); err != nil {
			return err
		}
		return publish(ctx, tx, p, EventAliasMoved, AliasEvent{ModelID: m.ID, Model: m.Name, Alias: alias, From: from})
	})
	return err
}

// Version gives one version. A version number is decimal digits; anything else
// is an alias, "latest" the highest ready version. The name may be what Address has.
func (s *Versions) Version(ctx context.Context, p project.Name, name, ref string) (Version, error) {
	return s.readVersion(ctx, p, name, ref)
}

func (s *core) readVersion(ctx context.Context, p project.Name, name, ref string) (Version, error) {
	name, err := s.named(ctx, p, name)
	if err != nil {
		return Version{}, err
	}
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return Version{}, err
	}
	v, err := s.resolve(ctx, p, name, ref)
	if err != nil {
		return Version{}, err
	}
	if err := s.mayRead(ctx, v); err != nil {
		return Version{}, err
	}
	return s.shown(ctx, v)
}

// named is the name of a model that may be given by its identifier.
func (s *core) named(ctx context.Context, p project.Name, name string) (string, error) {
	given, ok := strings.CutPrefix(name, idPrefix)
	if !ok {
		return name, nil
	}
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		name, err = s.store.ModelName(ctx, tx, p, ModelID(given))
		return err
	})
	if err == nil && s.allow(ctx, ActionRead, p, name) == nil {
		return name, nil
	}
	// Whoever may not read the model does not hear whether it is there.
	if denied := s.allow(ctx, ActionRead, p, ""); denied != nil {
		return "", denied
	}
	return name, err
}

// ByAlias gives the version that an alias points at, also where the alias is a number.
func (s *Versions) ByAlias(ctx context.Context, p project.Name, name, alias string) (Version, error) {
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return Version{}, err
	}
	if err := CheckName(name); err != nil {
		return Version{}, err
	}
	ref := alias
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		m, err := s.store.Model(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if n := m.aliased(alias); n != 0 {
			ref = itoa(n)
		} else if !strings.EqualFold(alias, "latest") {
			return fault.New(fault.NotFound, "Registered model alias %s not found.", clip(alias))
		}
		return nil
	})
	if err != nil {
		return Version{}, err
	}
	return s.readVersion(ctx, p, name, ref)
}

func (s *core) resolve(ctx context.Context, p project.Name, name, ref string) (Version, error) {
	if err := CheckName(name); err != nil {
		return Version{}, err
	}
	var v Version
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		number, err := strconv.Atoi(ref)
		if err != nil {
			m, err := s.store.Model(ctx, tx, p, name)
			if err != nil {
				return err
			}
			if number = m.aliased(ref); strings.EqualFold(ref, "latest") {
				if number, err = s.highest(ctx, tx, m); err != nil {
					return err
				}
			}
			if number == 0 {
				return fault.New(fault.NotFound, "Registered model alias %s not found.", clip(ref))
			}
		}
		v, err = s.liveVersion(ctx, tx, p, name, number)
		return err
	})
	return v, err
}

func (s *core) highest(ctx context.Context, tx *store.Tx, m Model) (int, error) {
	versions, err := s.store.Versions(ctx, tx, m.ID)
	if err != nil {
		return 0, err
	}
	for _, v := range slices.Backward(versions) {
		if v.State == Ready {
			return v.Number, nil
		}
	}
	return 0, fault.New(fault.NotFound, "Latest version not found for model %s.", m.Name)
}

// mayRead holds a version's label and notes a classified read.
func (s *core) mayRead(ctx context.Context, v Version) error {
	if err := s.authz.Allow(ctx, ActionRead, v.object()); err != nil {
		return err
	}
	if who := identity.From(ctx); who.Kind == identity.Attempt && who.ID != v.Attempt {
		if err := s.origins.Admit(ctx, v.Project, "model "+v.String(), v.Residency, v.Classification); err != nil {
			return err
		}
	}
	if s.journal == nil || v.Classification != "confidential" && v.Classification != "restricted" {
		return nil
	}
	return s.journal.Record(ctx, audit.Entry{Project: string(v.Project), Action: string(ActionRead), Object: "model " + v.String()})
}

func (v Version) object() policy.Object {
	return policy.Object{
		Project: string(v.Project), Kind: "model", Name: v.String(), Owner: v.Owner,
		Classification: v.Classification, Residency: v.Residency, Sources: policy.DatasetSources(v.Datasets),
	}
}

// contents is the question whether the caller may read a version's files and what was
// written about it.
func (v Version) contents() policy.Object {
	o := v.object()
	o.Contents = true
	return o
}

// own reports whether the caller is the attempt that made the version.
func (v Version) own(ctx context.Context) bool {
	who := identity.From(ctx)
	return who.Kind == identity.Attempt && who.ID == v.Attempt
}

// mayReadFiles refuses who may not read the bytes of a version's files.
func (s *Files) mayReadFiles(ctx context.Context, v Version) error {
	if v.own(ctx) {
		return nil
	}
	return s.authz.Allow(ctx, ActionRead, v.contents())
}

// MayReadFiles refuses who may not read the bytes of a version's files. Errors:
// fault.PermissionDenied; fault.NotFound.
func (s *Files) MayReadFiles(ctx context.Context, p project.Name, name, ref string) error {
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return err
	}
	v, err := s.resolve(ctx, p, name, ref)
	if err != nil {
		return err
	}
	return s.mayReadFiles(ctx, v)
}

// shown is a version as the caller may see it: free text that its producer wrote is of
// the version's class.
func (s *core) shown(ctx context.Context, v Version) (Version, error) {
	if v.Classification != "confidential" && v.Classification != "restricted" || v.own(ctx) {
		return v, nil
	}
	may, err := policy.Permits(ctx, s.authz, ActionRead, v.contents())
	if err != nil || may {
		return v, err
	}
	v.Withheld, v.Description, v.RunLink, v.Message = true, "", "", ""
	v.Tags = slices.DeleteFunc(slices.Clone(v.Tags), func(t tracking.Pair) bool { return t.Key != ErasedTag })
	return v, nil
}

// untold refuses free text from a job on classified data, about what has no class itself.
func (s *Models) untold(ctx context.Context, p project.Name, what string) error {
	own, err := s.origins.OriginOf(ctx, p)
	if err != nil || own.Classification != "confidential" && own.Classification != "restricted" {
		return err
	}
	return fault.New(fault.PermissionDenied, "%s may not describe or tag %s: it read %s data, and %s is visible to the whole project", identity.From(ctx), what, own.Classification, what).
		WithHint("Tag the model version or the run, which have the classification of the data.")
}

// LatestVersions gives the highest version of each stage, or of those named.
func (s *Versions) LatestVersions(ctx context.Context, p project.Name, name string, stages []string) ([]Version, error) {
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return nil, err
	}
	if err := CheckName(name); err != nil {
		return nil, err
	}
	var wanted []Stage
	for _, st := range stages {
		stage, err := ParseStage(st)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, stage)
	}
	var out []Version
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		m, err := s.store.Model(ctx, tx, p, name)
		if err != nil {
			return err
		}
		out, err = s.latest(ctx, tx, m.ID, wanted)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.listed(ctx, p, out)
}

func (s *core) latest(ctx context.Context, tx *store.Tx, m ModelID, stages []Stage) ([]Version, error) {
	versions, err := s.store.Versions(ctx, tx, m)
	if err != nil {
		return nil, err
	}
	var out []Version
	at := map[Stage]int{} // in the order in which stages were first taken, as MLflow has it
	for _, v := range versions {
		if len(stages) > 0 && !slices.Contains(stages, v.Stage) {
			continue
		}
		if i, seen := at[v.Stage]; seen {
			out[i] = v
			continue
		}
		at[v.Stage] = len(out)
		out = append(out, v)
	}
	return out, nil
}

// SearchVersions gives a page of versions, newest first unless ordered
// otherwise.
func (s *Versions) SearchVersions(ctx context.Context, p project.Name, in Search) ([]Version, string, error) {
	if err := s.allow(ctx, ActionRead, p, ""); err != nil {
		return nil, "", err
	}
	q, err := in.query(versionGrammar, MaxSearchResults)
	if err != nil {
		return nil, "", err
	}
	var found []Version
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		found, err = s.store.SearchVersions(ctx, tx, p, q)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	found, next := page(found, in, q)
	out, err := s.listed(ctx, p, found)
	return out, next, err
}

// listed are those of a project's versions that the caller may see in a list.
func (s *core) listed(ctx context.Context, p project.Name, found []Version) ([]Version, error) {
	out := found[:0]
	admitted := map[string]error{} // by what it depends on; policies may name a version, or its owner
	for _, v := range found {
		err := s.authz.Allow(ctx, ActionRead, v.object())
		if err == nil {
			label := v.Classification + "\x00" + v.Residency.String()
			said, ok := admitted[label]
			if !ok {
				said = s.origins.Admit(ctx, p, "model "+v.String(), v.Residency, v.Classification)
				admitted[label] = said
			}
			err = said
		}
		if err == nil {
			v, err = s.shown(ctx, v)
		}
		switch {
		case err == nil:
			out = append(out, v)
		case !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound):
			return nil, err
		}
	}
	return out, nil
}

// DescribeVersion sets a version's description.
func (s *Versions) DescribeVersion(ctx context.Context, p project.Name, name string, number int, description string) (Version, error) {
	if err := checkText("description", description, MaxDescription); err != nil {
		return Version{}, err
	}
	return s.changeVersion(ctx, ActionWrite, p, name, number, map[string]any{"act": "describe"}, func(_ context.Context, _ *store.Tx, v *Version) error {
		v.Description, v.Updated = description, s.now()
		return nil
	})
}

// SetVersionTag sets a tag of a version. ErasedTag is nobody's to set or delete.
func (s *Versions) SetVersionTag(ctx context.Context, p project.Name, name string, number int, tag tracking.Pair) error {
	if err := ours(tag.Key); err != nil {
		return err
	}
	return s.setVersionTag(ctx, p, name, number, tag)
}

func (s *core) setVersionTag(ctx context.Context, p project.Name, name string, number int, tag tracking.Pair) error {
	tags := []tracking.Pair{tag}
	if err := checkTags(tags); err != nil {
		return err
	}
	_, err := s.changeVersion(ctx, ActionWrite, p, name, number, map[string]any{"act": "tag", "key": tag.Key}, func(ctx context.Context, tx *store.Tx, v *Version) error {
		c := v.change(VersionTagSet)
		c.Key, c.Value = tag.Key, tag.Value
		if err := s.told(ctx, tx, c); err != nil {
			return err
		}
		return s.store.PutVersionTags(ctx, tx, v.ModelID, v.Number, tags)
	})
	return err
}

// DeleteVersionTag removes a tag; that there is none is no error.
func (s *Versions) DeleteVersionTag(ctx context.Context, p project.Name, name string, number int, key string) error {
	if err := ours(key); err != nil {
		return err
	}
	_, err := s.changeVersion(ctx, ActionWrite, p, name, number, map[string]any{"act": "untag", "key": clip(key)}, func(ctx context.Context, tx *store.Tx, v *Version) error {
		c := v.change(VersionTagDeleted)
		c.Key = key
		if err := s.told(ctx, tx, c); err != nil {
			return err
		}
		return s.store.DeleteVersionTag(ctx, tx, v.ModelID, v.Number, key)
	})
	return err
}

// Transition moves a version to a stage; archive moves the others of that stage
// to Archived.
func (s *Versions) Transition(ctx context.Context, p project.Name, name string, number int, stage Stage, archive bool) (Version, error) {
	if archive && stage != StageStaging && stage != StageProduction {
		return Version{}, fault.New(fault.Invalid, "Model version transition cannot archive existing model versions because '%s' is not an Active stage. Valid stages are ['Staging', 'Production']", stage)
	}
	detail := map[string]any{"act": "stage", "stage": string(stage)}
	return s.changeVersion(ctx, ActionPromote, p, name, number, detail, func(ctx context.Context, tx *store.Tx, v *Version) error {
		if v.Stage != stage {
			if err := s.approvals.Cleared(ctx, tx, p, name, number, "", stage, false); err != nil {
				return err
			}
			if err := s.withMetrics(ctx, tx, p, name, number, detail); err != nil {
				return err
			}
		}
		if archive {
			others, err := s.store.Versions(ctx, tx, v.ModelID)
			if err != nil {
				return err
			}
			for _, o := range others {
				if o.Stage != stage || o.Number == number {
					continue
				}
				o.Stage, o.Updated = StageArchived, s.now()
				if err := s.store.PutVersion(ctx, tx, o); err != nil {
					return err
				}
			}
		}
		v.Stage, v.Updated = stage, s.now()
		m, err := s.store.Model(ctx, tx, p, name)
		if err != nil {
			return err
		}
		return s.touch(ctx, tx, m, v.Updated)
	})
}

// DeleteVersion deletes a version's files and aliases; its record stays. Error:
// fault.Conflict while something runs it.
func (s *Versions) DeleteVersion(ctx context.Context, p project.Name, name string, number int) error {
	v, err := s.changeVersion(ctx, ActionWrite, p, name, number, map[string]any{"act": "delete"}, func(ctx context.Context, tx *store.Tx, v *Version) error {
		if v.State == Pending {
			return v.stillPending()
		}
		m, err := s.store.Model(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if slices.Contains(v.Aliases, champion) {
			if err := s.keepsChampion(ctx, tx, m); err != nil {
				return err
			}
		}
		if err := s.deleteVersion(ctx, tx, *v); err != nil {
			return err
		}
		v.Updated = s.now()
		if err := s.touch(ctx, tx, m, v.Updated); err != nil {
			return err
		}
		v.State = Deleted
		return nil
	})
	if err != nil {
		return err
	}
	s.dropFiles(ctx, v)
	return nil
}

// unused refuses to take away what runs. Error: fault.Conflict.
func (s *core) unused(ctx context.Context, tx *store.Tx, p project.Name, model string, number int) error {
	if s.users == nil {
		return nil
	}
	user, err := s.users(ctx, tx, p, model, number)
	if err != nil || user == "" {
		return err
	}
	what := model
	if number > 0 {
		what += "@" + itoa(number)
	}
	return fault.New(fault.Conflict, "model %s is in use by %s", what, user).WithHint("Delete %s first, or change it to use another.", user)
}

func (s *core) deleteVersion(ctx context.Context, tx *store.Tx, v Version) error {
	if err := s.unused(ctx, tx, v.Project, v.Model, v.Number); err != nil {
		return err
	}
	for _, alias := range v.Aliases {
		if err := s.store.DeleteAlias(ctx, tx, v.ModelID, alias); err != nil {
			return err
		}
		if err := publish(ctx, tx, v.Project, EventAliasMoved, AliasEvent{ModelID: v.ModelID, Model: v.Model, Alias: alias, From: v.Number}); err != nil {
			return err
		}
		c := v.change(AliasDeleted)
		c.Alias = alias
		if err := s.told(ctx, tx, c); err != nil {
			return err
		}
	}
	v.State, v.Updated = Deleted, s.now()
	if err := s.store.PutVersion(ctx, tx, v); err != nil {
		return err
	}
	return publish(ctx, tx, v.Project, EventVersionDeleted, v.event())
}

// changeModel changes a model in one audited transaction. A change of what the model says of itself
// sets Updated; tags and aliases do not, as on MLflow's server, whose lists are in that order.
func (s *Models) changeModel(ctx context.Context, action policy.Action, p project.Name, name string, detail map[string]any, change func(context.Context, *store.Tx, *Model) error) (Model, error) {
	if err := s.allow(ctx, action, p, name); err != nil {
		return Model{}, err
	}
	if err := CheckName(name); err != nil {
		return Model{}, err
	}
	var m Model
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if m, err = s.store.Model(ctx, tx, p, name); err != nil {
			return err
		}
		if err := s.madeBy(ctx, tx, m); err != nil {
			return err
		}
		if err := change(ctx, tx, &m); err != nil {
			return err
		}
		if err := s.store.PutModel(ctx, tx, m); err != nil {
			return err
		}
		if err := s.audit(ctx, tx, action, p, "model "+name, detail); err != nil {
			return err
		}
		if m, err = s.store.Model(ctx, tx, p, m.Name); err != nil {
			return err
		}
		m.Latest, err = s.latest(ctx, tx, m.ID, nil)
		return err
	})
	if err == nil {
		m.Latest, err = s.listed(ctx, p, m.Latest)
	}
	return m, err
}

// madeBy holds a job's attempt to models that it registered itself and that have no
// version of another producer. Registering a version changes no model in this sense.
func (s *Models) madeBy(ctx context.Context, tx *store.Tx, m Model) error {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return nil
	}
	versions, err := s.store.Versions(ctx, tx, m.ID)
	if err != nil {
		return err
	}
	if m.Owner == who.ID && !slices.ContainsFunc(versions, func(v Version) bool { return v.Attempt != who.ID }) {
		return nil
	}
	return fault.New(fault.PermissionDenied, "%s may not change model %s: a job's token changes only what its attempt made", who, m.Name).
		WithHint("Rename, tag, promote or delete the model as a user or a service account.")
}

// changeVersion does the same for a version; tags do not set Updated.
func (s *core) changeVersion(ctx context.Context, action policy.Action, p project.Name, name string, number int, detail map[string]any, change func(context.Context, *store.Tx, *Version) error) (Version, error) {
	if err := s.allow(ctx, action, p, name); err != nil {
		return Version{}, err
	}
	known, err := s.resolve(ctx, p, name, itoa(number))
	if err != nil {
		return Version{}, err
	}
	if err := s.authz.Allow(ctx, action, known.object()); err != nil {
		return Version{}, err
	}
	if who := identity.From(ctx); who.Kind == identity.Attempt && who.ID != known.Attempt {
		return Version{}, fault.New(fault.PermissionDenied, "%s may not change model %s, which another producer made", who, known)
	}
	var v Version
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if v, err = s.liveVersion(ctx, tx, p, name, number); err != nil {
			return err
		}
		if err := change(ctx, tx, &v); err != nil {
			return err
		}
		if err := s.store.PutVersion(ctx, tx, v); err != nil {
			return err
		}
		if err := s.audit(ctx, tx, action, p, "model "+v.String(), detail); err != nil {
			return err
		}
		v, err = s.store.Version(ctx, tx, p, name, number)
		return err
	})
	if err != nil {
		return v, err
	}
	return s.shown(ctx, v)
}

// RequireVersion refuses a version that is not there any more, in the transaction of who
// is about to use it. The caller has authorised itself. Error: fault.NotFound.
func (s *Versions) RequireVersion(ctx context.Context, tx *store.Tx, p project.Name, name string, number int) error {
	_, err := s.liveVersion(ctx, tx, p, name, number)
	return err
}

// Point moves an alias in the transaction of who decided it, for a model that it
// uses; that the alias is there already is no error and changes nothing. The
// caller has authorised itself for ActionPromote, and asked Cleared, unless it goes back
// to a version that answered before. Where deployments answer with what they like, that
// says nothing: then Cleared is asked here. Errors: fault.NotFound; fault.Conflict for a version that
// is not ready, or not cleared.
func (s *Models) Point(ctx context.Context, tx *store.Tx, p project.Name, name, alias string, number int) error {
	if err := checkAlias(alias); err != nil {
		return err
	}
	m, err := s.store.Model(ctx, tx, p, name)
	if err != nil || m.aliased(alias) == number {
		return err
	}
	asked, err := s.policyOf(ctx, tx, p, name)
	if err != nil {
		return err
	}
	if free := asked.Spec.Promotion.Traffic; free != nil && !*free {
		if err := s.approvals.Cleared(ctx, tx, p, name, number, alias, "", false); err != nil {
			return err
		}
	}
	if err := s.point(ctx, tx, p, &m, alias, number, true); err != nil {
		return err
	}
	detail := map[string]any{"act": "alias", "alias": alias, "version": number}
	if err := s.withMetrics(ctx, tx, p, name, number, detail); err != nil {
		return err
	}
	return s.audit(ctx, tx, ActionPromote, p, "model "+name, detail)
}

// point moves an alias of a model; tell says whether webhooks hear of it.
func (s *core) point(ctx context.Context, tx *store.Tx, p project.Name, m *Model, alias string, number int, tell bool) error {
	v, err := s.liveVersion(ctx, tx, p, m.Name, number)
	if err != nil {
		return err
	}
	if v.State != Ready {
		return fault.New(fault.Conflict, "version %s is %s, and an alias requires a ready version", v, v.State)
	}
	if err := s.store.PutAlias(ctx, tx, m.ID, Alias{alias, number}); err != nil {
		return err
	}
	if c := v.change(AliasSet); tell {
		c.Alias = alias
		if err := s.told(ctx, tx, c); err != nil {
			return err
		}
	}
	return publish(ctx, tx, p, EventAliasMoved, AliasEvent{ModelID: m.ID, Model: m.Name, Alias: alias, From: m.aliased(alias), To: number})
}

func (s *core) liveVersion(ctx context.Context, tx *store.Tx, p project.Name, name string, number int) (Version, error) {
	v, err := s.store.Version(ctx, tx, p, name, number)
	if err == nil && v.State == Deleted {
		err = fault.New(fault.NotFound, "Model Version (name=%s, version=%d) not found", name, number)
	}
	return v, err
}

func (s *Models) nameFree(ctx context.Context, tx *store.Tx, p project.Name, name string) error {
	_, err := s.store.Model(ctx, tx, p, name)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	}
	return fault.New(fault.Conflict, "Registered Model (name=%s) already exists.", name)
}

func (v Version) stillPending() error {
	return fault.New(fault.Conflict, "version %s is still being registered", v).WithHint("Wait until registration finishes.")
}

func (m Model) aliased(alias string) int {
	for _, a := range m.Aliases {
		if a.Name == alias {
			return a.Version
		}
	}
	return 0
}

func (v Version) event() VersionEvent {
	return VersionEvent{ModelID: v.ModelID, Model: v.Model, Version: v.Number, Digest: v.Digest, Run: v.Run, Message: v.Message}
}

func (s *core) allow(ctx context.Context, action policy.Action, p project.Name, name string) error {
	if p == "" {
		return fault.New(fault.PermissionDenied, "a project is required").
			WithHint("Use a token that is bound to one project.")
	}
	if utf8.RuneCountInString(name) > MaxName { // no model's
		name = clip(name)
	}
	return s.authz.Allow(ctx, action, policy.Object{Project: string(p), Kind: "model", Name: name})
}

func (s *core) audit(ctx context.Context, tx *store.Tx, action policy.Action, p project.Name, object string, detail map[string]any) error {
	return audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(action), Object: object, Detail: detail})
}

func publish(ctx context.Context, tx *store.Tx, p project.Name, name string, body any) error {
	return event.Publish(ctx, tx, string(p), name, body)
}

func itoa(n int) string { return strconv.Itoa(n) }
