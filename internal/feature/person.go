package feature

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Person is who is to be forgotten online.
type Person struct {
	Project project.Name
	Entity  string
	Values  []string // of the join keys, as Identify gives them; nil where only Is knows
	Is      func(values []string) bool
	Purpose string // is audited: "erasure ers_01J…"
}

// PersonKeys are the keys of a person's rows, by view version ("facts@1").
type PersonKeys map[string]ViewKeys

// ViewKeys are the keys of a person's rows of one view, many where the person is one
// of several entities.
type ViewKeys struct {
	Keys [][]byte `json:"keys,omitempty"`
	// Whole says that the person's values are the key: there is no other.
	Whole bool `json:"whole,omitempty"`
	// All says that no other was in Generation, whose rows were looked at.
	All        bool       `json:"all,omitempty"`
	Generation Generation `json:"generation,omitempty"`
}

// maxPersonKeys bounds those of one view.
const maxPersonKeys = 1_000_000

// Erasure finds and removes a person's rows and events. It checks no permission: privacy
// has done so.
type Erasure struct {
	*core
	rows            *OnlineRows
	streams         *Streams
	materialisation *Materialisation
}

// PersonKeys finds the keys of a person's rows online: from the key where that says
// all, else from what the rows online were made of, as far as that can be read. It
// asks for no permission, as Use. Error: fault.TooLarge.
func (s *Erasure) PersonKeys(ctx context.Context, p Person) (PersonKeys, error) {
	use, err := s.Use(ctx, p.Project, p.Entity)
	if err != nil {
		return nil, err
	}
	keys := PersonKeys{}
	for _, v := range use.views {
		at := v.about(p.Entity)
		if len(p.Values) == len(at) && len(at) == len(v.Keys) {
			var key []byte
			for i, k := range v.Keys {
				x, err := keyValue(k.Type, p.Values[i])
				if err != nil || x.IsNull() {
					key = nil // the entity had another type when this version was applied
					break
				}
				key = value.AppendKey(key, x)
			}
			its := ViewKeys{Whole: true}
			if key != nil {
				its.Keys = [][]byte{key}
			}
			keys[v.Ref()] = its
			continue
		}
		o, err := s.online(ctx, v)
		if err != nil {
			return nil, err
		}
		if o.View == "" {
			continue // it never had a row
		}
		its := ViewKeys{Generation: o.Generation}
		if its.Keys, its.All, err = s.keysIn(ctx, p, v, o, at); err != nil {
			return nil, fault.Wrap(err, "searching for the person's keys in %s", v.Ref())
		}
		keys[v.Ref()] = its
	}
	return keys, nil
}

// online is the record of what a view has online; zero when there is nothing.
func (s *core) online(ctx context.Context, v View) (o Online, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		o, err = s.onlineStore.Online(ctx, tx, v.Project, v.Name, v.Version)
		if fault.Is(err, fault.NotFound) {
			o, err = Online{}, nil
		}
		return err
	})
	return o, err
}

// keysIn reads the keys of the rows that are online from what they were made of, or
// from what stands for that since somebody else was erased. all is false when a part
// of it can be read no more.
func (s *Erasure) keysIn(ctx context.Context, p Person, v View, o Online, at []int) (keys [][]byte, all bool, err error) {
	columns := make([]string, len(v.Keys))
	for i, k := range v.Keys {
		columns[i] = k.Name
	}
	inputs, err := s.standing(ctx, p.Project, o.Inputs)
	if err != nil && !unreadable(err) {
		return nil, false, err
	}
	var from []func(ctx context.Context) (array.RecordReader, error)
	if all = len(inputs) > 0; all { // else nobody knows, or all rows were pushed
		from = append(from, s.evaluate(v.Project, v.Source, inputs, columns))
	}
	if v.Source.Stream != nil { // what was applied since
		from = append(from, func(ctx context.Context) (array.RecordReader, error) { return s.streams.soFar(ctx, v, columns) })
	}
	seen := map[string]bool{}
	for _, open := range from {
		rows, err := open(ctx)
		if err == nil {
			err = p.keysOf(ctx, v, rows, at, seen)
			rows.Release()
		}
		switch {
		case unreadable(err), fault.Is(err, fault.Invalid): // the source has other columns by now
			all = false
		case err != nil:
			return nil, false, err
		}
	}
	for key := range seen {
		keys = append(keys, []byte(key))
	}
	return keys, all, nil
}

// unreadable reports that what rows were made of is not there any more.
func unreadable(err error) bool { return fault.Is(err, fault.Gone) || fault.Is(err, fault.NotFound) }

// standing are the versions that stand for inputs now.
func (s *core) standing(ctx context.Context, p project.Name, inputs []InputRef) ([]InputRef, error) {
	now := slices.Clone(inputs)
	for i, in := range now {
		ref, err := s.cfg.Data.Standing(ctx, p, in.Dataset)
		if err != nil {
			return now, err
		}
		now[i].Dataset = ref
	}
	return now, nil
}

// soFar reads columns of everything that the log of a view's dataset ever had, as
// far as that is kept: the newest version, and the events that are in none.
func (s *Streams) soFar(ctx context.Context, v View, columns []string) (array.RecordReader, error) {
	l := &eventLog{view: v, project: v.Project, dataset: v.Source.Dataset}
	if err := s.unlock(ctx, l); err != nil {
		return nil, err
	}
	var st Stream
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		st, err = s.streamStore.Stream(ctx, tx, l.project, l.dataset)
		return err
	}); err != nil {
		return nil, err
	}
	newest, err := s.cfg.Data.Resolve(ctx, l.project, l.dataset)
	if err != nil {
		return nil, err
	}
	before, err := s.cfg.Data.Open(ctx, l.project, newest.Ref, columns)
	if err != nil {
		return nil, err
	}
	rows := &appended{ctx: ctx, s: s, l: l, schema: before.Schema(), base: before, at: st.SnapshotSeq, until: st.Head}
	rows.refs.Add(1)
	return &closing{RecordReader: rows, also: before}, nil
}

// closing releases another reader with itself. One owner has it.
type closing struct {
	array.RecordReader
	also array.RecordReader
}

func (c *closing) Release() {
	c.RecordReader.Release()
	c.also.Release()
}

// keysOf adds the keys of the person's rows to those that were seen.
func (p Person) keysOf(ctx context.Context, v View, rows array.RecordReader, at []int, seen map[string]bool) error {
	values, names, types := make([]string, len(at)), make([]string, len(v.Keys)), make([]value.Type, len(v.Keys))
	for i, k := range v.Keys {
		names[i], types[i] = k.Name, k.Type
	}
	for rows.Next() {
		rec := rows.RecordBatch()
		cell, err := offline.Cells(rec, names, types)
		if err != nil {
			return err
		}
	row:
		for i := range int(rec.NumRows()) {
			var key []byte
			parts := make([]value.Value, len(v.Keys))
			for c := range v.Keys {
				if parts[c] = cell(i, c); parts[c].IsNull() {
					continue row
				}
				key = value.AppendKey(key, parts[c])
			}
			for k, c := range at {
				values[k] = parts[c].String()
			}
			if p.Is(values) {
				seen[string(key)] = true
			}
		}
		if len(seen) > maxPersonKeys {
			return fault.New(fault.TooLarge, "the person has more than %d keys", maxPersonKeys).WithHint("Clear the view: falaj feature clear %s.", v.Ref())
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// PersonRows are a person's rows in one view.
type PersonRows struct {
	View string // "facts@1"
	Rows int64  // versions of rows
	// Unknown says that the view may have more of them, pushed or made of a version that
	// is gone, which only the whole key would find.
	Unknown bool
	rows    []online.RowKey
}

// PersonRows finds a person's rows online, in all tables that answer, by their keys
// and by the tokens that an earlier call gave.
func (s *Erasure) PersonRows(ctx context.Context, p Person, keys PersonKeys, tokens []string) (all []PersonRows, err error) {
	use, err := s.Use(ctx, p.Project, p.Entity)
	if err != nil {
		return nil, err
	}
	for _, v := range use.views {
		r, err := s.rowsIn(ctx, p, v, keys[v.Ref()], rowKeys(tokens))
		if err != nil {
			return nil, err
		}
		if r.View != "" {
			all = append(all, r)
		}
	}
	return all, nil
}

func rowKeys(tokens []string) (named []online.RowKey) {
	for _, text := range tokens {
		if b, err := hex.DecodeString(text); err == nil && len(b) == len(online.RowKey{}) {
			named = append(named, online.RowKey(b))
		}
	}
	return named
}

// rowsIn finds a person's rows in one view; without a name when it never had any.
func (s *Erasure) rowsIn(ctx context.Context, p Person, v View, its ViewKeys, named []online.RowKey) (r PersonRows, err error) {
	o, err := s.online(ctx, v)
	if err != nil || o.View == "" {
		return r, err
	}
	r.View = v.Ref()
	keys := its.Keys
	if p := v.windows(); p != nil { // points and tiles have keys of their own
		keys = nil
		for _, key := range its.Keys {
			keys = append(keys, p.Keys(key)...)
		}
	}
	for i, table := range o.tables() {
		rows, err := s.cfg.Online.Rows(ctx, table, keys)
		if fault.Is(err, fault.Gone) {
			continue // its key was destroyed: nobody reads it
		}
		if err != nil {
			return r, err
		}
		prefixes, err := s.cfg.Online.TableKeys(ctx, table)
		if err != nil {
			return r, err
		}
		own := len(rows)
		for _, key := range named { // which are of this generation, or of another
			if slices.Contains(prefixes, online.TableKey(key[:])) {
				rows = append(rows, key)
			}
		}
		switch {
		case its.Whole:
		case i > 0: // pushed rows are in no dataset
			r.Unknown = r.Unknown || len(rows) == 0 || len(p.Values) > 0
		case len(rows) == own && (!its.All || its.Generation != o.Generation):
			// Nobody looked at what these were made of, or it was gone: made of what stands
			// for that, they have none of the person.
			was, err := s.replaced(ctx, p.Project, o.Inputs)
			if err != nil {
				return r, err
			}
			r.Unknown = r.Unknown || was != "" || len(o.Inputs) == 0
		}
		r.rows = append(r.rows, rows...)
	}
	r.Rows, err = s.cfg.Online.Count(ctx, r.rows)
	return r, err
}

// Tokens are opaque names of the rows, by which they are found without the key.
func (r PersonRows) Tokens() []string {
	out := make([]string, len(r.rows))
	for i, row := range r.rows {
		out[i] = hex.EncodeToString(row[:])
	}
	return out
}

// replaced is a version that rows online were made of, and that was redacted since, or
// is gone; empty when there is none.
func (s *core) replaced(ctx context.Context, p project.Name, inputs []InputRef) (string, error) {
	for _, in := range inputs {
		now, err := s.cfg.Data.Standing(ctx, p, in.Dataset)
		switch {
		case unreadable(err):
			now = ""
		case err != nil:
			return "", err
		}
		if now != in.Dataset {
			return in.Dataset, nil
		}
	}
	return "", nil
}

// Outdated is a view whose rows online were made of a version that was redacted since.
type Outdated struct {
	View string // "facts@1"
	Of   string // "orders@2"
}

// Outdated lists the views, of whatever entities, whose rows online were made of
// versions from which persons were erased since. Rows of a person are found by the key
// in views of its entity only; in others they go with a new materialisation.
func (s *Erasure) Outdated(ctx context.Context, p project.Name) ([]Outdated, error) {
	var all []Online
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.onlineStore.Onlines(ctx, tx, p)
		return err
	}); err != nil {
		return nil, err
	}
	var out []Outdated
	for _, o := range all {
		of, err := s.replaced(ctx, p, o.Inputs)
		if err != nil {
			return nil, err
		}
		if of != "" {
			out = append(out, Outdated{View: Header{Name: o.View, Version: o.Version}.Ref(), Of: of})
		}
	}
	return out, nil
}

// ForgetOnline removes a person's rows from the online store and calls done for
// each view that has some, before they go. A materialisation of such a view that is under way is
// stopped: it goes on, over what its source is now, by itself or when it is asked for
// again. Error: fault.Unavailable when it has not ended yet, or when a file of the online
// store may still have the person's copies.
func (s *Erasure) ForgetOnline(ctx context.Context, p Person, keys PersonKeys, tokens []string, done func(PersonRows) error) error {
	use, err := s.Use(ctx, p.Project, p.Entity)
	if err != nil {
		return err
	}
	err = s.materialisation.alone(ctx, func(ctx context.Context) error {
		return s.streams.withStreamLease(ctx, func(ctx context.Context) error {
			if err := s.materialisation.abandonBegun(ctx, p.Project); err != nil {
				return err
			}
			if err := s.rows.sweepNow(ctx, p.Project); err != nil {
				return err
			}
			for _, v := range use.views {
				// Also where there is none yet: a materialisation may be about to write some.
				if err := s.forget(ctx, p, v, keys[v.Ref()], rowKeys(tokens), done); err != nil {
					return fault.Wrap(err, "erasing rows of %s", v.Ref())
				}
			}
			return s.rows.cleanFiles(ctx)
		})
	})
	if errors.Is(err, errElsewhere) {
		return fault.New(fault.Unavailable, "another process writes to the online store").WithHint("The operation is retried automatically.")
	}
	return err
}

func (s *Erasure) forget(ctx context.Context, p Person, v View, its ViewKeys, named []online.RowKey, done func(PersonRows) error) error {
	release := s.occupy(p.Project, v.Ref())
	if release == nil {
		s.materialisation.stopRuns()
		return fault.New(fault.Unavailable, "%s is being materialised", v.Ref()).WithHint("The materialisation is stopped, and the operation is retried.")
	}
	defer release()
	// What applying events has read before the person's events went would be written afterwards.
	applying := s.streams.reserveApply(v)
	if applying == nil {
		return fault.New(fault.Unavailable, "events are being applied to %s", v.Ref()).WithHint("The operation is retried automatically.")
	}
	defer applying()
	if err := s.finish(ctx, v); err != nil {
		return err
	}
	r, err := s.rowsIn(ctx, p, v, its, named)
	if err != nil {
		return err
	}
	if r.Rows == 0 {
		if s.cfg.Online.MayHaveCopies() { // of rows that were about to be written
			err = s.cfg.Online.Forget(ctx, r.rows)
		}
		return err
	}
	if err := done(r); err != nil { // first: whoever goes on after a crash does not find them any more
		return err
	}
	if err := s.cfg.Online.Forget(ctx, r.rows); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(p.Project), func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p.Project), Action: string(ActionMaterialise), Object: objectKind + " view " + r.View, Reason: p.Purpose, Detail: map[string]any{"forgotten": r.Rows},
		})
	})
}

// finish writes what a process that died had on its way into a view that follows a
// stream: it would be written when somebody asks next, after the person's rows went.
func (s *Erasure) finish(ctx context.Context, v View) error {
	o, err := s.online(ctx, v)
	if err != nil || o.View == "" || v.Source.Stream == nil {
		return err
	}
	_, _, err = s.cfg.Online.Position(ctx, o.table())
	if fault.Is(err, fault.Gone) {
		return nil // its key was destroyed: nobody reads it
	}
	return err
}

// stopRuns ends the attempts that are under way; those whose sources are still
// there are made again.
func (s *Materialisation) stopRuns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.cancels {
		cancel()
	}
}
