package dataset

import (
	"context"
	"log/slog"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// actionClean is the audit action of removing orphaned files; no request has it.
const actionClean = "dataset.clean"

// The actions that datasets ask for.
const (
	ActionRead   policy.Action = "dataset.read"   // see schema, statistics, lineage
	ActionImport policy.Action = "dataset.import" // declare, import, derive
	ActionQuery  policy.Action = "dataset.query"  // read rows
	ActionDelete policy.Action = "dataset.delete"
)

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Guard is the residency door.
type Guard interface {
	Pass(ctx context.Context, p residency.Transfer) error
}

// Keys gives the 32-byte keys that seal data files, and what seals the rest.
type Keys interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
	DataKey(ctx context.Context, project, owner, use string) ([]byte, error)
}

// Defaults are a project's, for specs that leave them out.
type Defaults struct {
	Residency      residency.Label
	Classification Classification
}

// residency is where data under a spec may be.
func (d Defaults) residency(s Spec) residency.Label {
	if len(s.Residency) > 0 {
		return s.Residency
	}
	return residency.Of(d.Residency.Zones()...)
}

// classification is how sensitive data under a spec is. A project that is confidential or
// restricted is so whatever a spec says; another's class is only a default.
func (d Defaults) classification(s Spec) Classification {
	switch {
	case s.Classification != "" && d.Classification.Journalled() && d.Classification != "":
		return project.Strictest(s.Classification, d.Classification)
	case s.Classification != "":
		return s.Classification
	case d.Classification != "":
		return d.Classification
	}
	return Internal
}

func (s *core) defaults(ctx context.Context, p project.Name) (Defaults, error) {
	if s.cfg.Defaults == nil {
		return Defaults{}, nil
	}
	d, err := s.cfg.Defaults(ctx, p)
	return d, fault.Wrap(err, "reading the defaults of project %s", p)
}

// Config is what the services need.
type Config struct {
	DB         *store.DB
	Store      Store
	Files      datafile.Store
	Keys       Keys
	Authorizer Authorizer
	Guard      Guard
	Journal    audit.Journal
	Launcher   child.Launcher
	// Zones knows which zones there are; nil takes every zone.
	Zones interface {
		Known(ctx context.Context, tx *store.Tx, l residency.Label) error
	}
	// Defaults looks a project's up; nil gives every project home and internal.
	Defaults func(ctx context.Context, p project.Name) (Defaults, error)
	Log      *slog.Logger // nil discards
	// Scratch is a directory for what queries cannot hold in memory, theirs alone;
	// empty lets them have none. DuckDB writes it in the clear, so only queries over
	// open tables get one, unless EncryptedDisk says that the disk encrypts.
	Scratch       string
	EncryptedDisk bool

	// Confined says where what an attempt makes may be: it reads no version of
	// others that may be in fewer zones. nil lets it.
	Confined func(ctx context.Context, attempt string) (residency.Label, error)
	// JobInputs says what the job of an attempt could read, and what the jobs could from
	// whose checkpoints it goes on. Without it attempts write nothing.
	JobInputs func(ctx context.Context, attempt string) ([]JobInputs, error)
	// Deleted runs in the transaction in which a dataset is deleted; may be nil.
	Deleted func(ctx context.Context, tx *store.Tx, p project.Name, name string) error
	// Steps runs transformations on Spark; nil runs none.
	Steps Steps
	// Citations find what Expire must leave, beside versions made of others, and Delete
	// must not delete unasked.
	Citations []Citations
	// Readers names what reads a dataset by its name, whatever its version, such as
	// "feature view orders@2"; nil knows of none.
	Readers func(ctx context.Context, tx *store.Tx, p project.Name, name string) ([]string, error)
	// Answers names the deployments that answer with what cites, such as "model
	// delay@3"; nil knows of none.
	Answers func(ctx context.Context, tx *store.Tx, p project.Name, by string) ([]string, error)
	// Pseudonyms names the persons of versions that are deleted; without it none are
	// kept.
	Pseudonyms Pseudonyms

	Zone     residency.Zone // where this server is; home when empty
	Instance string         // names this server among those that share the database; never two at a time

	Limits Limits
	Now    func() time.Time // nil is time.Now
}

// Limits bound sizes and waits. A zero field means its default.
type Limits struct {
	Upload        resource.Bytes // of one uploaded file; 16 GiB
	Parser        parser.Limits  // see there
	ParserMemory  resource.Bytes // of the process that parses; 2 GiB
	ImportTime    time.Duration  // from the first byte to the version; 2 h
	DataFile      resource.Bytes // of one data file, about; 256 MiB
	UniqueKeys    int            // that the unique expectations of an import remember; 20,000,000
	QueryMemory   resource.Bytes // of DuckDB; 1 GiB
	QueryDisk     resource.Bytes // of what does not fit its memory; 16 GiB
	QueryTime     time.Duration  // 2 min
	QueryRows     int64          // of a result; 50,000,000
	QueryInput    int64          // rows handed to a query; 200,000,000
	Queries       int            // SQL statements at a time, of all projects; 4
	Imports       int            // at a time, of all projects; 4
	QueueTime     time.Duration  // longest wait for one of these slots; 1 min
	SQL           int            // bytes of a query's text; 256 KiB
	Answer        resource.Bytes // of rows that are answered as one JSON document; DefaultAnswer
	MetadataDepth int            // accepted versions in a table's metadata; 1,000
	Stray         time.Duration  // how long uncommitted files are kept; 72 h
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.Upload, 16*resource.GiB)
	orDefault(&l.ParserMemory, 2*resource.GiB)
	orDefault(&l.Parser.Parquet, int64(l.ParserMemory)/2)
	orDefault(&l.ImportTime, 2*time.Hour)
	orDefault(&l.DataFile, 256*resource.MiB)
	orDefault(&l.UniqueKeys, 20_000_000)
	orDefault(&l.QueryMemory, resource.GiB)
	orDefault(&l.QueryDisk, 16*resource.GiB)
	orDefault(&l.QueryTime, 2*time.Minute)
	orDefault(&l.QueryRows, 50_000_000)
	orDefault(&l.QueryInput, 200_000_000)
	orDefault(&l.Queries, 4)
	orDefault(&l.Imports, 4)
	orDefault(&l.QueueTime, time.Minute)
	orDefault(&l.SQL, 256<<10)
	orDefault(&l.Answer, DefaultAnswer)
	orDefault(&l.MetadataDepth, 1000)
	orDefault(&l.Stray, 72*time.Hour)
	return l
}

func orDefault[T ~int | ~int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Services are the ways to datasets, by what their callers do. Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied; those that name a dataset
// with fault.NotFound; those that take data with fault.Invalid.
type Services struct {
	Definitions *Definitions
	Writes      *Writes
	Transforms  *Transforms
	Reads       *Reads
	Tables      *Tables
	Lineage     *LineageReads
	Erasure     *Erasure
	Maintenance *Maintenance
}

// core is what all services share: configuration, limits, the slots of work, permission
// checks, and how a version is found, opened, written and deleted.
type core struct {
	cfg     Config
	limits  Limits
	imports *share.Pool
	queries *share.Pool
	sent    *share.Pool
}

// New makes the services. Call Maintenance.Recover before using them.
func New(cfg Config) Services {
	if cfg.Zone == "" {
		cfg.Zone = residency.Home
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := cfg.Limits.withDefaults()
	c := &core{
		cfg: cfg, limits: l,
		imports: share.New(share.Limits{Name: "imports", What: "imports", Slots: l.Imports, Wait: l.QueueTime}),
		queries: share.New(share.Limits{Name: "sql_statements", What: "SQL statements", Slots: l.Queries, Wait: l.QueueTime}),
		sent:    share.New(share.Limits{Name: "row_uploads", What: "row uploads", Slots: sentAtATime, Wait: l.QueueTime}),
	}
	definitions := &Definitions{core: c}
	writes := &Writes{core: c, definitions: definitions}
	reads := &Reads{core: c}
	return Services{
		Definitions: definitions,
		Writes:      writes,
		Transforms:  &Transforms{core: c, definitions: definitions, writes: writes, reads: reads},
		Reads:       reads,
		Tables:      &Tables{core: c, definitions: definitions},
		Lineage:     &LineageReads{core: c, definitions: definitions},
		Erasure:     &Erasure{core: c},
		Maintenance: &Maintenance{core: c},
	}
}

// object is what the policy is asked about.
func (s *core) object(d Dataset, v *Version) policy.Object {
	o := policy.Object{
		Project: string(d.Project), Kind: objectKind, Name: d.Name, Owner: d.Owner,
		Classification: string(d.Spec.Classification), Residency: d.Spec.Residency,
	}
	if v != nil {
		o.Name, o.Classification, o.Residency = v.Ref().String(), string(v.Classification), v.Residency
	}
	return o
}

// allowed loads a dataset that the caller may act on. Who may not is told so
// whether it exists or not.
func (s *core) allowed(ctx context.Context, action policy.Action, p project.Name, name string) (Dataset, error) {
	if err := id.CheckName("dataset name", name); err != nil {
		return Dataset{}, err
	}
	d, err := s.load(ctx, p, name)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return Dataset{}, err
	}
	object := policy.Object{Project: string(p), Kind: objectKind, Name: name}
	if err == nil {
		object = s.object(d, nil)
	}
	if err := s.cfg.Authorizer.Allow(ctx, action, object); err != nil {
		return Dataset{}, err
	}
	return d, err
}

func (s *core) load(ctx context.Context, p project.Name, name string) (d Dataset, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err = s.live(ctx, tx, p, name)
		return err
	})
	return d, err
}

func (s *core) live(ctx context.Context, tx *store.Tx, p project.Name, name string) (Dataset, error) {
	d, err := s.cfg.Store.Dataset(ctx, tx, p, name)
	if err == nil && d.Deleted {
		err = fault.New(fault.NotFound, "there is no dataset %q", name)
	}
	if fault.Is(err, fault.NotFound) {
		return Dataset{}, fault.New(fault.NotFound, "there is no dataset %q in project %s", name, p).
			WithHint("Apply a manifest of kind Dataset first, or list datasets with `falaj get datasets`.")
	}
	return d, err
}

// resolve finds the version that a ref names in a transaction.
func (s *core) resolve(ctx context.Context, tx *store.Tx, d Dataset, number int64) (Version, error) {
	if number == 0 {
		number = d.Accepted
		if number == 0 {
			if d.Latest == 0 {
				return Version{}, fault.New(fault.NotFound, "dataset %s has no versions", d.Name).WithHint("Import a file: falaj dataset import %s FILE", d.Name)
			}
			v, err := s.cfg.Store.Version(ctx, tx, d.ID, d.Latest)
			if err != nil {
				return Version{}, err
			}
			if v.State == Rejected {
				return Version{}, rejected(v)
			}
			return Version{}, fault.New(fault.NotFound, "dataset %s has no accepted version", d.Name)
		}
	}
	v, err := s.cfg.Store.Version(ctx, tx, d.ID, number)
	if fault.Is(err, fault.NotFound) {
		return Version{}, fault.New(fault.NotFound, "there is no version %s", Ref{d.Name, number}).WithHint("Its newest version is %d.", d.Latest)
	}
	return v, err
}

// rejected is why a version cannot be used.
func rejected(v Version) error {
	return fault.New(fault.Conflict, "%s is rejected: %s", v.Ref(), v.Reason).
		WithHint("Correct the data and import it again, or change the expectation.")
}

// Usable refuses a version whose rows nothing can be made of. Errors: fault.Gone for a deleted
// one, fault.Conflict for a rejected one.
func (v Version) Usable() error {
	switch v.State {
	case Deleted:
		return gone(v)
	case Rejected:
		return rejected(v)
	case Accepted:
	}
	return nil
}

// find loads a version that the caller may act on.
func (s *core) find(ctx context.Context, action policy.Action, p project.Name, ref Ref) (v Version, err error) {
	if err := id.CheckName("dataset name", ref.Name); err != nil {
		return Version{}, err
	}
	var d Dataset
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if d, err = s.live(ctx, tx, p, ref.Name); err != nil {
			// What cites a version names it also when its dataset was deleted.
			was, werr := s.cfg.Store.Dataset(ctx, tx, p, ref.Name)
			if ref.Number == 0 || werr != nil || !was.Deleted {
				return err
			}
			v, werr = s.cfg.Store.Version(ctx, tx, was.ID, ref.Number)
			if fault.Is(werr, fault.NotFound) {
				return err
			}
			d = was
			return werr
		}
		v, err = s.resolve(ctx, tx, d, ref.Number)
		return err
	})
	object := policy.Object{Project: string(p), Kind: objectKind, Name: ref.String()}
	switch {
	case err == nil:
		err = s.openStatistics(ctx, &v)
		object = s.object(d, &v)
	case d.ID != "":
		object = s.object(d, nil)
		object.Name = ref.String()
	}
	if aerr := s.cfg.Authorizer.Allow(ctx, action, object); aerr != nil {
		return Version{}, aerr
	}
	return v, err
}
