package dataset

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Person is whose rows are looked for, in every version of every dataset of a
// project. A version's rows are somebody's when its dataset says so
// (spec.entities); else when a view of the entity reads it, or it was made of such a
// version, by the columns that are called like the join keys.
type Person struct {
	Project project.Name
	Entity  string
	Keys    []string // join keys of the entity: names of columns
	// Read has the names of the datasets that views of the entity read.
	Read map[string]bool
	// Columns are those that told whose a row is, by dataset and in the order of Keys,
	// when the person was erased before.
	Columns map[string][]string
	// Is reports whether values, in the order of Keys and as text, are the person's.
	Is func(values []string) bool
	// Pseudonym is the person's, by Pseudonyms: who had rows in deleted versions is found
	// by it.
	Pseudonym [sha256.Size]byte
	// Purpose is in the journal of classified reads: "erasure ers_01J…".
	Purpose string
}

// Held is a version that has rows of the person.
type Held struct {
	Version  Version
	Rows     int64  // of the person, those in quarantine too
	Redacted string // the version that stands for it now, "orders@5"; empty where only a lookup was asked for, or the version was rejected
}

// nobodys reports whether a dataset says that no row is of somebody of the entity.
func (p Person) nobodys(spec Spec) bool {
	declared, says := spec.Entities[p.Entity]
	return says && len(declared) == 0
}

// columns are those of a dataset that have the join keys, if rows are of persons of
// the entity; tell reports whether that is known of the dataset itself.
func (p Person) columns(name string, spec Spec) (by []string, tell bool) {
	declared, says := spec.Entities[p.Entity]
	if before := p.Columns[name]; !says && len(before) == len(p.Keys) {
		return before, true
	}
	by = make([]string, len(p.Keys))
	for i, key := range p.Keys {
		by[i] = cmp.Or(declared[key], key)
	}
	return by, says || p.Read[name]
}

// Erasure finds and redacts the rows of persons. It checks no permission: privacy, its
// caller, has done so.
type Erasure struct{ *core }

// Telling gives the columns that tell whose a row is, of each dataset of the project
// of which that is known, in the order of p.Keys. What is made of these is found by
// its lineage. It asks for no permission, as Persons.
func (s *Erasure) Telling(ctx context.Context, p Person) (map[string][]string, error) {
	all := map[string][]string{}
	return all, s.eachDataset(ctx, p.Project, func(d Dataset) error {
		if by, tell := p.columns(d.Name, d.Spec); tell && !p.nobodys(d.Spec) {
			all[d.Name] = by
		}
		return nil
	})
}

// Searched lists the places of a project's datasets in which a person was searched for.
type Searched struct {
	Held []Held // versions that have rows of the person
	// Blind are versions that may be derived from the person's rows and have no join key column.
	Blind []string
	// Undeclared are datasets that were not searched: they have columns named like the join
	// keys, and spec.entities does not declare whether these identify the entity.
	Undeclared []string
}

// Persons searches for a person. It requires no permission, because an eraser may lack read
// access. Classified reads are journaled.
func (s *Erasure) Persons(ctx context.Context, p Person) (found Searched, err error) {
	err = s.eachHeld(ctx, p, func(h Held, _ tells) error {
		found.Held = append(found.Held, h)
		return nil
	}, func(v Version, by mapped) {
		switch {
		case by.blind:
			found.Blind = append(found.Blind, v.Ref().String())
		case !slices.Contains(found.Undeclared, v.Dataset):
			found.Undeclared = append(found.Undeclared, v.Dataset)
		}
	})
	return found, err
}

// tells are columns by which a row is known to be somebody's, each set in the order of
// the join keys. A row is the person's if it is by one of them: a version may have the
// key under its own name and, as its lineage says, under others.
type tells [][]string

// names are all columns of these, each once.
func (t tells) names() (all []string) {
	for _, by := range t {
		for _, name := range by {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// Redact takes a person's rows out of every version that has them. Versions are
// immutable, so each is followed by one without these rows, which stands for it
// from then on, and the old one's rows are deleted; its digests and lineage stay.
// done is called for each when its files are gone; nothing of it but its gravestone is
// in the database's files when Redact returns. It may be called again after a
// crash, and does then what is left.
func (s *Erasure) Redact(ctx context.Context, p Person, done func(Held) error) error {
	if err := s.cleanBuried(ctx, p.Project); err != nil {
		return err
	}
	some := false
	tell := func(h Held) error {
		some = true
		return done(h)
	}
	if err := s.redactedBefore(ctx, p, tell); err != nil {
		return err
	}
	// As they are found: what is done once is not lost to a crash, nor to a timeout.
	if err := s.eachHeld(ctx, p, func(h Held, by tells) error {
		v, err := s.redact(ctx, p, h.Version, by)
		if err != nil {
			return fault.Wrap(err, "redacting %s", h.Version.Ref())
		}
		if v.ID != "" {
			h.Redacted = v.Ref().String()
		}
		return tell(h)
	}, func(Version, mapped) {}); err != nil || !some {
		return err
	}
	// Of the statistics, once for all: it may write the whole table anew.
	return s.cfg.DB.Update(ctx, string(p.Project), func(_ context.Context, tx *store.Tx) error {
		tx.Scrub("dataset_version")
		return nil
	})
}

// redactedBefore tells of the versions that this erasure replaced before a crash
// came, perhaps, between that and telling.
func (s *Erasure) redactedBefore(ctx context.Context, p Person, done func(Held) error) error {
	return s.eachDataset(ctx, p.Project, func(d Dataset) error {
		return s.eachVersion(ctx, d, func(v Version) error {
			if v.RedactedBy == 0 {
				return nil
			}
			var by Version
			if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
				by, err = s.cfg.Store.Version(ctx, tx, d.ID, v.RedactedBy)
				return err
			}); err != nil {
				return err
			}
			if by.Lineage.Producer == nil || by.Lineage.Producer.Text != p.Purpose {
				return nil
			}
			return done(Held{Version: v, Rows: v.Rows + v.Quarantined - by.Rows - by.Quarantined, Redacted: by.Ref().String()})
		})
	})
}

// eachHeld visits the versions that have rows of the person, each dataset's oldest
// first, with the columns that tell.
func (s *Erasure) eachHeld(ctx context.Context, p Person, visit func(h Held, by tells) error, unsearched func(Version, mapped)) error {
	m := mapper{s: s.core, p: p, known: map[VersionID]mapped{}, specs: map[ID]Spec{}}
	return s.eachDataset(ctx, p.Project, func(d Dataset) error {
		return s.eachVersion(ctx, d, func(v Version) error {
			if v.State == Deleted {
				return nil
			}
			by, err := m.columns(ctx, v)
			switch {
			case err != nil:
				return err
			case by.blind || by.undeclared:
				unsearched(v, by)
				return nil
			case by.columns == nil:
				return nil
			}
			n, err := s.countRows(ctx, p, v, by.columns)
			if fault.Is(err, fault.Gone) {
				return nil // its key was destroyed: nobody reads it
			}
			if err != nil || n == 0 {
				return err
			}
			return visit(Held{Version: v, Rows: n}, by.columns)
		})
	})
}

// eachDataset visits a project's datasets.
func (s *core) eachDataset(ctx context.Context, p project.Name, visit func(Dataset) error) error {
	for after := ""; ; {
		var ds []Dataset
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			ds, err = s.cfg.Store.Datasets(ctx, tx, p, nil, after, 100)
			return err
		})
		if err != nil {
			return err
		}
		for _, d := range ds {
			after = d.Name
			if err := visit(d); err != nil {
				return err
			}
		}
		if len(ds) < 100 {
			return nil
		}
	}
}

// eachVersion visits a dataset's versions, oldest first.
func (s *Erasure) eachVersion(ctx context.Context, d Dataset, visit func(Version) error) error {
	var all []Version
	for below := int64(0); ; {
		var vs []Version
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			vs, err = s.cfg.Store.Versions(ctx, tx, d.ID, "", below, 500)
			return err
		})
		if err != nil {
			return err
		}
		for _, v := range vs {
			below = v.Number
			v.Statistics = nil // there may be many versions
			all = append(all, v)
		}
		if len(vs) < 500 {
			break
		}
	}
	for _, v := range slices.Backward(all) {
		if err := visit(v); err != nil {
			return err
		}
	}
	return nil
}

// mapped is the join key columns of a version.
type mapped struct {
	columns    tells // nil: nobody's, or not known
	blind      bool  // it comes from rows of persons and has no such columns
	undeclared bool  // it has such columns, and nothing says what they are
}

// mapper finds that out, once for each version.
type mapper struct {
	s     *core
	p     Person
	known map[VersionID]mapped
	specs map[ID]Spec
}

func (m *mapper) columns(ctx context.Context, v Version) (mapped, error) {
	if by, ok := m.known[v.ID]; ok {
		return by, nil
	}
	m.known[v.ID] = mapped{} // parents are older, so nothing comes back to it
	spec, ok := m.specs[v.DatasetID]
	if !ok {
		var d Dataset
		if err := m.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			d, err = m.s.cfg.Store.Dataset(ctx, tx, v.Project, v.Dataset)
			return err
		}); err != nil {
			return mapped{}, err
		}
		spec = d.Spec
		m.specs[v.DatasetID] = spec
	}
	by, err := m.of(ctx, v, spec)
	m.known[v.ID] = by
	return by, err
}

func (m *mapper) of(ctx context.Context, v Version, spec Spec) (mapped, error) {
	if m.p.nobodys(spec) {
		return mapped{}, nil
	}
	by, from := m.p.columns(v.Dataset, spec)
	var ways tells
	for _, parent := range v.Lineage.Parents {
		var pv Version
		if err := m.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			pv, err = m.s.cfg.Store.VersionByID(ctx, tx, v.Project, parent.ID)
			return err
		}); err != nil {
			return mapped{}, err
		}
		its, err := m.columns(ctx, pv)
		if err != nil {
			return mapped{}, err
		}
		from = from || its.columns != nil || its.blind
		if pv.DatasetID == v.DatasetID && pv.Number == v.Redacts { // it is the same without somebody's rows
			ways = append(ways, its.columns...)
			continue
		}
		for _, was := range its.columns {
			ways = append(ways, v.Lineage.Columns.renamed(parent.Ref, was)...)
		}
	}
	has := func(way []string) bool {
		return !slices.ContainsFunc(way, func(name string) bool { _, ok := v.Schema.Column(name); return !ok })
	}
	if !from {
		return mapped{undeclared: has(by)}, nil
	}
	var out mapped
	for _, way := range append(tells{by}, ways...) {
		if has(way) && !slices.ContainsFunc(out.columns, func(had []string) bool { return slices.Equal(had, way) }) && len(out.columns) < maxTells {
			out.columns = append(out.columns, way)
		}
	}
	out.blind = out.columns == nil
	return out, nil
}

// maxTells bounds the sets of columns by which a version is searched.
const maxTells = 64

// renamed are the columns that have the values of columns of a parent, each set in the
// order of those.
func (c Columns) renamed(parent string, was []string) tells {
	all := tells{nil}
	for _, old := range was {
		var names []string
		for name, from := range c {
			if name != AllRows && slices.ContainsFunc(from, func(s ColumnSource) bool { return s.Ref == parent && s.Column == old && s.How == "identity" }) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		var next tells
		for _, way := range all {
			for _, name := range names {
				if len(next) < maxTells {
					next = append(next, append(slices.Clone(way), name))
				}
			}
		}
		all = next
	}
	return all
}

// countRows counts the person's rows of a version, those in quarantine too.
func (s *Erasure) countRows(ctx context.Context, p Person, v Version, by tells) (n int64, err error) {
	for _, aside := range []bool{false, true} {
		rows, err := s.openHeld(ctx, p, v, by.names(), aside)
		if err != nil {
			return 0, err
		}
		if rows == nil {
			continue
		}
		own, err := p.count(ctx, rows, by)
		if err != nil {
			return 0, err
		}
		n += own
	}
	return n, nil
}

// count counts the person's rows, and releases the reader.
func (p Person) count(ctx context.Context, rows *Reader, by tells) (n int64, err error) {
	defer rows.Release()
	theirs := p.in(rows.Schema(), by)
	for rows.Next() {
		rec := rows.RecordBatch()
		for i := range int(rec.NumRows()) {
			if theirs(rec, i) {
				n++
			}
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
	return n, rows.Err()
}

// openHeld reads a version, also a rejected one, behind the residency door and the
// journal; aside its quarantine, nil without one.
func (s *core) openHeld(ctx context.Context, p Person, v Version, columns []string, aside bool) (*Reader, error) {
	r := OpenRequest{Project: v.Project, Ref: v.Ref(), Columns: columns, Purpose: p.Purpose, aside: aside}
	if aside && v.Quarantined == 0 {
		return nil, nil
	}
	if err := s.pass(ctx, v, r, true); err != nil {
		return nil, err
	}
	if aside {
		return s.readSet(ctx, v, v.aside(), columns, 0, v.Quarantined)
	}
	return s.read(ctx, v, r)
}

// in finds the person's rows among those of a schema. A row without a key is
// nobody's.
func (p Person) in(schema *arrow.Schema, by tells) func(rec arrow.RecordBatch, i int) bool {
	keys := by.keys(schema)
	return func(rec arrow.RecordBatch, i int) bool {
		return slices.ContainsFunc(keys(rec, i), p.Is)
	}
}

// keys gives the keys of the persons of a row, which are good until the next row. A row
// without a key is nobody's.
func (t tells) keys(schema *arrow.Schema) func(rec arrow.RecordBatch, i int) [][]string {
	at, values := make([][]int, len(t)), make([][]string, len(t))
	for n, by := range t {
		values[n] = make([]string, len(by))
		for _, name := range by {
			at[n] = append(at[n], schema.FieldIndices(name)[0])
		}
	}
	found := make([][]string, 0, len(t))
	return func(rec arrow.RecordBatch, i int) [][]string {
		found = found[:0]
	ways:
		for n := range at {
			for k, c := range at[n] {
				if rec.Column(c).IsNull(i) {
					continue ways
				}
				values[n][k] = cell.Text(rec.Column(c), i)
			}
			found = append(found, values[n])
		}
		return found
	}
}

// redact puts a version without the person's rows in the place of v. A rejected
// version, which nothing uses, is removed.
func (s *Erasure) redact(ctx context.Context, p Person, v Version, by tells) (Version, error) {
	if v.State == Rejected {
		return Version{}, s.replaceBy(ctx, v, nil, nil)
	}
	var d Dataset
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		d, err = s.live(ctx, tx, v.Project, v.Dataset)
		return err
	}); err != nil {
		return Version{}, err
	}
	rows, err := s.openHeld(ctx, p, v, nil, false)
	if err != nil {
		return Version{}, err
	}
	others := p.without(rows, by)
	defer others.Release()
	spec := d.Spec
	spec.Protection = v.Protection
	w := draft{
		project: v.Project, name: v.Dataset, spec: spec, residency: v.Residency, classification: v.Classification, rows: others, redacts: &v,
		lineage: func() (Lineage, error) {
			return Lineage{Parents: lineageOf([]Version{v}), Producer: &Producer{Kind: "erasure", Text: p.Purpose, Digest: digestOf([]byte(p.Purpose))}}, nil
		},
	}
	aside, err := s.openHeld(ctx, p, v, nil, true)
	if err != nil {
		return Version{}, err
	}
	if aside != nil {
		w.aside = p.without(aside, by)
		defer w.aside.Release()
	}
	ctx, cancel := context.WithTimeout(quota.Exempt(ctx), s.limits.ImportTime) // the old rows go only when the others are there
	defer cancel()
	out, err := s.write(ctx, w)
	return out, inTime(ctx, err)
}

// replace commits the version that stands for another one, and buries that, in one
// transaction: there is never a moment with both, nor with none.
func (s *core) replace(ctx context.Context, w draft, v Version) (Version, error) {
	v.Redacts, v.Order = w.redacts.Number, w.redacts.order()
	return v, s.replaceBy(ctx, *w.redacts, &v, func(d Dataset, rest []Version) (metadata string, err error) {
		if err := s.manifests(ctx, rest, &v); err != nil {
			return "", err
		}
		at := v
		if i := slices.IndexFunc(rest, func(o Version) bool { return o.Number == d.Accepted }); i >= 0 {
			at = rest[i]
		}
		return s.describeTable(ctx, d, append([]Version{v}, rest...), at)
	})
}

// replaceBy buries a version, and inserts v in its place if there is one. Then its
// files go.
func (s *core) replaceBy(ctx context.Context, old Version, v *Version, describe func(d Dataset, rest []Version) (metadata string, err error)) error {
	for range maxCommits {
		var d Dataset
		var rest []Version
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			if d, err = s.live(ctx, tx, old.Project, old.Dataset); err != nil {
				return err
			}
			if old, err = s.cfg.Store.Version(ctx, tx, d.ID, old.Number); err != nil {
				return err
			}
			rest, err = s.present(ctx, tx, d.ID)
			return err
		}); err != nil {
			return err
		}
		if old.State == Deleted {
			return fault.New(fault.Gone, "%s was deleted during the operation", old.Ref())
		}
		rest = slices.DeleteFunc(rest, func(o Version) bool { return o.ID == old.ID })
		newest, metadata := d.Accepted, d.Metadata
		if v != nil {
			v.Number = d.Latest + 1
			v.Created = s.cfg.Now().UTC().Truncate(time.Microsecond)
			var err error
			if metadata, err = describe(d, rest); err != nil {
				return err
			}
			if d.Accepted == old.Number {
				newest = v.Number
			}
		}
		took := false
		var g Staging
		err := s.cfg.DB.Update(ctx, string(old.Project), func(ctx context.Context, tx *store.Tx) error {
			now, err := s.live(ctx, tx, old.Project, old.Dataset)
			if err != nil {
				return err
			}
			if now.ID != d.ID || now.Latest != d.Latest || now.Metadata != d.Metadata {
				return nil
			}
			buried := old
			if v != nil {
				buried.RedactedBy = v.Number
				now.Latest, now.Accepted, now.Metadata = v.Number, newest, metadata
				if err := s.insert(ctx, tx, now, *v); err != nil {
					return err
				}
			}
			if g, err = s.bury(ctx, tx, buried, grave{}); err != nil {
				return err
			}
			took = true
			return nil
		})
		if err != nil {
			return err
		}
		if took {
			return s.clean(ctx, g)
		}
	}
	return fault.New(fault.Unavailable, "dataset %s has too many concurrent writers", old.Dataset).WithHint("Try again.")
}

// cleanBuried removes the files of versions that are deleted and still have some.
func (s *Erasure) cleanBuried(ctx context.Context, p project.Name) error {
	var left []Staging
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.cfg.Store.Stagings(ctx, tx, s.cfg.Instance, s.cfg.Now())
		if err != nil {
			return err
		}
		left = nil
		for _, g := range all {
			if g.Project != p {
				continue
			}
			v, err := s.cfg.Store.VersionByID(ctx, tx, p, g.ID)
			if fault.Is(err, fault.NotFound) {
				continue // it is being written
			}
			if err != nil {
				return err
			}
			if v.State == Deleted {
				left = append(left, g)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, g := range left {
		if err := s.clean(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// unredacted refuses rows that were read of a version from which a person was erased
// meanwhile: whoever had it open has the person's rows still. It is asked in the
// transaction in which the rows become a version; an erasure that comes later finds
// that one.
func (s *core) unredacted(ctx context.Context, tx *store.Tx, d Dataset, base int64, v Version) error {
	from := make([]Version, 0, 1+len(v.Lineage.Parents))
	if base > 0 {
		b, err := s.cfg.Store.Version(ctx, tx, d.ID, base)
		if err != nil {
			return err
		}
		from = append(from, b)
	}
	for _, p := range v.Lineage.Parents {
		pv, err := s.cfg.Store.VersionByID(ctx, tx, v.Project, p.ID)
		if err != nil {
			return err
		}
		from = append(from, pv)
	}
	for _, f := range from {
		if f.State == Deleted && f.RedactedBy > 0 {
			return fault.New(fault.Unavailable, "%s, an input of these rows, contained rows of a person who was erased during the operation", f.Ref()).
				WithHint("Derive the rows again from %s, the same version without that person's rows.", Ref{Name: f.Dataset, Number: f.RedactedBy})
		}
	}
	return nil
}

// order is the number of the version that v stands for.
func (v Version) order() int64 {
	if v.Order != 0 {
		return v.Order
	}
	return v.Number
}

// present are the accepted versions of a dataset, newest first by number, of which its
// table tells: so many as MetadataDepth says, those that stand for the newest.
func (s *core) present(ctx context.Context, tx *store.Tx, d ID) ([]Version, error) {
	depth := s.limits.MetadataDepth
	all, err := s.cfg.Store.Versions(ctx, tx, d, Accepted, 0, depth)
	if err != nil || len(all) < depth || !slices.ContainsFunc(all, func(v Version) bool { return v.Redacts > 0 }) {
		return all, err
	}
	// Redactions of old versions have young numbers, and are in the way of newer ones.
	for more := true; more; {
		page, err := s.cfg.Store.Versions(ctx, tx, d, Accepted, all[len(all)-1].Number, depth)
		if err != nil {
			return nil, err
		}
		more = len(page) == depth
		all = append(all, page...)
	}
	all = inOrder(all)[:depth]
	slices.SortFunc(all, func(a, b Version) int { return int(b.Number - a.Number) })
	return all, nil
}

// inOrder sorts versions by what they stand for, newest first.
func inOrder(vs []Version) []Version {
	vs = slices.Clone(vs)
	slices.SortStableFunc(vs, func(a, b Version) int { return int(b.order() - a.order()) })
	return vs
}

// gone is why a version that was deleted cannot be read.
func gone(v Version) error {
	if v.RedactedBy > 0 {
		return fault.New(fault.Gone, "%s contained rows of an erased person", v.Ref()).
			WithHint("%s has the same rows without them. The old digests and lineage remain.", Ref{Name: v.Dataset, Number: v.RedactedBy})
	}
	return fault.New(fault.Gone, "%s was deleted%s", v.Ref(), v.deletion()).WithHint("Its digests and lineage remain; import the data again to read it.")
}

// without gives the rows that are not the person's.
type without struct {
	*Reader
	theirs func(rec arrow.RecordBatch, i int) bool
	cur    arrow.RecordBatch
	kept   []span // of the batch, still to be given
	refs   atomic.Int64
}

type span struct{ from, to int64 }

// without are a reader's rows that are not the person's; it owns the reader.
func (p Person) without(rows *Reader, by tells) *without {
	w := &without{Reader: rows, theirs: p.in(rows.Schema(), by)}
	w.refs.Store(1)
	return w
}

var _ array.RecordReader = (*without)(nil)

// Next implements array.RecordReader.
func (w *without) Next() bool {
	w.drop()
	for len(w.kept) == 0 {
		if !w.Reader.Next() {
			return false
		}
		rec := w.Reader.RecordBatch()
		from := int64(0)
		for i := range rec.NumRows() {
			if w.theirs(rec, int(i)) {
				if from < i {
					w.kept = append(w.kept, span{from, i})
				}
				from = i + 1
			}
		}
		if from < rec.NumRows() {
			w.kept = append(w.kept, span{from, rec.NumRows()})
		}
	}
	w.cur = w.Reader.RecordBatch().NewSlice(w.kept[0].from, w.kept[0].to)
	w.kept = w.kept[1:]
	return true
}

func (w *without) drop() {
	if w.cur != nil {
		w.cur.Release()
		w.cur = nil
	}
}

// RecordBatch implements array.RecordReader.
func (w *without) RecordBatch() arrow.RecordBatch { return w.cur }

// Record is RecordBatch.
//
// Deprecated: Use RecordBatch.
func (w *without) Record() arrow.RecordBatch { return w.cur }

// Retain implements array.RecordReader.
func (w *without) Retain() { w.refs.Add(1) }

// Release implements array.RecordReader.
func (w *without) Release() {
	if w.refs.Add(-1) == 0 {
		w.drop()
		w.Reader.Release()
	}
}

// validateEntities refuses what no dataset can say of whose its rows are.
func (s Spec) validateEntities() error {
	for entity, columns := range s.Entities {
		if len(columns) > maxEntityKeys {
			return fault.New(fault.Invalid, "spec.entities.%s: %d join keys are over the limit of %d", entity, len(columns), maxEntityKeys)
		}
		for key, column := range columns {
			if key == "" || column == "" || len(key) > 255 || len(column) > 255 {
				return fault.New(fault.Invalid, "spec.entities.%s: a join key or its column is empty or too long", entity).
					WithHint("Write {customer: {customer_id: buyer}}, or {customer: {}} when no row belongs to a customer.")
			}
		}
	}
	if len(s.Entities) > maxEntities {
		return fault.New(fault.Invalid, "spec.entities: %d are over the limit of %d", len(s.Entities), maxEntities)
	}
	return nil
}

const (
	maxEntities   = 64
	maxEntityKeys = 16
)
