package feature

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// PushRequest is rows of a view for the online store.
type PushRequest struct {
	Project project.Name
	View    string // a ref
	// Columns are as long as there are rows, and exactly the view's: join keys,
	// timestamp, features, and the created timestamp where it has one, which may be
	// left out or null for rows that become known now. Values are as JSON decodes
	// them, or time.Time.
	Columns map[string][]any
}

// maxPushed bounds the rows of one push.
const maxPushed = 100_000

// Push writes rows to the online store and returns when they are synced; from then
// on reads find them. They answer by the same rule as materialised rows, with which
// they do not mix: a materialisation leaves them, also one that replaces everything
// else, and Clear removes them. Training sets do not have them. Needs feature.push,
// and for the first rows of a view to see its sources. Errors, after which nothing
// is written: fault.Invalid for a column that is missing or too many, a value of
// another type, a key or time that is null, an event in the future; fault.TooLarge;
// fault.Unsupported for a view with aggregations that follows no stream, whose events
// have to be counted once; fault.PermissionDenied when the online store's zone may not hold the view.
// fault.Conflict says that the view was cleared meanwhile, and the rows with it.
func (s *Streams) Push(ctx context.Context, r PushRequest) (View, error) {
	if err := s.allow(ctx, ActionPush, r.Project, r.View); err != nil {
		return View{}, err
	}
	if err := noEmptyProject(r.Project); err != nil {
		return View{}, err
	}
	var v View
	var o Online
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, r.Project, ViewKind, r.View)
		if err != nil {
			return err
		}
		if v, err = d.view(); err != nil {
			return err
		}
		o, err = s.onlineStore.Online(ctx, tx, r.Project, v.Name, v.Version)
		if fault.Is(err, fault.NotFound) {
			o, err = Online{}, nil
		}
		return err
	})
	if err != nil {
		return v, err
	}
	if v.Source.Stream != nil {
		return v, s.pushColumns(ctx, v, r.Columns)
	}
	if o.View == "" {
		if o, err = s.firstOnline(ctx, v); err != nil {
			return v, err
		}
	}
	if err := s.cfg.Authorizer.Allow(ctx, ActionPush, policy.Object{
		Project: string(r.Project), Kind: objectKind, Name: v.Ref(), Classification: string(o.Classification), Residency: o.Residency,
	}); err != nil {
		return v, err
	}
	if err := s.pass(ctx, ActionPush, r.Project, v.Ref(), o.Residency); err != nil {
		return v, err
	}
	rows, err := s.pushed(v, r.Columns)
	if err != nil {
		return v, fault.Wrap(err, "pushing to %s", v.Ref())
	}
	if len(rows) == 0 {
		return v, nil
	}
	digest, err := s.rowsDigest(ctx, r.Project, rows)
	if err != nil {
		return v, err
	}
	// On record before it is there: what is read was never unknown.
	if err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.onlineStore.Online(ctx, tx, r.Project, v.Name, v.Version)
		switch {
		case err == nil:
			o = now
		case !fault.Is(err, fault.NotFound):
			return err
		}
		if missing := err != nil; missing || o.Pushed == "" {
			o.Pushed, o.UpdatedAt = newGeneration(), store.At(s.now()).Time()
			if err := s.onlineStore.PutOnline(ctx, tx, o); err != nil {
				return err
			}
			tx.OnCommit(s.plans.forget)
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionPush), Object: objectKind + " view " + v.Ref(),
			Detail: map[string]any{"rows": len(rows), "digest": digest},
		})
	}); err != nil {
		return v, err
	}
	for {
		table := o.at(o.Pushed)
		// First: whoever removes the rows meanwhile leaves no copy without one.
		if err := s.rows.copies(ctx, r.Project, v.Name, v.Version, o.Classification, table, rows); err != nil {
			return v, err
		}
		if err := s.cfg.Online.Write(ctx, table, rows); err != nil {
			return v, err
		}
		// If there is another subkey since, what is under the one before may have been moved
		// already.
		now, err := s.online(ctx, v)
		switch {
		case err != nil:
			return v, err
		case now.Pushed != o.Pushed: // no record names what was written
			return v, fault.New(fault.Conflict, "%s was cleared during the push", v.Ref()).WithHint("Push the rows again.")
		case now.Subkey == o.Subkey:
			return v, nil
		}
		o = now
	}
}

// pushWait is how long a push of rows to a view that follows a stream waits until
// reads find them.
const pushWait = 5 * time.Second

// pushColumns brings rows as events into the stream of a view.
func (s *Streams) pushColumns(ctx context.Context, v View, columns map[string][]any) error {
	n := len(columns[v.Timestamp])
	events := make([]Event, n)
	for name, cells := range columns {
		if len(cells) != n {
			return fault.New(fault.Invalid, "column %q has %d rows and %q has %d", clip(name), len(cells), v.Timestamp, n)
		}
		for i, x := range cells {
			if events[i] == nil {
				events[i] = Event{}
			}
			events[i][name] = x
		}
	}
	_, err := s.PushEvents(ctx, EventsRequest{Project: v.Project, View: v.Ref(), Events: events, Wait: pushWait})
	return err
}

// firstOnline is the record of a view that has no row online, as of its sources
// now: a materialisation of these adds to it.
func (s *Streams) firstOnline(ctx context.Context, v View) (Online, error) {
	inputs, err := s.pin(ctx, v.Project, v.Source)
	if err != nil {
		return Online{}, fault.Wrap(err, "source of feature view %s", v.Ref())
	}
	label, class, err := origin(inputs)
	return Online{
		Project: v.Project, View: v.Name, Version: v.Version, Residency: label, Classification: class, Generation: newGeneration(), Inputs: refsOf(inputs),
		Subkey: firstSubkey, Former: firstSubkey, RotatedAt: store.At(s.now()).Time(),
	}, err
}

// pushed reads the rows of a push.
func (s *Streams) pushed(v View, columns map[string][]any) ([]online.Row, error) {
	if v.windows() != nil {
		return nil, fault.New(fault.Unsupported, "the view has aggregations, and a repeated push would count events twice").
			WithHint("Ingest the rows into its source and materialise it, or use a stream source: `stream: {push: {}}`.")
	}
	known := v.columns()
	for name := range columns {
		if !slices.Contains(known, name) {
			return nil, fault.New(fault.Invalid, "the view has no column %q%s", clip(name), nearest(name, known)).WithHint("Its columns are %s.", clipList(known))
		}
	}
	n := len(columns[v.Timestamp])
	if n > maxPushed {
		return nil, fault.New(fault.TooLarge, "%d rows are over the limit of %d", n, maxPushed).WithHint("Split the push into several requests.")
	}
	for _, name := range known {
		got, given := columns[name]
		if !given && name == v.CreatedTimestamp {
			continue
		}
		if !given || len(got) != n {
			return nil, fault.New(fault.Invalid, "column %q has %d rows and %q has %d", name, len(got), v.Timestamp, n).WithHint("Send every column of the view with the same number of rows.")
		}
	}
	at := func(name string, i int, t value.Type) (value.Value, error) {
		x, err := value.Parse(t, columns[name][i])
		return x, fault.Wrap(err, "row %d: column %q", i+1, name)
	}
	horizon, now := s.cfg.Online.Horizon(), s.now()
	rows := make([]online.Row, n)
	types := v.featureTypes()
	values := make([]value.Value, len(types))
	for i := range rows {
		r := &rows[i]
		for _, k := range v.Keys {
			x, err := at(k.Name, i, k.Type)
			if err != nil {
				return nil, err
			}
			if x.IsNull() {
				return nil, fault.New(fault.Invalid, "row %d: the join key %q is null", i+1, k.Name)
			}
			r.Key = value.AppendKey(r.Key, x)
		}
		event, err := at(v.Timestamp, i, value.Timestamp)
		if err != nil {
			return nil, err
		}
		if event.IsNull() {
			return nil, fault.New(fault.Invalid, "row %d: the time %q is null", i+1, v.Timestamp)
		}
		if event.Time().After(horizon) {
			return nil, fault.New(fault.Invalid, "row %d: the event timestamp is in the future", i+1).WithData("%s", event.Time().Format(time.RFC3339Nano)).
				WithHint("Correct the producer's clock.")
		}
		r.Event, r.Created = event.Int(), online.NoCreated
		if v.CreatedTimestamp != "" {
			created := value.OfTime(now)
			if columns[v.CreatedTimestamp] != nil {
				if x, err := at(v.CreatedTimestamp, i, value.Timestamp); err != nil {
					return nil, err
				} else if !x.IsNull() {
					created = x
				}
			}
			r.Created = created.Int()
		}
		for f, t := range types {
			if values[f], err = at(v.Features[f].Name, i, t); err != nil {
				return nil, err
			}
		}
		if r.Packed, err = value.AppendRow(nil, values); err != nil {
			return nil, fault.Wrap(err, "row %d", i+1)
		}
	}
	return rows, nil
}

// rowsDigest is the digest by which the audit log names rows that were pushed: an HMAC
// under a key of the project, because rows of one person can be guessed.
func (s *access) rowsDigest(ctx context.Context, p project.Name, rows []online.Row) (string, error) {
	key, err := s.cfg.Keys.DataKey(ctx, string(p), "", "digests of rows that were pushed 1")
	if err != nil {
		return "", fault.Wrap(err, "the key of the audit log's digests")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(chain("", rows)))
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil)), nil
}
