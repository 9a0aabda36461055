// Package dataset keeps tabular data as immutable, content-addressed versions:
// imported from files or derived from other versions, checked, sealed, and
// traceable to the digest of the bytes they came from.
//
// # Map
//
//   - dataset.go: Spec, Dataset, Version, Ref and what they must satisfy.
//   - service.go: Services, the only way in, over one shared core. Definitions declares, lists
//     and deletes (definitions.go, apply.go, delete.go); Writes imports a file, takes
//     rows and keeps derived data (import.go, sentrows.go, create.go); Transforms makes datasets of
//     others as the manifest says (transform.go); Reads opens, previews, exports and runs SQL
//     (read.go, shard.go, profile.go, query.go); Tables shows open datasets to other engines
//     (tables.go, external.go); LineageReads follows the lineage (lineage.go); Erasure takes the
//     rows of a person out of all versions (erase.go, tombstone.go); Maintenance recovers after a
//     crash, expires, moves and reports (maintenance.go, expire.go).
//     residencylabels.go lends labels to the service of residency.
//   - write.go is the one path by which a version comes to be; cell/, statistics/ and
//     expectation/ look at the rows as they pass: expectation.Checker decides which rows go
//     to the quarantine, and quarantine.go stores them. expectations.go reads the other versions that expectations
//     need; profile.go keeps sketches of the columns.
//   - shard.go: which rows of a version are read. jobinputs.go: what a job could read, which
//     its outputs are derived from. sealedstatistics.go seals statistics and results of
//     expectations.
//   - child/ is the pipe to the processes that parse users' files and run SQL;
//     parser/ and sqlworker/ are those processes; table/ is Parquet and Iceberg; datafile/
//     keeps the files;
//     datasetsql/ keeps the rows, datasettest/ builds the services for tests.
//
// # Guarantees
//
// A version that a caller was told of is durable with its files, and never
// changes but for where it may be; the same bytes under the same spec give the same version. A version
// that fails its expectations is kept as rejected, and nothing can train on it.
// Whatever fails half-way leaves no version and no files, even after a crash.
// Every read of rows passes the permission, the residency door and, for
// confidential and restricted data, the synced journal before the first row is
// handed out. A derived version may be only where all its parents may be.
//
// The server never parses a user's file or runs a user's SQL itself.
package dataset

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
)

// ID identifies a dataset: "ds_01J…".
type ID string

// VersionID identifies a version: "dsv_01J…".
type VersionID string

// Kind is the manifest kind, and the kind of policy objects.
const (
	ManifestKind = "Dataset"
	objectKind   = "dataset"
)

// Classification is the sensitivity of data.
type Classification = project.Classification

// The classifications, from open to closed. Reads of the last two are journaled.
const (
	Public       = project.Public
	Internal     = project.Internal // the default
	Confidential = project.Confidential
	Restricted   = project.Restricted
)

// Protection is whether files are sealed or open to other engines.
type Protection string

// The protections.
const (
	Sealed Protection = "sealed" // Parquet modular encryption; through Falaj only
	Open   Protection = "open"   // plain Parquet for Spark, Trino, pyiceberg
)

// Format of an imported file.
type Format = parser.Format

// The formats.
const (
	CSV     = parser.CSV
	CSVGzip = parser.CSVGzip
	Parquet = parser.Parquet
	Avro    = parser.Avro

	JSONLines = parser.JSONLines
)

// Type of a column.
type Type = table.Type

// Field is a column of a version.
type Field = table.Field

// Schema is the columns of a version in order.
type Schema = table.Schema

// Column declares a column's type.
type Column struct {
	Name string `json:"name" doc:"Name in the file's header"`
	Type Type   `json:"type" doc:"Type of the values: string, int32, int64, float32, float64, bool, timestamp, date, or a list of one of them but date, such as list<float32>"`
	// Optional is for a column that files got one day.
	Optional bool `json:"optional,omitempty" doc:"The column is optional in a file; if it is missing, its values are null"`
}

// Spec is what a Dataset manifest says. It applies to versions made after it.
type Spec struct {
	Description    string            `json:"description,omitempty" doc:"Description of the data"`
	Format         Format            `json:"format,omitempty" doc:"Format of imported files; default: detected from the content" enum:"csv,csv.gz,parquet,jsonl,avro"`
	Delimiter      string            `json:"delimiter,omitempty" doc:"Delimiter of CSV files; default: comma"`
	NullValues     []string          `json:"null_values,omitzero" doc:"CSV cells that mean null; default: the empty cell and NA"`
	CSV            *parser.Layout    `json:"csv,omitempty" doc:"Layout of CSV files, if they are not UTF-8 or their first line is not a header"`
	LeaveOut       []string          `json:"leave_out,omitempty" doc:"Columns of imported files that are not read"`
	Columns        []Column          `json:"columns,omitempty" doc:"Types of required columns; the types of other columns are inferred from the first rows"`
	Expectations   expectation.Rules `json:"expectations,omitempty" doc:"Expectations of a version; a version that fails them is rejected, and nothing can train on it"`
	Classification Classification    `json:"classification,omitempty" doc:"Classification of the data; default: that of the project, else internal" enum:"public,internal,confidential,restricted"`
	Residency      residency.Label   `json:"residency,omitempty" doc:"Zones where the data is allowed; default: those of the project, else home"`
	Protection     Protection        `json:"protection,omitempty" doc:"sealed (the default): encrypted, read through Falaj only; open: plain Parquet that other engines read" enum:"sealed,open"`
	Keep           Keep              `json:"keep,omitzero" doc:"Retention of versions; default: all. A cited version is never removed automatically"`
	Fresh          string            `json:"fresh,omitempty" doc:"Expected interval of new versions, such as 24h: the event dataset.stale is sent once if no version was accepted for this time"`
	// Entities maps the join keys of entities to columns, where no view tells, or
	// columns are called otherwise: {customer: {customer_id: buyer}}.
	// Transform is how Derive makes a version.
	Transform *Transform                   `json:"transform,omitempty" doc:"Transformation that derives versions from other datasets: falaj dataset derive"`
	Entities  map[string]map[string]string `json:"entities,omitempty" doc:"Persons of the rows: columns by the join keys of an entity, such as {customer: {customer_id: buyer}}; erasures use it to find a person. Needed only if no feature view reads the dataset, or if its columns have other names; {customer: {}}: no row belongs to a customer"`
}

// Limits on what a spec may hold.
const (
	maxDescription = 4 << 10
)

// withDefaults spells out what was left out.
func (s Spec) withDefaults() Spec {
	if s.NullValues == nil {
		s.NullValues = []string{"", "NA"}
	}
	if s.Protection == "" {
		s.Protection = Sealed
	}
	return s
}

// Validate refuses a spec that cannot be used, naming the field. Error:
// fault.Invalid.
func (s Spec) Validate() error {
	bad := func(field, format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "spec.%s: %s", field, fmt.Sprintf(format, args...))
	}
	s = s.withDefaults()
	if len(s.Description) > maxDescription {
		return bad("description", "%d bytes are over the limit of %d", len(s.Description), maxDescription)
	}
	switch s.Format {
	case "", CSV, CSVGzip, Parquet, JSONLines, Avro:
	default:
		return bad("format", "there is no format %q", s.Format).WithHint("The formats are csv, csv.gz, parquet, jsonl and avro.")
	}
	if s.Delimiter != "" {
		r, n := utf8.DecodeRuneInString(s.Delimiter)
		if n != len(s.Delimiter) || r == utf8.RuneError || strings.ContainsRune("\"\r\n\x00", r) {
			return bad("delimiter", "%q is not a valid delimiter: it must be a single character", s.Delimiter)
		}
	}
	if len(s.NullValues) > 64 {
		return bad("null_values", "%d values are over the limit of 64", len(s.NullValues))
	}
	if err := s.CSV.Validate(); err != nil {
		return fault.Wrap(err, "spec.csv")
	}
	if len(s.LeaveOut) > table.MaxColumns {
		return bad("leave_out", "%d columns are over the limit of %d", len(s.LeaveOut), table.MaxColumns)
	}
	if len(s.Columns) > 0 {
		names := make([]string, len(s.Columns))
		for i, c := range s.Columns {
			names[i] = c.Name
			if slices.Contains(s.LeaveOut, c.Name) {
				return bad("leave_out", "column %q is declared in spec.columns", c.Name)
			}
			if !c.Type.Valid() {
				return bad(fmt.Sprintf("columns[%d].type", i), "there is no type %q", string(c.Type)).WithHint("The types are string, int32, int64, float32, float64, bool, timestamp, date, and lists such as list<float64>.")
			}
		}
		if err := table.CheckNames(names); err != nil {
			return fault.Wrap(err, "spec.columns")
		}
	}
	if len(s.Expectations) > expectation.Max {
		return bad("expectations", "%d are over the limit of %d", len(s.Expectations), expectation.Max)
	}
	for i, e := range s.Expectations {
		if err := e.Validate(); err != nil {
			return fault.Wrap(err, "spec.expectations[%d]", i)
		}
	}
	if err := s.validateEntities(); err != nil {
		return err
	}
	if s.Classification != "" {
		if err := s.Classification.Validate(); err != nil {
			return fault.Wrap(err, "spec.classification")
		}
	}
	if err := s.Residency.Validate(); err != nil {
		return fault.Wrap(err, "spec.residency")
	}
	if err := s.Keep.Validate(); err != nil {
		return fault.Wrap(err, "spec.keep")
	}
	if err := s.Transform.Validate(); err != nil {
		return err
	}
	if err := expectation.CheckAge(s.Fresh); err != nil {
		return fault.Wrap(err, "spec.fresh")
	}
	switch s.Protection {
	case Sealed:
	case Open:
		if s.Classification == Confidential || s.Classification == Restricted {
			return bad("protection", "%s data cannot be open: reads by other engines would not be journaled", s.Classification).
				WithHint("Leave it sealed, or classify it as internal.")
		}
	default:
		return bad("protection", "there is no protection %q", string(s.Protection)).WithHint("The values are sealed and open.")
	}
	return nil
}

// Reading is how the parser reads files of the dataset.
func (s Spec) Reading() parser.Request {
	r := parser.Request{Format: s.Format, Delimiter: s.Delimiter, Nulls: s.NullValues, CSV: s.CSV, LeaveOut: s.LeaveOut}
	for _, c := range s.Columns {
		r.Columns = append(r.Columns, parser.Column{Name: c.Name, Type: c.Type})
		if c.Optional {
			r.Optional = append(r.Optional, c.Name)
		}
	}
	return r
}

// digest identifies the part of a spec that decides what a version is.
func (s Spec) digest() string {
	s = s.withDefaults()
	s.Description, s.Keep, s.Entities, s.Fresh = "", Keep{}, nil, ""
	s.Transform = nil // what was executed is the lineage's
	s.Residency = residency.Of(s.Residency...)
	b, err := json.Marshal(s)
	if err != nil {
		panic("dataset: a validated spec does not marshal: " + err.Error())
	}
	return digestOf(b)
}

func digestOf(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// Dataset is a named series of versions.
type Dataset struct {
	ID       ID           `json:"id"`
	Project  project.Name `json:"project"`
	Name     string       `json:"name"`
	Spec     Spec         `json:"spec"`
	Revision int64        `json:"revision"` // counts changes of the spec, from 1
	Latest   int64        `json:"latest"`   // number of the newest version; 0 for none
	Accepted int64        `json:"accepted"` // number of the newest accepted version; 0 for none
	Owner    string       `json:"owner"`    // principal ID of its creator
	Created  time.Time    `json:"created_at"`
	Updated  time.Time    `json:"updated_at"`

	// Metadata is where the Iceberg table metadata of the newest accepted
	// version is; empty for none. Open tables are read by others from here.
	Metadata string `json:"metadata,omitempty"`

	Stale bool `json:"stale,omitempty"` // dataset.stale was published since the last version, per Spec.Fresh

	// Lowered is Latest when two people lowered what is declared: versions up to then hold
	// later ones to no class. 0 for never.
	Lowered    int64             `json:"-"`
	Fields     FieldIDs          `json:"-"` // given to columns so far, also of rejected versions
	Columns    []string          `json:"-"` // of accepted versions so far, sorted; nil of one from before this field
	Properties map[string]string `json:"-"` // of the open table, set by its clients
	// Next is the schema of what clients of the open table are about to write,
	// when they changed it before; nil for that of the newest version.
	Next    Schema `json:"-"`
	Deleted bool   `json:"-"` // the name may be declared again, and its numbering continues
}

// State of a version.
type State string

// The states. A version begins accepted or rejected, and may become deleted.
const (
	Accepted State = "accepted"
	Rejected State = "rejected" // failed an expectation; can be previewed, not used
	Deleted  State = "deleted"  // the rows are gone; digests and lineage stay
)

// Version is one immutable state of a dataset.
type Version struct {
	ID             VersionID            `json:"id"`
	Project        project.Name         `json:"project"`
	Dataset        string               `json:"name"` // of the dataset
	DatasetID      ID                   `json:"dataset_id"`
	Number         int64                `json:"version"`
	State          State                `json:"state"`
	Reason         string               `json:"reason,omitempty"` // reason of the rejection; contains values of open data only
	Schema         Schema               `json:"schema"`
	Rows           int64                `json:"rows"`
	Quarantined    int64                `json:"quarantined,omitempty"` // rows that were read and are not among them
	Bytes          int64                `json:"bytes"`                 // stored, those in quarantine too
	ContentDigest  string               `json:"digest"`                // of the rows, whatever file they came in
	Statistics     []statistics.Summary `json:"statistics,omitempty"`  // by column, in schema order
	Expectations   []expectation.Result `json:"expectations,omitempty"`
	Classification Classification       `json:"classification"`
	Residency      residency.Label      `json:"residency"`
	Protection     Protection           `json:"protection"`
	Lineage        Lineage              `json:"lineage"`
	Created        time.Time            `json:"created_at"`
	CreatedBy      string               `json:"created_by"`

	// SealedStatistics is Statistics and Expectations under the dataset's key: what the
	// database keeps of them; nil for open data.
	SealedStatistics []byte `json:"-"`

	// Redacts is the number of the version that this one stands for, without the rows
	// of a person; RedactedBy, of a deleted version, is the number of that.
	Redacts    int64 `json:"redacts,omitempty"`
	RedactedBy int64 `json:"redacted_by,omitempty"`

	Order int64 `json:"-"` // number of the version that it stands for in the end; 0 is its own
	// DeletedAt and DeletedBy, the ID of a principal, are of a deleted version; zero also
	// of one that a server deleted which did not write them.
	DeletedAt time.Time  `json:"deleted_at,omitzero"`
	DeletedBy string     `json:"deleted_by,omitempty"`
	Tombstone *Tombstone `json:"tombstone,omitempty"` // of a deleted version that something cited

	// Returned are persons who were erased and have rows in it again.
	Returned []Returned `json:"returned,omitempty"`

	Files        []DataFile `json:"-"`
	Quarantine   []DataFile `json:"-"` // of the quarantined rows; see quarantine.go
	Room         string     `json:"-"` // directory below the table's location that its own is in; see room
	ManifestList string     `json:"-"` // key of the Iceberg snapshot; empty unless accepted
	Snapshot     int64      `json:"-"` // its ID, where another engine chose it; 0 is Number
	// QuarantineDigest is of the rows in quarantine; empty without any, and not stored.
	QuarantineDigest string `json:"-"`
	// Fingerprint is equal for versions made of the same content, the same way.
	Fingerprint string `json:"-"`

	// Unchanged is set in the answer to an import or a derivation when the version
	// was there before, and nothing was made. Current is then the version that the
	// dataset's name means, "weather@3": another one where newer content came
	// after. Neither is stored.
	Unchanged bool   `json:"unchanged,omitempty"`
	Current   string `json:"current,omitempty"`
}

// Ref is the version's own name, "weather@3".
func (v Version) Ref() Ref { return Ref{Name: v.Dataset, Number: v.Number} }

func (v Version) snapshotID() int64 {
	if v.Snapshot != 0 {
		return v.Snapshot
	}
	return v.Number
}

// DataFile is a stored Parquet file of a version.
type DataFile struct {
	Key    string  `json:"key"`
	Rows   int64   `json:"rows"`
	Bytes  int64   `json:"bytes"`
	Groups []int64 `json:"groups,omitempty"` // rows of each row group; nil where older servers wrote the file
}

// Lineage is the upstream lineage of a version. Source is set for imports, Parents for derived
// versions.
type Lineage struct {
	Source   *Source   `json:"source,omitempty"`
	Parents  []Parent  `json:"parents,omitempty"`
	Producer *Producer `json:"producer,omitempty"`
	Columns  Columns   `json:"columns,omitempty"` // empty where that is not known
}

// Columns is the column lineage of a version. AllRows are the columns that influence all of its
// rows.
type Columns map[string][]ColumnSource

// AllRows is the key of what decides which rows there are: filters, joins, groups.
// It is the name of no column.
const AllRows = "*"

// ColumnSource is a column of a parent.
type ColumnSource struct {
	Ref    string `json:"ref"` // "weather@3"
	Column string `json:"column"`
	// How is identity, transformation or aggregation where its values go into the
	// column; conditional, join, filter, group_by, sort or window where they decide.
	How string `json:"how"`
}

// Source is an imported file.
type Source struct {
	Filename string `json:"filename,omitempty"` // as the uploader called it, without directories
	Digest   string `json:"digest"`             // of the uploaded bytes
	Bytes    int64  `json:"bytes"`
	Format   Format `json:"format"`
}

// Parent is a version that a derivation could read.
type Parent struct {
	Ref           string    `json:"ref"` // "weather@3"
	ID            VersionID `json:"id"`
	ContentDigest string    `json:"digest"`
}

// Producer is what made a derived version.
type Producer struct {
	Kind   string `json:"kind"`             // "job", "run", "query", "training_set", …
	ID     string `json:"id,omitempty"`     // of the job, run or derivation; they sort by when they began
	Digest string `json:"digest,omitempty"` // of what was executed: SQL text, feature definitions
	Text   string `json:"text,omitempty"`   // the same for people, such as the SQL, or what a job had: "with model delay@3"; at most 64 KiB
}

// String is for people: "job job_01J… with model delay@3".
func (p Producer) String() string {
	text := ""
	if p.Kind == "job" {
		text = p.Text
	}
	return strings.Join(slices.DeleteFunc([]string{p.Kind, p.ID, text}, func(s string) bool { return s == "" }), " ")
}

// Ref names a version of a dataset in a project. Number 0 means the newest
// accepted one.
type Ref struct {
	Name   string
	Number int64
}

// ParseRef reads "weather" or "weather@3". Error: fault.Invalid.
func ParseRef(s string) (Ref, error) {
	name, number, numbered := strings.Cut(s, "@")
	if err := id.CheckName("dataset name", name); err != nil {
		return Ref{}, err
	}
	if !numbered {
		return Ref{Name: name}, nil
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != number {
		return Ref{}, fault.New(fault.Invalid, "%.80q is not a dataset version", s).WithHint("Write a version as %s@1, or %s for the newest accepted one.", name, name)
	}
	return Ref{Name: name, Number: n}, nil
}

// String is the form that ParseRef reads.
func (r Ref) String() string {
	if r.Number == 0 {
		return r.Name
	}
	return r.Name + "@" + strconv.FormatInt(r.Number, 10)
}

// FieldIDs remembers the ID of each column name and type that a dataset ever
// had, so that a column keeps its identity over the versions. A column that
// changes its type is another column.
type FieldIDs struct {
	Last int            `json:"last"`
	IDs  map[string]int `json:"ids,omitempty"` // "type name" → ID
}

// Names are the columns that any version of the dataset had, sorted.
func (f *FieldIDs) Names() []string {
	names := make([]string, 0, len(f.IDs))
	for typed := range f.IDs {
		_, name, _ := strings.Cut(typed, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// assign gives IDs to the columns and reports whether any is new. A column that was
// int64 or float64 once stays so when int32 or float32 comes, unless it is declared:
// who reads the dataset does not see it change from file to file.
func (f *FieldIDs) assign(s Schema, declared []Column) (Schema, bool) {
	out := slices.Clone(s)
	fresh := false
	for i, c := range out {
		if !slices.ContainsFunc(declared, func(d Column) bool { return d.Name == c.Name }) {
			for _, wide := range []Type{table.Int64, table.Float64} {
				_, known := f.IDs[string(wide)+" "+c.Name]
				if t, ok := table.Wider(c.Type, wide); ok && known && t == wide {
					c.Type, out[i].Type = wide, wide
				}
			}
		}
		key := string(c.Type) + " " + c.Name
		id := func(key string) int {
			n, ok := f.IDs[key]
			if !ok {
				if f.IDs == nil {
					f.IDs = make(map[string]int)
				}
				f.Last++
				n, fresh = f.Last, true
				f.IDs[key] = n
			}
			return n
		}
		out[i].ID = id(key)
		if _, list := c.Type.Elem(); list {
			out[i].Element = id("element of " + key)
		}
	}
	return out, fresh
}

// Staging is a write or a removal in progress: files under its prefix belong to no version.
type Staging struct {
	ID       VersionID
	Project  project.Name
	Dataset  string
	Room     string // of the version
	Instance string
	Deadline time.Time // after it, any process may clean up
}

func createdBy(p identity.Principal) string {
	if p.ID == "" {
		return string(p.Kind)
	}
	return p.ID
}
