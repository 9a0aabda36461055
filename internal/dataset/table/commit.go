package table

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Commit is what a client of the catalog wants of a table, as the REST protocol
// has it: updates, if the requirements hold.
type Commit struct {
	Requirements []Requirement `json:"requirements"`
	Updates      []Update      `json:"updates"`
}

// Requirement is a precondition of a client; Type selects the field.
type Requirement struct {
	Type          string `json:"type"`
	UUID          string `json:"uuid"`
	Ref           string `json:"ref"`
	Snapshot      *int64 `json:"snapshot-id"` // nil: there is no such ref
	LastField     int    `json:"last-assigned-field-id"`
	Schema        int    `json:"current-schema-id"`
	LastPartition int    `json:"last-assigned-partition-id"`
	Spec          int    `json:"default-spec-id"`
	Order         int    `json:"default-sort-order-id"`
}

// Update is one change; Action selects the fields.
type Update struct {
	Action     string            `json:"action"`
	Format     int               `json:"format-version"`
	Schema     *Declared         `json:"schema"`
	SchemaID   *int              `json:"schema-id"`
	Spec       *Layout           `json:"spec"`
	SpecID     int               `json:"spec-id"`
	Order      *Layout           `json:"sort-order"`
	OrderID    int               `json:"sort-order-id"`
	Snapshot   *Written          `json:"snapshot"`
	Ref        string            `json:"ref-name"`
	Type       string            `json:"type"`
	SnapshotID int64             `json:"snapshot-id"`
	Location   string            `json:"location"`
	Set        map[string]string `json:"updates"`
	Removed    []string          `json:"removals"`
}

// Declared is a schema as clients write it.
type Declared struct {
	ID         int   `json:"schema-id"`
	Identifier []int `json:"identifier-field-ids"`
	Fields     []struct {
		ID       int             `json:"id"`
		Name     string          `json:"name"`
		Type     json.RawMessage `json:"type"`
		Required bool            `json:"required"`
	} `json:"fields"`
}

// Layout is a partition spec or a sort order.
type Layout struct {
	Fields []json.RawMessage `json:"fields"`
}

// Written is a snapshot that a client wrote.
type Written struct {
	ID       int64             `json:"snapshot-id"`
	Parent   int64             `json:"parent-snapshot-id"`
	List     string            `json:"manifest-list"`
	SchemaID *int              `json:"schema-id"`
	Summary  map[string]string `json:"summary"`
}

// Change is what a commit comes to.
type Change struct {
	Schema   Schema   // of the table from then on, field IDs as the client gave them
	Required []string // the columns that hold no nulls
	Anew     bool     // Schema differs from the table's
	// Write is the snapshot whose rows become the next version; nil without one.
	Write *Written
	Empty bool // the table is to have no rows
	Done  bool // the commit was accepted before
	Set   map[string]string
	Unset []string
}

// types are the types of Iceberg that are kept, by what they are kept as.
var types = map[string]Type{
	"string": String, "int": Int32, "long": Int64, "float": Float32, "double": Float64, "boolean": Bool, "timestamptz": Timestamp, "date": Date,
}

// Columns is the schema that is kept of what a client declares, and the columns
// that may hold no nulls. Error: fault.Invalid or fault.Unsupported.
func (d Declared) Columns() (s Schema, required []string, err error) {
	if len(d.Identifier) > 0 {
		return nil, nil, fault.New(fault.Unsupported, "the table has identifier fields, which Falaj does not support").WithHint("Declare an expectation `unique` in the dataset's manifest.")
	}
	for _, f := range d.Fields {
		var name string
		var nested struct {
			Type    string          `json:"type"`
			ID      int             `json:"element-id"`
			Element json.RawMessage `json:"element"`
		}
		_ = json.Unmarshal(f.Type, &name) // a nested type is no text
		t, ok := types[name]
		if json.Unmarshal(f.Type, &nested) == nil && nested.Type == "list" {
			_ = json.Unmarshal(nested.Element, &name)
			t = ListOf(types[name])
			ok = t.Valid()
		}
		if !ok {
			hint := "The types are string, int, long, float, double, boolean, timestamptz and date, and lists of these except dates."
			if strings.HasPrefix(name, "timestamp") {
				hint = "Times are instants in microseconds: use timestamptz (TIMESTAMP in Spark, timestamp(\"us\", \"UTC\") in pyarrow)."
			}
			return nil, nil, fault.New(fault.Unsupported, "column %q has the type %.100s, which tables do not support", f.Name, f.Type).WithHint("%s", hint)
		}
		s = append(s, Field{ID: f.ID, Name: f.Name, Type: t, Element: nested.ID})
		if f.Required {
			required = append(required, f.Name)
		}
	}
	return s, required, CheckNames(s.Names())
}

// Plain refuses what would lay a table out otherwise than ours are. Either may be
// nil. Error: fault.Unsupported.
func Plain(spec, order *Layout) error {
	if spec != nil && len(spec.Fields) > 0 {
		return fault.New(fault.Unsupported, "the table is partitioned, and Falaj does not support partitioned tables").WithHint("Omit the partition fields.")
	}
	if order != nil && len(order.Fields) > 0 {
		return fault.New(fault.Unsupported, "the table has a sort order, and Falaj stores rows in the order of writing").
			WithHint("Sort the rows before writing them, and omit the sort order.")
	}
	return nil
}

// Bounds on the properties that clients set.
const (
	maxProperties = 100
	maxProperty   = 4 << 10 // bytes of a name and its value
)

// CheckProperties refuses properties that say what tables are not, or that are
// too large. Error: fault.Unsupported or fault.Invalid.
func CheckProperties(p map[string]string) error {
	if len(p) > maxProperties {
		return fault.New(fault.Invalid, "%d table properties are over the limit of %d", len(p), maxProperties)
	}
	for name, v := range p {
		if len(name)+len(v) > maxProperty {
			return fault.New(fault.Invalid, "table property %.80q has %d bytes, over the limit of %d", name, len(name)+len(v), maxProperty)
		}
		want, ok := fixed[name]
		if name == "format-version" {
			want, ok = "2", true
		}
		if ok && v != want {
			return fault.New(fault.Unsupported, "table property %s is always %s, not %.80q", name, want, v).WithHint("Omit it.")
		}
	}
	return nil
}

func conflict(format string, args ...any) error {
	return fault.New(fault.Conflict, format, args...).WithHint("Another client wrote to the table: read it again and repeat.")
}

// Plan says what a commit to the table comes to, or why it cannot be. exists is
// false for a table that was only staged. Errors: fault.Conflict when a
// requirement does not hold; fault.Invalid and fault.Unsupported for what tables
// here cannot be.
func (t Table) Plan(c Commit, exists bool) (Change, error) {
	m := t.metadata()
	p := planner{table: t, m: m, current: max(m.CurrentSnapshotID, 0), schemas: map[int]Declared{}, written: map[int64]*Written{}}
	// A snapshot that is there already was committed by a request whose answer was
	// lost; what it required was true then.
	for _, u := range c.Updates {
		known := slices.ContainsFunc(t.Snapshots, func(s Snapshot) bool { return s.ID == u.SnapshotID })
		if u.Action == "set-snapshot-ref" && u.Ref == mainBranch && exists && known && adds(c, u.SnapshotID) {
			return Change{Done: true}, nil
		}
	}
	for _, r := range c.Requirements {
		if err := p.require(r, exists); err != nil {
			return Change{}, err
		}
	}
	for _, u := range c.Updates {
		if err := p.update(u); err != nil {
			return Change{}, err
		}
	}
	return p.change()
}

// planner goes through a commit.
type planner struct {
	table    Table
	m        metadata
	current  int64              // snapshot of the branch main now; 0 for none
	schemas  map[int]Declared   // added ones
	last     *int               // the schema added last
	schema   *int               // to be the current one
	written  map[int64]*Written // added snapshots
	moved    bool               // main goes to another snapshot
	to       int64              // which; 0 for none
	replaced bool               // main was removed first
	out      Change
}

func adds(c Commit, id int64) bool {
	return slices.ContainsFunc(c.Updates, func(u Update) bool {
		return u.Action == "add-snapshot" && u.Snapshot != nil && u.Snapshot.ID == id
	})
}

func (p *planner) require(r Requirement, exists bool) error {
	if !exists && r.Type != "assert-create" {
		return fault.New(fault.NotFound, "the table does not exist")
	}
	differs := func(what string, is, was any) error {
		if is == was {
			return nil
		}
		return conflict("the table's %s is %v, not %v", what, is, was)
	}
	switch r.Type {
	case "assert-create":
		if exists {
			return conflict("the table already exists")
		}
		return nil
	case "assert-table-uuid":
		return differs("UUID", p.m.TableUUID, r.UUID)
	case "assert-ref-snapshot-id":
		is, ok := p.m.Refs[r.Ref]
		if r.Snapshot == nil {
			if ok {
				return conflict("%s already exists", r.Ref)
			}
			return nil
		}
		return differs("snapshot of "+r.Ref, is.ID, *r.Snapshot)
	case "assert-last-assigned-field-id":
		return differs("last field ID", p.m.LastColumnID, r.LastField)
	case "assert-current-schema-id":
		return differs("schema ID", p.m.CurrentSchemaID, r.Schema)
	case "assert-last-assigned-partition-id":
		return differs("last partition ID", p.m.LastPartitionID, r.LastPartition)
	case "assert-default-spec-id":
		return differs("partition spec", onlySpec, r.Spec)
	case "assert-default-sort-order-id":
		return differs("sort order", onlyOrder, r.Order)
	}
	return fault.New(fault.Invalid, "unknown requirement %.80q", r.Type)
}

func (p *planner) update(u Update) error {
	switch u.Action {
	case "assign-uuid": // ours comes from the name
		return nil
	case "upgrade-format-version":
		if u.Format > p.m.FormatVersion {
			return fault.New(fault.Unsupported, "tables have format version 2, not %d", u.Format)
		}
		return nil
	case "add-schema":
		if u.Schema == nil {
			return fault.New(fault.Invalid, "add-schema has no schema")
		}
		id := u.Schema.ID
		p.schemas[id], p.last = *u.Schema, &id
		return nil
	case "set-current-schema":
		id := u.SchemaID
		if id != nil && *id == -1 {
			id = p.last
		}
		if id == nil {
			return fault.New(fault.Invalid, "set-current-schema names no schema")
		}
		p.schema = id
		return nil
	case "add-spec", "add-sort-order", "set-default-spec", "set-default-sort-order":
		return Plain(u.Spec, u.Order)
	case "set-location":
		if strings.TrimSuffix(u.Location, "/") != p.m.Location {
			return fault.New(fault.Invalid, "the table's files are at %s, not at %.200q", p.m.Location, u.Location).WithHint("Omit the location: Falaj assigns it.")
		}
		return nil
	case "set-properties":
		set := maps.Clone(u.Set)
		for name, v := range set { // what clients were told, they may say again
			if is, ok := p.m.Properties[name]; ok && is == v {
				delete(set, name)
			}
		}
		if err := CheckProperties(set); err != nil {
			return err
		}
		if p.out.Set == nil {
			p.out.Set = map[string]string{}
		}
		maps.Copy(p.out.Set, set)
		return nil
	case "remove-properties":
		p.out.Unset = append(p.out.Unset, u.Removed...)
		return nil
	case "add-snapshot":
		if u.Snapshot == nil || u.Snapshot.ID <= 0 {
			return fault.New(fault.Invalid, "add-snapshot has no snapshot with an ID")
		}
		p.written[u.Snapshot.ID] = u.Snapshot
		return nil
	case "set-snapshot-ref":
		if u.Ref != mainBranch || u.Type != "branch" {
			return fault.New(fault.Unsupported, "Falaj tags versions automatically and has one branch, %s, so %.80q cannot be created", mainBranch, u.Ref).
				WithHint("Version 3 has the tag v3.")
		}
		p.moved, p.to = true, u.SnapshotID
		return nil
	case "remove-snapshot-ref":
		if u.Ref != mainBranch {
			return fault.New(fault.Unsupported, "the tags of versions cannot be removed")
		}
		p.moved, p.to, p.replaced = true, 0, true
		return nil
	case "remove-snapshots":
		return fault.New(fault.Unsupported, "clients cannot expire versions").WithHint("Delete a version with `falaj delete dataset NAME@VERSION`.")
	}
	return fault.New(fault.Unsupported, "Falaj does not support the update %.80q", u.Action)
}

// change puts the parts together.
func (p *planner) change() (Change, error) {
	if p.moved && p.to == 0 {
		p.out.Empty = true
	}
	if p.moved && p.to != 0 {
		w, ok := p.written[p.to]
		if !ok {
			return Change{}, fault.New(fault.Unsupported, "the table cannot be reset to an older snapshot").WithHint("Write its rows again, as a new version.")
		}
		if err := p.follows(w); err != nil {
			return Change{}, err
		}
		p.out.Write = w
		if p.schema == nil {
			p.schema = w.SchemaID
		}
	}
	return p.out, p.settle()
}

// follows holds a snapshot against what main is now: one that builds on another
// would undo what came between. A new table, or one that is replaced, needs no
// parent.
func (p *planner) follows(w *Written) error {
	for range len(p.written) + 1 {
		if w.Parent == p.current || w.Parent == 0 && p.replaced {
			return nil
		}
		next, ok := p.written[w.Parent]
		if !ok {
			break
		}
		w = next
	}
	return conflict("snapshot %d does not follow %d, the table's current snapshot", w.ID, p.current)
}

// settle finds the schema that the table has from then on.
func (p *planner) settle() error {
	now := p.table.Columns()
	if p.schema == nil {
		p.out.Schema = now
		return nil
	}
	if d, ok := p.schemas[*p.schema]; ok {
		var err error
		if p.out.Schema, p.out.Required, err = d.Columns(); err != nil {
			return err
		}
		p.out.Anew = !slices.Equal(p.out.Schema, now)
		return nil
	}
	if *p.schema != p.m.CurrentSchemaID {
		return fault.New(fault.Unsupported, "the table cannot be reset to an older schema").WithHint("Write rows with the required columns.")
	}
	p.out.Schema = now
	return nil
}

// Columns is the schema that rows are written with next.
func (t Table) Columns() Schema {
	if t.Next != nil || len(t.Snapshots) == 0 {
		return t.Next
	}
	return t.Snapshots[len(t.Snapshots)-1].Schema
}
