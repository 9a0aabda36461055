package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Tombstone is what stays of a version that something cited when its rows were deleted,
// beside its digests, schema and lineage. Whose rows they were stays as pseudonyms (see
// Persons), so that an erasure still finds what was made of them.
type Tombstone struct {
	CitedBy string `json:"cited_by"` // for people
	// Entities have the columns by which each told whose a row was.
	Entities map[string][][]string `json:"entities,omitempty"`
	// Unknown is the reason why the persons of its rows are unknown; empty if they are known.
	Unknown string `json:"unknown,omitempty"`
}

// Persons is a part of the persons of an entity who had rows in a deleted version:
// pseudonyms, each pseudonymSize bytes, in order, sealed.
type Persons struct {
	Version VersionID
	Project project.Name
	Entity  string
	Part    int64 // from 1
	Sealed  []byte
}

const (
	pseudonymSize = 16      // of 32 bytes: two persons share these once in 2⁶⁴
	partSize      = 1 << 16 // pseudonyms of a part
)

// Pseudonyms names persons so that only erasures can ask for them.
type Pseudonyms interface {
	// Entities are those of a project, each without Is.
	Entities(ctx context.Context, p project.Name) ([]Person, error)
	// Of is the pseudonym of a person, from the values of the join keys in their order.
	Of(p project.Name, entity string, values []string) [sha256.Size]byte
	// Erased are the erasures of a project, by entity and pseudonym.
	Erased(ctx context.Context, p project.Name) (map[string]map[[sha256.Size]byte]string, error)
	// Box seals them.
	Box(ctx context.Context, p project.Name) (tink.AEAD, error)
}

// place is what the sealed bytes are bound to.
func (p Persons) place() []byte {
	return fmt.Appendf(nil, "falaj persons 1\n%s\n%s\n%s\n%d", p.Project, p.Version, p.Entity, p.Part)
}

// deletion says when and by whom a version was deleted: " on 2026-05-01 by usr_1".
func (v Version) deletion() string {
	text := ""
	if !v.DeletedAt.IsZero() {
		text += " on " + v.DeletedAt.UTC().Format(time.DateOnly)
	}
	if v.DeletedBy != "" {
		text += " by " + v.DeletedBy
	}
	return text
}

// grave is how versions are deleted, and what stays of those that are cited.
type grave struct {
	request deletion.Request
	cited   []deletion.Citation
	tombs   map[VersionID]Tombstone
}

// of are the citations of a version; nil has those of all.
func (g grave) of(v *Version) (out []deletion.Citation) {
	for _, c := range g.cited {
		if v == nil || c.Of == v.Ref().String() {
			out = append(out, c)
		}
	}
	return out
}

// standing are the versions of a dataset that are not deleted, or the one with a number.
func (s *core) standing(ctx context.Context, tx *store.Tx, d Dataset, number int64) (all []Version, err error) {
	if number != 0 {
		v, err := s.resolve(ctx, tx, d, number)
		if err != nil || v.State == Deleted {
			return nil, err
		}
		return []Version{v}, nil
	}
	for below := int64(0); ; {
		vs, err := s.cfg.Store.Versions(ctx, tx, d.ID, "", below, 500)
		if err != nil {
			return nil, err
		}
		for _, v := range vs {
			below = v.Number
			if v.State != Deleted {
				all = append(all, v)
			}
		}
		if len(vs) < 500 {
			return all, nil
		}
	}
}

// entomb finds what cites the versions that are about to go, refuses if the request does
// not say that they may, and keeps whose rows the cited ones have. What it keeps is of use
// only when they are deleted after it.
func (s *Definitions) entomb(ctx context.Context, d Dataset, ref Ref, g *grave) error {
	var going []Version
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if going, err = s.standing(ctx, tx, d, ref.Number); err != nil {
			return err
		}
		g.cited, err = s.cites(ctx, tx, d, going, ref.Number == 0)
		return err
	}); err != nil {
		return err
	}
	if err := g.request.Allow("dataset "+ref.String(), g.cited); err != nil {
		return err
	}
	for _, v := range going {
		if _, done := g.tombs[v.ID]; done || len(g.of(&v)) == 0 {
			continue
		}
		t, err := s.keepPersons(ctx, v)
		if err != nil {
			return fault.Wrap(err, "keeping the person index of %s", v.Ref())
		}
		t.CitedBy = deletion.Names(g.of(&v))
		g.tombs[v.ID] = t
	}
	return nil
}

// entombed asks again, in the transaction in which the versions go: it is false when
// something cites one that has no tombstone yet.
func (s *core) entombed(ctx context.Context, tx *store.Tx, d Dataset, going []Version, g grave) (bool, error) {
	if g.tombs == nil {
		return true, nil // they expire, and nothing cites them
	}
	cited, err := s.cites(ctx, tx, d, going, false)
	if err != nil {
		return false, err
	}
	for _, c := range cited {
		if !slices.ContainsFunc(going, func(v Version) bool { _, ok := g.tombs[v.ID]; return ok && v.Ref().String() == c.Of }) {
			return false, nil
		}
	}
	return true, nil
}

// cites finds what cites versions of a dataset: by name, because it was made of them, or,
// if all of the dataset goes, because it reads the dataset whatever its version.
func (s *core) cites(ctx context.Context, tx *store.Tx, d Dataset, going []Version, all bool) ([]deletion.Citation, error) {
	f := citing{s: s, tx: tx, p: d.Project, root: d.ID, seen: map[VersionID]bool{}, said: map[ID][]saying{}}
	meant := map[int64]string{} // by number, of deleted ones too: what stands for it now
	for _, v := range going {
		for was := v; ; {
			meant[was.Number] = v.Ref().String()
			if was.Redacts == 0 {
				break
			}
			var err error
			if was, err = s.cfg.Store.Version(ctx, tx, d.ID, was.Redacts); err != nil {
				return nil, err
			}
			if err := f.children(ctx, d, was, v.Ref().String()); err != nil {
				return nil, err
			}
		}
		if err := f.children(ctx, d, v, v.Ref().String()); err != nil {
			return nil, err
		}
	}
	said, err := f.says(ctx, d)
	if err != nil {
		return nil, err
	}
	for _, say := range said {
		if of, goes := meant[say.number]; goes {
			f.add(say.by, of)
		}
	}
	if all && s.cfg.Readers != nil {
		by, err := s.cfg.Readers(ctx, tx, d.Project, d.Name)
		if err != nil {
			return nil, err
		}
		for _, b := range by {
			f.add(b, d.Name)
		}
	}
	return f.answering(ctx)
}

// citing collects citations.
type citing struct {
	s    *core
	tx   *store.Tx
	p    project.Name
	root ID // the dataset that goes
	seen map[VersionID]bool
	said map[ID][]saying // of each dataset that was asked for
	out  []deletion.Citation
}

// saying is who names which version of a dataset.
type saying struct {
	by     string
	number int64
}

func (f *citing) says(ctx context.Context, d Dataset) ([]saying, error) {
	all, asked := f.said[d.ID]
	if asked {
		return all, nil
	}
	err := f.s.mentioned(ctx, f.tx, d, func(by string, n int64) { all = append(all, saying{by, n}) })
	f.said[d.ID] = all
	return all, err
}

func (f *citing) add(by, of string) {
	c := deletion.Citation{By: by, Of: of}
	if by == "training set "+of || slices.Contains(f.out, c) { // a training set describes itself
		return
	}
	f.out = append(f.out, c)
}

// children are versions of other datasets that were made of one and are still there, and
// what cites those: what it was made of decides whom a model knows.
func (f *citing) children(ctx context.Context, d Dataset, v Version, of string) error {
	const limit = 1000
	if f.seen[v.ID] || len(f.seen) > maxNodes {
		return nil
	}
	f.seen[v.ID] = true
	made, err := f.s.cfg.Store.Children(ctx, f.tx, v.ID, limit)
	if err != nil {
		return err
	}
	for _, c := range made {
		cd := d
		if c.DatasetID != d.ID {
			if cd, err = f.s.cfg.Store.Dataset(ctx, f.tx, f.p, c.Dataset); err != nil {
				return err
			}
			said, err := f.says(ctx, cd)
			if err != nil {
				return err
			}
			for _, say := range said {
				if say.number == c.Number && strings.HasPrefix(say.by, "model ") {
					f.add(say.by, of)
				}
			}
		} else if c.Redacts != v.Number {
			continue // a later version of the same dataset has its rows itself
		}
		if c.DatasetID != f.root && c.State != Deleted {
			f.add("dataset "+c.Ref().String(), of)
		}
		if err := f.children(ctx, cd, c, of); err != nil {
			return err
		}
	}
	return nil
}

// answering adds the deployments that answer with what cites.
func (f *citing) answering(ctx context.Context) ([]deletion.Citation, error) {
	if f.s.cfg.Answers == nil {
		return f.out, nil
	}
	for _, c := range slices.Clone(f.out) {
		used, err := f.s.cfg.Answers(ctx, f.tx, f.p, c.By)
		if err != nil {
			return nil, err
		}
		for _, by := range used {
			u := deletion.Citation{By: by, Of: c.Of, InUse: true}
			if !slices.Contains(f.out, u) {
				f.out = append(f.out, u)
			}
		}
	}
	return f.out, nil
}

// keepPersons keeps whose rows a version has, for erasures to come.
func (s *Definitions) keepPersons(ctx context.Context, v Version) (t Tombstone, err error) {
	if s.cfg.Pseudonyms == nil {
		return t, nil
	}
	entities, err := s.cfg.Pseudonyms.Entities(ctx, v.Project)
	if err != nil {
		return t, err
	}
	if err := s.cfg.DB.Update(ctx, string(v.Project), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.DropPersons(ctx, tx, v.ID) // of a deletion that did not happen
	}); err != nil {
		return t, err
	}
	for _, p := range entities {
		p.Purpose = "person index of " + v.Ref().String() + " had"
		m := mapper{s: s.core, p: p, known: map[VersionID]mapped{}, specs: map[ID]Spec{}}
		by, err := m.columns(ctx, v)
		switch {
		case err != nil:
			return t, err
		case by.blind:
			t.Unknown = "it was derived from rows of entity " + p.Entity + " and has no column with its join key"
			continue
		case by.columns == nil:
			continue
		}
		k := &keeper{s: s.core, ctx: ctx, v: v, p: p}
		err = s.eachKey(ctx, p, v, by.columns, k.add)
		if err == nil {
			err = k.flush()
		}
		if fault.Is(err, fault.Gone) {
			t.Unknown = "its key was destroyed"
			continue
		}
		if err != nil {
			return t, err
		}
		if t.Entities == nil {
			t.Entities = map[string][][]string{}
		}
		t.Entities[p.Entity] = by.columns
	}
	return t, nil
}

// eachKey visits the keys of the persons of a version, those in quarantine too.
func (s *core) eachKey(ctx context.Context, p Person, v Version, by tells, visit func(values []string) error) error {
	for _, aside := range []bool{false, true} {
		rows, err := s.openHeld(ctx, p, v, by.names(), aside)
		if err != nil {
			return err
		}
		if rows == nil {
			continue
		}
		if err := by.each(ctx, rows, visit); err != nil {
			return err
		}
	}
	return nil
}

// each visits the keys of a reader's rows, and releases it.
func (t tells) each(ctx context.Context, rows *Reader, visit func(values []string) error) error {
	defer rows.Release()
	keys := t.keys(rows.Schema())
	for rows.Next() {
		rec := rows.RecordBatch()
		for i := range int(rec.NumRows()) {
			for _, values := range keys(rec, i) {
				if err := visit(values); err != nil {
					return err
				}
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// keeper writes pseudonyms in parts: memory is that of one part, however many persons
// there are. Somebody may be in two parts.
type keeper struct {
	s    *core
	ctx  context.Context // of the deletion, as long as which it lives
	v    Version
	p    Person
	part int64
	some map[[pseudonymSize]byte]struct{}
}

func (k *keeper) add(values []string) error {
	whole := k.s.cfg.Pseudonyms.Of(k.v.Project, k.p.Entity, values)
	if k.some == nil {
		k.some = map[[pseudonymSize]byte]struct{}{}
	}
	k.some[[pseudonymSize]byte(whole[:pseudonymSize])] = struct{}{}
	if len(k.some) < partSize {
		return nil
	}
	return k.flush()
}

func (k *keeper) flush() error {
	if len(k.some) == 0 {
		return nil
	}
	k.part++
	part := Persons{Version: k.v.ID, Project: k.v.Project, Entity: k.p.Entity, Part: k.part}
	plain := make([]byte, 0, len(k.some)*pseudonymSize)
	for _, one := range slices.SortedFunc(maps.Keys(k.some), func(a, b [pseudonymSize]byte) int { return bytes.Compare(a[:], b[:]) }) {
		plain = append(plain, one[:]...)
	}
	clear(k.some)
	box, err := k.s.cfg.Pseudonyms.Box(k.ctx, k.v.Project)
	if err != nil {
		return err
	}
	if part.Sealed, err = box.Encrypt(plain, part.place()); err != nil {
		return err
	}
	return k.s.cfg.DB.Update(k.ctx, string(k.v.Project), func(ctx context.Context, tx *store.Tx) error {
		return k.s.cfg.Store.PutPersons(ctx, tx, part)
	})
}

// Buried is a version that is deleted and may have had rows of a person.
type Buried struct {
	Version Version
	// Had says that the person had rows in it. Without it that is not known, because it
	// was deleted by an earlier release, or for the reason of its Tombstone.
	Had bool
}

// Departed lists the deleted versions that had rows of a person, and those of which that
// is not known. It asks for no permission, as Persons. Versions that an erasure has
// replaced are not among them: what stands for them is searched.
func (s *Erasure) Departed(ctx context.Context, p Person) (all []Buried, err error) {
	had := map[VersionID]bool{}
	if s.cfg.Pseudonyms != nil {
		if had, err = s.hadRows(ctx, p); err != nil {
			return nil, err
		}
	}
	m := mapper{s: s.core, p: p, known: map[VersionID]mapped{}, specs: map[ID]Spec{}}
	for after := VersionID(""); ; {
		var vs []Version
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			vs, err = s.cfg.Store.Buried(ctx, tx, p.Project, after, 500)
			return err
		}); err != nil {
			return nil, err
		}
		for _, v := range vs {
			after = v.ID
			if v.RedactedBy > 0 {
				continue
			}
			if had[v.ID] {
				all = append(all, Buried{Version: v, Had: true})
				continue
			}
			if v.Tombstone != nil && v.Tombstone.Entities[p.Entity] != nil {
				continue // somebody else's
			}
			by, err := m.columns(ctx, v)
			if err != nil {
				return nil, err
			}
			if by.columns != nil || by.blind {
				all = append(all, Buried{Version: v})
			}
		}
		if len(vs) < 500 {
			return all, nil
		}
	}
}

// hadRows are the deleted versions whose tombstones have the person.
func (s *Erasure) hadRows(ctx context.Context, p Person) (map[VersionID]bool, error) {
	had := map[VersionID]bool{}
	after := Persons{Project: p.Project, Entity: p.Entity}
	for {
		var parts []Persons
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			parts, err = s.cfg.Store.Persons(ctx, tx, after, 16)
			return err
		}); err != nil {
			return nil, err
		}
		if len(parts) == 0 {
			return had, nil
		}
		box, err := s.cfg.Pseudonyms.Box(ctx, p.Project)
		if err != nil {
			return nil, err
		}
		for _, part := range parts {
			after = part
			if had[part.Version] {
				continue
			}
			plain, err := box.Decrypt(part.Sealed, part.place())
			if err != nil {
				return nil, fault.New(fault.Internal, "the person index of the deleted version %s cannot be decrypted", part.Version).
					WithHint("The database was modified or is corrupt. Restore it from its backup, and try again.")
			}
			had[part.Version] = contains(plain, p.Pseudonym[:pseudonymSize])
		}
	}
}

// contains finds a pseudonym among those of a part, which are in order.
func contains(plain, one []byte) bool {
	low, high := 0, len(plain)/pseudonymSize
	for low < high {
		mid := (low + high) / 2
		switch c := bytes.Compare(plain[mid*pseudonymSize:(mid+1)*pseudonymSize], one); {
		case c == 0:
			return true
		case c < 0:
			low = mid + 1
		default:
			high = mid
		}
	}
	return false
}
