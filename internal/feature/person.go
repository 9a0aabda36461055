package feature

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
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

// PersonKeys are the keys of a person's rows, by view version ("facts@1"). A view
// of several entities has many for one person.
type PersonKeys map[string][][]byte

// maxPersonKeys bounds those of one view.
const maxPersonKeys = 1_000_000

// PersonKeys finds the keys of a person's rows online: from the key where that says
// all, else from the rows that are online now. It asks for no permission, as Use.
// Error: fault.TooLarge.
func (s *Service) PersonKeys(ctx context.Context, p Person) (PersonKeys, error) {
	use, err := s.Use(ctx, p.Project, p.Entity)
	if err != nil {
		return nil, err
	}
	keys := PersonKeys{}
	for _, v := range use.views {
		o, err := s.online(ctx, v)
		if err != nil {
			return nil, err
		}
		if o.View == "" {
			continue // it never had a row
		}
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
			if key != nil {
				keys[v.Ref()] = [][]byte{key}
			}
			continue
		}
		found, err := s.keysIn(ctx, p, v, o, at)
		if err != nil {
			return nil, fault.Wrap(err, "looking for the person's keys of %s", v.Ref())
		}
		if len(found) > 0 {
			keys[v.Ref()] = found
		}
	}
	return keys, nil
}

// online is the record of what a view has online; zero when there is nothing.
func (s *Service) online(ctx context.Context, v View) (o Online, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		o, err = s.cfg.Store.Online(ctx, tx, v.Project, v.Name, v.Version)
		if fault.Is(err, fault.NotFound) {
			o, err = Online{}, nil
		}
		return err
	})
	return o, err
}

// keysIn reads the keys of the rows that are online from what they were made of.
func (s *Service) keysIn(ctx context.Context, p Person, v View, o Online, at []int) ([][]byte, error) {
	columns := make([]string, len(v.Keys))
	for i, k := range v.Keys {
		columns[i] = k.Name
	}
	rows, err := s.evaluate(v.Project, v.Source, o.Inputs, columns)(ctx)
	if fault.Is(err, fault.Gone) || fault.Is(err, fault.NotFound) {
		return nil, nil // nothing that can be read any more
	}
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	seen := map[string]bool{}
	values := make([]string, len(at))
	for rows.Next() {
		rec := rows.RecordBatch()
	row:
		for i := range int(rec.NumRows()) {
			var key []byte
			parts := make([]value.Value, len(v.Keys))
			for c := range v.Keys {
				if parts[c] = cellOf(rec.Column(c), i); parts[c].IsNull() {
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
			return nil, fault.New(fault.TooLarge, "the person has more than %d keys", maxPersonKeys).WithHint("Clear the view: falaj feature clear %s.", v.Ref())
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	out := make([][]byte, 0, len(seen))
	for key := range seen {
		out = append(out, []byte(key))
	}
	return out, rows.Err()
}

// cellOf is a cell as a part of a key.
func cellOf(a arrow.Array, i int) value.Value {
	if a.IsNull(i) {
		return value.Value{}
	}
	switch a := a.(type) {
	case *array.String:
		return value.OfString(a.Value(i))
	case *array.Int64:
		return value.OfInt(a.Value(i))
	case *array.Boolean:
		return value.OfBool(a.Value(i))
	case *array.Timestamp:
		return value.OfMicros(int64(a.Value(i)))
	}
	return value.Value{}
}

// PersonRows are a person's rows in one view.
type PersonRows struct {
	View string // "facts@1"
	Rows int64  // versions of rows
	// Unknown says that the view has pushed rows that only the whole key would find.
	Unknown bool
	rows    []online.RowKey
}

// PersonRows finds a person's rows online, in all tables that answer, by their keys
// and by the tokens that an earlier call gave.
func (s *Service) PersonRows(ctx context.Context, p Person, keys PersonKeys, tokens []string) (all []PersonRows, err error) {
	use, err := s.Use(ctx, p.Project, p.Entity)
	if err != nil {
		return nil, err
	}
	named := make([][]byte, 0, len(tokens))
	for _, text := range tokens {
		if b, err := hex.DecodeString(text); err == nil && len(b) == len(online.RowKey{}) {
			named = append(named, b)
		}
	}
	for _, v := range use.views {
		o, err := s.online(ctx, v)
		if err != nil {
			return nil, err
		}
		if o.View == "" {
			continue
		}
		r := PersonRows{View: v.Ref()}
		for i, table := range o.tables() {
			rows, err := s.cfg.Online.Rows(ctx, table, keys[v.Ref()])
			if fault.Is(err, fault.Gone) {
				continue // its key was destroyed: nobody reads it
			}
			if err != nil {
				return nil, err
			}
			prefix, err := s.cfg.Online.TableKey(ctx, table)
			if err != nil {
				return nil, err
			}
			told := len(rows) > 0
			for _, b := range named {
				if bytes.HasPrefix(b, prefix[:]) {
					rows, told = append(rows, online.RowKey(b)), true
				}
			}
			// Pushed rows are in no dataset.
			whole := len(p.Values) > 0 && len(v.about(p.Entity)) == len(v.Keys)
			if i > 0 && !whole && (!told || len(p.Values) > 0) {
				r.Unknown = true
			}
			r.rows = append(r.rows, rows...)
		}
		if r.Rows, err = s.cfg.Online.Count(ctx, r.rows); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Tokens are opaque names of the rows, by which they are found without the key.
func (r PersonRows) Tokens() []string {
	out := make([]string, len(r.rows))
	for i, row := range r.rows {
		out[i] = hex.EncodeToString(row[:])
	}
	return out
}

// ForgetOnline removes a person's rows from the online store and calls done for
// each view that had some. A materialisation of such a view that is under way is
// stopped: it goes on, over what its source is now, by itself or when it is asked for
// again. Error: fault.Unavailable when it has not ended yet.
func (s *Service) ForgetOnline(ctx context.Context, p Person, keys PersonKeys, tokens []string, done func(PersonRows) error) error {
	err := s.alone(ctx, func(ctx context.Context) error {
		all, err := s.PersonRows(ctx, p, keys, tokens)
		if err != nil {
			return err
		}
		for _, r := range all {
			// Also where there is none yet: a materialisation may be about to write some.
			if err := s.forget(ctx, p, r); err != nil {
				return fault.Wrap(err, "forgetting rows of %s", r.View)
			}
			if r.Rows == 0 {
				continue
			}
			if err := done(r); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errElsewhere) {
		return fault.New(fault.Unavailable, "another process is materialising").WithHint("It is tried again.")
	}
	return err
}

func (s *Service) forget(ctx context.Context, p Person, r PersonRows) error {
	release := s.occupy(p.Project, r.View)
	if release == nil {
		s.stopRuns()
		return fault.New(fault.Unavailable, "%s is being materialised", r.View).WithHint("It is stopped, and this tried again.")
	}
	defer release()
	if r.Rows == 0 {
		return nil
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

// stopRuns ends the attempts that are under way; those whose sources are still
// there are made again.
func (s *Service) stopRuns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.cancels {
		cancel()
	}
}
