package feature

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/digest"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// OnlineRequest asks for the features of entities.
type OnlineRequest struct {
	Project project.Name
	Selection
	// Entities has a row for each entity: join key → value, as JSON decodes it
	// (with or without numbers kept as text). A join key that is null or missing
	// in a row is NULL: its features are NOT_FOUND.
	Entities []map[string]any
	// Columns are the same in columns, each with a value for each entity, instead of Entities.
	Columns []EntityColumn
	// AsOf replays what the answer was at a past time; zero asks for now.
	AsOf time.Time
	// Loose passes over join keys that none of the features has: clients of other
	// systems send one set of keys to all they ask.
	Loose bool
}

// EntityColumn is a join key, or a value of the request, of all entities.
type EntityColumn struct {
	Name   string
	Values []any
}

// entities is how many are asked for.
func (r OnlineRequest) entities() int {
	if len(r.Columns) > 0 {
		return len(r.Columns[0].Values)
	}
	return len(r.Entities)
}

// OnlineAnswer has a column for each feature asked for, in that order, with a
// value for each entity in the order of the request.
type OnlineAnswer struct {
	AsOf    time.Time `json:"as_of"`
	Views   []string  `json:"views"`             // the exact versions
	Service string    `json:"service,omitempty"` // "delay@2", when it was asked for
	Columns []Column  `json:"columns"`
	// JoinKeys are those of the views, each once.
	JoinKeys []string `json:"-"`
}

// Column is a feature of many entities. EventTimes are nil where there is no
// row.
type Column struct {
	Name       string          `json:"name"`
	Feature    string          `json:"feature"` // "weather@2:temp"
	Type       string          `json:"type"`
	Values     []value.Value   `json:"values"`
	Statuses   []online.Status `json:"statuses"`
	EventTimes []*time.Time    `json:"event_timestamps"`
}

// MaxEntities bounds one read.
const MaxEntities = 10_000

// maxCells bounds the values of one read.
const maxCells = 5_000_000

// OnlineReads answers with features from the online store.
type OnlineReads struct{ *access }

// Online answers with the features of entities, as of now or of a past time.
// Needs feature.online, or feature.history for a past time, on each view. Errors:
// fault.Invalid for a wrong selection, an unknown join key or a value of another
// type; fault.Conflict for a view that is not online; fault.Gone when a view's
// key was destroyed.
func (s *OnlineReads) Online(ctx context.Context, r OnlineRequest) (OnlineAnswer, error) {
	action, at := ActionOnline, s.now()
	if !r.AsOf.IsZero() {
		action, at = ActionHistory, r.AsOf
	}
	entities := r.entities()
	if entities > MaxEntities {
		return OnlineAnswer{}, fault.New(fault.TooLarge, "%d entities are over the limit of %d", entities, MaxEntities).
			WithHint("Split the request.")
	}
	pl, err := s.resolve(ctx, r.Project, r.Selection)
	if err != nil {
		return OnlineAnswer{}, err
	}
	if err := pl.bounded(entities); err != nil {
		return OnlineAnswer{}, err
	}
	purpose, err := s.admit(ctx, action, r.Project, pl, r.Purpose)
	if err != nil {
		return OnlineAnswer{}, err
	}
	var sees shown
	if len(pl.protected) > 0 {
		if sees, err = s.show(ctx, pl, pl.objects(r.Project)); err != nil {
			return OnlineAnswer{}, err
		}
	}
	given, err := pl.given(r)
	if err != nil {
		return OnlineAnswer{}, err
	}
	keys, err := pl.entityKeys(given, entities)
	if err != nil {
		return OnlineAnswer{}, err
	}
	var requested [][]value.Value
	if pl.computed != nil {
		if requested, err = pl.computed.requested(given, entities); err != nil {
			return OnlineAnswer{}, err
		}
	}
	at = at.Truncate(time.Microsecond).UTC()
	if !r.AsOf.IsZero() {
		if err := pl.remembers(at); err != nil {
			return OnlineAnswer{}, err
		}
	}
	answer := OnlineAnswer{AsOf: at, Views: pl.refs(), Service: pl.service, JoinKeys: pl.joinKeys()}
	if answer.Columns, err = s.readAll(ctx, pl, keys, requested, at); err != nil {
		return OnlineAnswer{}, err
	}
	for i := range answer.Columns {
		answer.Columns[i].Name, answer.Columns[i].Type = pl.names[i], pl.types[i]
	}
	if err := s.hide(ctx, r.Project, answer.Columns, pl.types, sees.hidden); err != nil {
		return OnlineAnswer{}, err
	}
	if err := s.journal(ctx, action, r.Project, pl, keys, at, purpose, sees.features()); err != nil {
		return OnlineAnswer{}, err
	}
	return answer, nil
}

// remembers refuses a past time of which rows were removed.
func (pl *plan) remembers(at time.Time) error {
	for i, v := range pl.views {
		if swept := pl.online[i].HistorySince; at.Before(swept) {
			return fault.New(fault.Gone, "the history of feature view %s before %s has expired", v.view.Ref(), swept.Format(time.RFC3339)).
				WithHint("online.history sets how long superseded rows are kept. For older times, create a training set.")
		}
	}
	return nil
}

// bounded refuses a read of too many values, or of what takes too long to compute.
func (pl *plan) bounded(entities int) error {
	if c := pl.computed; c != nil && c.cost*entities > maxSteps {
		return fault.New(fault.TooLarge, "feature service %s takes up to %d steps per entity, and %d entities exceed the limit of %d steps", pl.service, c.cost, entities, maxSteps).
			WithHint("Split the request, with at most %d entities each.", maxSteps/c.cost)
	}
	if n := pl.read + len(pl.names) - pl.visible; n*entities > maxCells {
		return fault.New(fault.TooLarge, "%d features of %d entities are over the limit of %d values", n, entities, maxCells).
			WithHint("Split the request.")
	}
	return nil
}

// readAll fills the columns of a plan, those that are computed included.
func (s *OnlineReads) readAll(ctx context.Context, pl *plan, keys [][][]byte, requested [][]value.Value, at time.Time) ([]Column, error) {
	columns := make([]Column, pl.read)
	for i, v := range pl.views {
		if err := s.readView(ctx, v, pl.online[i].tables(), keys[i], at, columns); err != nil {
			return nil, err
		}
	}
	if pl.computed == nil {
		return columns, nil
	}
	made, err := pl.computed.columns(ctx, columns, requested, len(keys[0]))
	return append(columns[:pl.visible:pl.visible], made...), err
}

// admit passes a read of the online store through its doors, and says what it is
// for.
func (s *access) admit(ctx context.Context, action policy.Action, p project.Name, pl *plan, named string) (purpose string, err error) {
	for i, v := range pl.views {
		o := pl.online[i]
		if err := s.cfg.Authorizer.Allow(ctx, action, policy.Object{
			Project: string(p), Kind: objectKind, Name: v.view.Ref(), Classification: string(o.Classification), Residency: o.Residency,
		}); err != nil {
			return "", err
		}
	}
	if purpose, err = s.forPurpose(ctx, action, p, pl, named); err != nil {
		return "", err
	}
	for i, v := range pl.views {
		o := pl.online[i]
		if o.View == "" {
			return "", fault.New(fault.Conflict, "feature view %s is not online", v.view.Ref()).
				WithHint("Materialise it: falaj feature materialise %s.", v.view.Ref())
		}
		if err := s.pass(ctx, action, p, v.view.Ref(), o.Residency); err != nil {
			return "", err
		}
	}
	return purpose, nil
}

// journal records the read of views that are confidential or restricted, or say
// what they are read for, and of protected features in clear: one entry for the
// batch, or several where it names very many entities. It returns when they are synced.
func (s *access) journal(ctx context.Context, action policy.Action, p project.Name, pl *plan, keys [][][]byte, at time.Time, purpose string, unmasked []string) error {
	class := project.Public
	var views []string
	var read []int // places of these views
	rows := 0
	for i, v := range pl.views {
		if c := pl.online[i].Classification; c.Journalled() || len(v.view.Purpose) > 0 || len(unmasked) > 0 {
			class = project.Strictest(class, c)
			views = append(views, v.view.Ref())
			read = append(read, i)
			rows = max(rows, len(keys[i]))
		}
	}
	if len(views) == 0 {
		return nil
	}
	digester, err := s.digester(ctx, p)
	if err != nil {
		return err
	}
	for _, i := range read {
		digester.Add(pl.views[i].view.digested(), len(pl.views[i].view.Keys), keys[i])
	}
	detail := map[string]any{"views": views, "entities": rows, "as_of": at, "classification": class}
	if purpose != "" {
		detail["purpose"] = purpose
	}
	if len(unmasked) > 0 {
		detail["clear"] = unmasked
	}
	record := func(ctx context.Context, detail map[string]any) error {
		return fault.Wrap(s.cfg.Journal.Record(ctx, audit.Entry{Project: string(p), Action: string(action), Object: objectKind + " view " + views[0], Detail: detail}),
			"record the read of %s view %s", objectKind, views[0])
	}
	if len(digester.All()) <= maxDigests {
		detail["keys_digest"] = digester.All()
		return record(ctx, detail)
	}
	group, ctx := errgroup.WithContext(ctx) // they share syncs
	for part := range slices.Chunk(digester.All(), maxDigests) {
		detail := maps.Clone(detail)
		detail["keys_digest"] = part
		group.Go(func() error { return record(ctx, detail) })
	}
	return group.Wait()
}

// given are the values of join keys and of the request by name, each with one for each
// entity; nil stands for those that are not there.
func (pl *plan) given(r OnlineRequest) (map[string][]any, error) {
	known := pl.joinKeys()
	if pl.computed != nil {
		for _, q := range pl.computed.request {
			known = append(known, q.name)
		}
	}
	out := make(map[string][]any, len(known))
	passed := func(entity int, name string) (bool, error) {
		if slices.Contains(known, name) || r.Loose {
			return slices.Contains(known, name), nil
		}
		return false, fault.New(fault.Invalid, "entity %d: %q is not a join key of these features%s", entity+1, clip(name), nearest(name, known)).
			WithHint("The join keys are %s.", clipList(known))
	}
	n := r.entities()
	for _, c := range r.Columns {
		if len(c.Values) != n {
			return nil, fault.New(fault.Invalid, "the join key %q has %d values, and %q %d", clip(c.Name), len(c.Values), clip(r.Columns[0].Name), n)
		}
		ok, err := passed(0, c.Name)
		if err != nil {
			return nil, err
		}
		if ok {
			out[c.Name] = c.Values
		}
	}
	for i, e := range r.Entities {
		for name, x := range e {
			ok, err := passed(i, name)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			if out[name] == nil {
				out[name] = make([]any, n)
			}
			out[name][i] = x
		}
	}
	return out, nil
}

// entityKeys makes the key of each entity for each view; nil where a part is
// NULL.
func (pl *plan) entityKeys(given map[string][]any, entities int) ([][][]byte, error) {
	out := make([][][]byte, len(pl.views))
	for i, v := range pl.views {
		parts := make([][]any, len(v.view.Keys))
		for p, k := range v.view.Keys {
			if parts[p] = given[k.Name]; parts[p] == nil && entities > 0 {
				return nil, fault.New(fault.Invalid, "the entities lack the join key %q of feature view %s", k.Name, v.view.Ref())
			}
		}
		out[i] = make([][]byte, entities)
		buf := make([]byte, 0, 9*len(parts)*entities) // of all keys, unless they are texts
		for n := range entities {
			start := len(buf)
			for p, k := range v.view.Keys {
				x, err := parseText(k.Type, parts[p][n])
				if err != nil {
					return nil, fault.Wrap(err, "entity %d: join key %s", n+1, k.Name)
				}
				if x.IsNull() {
					buf, start = buf[:start], -1
					break
				}
				buf = value.AppendKey(buf, x)
			}
			if start >= 0 {
				out[i][n] = buf[start:len(buf):len(buf)]
			}
		}
	}
	return out, nil
}

// parseText reads a join key or a value of a request. Other than features, these
// may come as text whatever their type: command lines and URLs have nothing else.
func parseText(t value.Type, x any) (value.Value, error) {
	text, ok := x.(string)
	if !ok {
		return value.Parse(t, x)
	}
	switch t {
	case value.Int64, value.Int32:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return value.Parse(t, n)
		}
	case value.Float32:
		if f, err := strconv.ParseFloat(text, 32); err == nil {
			return value.OfFloat32(float32(f)), nil
		}
	case value.Float64:
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return value.Parse(t, f)
		}
	case value.Bool:
		if b, err := strconv.ParseBool(text); err == nil {
			return value.OfBool(b), nil
		}
	default:
	}
	return value.Parse(t, x)
}

// readView fills the columns of one view.
func (s *OnlineReads) readView(ctx context.Context, v picked, tables []online.Table, keys [][]byte, at time.Time, columns []Column) error {
	n := len(keys)
	// The features of a view have their times in common.
	values, statuses := make([]value.Value, len(v.features)*n), make([]online.Status, len(v.features)*n)
	events, times := make([]*time.Time, n), make([]time.Time, n)
	for i := range v.features {
		columns[v.order[i]] = Column{
			Feature: v.names[i],
			Values:  values[i*n : (i+1)*n : (i+1)*n], Statuses: statuses[i*n : (i+1)*n : (i+1)*n], EventTimes: events,
		}
	}
	return s.answers(ctx, v, tables, keys, at, func(k int, a answer) error {
		if !a.event.IsZero() {
			times[k] = a.event
			events[k] = &times[k]
		}
		for i, f := range v.features {
			at := i*n + k
			switch {
			case a.status != online.Present:
				values[at], statuses[at] = value.Null(v.types[f]), a.status
			case a.row[f].IsNull():
				values[at], statuses[at] = value.Null(v.types[f]), online.NullValue
			default:
				values[at], statuses[at] = a.row[f], online.Present
			}
		}
		return nil
	})
}

// answer is what an entity answers with. event is zero where there is no row; row
// has all features of the view where the status is Present, until the next answer.
type answer struct {
	status online.Status
	event  time.Time
	row    []value.Value
}

// answers asks the online store for entities as of a time.
func (s *OnlineReads) answers(ctx context.Context, v picked, tables []online.Table, keys [][]byte, at time.Time, each func(n int, a answer) error) error {
	if v.windows != nil {
		return s.windowed(ctx, v, tables[0], keys, at, each) // nothing is pushed to it
	}
	query := online.Query{Keys: keys, At: at, TTL: v.view.ttl()}
	found, err := s.cfg.Online.Read(ctx, tables[0], query)
	if err != nil {
		return err
	}
	for _, table := range tables[1:] {
		more, err := s.cfg.Online.Read(ctx, table, query)
		if err != nil {
			return err
		}
		for i, a := range more {
			if a.After(found[i]) {
				found[i] = a
			}
		}
	}
	row := make([]value.Value, len(v.types))
	for n, a := range found {
		if a.Status == online.Present {
			if err := value.DecodeRow(a.Packed, v.types, row); err != nil {
				return err
			}
		}
		if err := each(n, answer{a.Status, a.Event, row}); err != nil {
			return err
		}
	}
	return nil
}

// micros is an instant as the online store compares it.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return math.MinInt64
	}
	return t.UnixMicro()
}

// maxDigests bounds the digests of one audit entry: 25 bytes each, of 64 KiB.
const maxDigests = 1500

// digester makes the digests by which the audit log names entities.
func (s *access) digester(ctx context.Context, p project.Name) (*digest.Digester, error) {
	key, err := s.cfg.Keys.DataKey(ctx, string(p), "", "digests of keys that were read 1")
	if err != nil {
		return nil, fault.Wrap(err, "the key of the audit log's digests")
	}
	return digest.New(key), nil
}

// digested are the entities that the view's key names, each once.
func (v View) digested() []digest.Entity {
	var of []digest.Entity
	for _, k := range v.Keys {
		name, _, _ := strings.Cut(k.Entity, "@")
		if len(of) == 0 || of[len(of)-1].Name != name {
			of = append(of, digest.Entity{Name: name, Parts: v.about(name)})
		}
	}
	return of
}

// ReadDigest is the digest by which audit entries name an entity with these values of
// its join keys, as text and in their order. It asks for no permission: the caller has
// asked, and records the question. Errors: those of Identify.
func (s *OnlineReads) ReadDigest(ctx context.Context, p project.Name, entity string, values []string) (string, error) {
	e, err := s.entity(ctx, p, entity)
	if err != nil {
		return "", err
	}
	parts, err := e.parse(entity, values)
	if err != nil {
		return "", err
	}
	d, err := s.digester(ctx, p)
	if err != nil {
		return "", err
	}
	var key []byte
	for _, v := range parts {
		key = value.AppendKey(key, v)
	}
	return d.Digest(entity, key), nil
}
