package feature

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/tink-crypto/tink-go/v2/daead/subtle"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
)

// ActionClear is to see features that are protected as they are.
const ActionClear policy.Action = "feature.clear"

// Permitter decides what the context's principal may see, without an audit entry.
type Permitter interface {
	Permits(ctx context.Context, action policy.Action, object policy.Object) (bool, error)
}

// Protection is how a feature is shown to principals without the permission to see it
// unprotected.
type Protection string

// The protections. A feature without one is shown to every principal with read access to its
// view.
const (
	Mask      Protection = "mask"      // as NULL
	Pseudonym Protection = "pseudonym" // of a string: another one, the same for the same text in the whole project
)

const maxPurposes = 32

type purposeKey struct{}

// WithPurpose sets the purpose of feature reads in this context.
func WithPurpose(ctx context.Context, purpose string) context.Context {
	return context.WithValue(ctx, purposeKey{}, purpose)
}

func checkPurposes(field string, purposes []string) error {
	if len(purposes) > maxPurposes {
		return bad(field, "%d are over the limit of %d", len(purposes), maxPurposes)
	}
	for i, p := range purposes {
		if err := id.CheckName("purpose", p); err != nil {
			return bad(field, "%s", err).WithHint("%s", fault.HintOf(err))
		}
		if slices.Contains(purposes[:i], p) {
			return bad(field, "duplicate %q", p)
		}
	}
	return nil
}

func checkProtection(field string, p Protection, typ string) error {
	switch {
	case p == "" || p == Mask || p == Pseudonym && typ == value.String.String():
		return nil
	case p == Pseudonym:
		return bad(field+".protect", "a pseudonym must be a string, and this feature is %s", typ).WithHint("Write `protect: mask`, or CAST the column to text in SQL.")
	}
	return bad(field+".protect", "there is no protection %q", clip(string(p))).WithHint("Write mask or pseudonym.")
}

// access is core with what reads for people need: it checks purposes, hides protected
// features, and keeps reads in the journal.
type access struct{ *core }

// forPurpose finds out what a read is for and refuses one that is for something
// else than its views may be read for. The refusal is in the journal.
func (s *access) forPurpose(ctx context.Context, action policy.Action, p project.Name, pl *plan, named string) (string, error) {
	said, _ := ctx.Value(purposeKey{}).(string)
	purpose := cmp.Or(named, said, pl.purpose)
	if purpose != "" { // it is kept for ever, so it is a word and not anybody's text
		if err := id.CheckName("purpose", purpose); err != nil {
			return "", err
		}
	}
	refuse := func(object, hint, format string, args ...any) error {
		err := fault.New(fault.PermissionDenied, format, args...).WithHint("%s", hint)
		return cmp.Or(fault.Wrap(s.cfg.Journal.Record(context.WithoutCancel(ctx), audit.Entry{
			Actor: identity.From(ctx), Project: string(p), Action: string(action), Object: objectKind + " " + object, Outcome: audit.Refused, Reason: err.Error(),
			Detail: map[string]any{"purpose": clip(purpose)},
		}), "record the refusal to read %s", object), audit.OnRecord(err))
	}
	if pl.purpose != "" && purpose != pl.purpose {
		return "", refuse("service "+pl.service, "Read through a feature service with that purpose.", "feature service %s has the purpose %s, and this read has the purpose %s", pl.service, pl.purpose, clip(purpose))
	}
	for _, v := range pl.views {
		switch allowed := v.view.Purpose; {
		case len(allowed) == 0 || slices.Contains(allowed, purpose):
		case purpose == "":
			return "", refuse("view "+v.view.Ref(), "Set the purpose: `purpose` in a request or a feature service, --purpose, or the header Falaj-Purpose.",
				"feature view %s allows only the purposes %s, and this read names none", v.view.Ref(), strings.Join(allowed, ", "))
		default:
			return "", refuse("view "+v.view.Ref(), "To allow another purpose, change spec.purpose of the view.",
				"feature view %s allows only the purposes %s, not %s", v.view.Ref(), strings.Join(allowed, ", "), clip(purpose))
		}
	}
	return purpose, nil
}

// protected is a column of a plan that not everybody sees as it is.
type protected struct {
	column int // of the output
	as     Protection
	needs  []part // what has to be seen in clear for it
}

// part is a protected feature of a view.
type part struct {
	view    int    // in the plan
	feature string // "patients@1:diagnosis"
}

// protections lists the columns that not everybody sees: protected features, and
// what is computed from them.
func (pl *plan) protections() []protected {
	var out []protected
	by := map[int][]part{} // by place in a row
	for n, v := range pl.views {
		for i, f := range v.features {
			field := v.view.Features[f]
			if field.Protect == "" {
				continue
			}
			at := v.order[i]
			by[at] = []part{{n, v.view.Ref() + ":" + field.Name}}
			if at < pl.visible {
				out = append(out, protected{at, field.Protect, by[at]})
			}
		}
	}
	if pl.computed == nil {
		return out
	}
	first := pl.computed.read + len(pl.computed.request)
	for i, f := range pl.computed.fields {
		var needs []part
		for _, at := range f.program.Uses() {
			for _, p := range by[at] {
				if !slices.Contains(needs, p) {
					needs = append(needs, p)
				}
			}
		}
		if len(needs) > 0 {
			by[first+i] = needs
			out = append(out, protected{pl.visible + i, Mask, needs})
		}
	}
	return out
}

// shown says which columns of a plan a reader sees how: those that are hidden, by
// column, and the protected features that are in clear, as objects.
type shown struct {
	hidden map[int]Protection
	clear  []policy.Object
}

// features are the names of what is in clear.
func (w shown) features() []string {
	var out []string
	for _, o := range w.clear {
		out = append(out, o.Name)
	}
	return out
}

// show asks what the context's principal sees. objects are those of the views.
func (s *access) show(ctx context.Context, pl *plan, objects []policy.Object) (shown, error) {
	var out shown
	may := map[part]bool{}
	for _, c := range pl.protected {
		sees := true
		for _, need := range c.needs {
			ok, asked := may[need]
			if !asked {
				object := objects[need.view]
				object.Name = need.feature
				var err error
				if ok, err = s.permits(ctx, object); err != nil {
					return out, err
				}
				if may[need] = ok; ok {
					out.clear = append(out.clear, object)
				}
			}
			sees = sees && ok
		}
		if !sees {
			if out.hidden == nil {
				out.hidden = map[int]Protection{}
			}
			out.hidden[c.column] = c.as
		}
	}
	return out, nil
}

func (s *access) permits(ctx context.Context, object policy.Object) (bool, error) {
	if s.cfg.Permits == nil {
		return false, nil
	}
	return s.cfg.Permits.Permits(ctx, ActionClear, object)
}

// clear are all protected features of a plan.
func (pl *plan) clear() []string {
	var out []string
	for _, c := range pl.protected {
		for _, need := range c.needs {
			if !slices.Contains(out, need.feature) {
				out = append(out, need.feature)
			}
		}
	}
	return out
}

// AllowClear refuses who may not see all that a feature service reads as it is:
// whoever lets a model see it decides for its callers. Error:
// fault.PermissionDenied.
func (s *OnlineReads) AllowClear(ctx context.Context, p project.Name, service string) error {
	pl, err := s.resolve(ctx, p, Selection{Service: service, FullNames: true})
	if err != nil {
		return err
	}
	objects := pl.objects(p)
	for _, c := range pl.protected {
		for _, need := range c.needs {
			object := objects[need.view]
			object.Name = need.feature
			if err := s.cfg.Authorizer.Allow(ctx, ActionClear, object); err != nil {
				return err
			}
		}
	}
	return nil
}

// objects are the views of a plan as their online rows are labelled.
func (pl *plan) objects(p project.Name) []policy.Object {
	out := make([]policy.Object, len(pl.views))
	for i, v := range pl.views {
		o := pl.online[i]
		out[i] = policy.Object{Project: string(p), Kind: objectKind, Name: v.view.Ref(), Classification: string(o.Classification), Residency: o.Residency}
	}
	return out
}

// hide puts what a reader may not see out of the columns of an online read.
func (s *access) hide(ctx context.Context, p project.Name, columns []Column, types []string, hidden map[int]Protection) error {
	if len(hidden) == 0 {
		return nil
	}
	names, err := s.pseudonyms(ctx, p)
	if err != nil {
		return err
	}
	for at, as := range hidden {
		t, err := typeOf("type", types[at])
		if err != nil {
			return err
		}
		c := &columns[at]
		for n, status := range c.Statuses {
			switch {
			case as == Mask && (status == online.Present || status == online.NullValue || status == online.Invalid):
				c.Values[n], c.Statuses[n] = value.Null(t), online.Masked
			case as == Pseudonym && status == online.Present:
				if c.Values[n], err = names.of(c.Values[n]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pseudonyms replace texts: AES-SIV under a key of the project, so that equal texts
// have equal pseudonyms in all its views. Who can write rows of a view can have the
// server make the pseudonym of a guess (docs/adr/0028): they hide what cannot be guessed.
type pseudonyms struct{ siv *subtle.AESSIV }

// pseudonymPrefix tells people that it is one.
const pseudonymPrefix = "psn_"

func (s *access) pseudonyms(ctx context.Context, p project.Name) (pseudonyms, error) {
	key := make([]byte, 0, subtle.AESSIVKeySize)
	for _, use := range []string{"feature pseudonyms 1", "feature pseudonyms 2"} { // AES-SIV takes two keys of 32 bytes
		half, err := s.cfg.Keys.DataKey(ctx, string(p), "", use)
		if err != nil {
			return pseudonyms{}, fault.Wrap(err, "the pseudonym key")
		}
		key = append(key, half...)
	}
	siv, err := subtle.NewAESSIV(key)
	return pseudonyms{siv}, err
}

func (n pseudonyms) of(v value.Value) (value.Value, error) {
	if v.IsNull() {
		return v, nil
	}
	sealed, err := n.siv.EncryptDeterministically([]byte(v.Str()), []byte("falaj feature"))
	if err != nil {
		return value.Value{}, err
	}
	return value.OfString(pseudonymPrefix + base64.RawURLEncoding.EncodeToString(sealed)), nil
}

// ProtectedFeature is a column of a training set that its maker did not see as it
// is.
type ProtectedFeature struct {
	Column string     `json:"column"`
	As     Protection `json:"as"`
}

// hides lists the hidden columns of a plan.
func (pl *plan) hides(w shown) []ProtectedFeature {
	var out []ProtectedFeature
	for at, as := range w.hidden {
		out = append(out, ProtectedFeature{pl.names[at], as})
	}
	slices.SortFunc(out, func(a, b ProtectedFeature) int { return cmp.Compare(a.Column, b.Column) })
	return out
}

// hiding is joined rows without what their reader may not see. It takes the rows
// over, and releases them when it fails.
func (s *access) hiding(ctx context.Context, p project.Name, rows array.RecordReader, hidden []ProtectedFeature) (array.RecordReader, error) {
	if len(hidden) == 0 {
		return rows, nil
	}
	names, err := s.pseudonyms(ctx, p)
	if err != nil {
		rows.Release()
		return nil, err
	}
	schema := rows.Schema()
	return &changed{RecordReader: rows, schema: schema, change: func(batch arrow.RecordBatch, _ int64) (arrow.RecordBatch, int64, error) {
		columns := slices.Clone(batch.Columns())
		for _, h := range hidden {
			at := schema.FieldIndices(h.Column)
			if len(at) != 1 {
				return nil, 0, fault.New(fault.Internal, "%d columns are named %q", len(at), h.Column)
			}
			a, err := names.column(columns[at[0]], h)
			if err != nil {
				return nil, 0, err
			}
			defer a.Release()
			columns[at[0]] = a
		}
		return array.NewRecordBatch(schema, columns, batch.NumRows()), batch.NumRows(), nil
	}}, nil
}

// column is a column as those see it who may not see it as it is.
func (n pseudonyms) column(from arrow.Array, h ProtectedFeature) (arrow.Array, error) {
	if h.As == Mask {
		return array.MakeArrayOfNull(memory.DefaultAllocator, from.DataType(), from.Len()), nil
	}
	texts, ok := from.(*array.String)
	if !ok {
		return nil, fault.New(fault.Internal, "column %q is %s", h.Column, from.DataType())
	}
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	known := map[string]string{} // texts repeat within a batch
	for i := range texts.Len() {
		if texts.IsNull(i) {
			b.AppendNull()
			continue
		}
		name, ok := known[texts.Value(i)]
		if !ok {
			v, err := n.of(value.OfString(texts.Value(i)))
			if err != nil {
				return nil, err
			}
			name = v.Str()
			known[texts.Value(i)] = name
		}
		b.Append(name)
	}
	return b.NewArray(), nil
}

// journalHistory records the read of rows that were joined, where a view is read
// for a purpose or a protected feature is in clear: the sources are on record by
// the datasets.
func (s *access) journalHistory(ctx context.Context, p project.Name, pl *plan, purpose string, w shown) error {
	if !pl.purposed() && len(w.clear) == 0 {
		return nil
	}
	return fault.Wrap(s.cfg.Journal.Record(ctx, audit.Entry{
		Project: string(p), Action: string(ActionHistory), Object: objectKind + " view " + pl.views[0].view.Ref(),
		Detail: map[string]any{"views": pl.refs(), "purpose": purpose, "clear": w.features()},
	}), "record the read of %s", strings.Join(pl.refs(), ", "))
}

// purposed reports whether a view of the plan says what it is read for.
func (pl *plan) purposed() bool {
	return slices.ContainsFunc(pl.views, func(v picked) bool { return len(v.view.Purpose) > 0 })
}

// changed is rows that are changed batch by batch. It has one owner.
type changed struct {
	array.RecordReader
	schema *arrow.Schema
	// change makes rows of those of a batch from one on, and says up to which.
	change  func(batch arrow.RecordBatch, from int64) (made arrow.RecordBatch, to int64, err error)
	taken   int64 // of the reader's batch; 0 when the next one is due
	current arrow.RecordBatch
	err     error
}

// Schema implements array.RecordReader.
func (r *changed) Schema() *arrow.Schema { return r.schema }

// RecordBatch implements array.RecordReader.
func (r *changed) RecordBatch() arrow.RecordBatch { return r.current }

// Record implements array.RecordReader.
//
// Deprecated: the interface demands it.
func (r *changed) Record() arrow.RecordBatch { return r.current }

// Err implements array.RecordReader.
func (r *changed) Err() error {
	if r.err != nil {
		return r.err
	}
	return r.RecordReader.Err()
}

// Release implements array.RecordReader.
func (r *changed) Release() {
	r.drop()
	r.RecordReader.Release()
}

func (r *changed) drop() {
	if r.current != nil {
		r.current.Release()
		r.current = nil
	}
}

// Next implements array.RecordReader.
func (r *changed) Next() bool {
	r.drop()
	if r.err != nil || r.taken == 0 && !r.RecordReader.Next() {
		return false
	}
	batch := r.RecordReader.RecordBatch()
	if r.current, r.taken, r.err = r.change(batch, r.taken); r.taken == batch.NumRows() {
		r.taken = 0
	}
	return r.err == nil
}
