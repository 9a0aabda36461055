package feature

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// A dataset that views follow as a stream has a log of events beside its versions.
// An event is acknowledged when the log has it, synced. From the log it goes two
// ways, both exactly once: streamapply.go applies it to the online rows of the views,
// which hold how far they have come; streamsnapshot.go appends it to the dataset as a
// new version, in whose transaction the log notes that. What both have is trimmed.

// StreamSpec makes a view follow the events of its dataset.
type StreamSpec struct {
	Push   *struct{} `json:"push,omitempty" doc:"Events are pushed: falaj feature push"`
	Source string    `json:"source,omitempty" doc:"A Source from kafka or nats whose messages are the events"`
}

// validate refuses what cannot be followed.
func (s Source) validateStream(field string) error {
	switch {
	case s.Stream == nil:
		return nil
	case s.Dataset == "":
		return bad(field+".stream", "a stream source requires dataset, not sql").WithHint("Name the dataset that stores the events: `dataset: clicks`.")
	case strings.Contains(s.Dataset, "@"):
		return bad(field+".stream", "%s is a single version, which receives no events", clip(s.Dataset)).WithHint("Name the dataset without a version.")
	case s.Stream.Push == nil && s.Stream.Source == "":
		return bad(field+".stream", "stream.push or stream.source is required").WithHint("Write `stream: {push: {}}`, or `stream: {source: NAME}` with a kafka or nats Source.")
	}
	return nil
}

// Stream is the log of a dataset's events, a record for each push. It has the
// records First … Head; those up to SnapshotSeq are also in versions of the dataset.
type Stream struct {
	Project     project.Name `json:"project"`
	Dataset     string       `json:"dataset"`
	First       int64        `json:"first"`
	Head        int64        `json:"head"`
	SnapshotSeq int64        `json:"cut"`
	Version     string       `json:"version,omitempty"` // "clicks@3", made by the last snapshot
	SnapshotAt  time.Time    `json:"cut_at,omitzero"`
	Bytes       int64        `json:"bytes"`  // of the records that are kept
	Events      int64        `json:"events"` // accepted since the beginning
	// Offsets is how far each log was read, a position of package source, by what
	// Sources.Check calls it: so a source that becomes another is read from its
	// beginning. They change with the records that were read.
	Offsets map[string]json.RawMessage `json:"offsets,omitempty"`
}

// read is how far a log was read; nil for one that was not.
func (st *Stream) read(reading string) json.RawMessage {
	if at, ok := st.Offsets[reading]; ok {
		return at
	}
	source, _, _ := strings.Cut(reading, "@") // as it was called at first
	return st.Offsets[source]
}

// readTo notes how far a log was read.
func (st *Stream) readTo(reading string, at json.RawMessage) {
	if st.Offsets == nil {
		st.Offsets = map[string]json.RawMessage{}
	}
	source, _, _ := strings.Cut(reading, "@")
	delete(st.Offsets, source)
	st.Offsets[reading] = at
}

// Record is events that came together.
type Record struct {
	Seq    int64
	Events int
	At     time.Time // when it was accepted
	Sealed []byte
}

// Limits of a log.
const (
	maxEvents               = 10_000         // of a push
	recordEvents            = 1000           // of a record
	maxEventID              = 200            // bytes
	maxEvent                = 256 << 10      // bytes, about
	seenAge                 = 24 * time.Hour // how long ids of events are remembered
	pageRecords             = 8              // read at a time
	applyPages              = 64             // applied before another stream has its turn
	defaultLog              = 256 << 20      // bytes of the records of a stream
	defaultSnapshotInterval = time.Hour
)

// Event is one event: its columns as JSON decodes them (with or without numbers kept
// as text), or time.Time.
type Event map[string]any

// EventsRequest pushes events to a view's stream.
type EventsRequest struct {
	Project project.Name
	View    string // a ref
	Events  []Event
	// Raw are events as JSON objects, instead of Events.
	Raw []json.RawMessage
	// IDs may name each event. An event whose id came within the last day is passed
	// over, so that a push that was not answered can be sent again.
	IDs []string
	// Keep keeps events that are none as dead letters, instead of refusing all.
	Keep bool
	// Wait, when not 0, is how long to wait until reads find them.
	Wait time.Duration
}

// EventsAnswer is the result of a push.
type EventsAnswer struct {
	View       string `json:"view"`
	Accepted   int    `json:"accepted"`
	Duplicates int    `json:"duplicates"`        // passed over, by id
	Dead       int    `json:"dead"`              // kept as dead letters
	Position   int64  `json:"position"`          // of the log, once the events are in it
	Visible    bool   `json:"visible,omitempty"` // whether reads find them already
}

// Streams takes pushed rows and events, applies events to online rows, and makes dataset
// versions of them.
type Streams struct {
	*access
	rows        *OnlineRows
	streamStore StreamStore
	// streamProcessor applies events to online rows, and snapshots them as dataset versions.
	streamProcessor *lifecycle.Loop
	feeder          *lifecycle.Loop // brings messages of sources into the logs
	snapshotting    *share.Pool     // one version is made at a time

	mu      sync.Mutex
	streams map[streamName]*streamProgress
	applied chan struct{} // closed and replaced when events were applied
}

func newStreams(a *access, rows *OnlineRows) *Streams {
	s := &Streams{
		access: a, rows: rows, streamStore: a.cfg.Store,
		snapshotting: share.New(share.Limits{Name: "event_versions", What: "snapshots of streams", Slots: 1, Queue: 1 << 14}),
		streams:      map[streamName]*streamProgress{}, applied: make(chan struct{}),
	}
	s.streamProcessor = &lifecycle.Loop{
		Name: "feature streams", Every: streamInterval, Logger: s.log, Timeout: streamTimeout,
		Run: s.logOnChange(s.ProcessStreamsOnce),
	}
	s.feeder = &lifecycle.Loop{
		Name: "feature sources", Every: feedPause, Logger: s.log, Timeout: feedTime,
		Run: s.logOnChange(s.FeedOnce),
	}
	return s
}

// Processing applies what the logs of events hold to online rows, and makes dataset versions of it.
func (s *Streams) Processing() lifecycle.Service { return s.streamProcessor.Service() }

// Feeds copies the messages of sources into the logs.
func (s *Streams) Feeds() lifecycle.Service { return s.feeder.Service() }

// PushEvents brings events into the log of a view's stream and returns when they
// are synced: from then on no crash loses them, and each counts once, online and in
// the dataset. Needs feature.push. Errors, after which nothing was accepted:
// fault.Invalid for an event that does not fit the dataset's columns or the view;
// fault.TooLarge; fault.Exhausted when the log is too far ahead of the online store
// or the dataset; fault.Conflict for a view that follows no stream.
func (s *Streams) PushEvents(ctx context.Context, r EventsRequest) (EventsAnswer, error) {
	var out EventsAnswer
	if err := s.allow(ctx, ActionPush, r.Project, r.View); err != nil {
		return out, err
	}
	n := max(len(r.Events), len(r.Raw))
	switch {
	case n > maxEvents:
		return out, fault.New(fault.TooLarge, "%d events are over the limit of %d", n, maxEvents).WithHint("Split the push into several requests.")
	case len(r.IDs) > 0 && len(r.IDs) != n:
		return out, fault.New(fault.Invalid, "there are %d ids for %d events", len(r.IDs), n).WithHint("Give every event an id, or none.")
	}
	for i, id := range r.IDs {
		if id == "" || len(id) > maxEventID {
			return out, fault.New(fault.Invalid, "the id of event %d has %d bytes, and must have 1 to %d", i+1, len(id), maxEventID)
		}
	}
	v, err := s.streamed(ctx, r.Project, r.View)
	if err != nil {
		return out, err
	}
	out.View = v.Ref()
	l, err := s.openLog(ctx, v)
	if err != nil {
		return out, err
	}
	if err := s.mayPush(ctx, l); err != nil {
		return out, err
	}
	in := entry{
		action: ActionPush, keep: r.Keep,
		raw: func(i int) []byte { b, _ := json.Marshal(r.Events[i]); return b }, // it came as JSON
	}
	in.events, in.ids = r.Events, r.IDs
	if r.Raw != nil {
		in.raw = func(i int) []byte { return r.Raw[i] }
		in.parse(len(r.Raw))
	}
	if out.Accepted, out.Duplicates, out.Dead, out.Position, err = s.accept(ctx, l, in); err != nil || r.Wait <= 0 {
		return out, fault.Wrap(err, "pushing to %s", v.Ref())
	}
	out.Visible = s.awaitApplied(ctx, v, out.Position, r.Wait)
	return out, nil
}

// streamed finds a view that follows a stream.
func (s *Streams) streamed(ctx context.Context, p project.Name, ref string) (View, error) {
	var v View
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, ViewKind, ref)
		if err != nil {
			return err
		}
		v, err = d.view()
		return err
	})
	if err == nil && v.Source.Stream == nil {
		return v, fault.New(fault.Conflict, "feature view %s has no stream source", v.Ref()).
			WithHint("Set a dataset and `stream: {push: {}}` in its source.")
	}
	return v, err
}

// eventLog is a stream with what it takes to read and write it.
type eventLog struct {
	view    View
	project project.Name
	dataset string
	schema  *arrow.Schema
	newest  DatasetVersion
	aead    cipher.AEAD
	mac     []byte
	try     *array.RecordBuilder // to find out whether values fit
	lists   []listColumn         // what views make of them
}

// system is the principal that applies events and makes versions of them.
func system(ctx context.Context) context.Context {
	return identity.With(ctx, identity.Loop("feature"))
}

// openLog opens the log of a view's dataset. The events inherit what the dataset
// has.
func (s *Streams) openLog(ctx context.Context, v View) (*eventLog, error) {
	l := &eventLog{view: v, project: v.Project, dataset: v.Source.Dataset}
	var err error
	// Whoever may push need not be allowed to read.
	if l.newest, err = s.newest(ctx, l.project, l.dataset); err != nil {
		return nil, fault.Wrap(err, "dataset %s", l.dataset)
	}
	if l.schema, err = s.cfg.Data.Columns(system(ctx), l.project, l.dataset); err != nil {
		return nil, fault.Wrap(err, "dataset %s", l.dataset)
	}
	return l, s.unlock(ctx, l)
}

// unlock gets what it takes to read what a log has. Error: fault.Gone when the key
// was destroyed.
func (s *Streams) unlock(ctx context.Context, l *eventLog) (err error) {
	derive := func(use string) []byte {
		var key []byte
		if err == nil {
			key, err = s.cfg.Keys.DataKey(ctx, string(l.project), "dataset/"+l.dataset, use)
		}
		return key
	}
	key := derive("stream/events")
	l.mac = derive("stream/ids")
	if err != nil {
		return fault.Wrap(err, "opening the key of dataset %s", l.dataset)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	l.aead, err = cipher.NewGCM(block)
	return err
}

// mayPush passes a push through its doors: the log is where the server is.
func (s *Streams) mayPush(ctx context.Context, l *eventLog) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPush, policy.Object{
		Project: string(l.project), Kind: objectKind, Name: l.view.Ref(), Classification: string(l.newest.Classification), Residency: l.newest.Residency,
	}); err != nil {
		return err
	}
	return s.cfg.Guard.Pass(ctx, residency.Transfer{
		Project: string(l.project), What: "dataset " + l.dataset, Label: l.newest.Residency,
		Where: "the log of its events", Zone: s.cfg.Zone, Action: string(ActionPush),
	})
}

// seal encrypts b, bound to the stream and a place in it.
func (l *eventLog) seal(place string, b []byte) ([]byte, error) {
	nonce := make([]byte, l.aead.NonceSize(), l.aead.NonceSize()+len(b)+l.aead.Overhead())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return l.aead.Seal(nonce, nonce, b, l.bind(place)), nil
}

func (l *eventLog) open(place string, sealed []byte) ([]byte, error) {
	n := l.aead.NonceSize()
	if len(sealed) < n {
		return nil, fault.New(fault.Internal, "%s of the stream of %s is truncated", place, l.dataset)
	}
	b, err := l.aead.Open(nil, sealed[:n], sealed[n:], l.bind(place))
	if err != nil {
		return nil, fault.New(fault.Internal, "%s of the stream of %s cannot be decrypted: it is corrupt or was moved", place, l.dataset)
	}
	return b, nil
}

func (l *eventLog) bind(place string) []byte {
	return []byte(string(l.project) + "/" + l.dataset + "/" + place)
}

func recordPlace(seq int64) string { return fmt.Sprintf("record %d", seq) }

// hash is what is kept of an event's id.
func (l *eventLog) hash(id string) string {
	m := hmac.New(sha256.New, l.mac)
	m.Write([]byte(id))
	return hex.EncodeToString(m.Sum(nil)[:16])
}

// entry is events on their way into a log.
type entry struct {
	action policy.Action
	events []Event
	ids    []string // beside events; may be empty
	keep   bool     // what is no event is a dead letter
	raw    func(i int) []byte
	from   func(i int) string // where an event came from, for people; may be nil
	broken map[int]error      // events that could not even be decoded, and why
	// reading and at are the log of a Source that was read and how far; before is where
	// it was read from.
	reading    string
	before, at json.RawMessage
	replayed   []string // dead letters that these were
}

// parse reads n raw events.
func (in *entry) parse(n int) {
	in.events, in.broken = make([]Event, n), map[int]error{}
	for i := range in.events {
		var err error
		if in.events[i], err = parseEvent(in.raw(i)); err != nil {
			in.broken[i] = err
		}
	}
}

// accept puts events into the log.
func (s *Streams) accept(ctx context.Context, l *eventLog, in entry) (accepted, duplicates, dead int, position int64, err error) {
	// 1. What is an event?
	l.try = array.NewRecordBuilder(memory.DefaultAllocator, l.schema)
	defer l.try.Release()
	if l.lists, err = s.listColumns(ctx, l); err != nil {
		return 0, 0, 0, 0, err
	}
	var good []int
	reasons := map[int]string{}
	for i, e := range in.events {
		why := in.broken[i]
		if why == nil {
			why = s.check(l, e)
		}
		if why == nil {
			good = append(good, i)
			continue
		}
		if !in.keep {
			return 0, 0, 0, 0, fault.New(fault.Invalid, "event %d: %w", i+1, why).WithHint("No event was accepted. The columns are those of dataset %s.", l.dataset)
		}
		reasons[i] = fault.Told(why) // which is sealed
	}
	// 2. Into the log, all or nothing.
	err = s.cfg.DB.Update(ctx, string(l.project), func(ctx context.Context, tx *store.Tx) error {
		accepted, duplicates, dead = 0, 0, 0
		now := store.At(s.now()).Time()
		st, err := s.streamStore.Stream(ctx, tx, l.project, l.dataset)
		if fault.Is(err, fault.NotFound) {
			st, err = Stream{Project: l.project, Dataset: l.dataset, First: 1, SnapshotAt: now}, nil
		}
		if err != nil {
			return err
		}
		if in.reading != "" {
			if !bytes.Equal(st.read(in.reading), in.before) {
				return errElsewhere // somebody else has read on
			}
			st.readTo(in.reading, in.at)
			if len(in.events) == 0 { // there was nothing to read up to there
				return s.streamStore.PutStream(ctx, tx, st)
			}
		}
		if st.Bytes >= s.cfg.StreamBytes {
			return fault.New(fault.Exhausted, "the log of dataset %s has a backlog of %d bytes, the limit", l.dataset, st.Bytes).
				WithHint("Retry later. `falaj feature stream %s` shows the backlog and its cause.", l.view.Name)
		}
		fresh, err := s.unseen(ctx, tx, l, in, good, now)
		if err != nil {
			return err
		}
		accepted, duplicates = len(fresh), len(good)-len(fresh)
		for part := range slices.Chunk(fresh, recordEvents) {
			if err := s.put(ctx, tx, l, in.events, part, &st, now); err != nil {
				return err
			}
		}
		for i, id := range in.replayed {
			if reasons[i] != "" {
				continue // it stays one
			}
			there, err := s.streamStore.DeleteDeadLetter(ctx, tx, l.project, l.dataset, id)
			if err != nil {
				return err
			}
			if !there {
				return fault.New(fault.Conflict, "dead letter %s was replayed or dropped by another request", id)
			}
		}
		if dead, err = s.keepDeadLetters(ctx, tx, l, in, reasons, now); err != nil {
			return err
		}
		position = st.Head
		if err := s.streamStore.PutStream(ctx, tx, st); err != nil {
			return err
		}
		tx.OnCommit(s.streamProcessor.Wake)
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(l.project), Action: string(in.action), Object: "dataset " + l.dataset,
			Detail: map[string]any{"events": accepted, "duplicates": duplicates, "dead": dead, "position": position},
		})
	})
	return accepted, duplicates, dead, position, err
}

// unseen are the good events whose ids did not come before; their ids are noted.
func (s *Streams) unseen(ctx context.Context, tx *store.Tx, l *eventLog, in entry, good []int, now time.Time) ([]int, error) {
	if len(in.ids) == 0 || len(good) == 0 {
		return good, nil
	}
	if err := s.streamStore.ForgetSeen(ctx, tx, l.project, l.dataset, now.Add(-seenAge)); err != nil {
		return nil, err
	}
	hashes := make([]string, len(good))
	for n, i := range good {
		hashes[n] = l.hash(in.ids[i])
	}
	known := map[string]bool{}
	for part := range slices.Chunk(hashes, recordEvents) {
		seen, err := s.streamStore.Seen(ctx, tx, l.project, l.dataset, part)
		if err != nil {
			return nil, err
		}
		for _, h := range seen {
			known[h] = true
		}
	}
	var fresh []int
	var keep []string
	for n, i := range good {
		if h := hashes[n]; !known[h] {
			known[h] = true
			fresh, keep = append(fresh, i), append(keep, h)
		}
	}
	for part := range slices.Chunk(keep, recordEvents) {
		if err := s.streamStore.PutSeen(ctx, tx, l.project, l.dataset, part, now); err != nil {
			return nil, err
		}
	}
	return fresh, nil
}

// put writes the next record.
func (s *Streams) put(ctx context.Context, tx *store.Tx, l *eventLog, events []Event, which []int, st *Stream, now time.Time) error {
	b, err := l.encode(events, which, now)
	if err != nil {
		return err
	}
	sealed, err := l.seal(recordPlace(st.Head+1), b)
	if err != nil {
		return err
	}
	st.Head++
	st.Bytes += int64(len(sealed))
	st.Events += int64(len(which))
	return s.streamStore.PutRecord(ctx, tx, l.project, l.dataset, Record{Seq: st.Head, Events: len(which), At: now, Sealed: sealed})
}

// check refuses what is no event. Error: fault.Invalid.
func (s *Streams) check(l *eventLog, e Event) error {
	for name := range e {
		if len(l.schema.FieldIndices(name)) == 0 {
			names := make([]string, 0, l.schema.NumFields())
			for _, f := range l.schema.Fields() {
				names = append(names, f.Name)
			}
			return fault.New(fault.Invalid, "there is no column %q%s", clip(name), nearest(name, names))
		}
	}
	size := 0
	lists := map[string]value.Value{}
	for i, f := range l.schema.Fields() {
		v, err := appendCell(l.try.Field(i), e[f.Name])
		if err != nil {
			return fault.Wrap(err, "column %q", f.Name)
		}
		size += len(v.Str()) + 16
		if !v.IsNull() && !v.Type().Scalar() {
			lists[f.Name] = v
		}
	}
	for _, c := range l.lists {
		v, given := lists[c.name]
		if !given {
			continue
		}
		if err := c.typ.Holds(v); err != nil {
			return fault.Wrap(err, "column %q in feature view %s", c.name, c.view)
		}
	}
	if size > maxEvent {
		return fault.New(fault.TooLarge, "its %d bytes are over the limit of %d", size, maxEvent)
	}
	v := l.view
	for _, k := range v.Keys {
		if e[k.Name] == nil {
			return fault.New(fault.Invalid, "the join key %q is null", k.Name)
		}
	}
	at, err := value.Parse(value.Timestamp, e[v.Timestamp])
	if err != nil {
		return fault.Wrap(err, "column %q", v.Timestamp)
	}
	if at.IsNull() {
		return fault.New(fault.Invalid, "the time %q is null", v.Timestamp)
	}
	if at.Time().After(s.cfg.Online.Horizon()) {
		return fault.New(fault.Invalid, "the event timestamp is in the future").WithData("%s", at.Time().Format(time.RFC3339Nano))
	}
	return nil
}

// listColumn is a column of lists as a view has it: of a length that the dataset does
// not ask for.
type listColumn struct {
	view string
	name string
	typ  value.Type
}

// listColumns are those of the view that is pushed to, and of all that events are applied
// to, or will be when they are filled: an event that one of them cannot take would hold it
// up for ever.
func (s *Streams) listColumns(ctx context.Context, l *eventLog) ([]listColumn, error) {
	if !slices.ContainsFunc(l.schema.Fields(), func(f arrow.Field) bool { return f.Type.ID() == arrow.LIST }) {
		return nil, nil
	}
	st := Stream{Project: l.project, Dataset: l.dataset}
	views, _, runs, err := s.streamViews(ctx, st)
	if err != nil {
		return nil, err
	}
	views = append(views, l.view)
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		for _, r := range runs {
			v, err := s.versionOf(ctx, tx, st, r.View, r.Version)
			if err != nil {
				return err
			}
			if v != nil {
				views = append(views, *v)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var out []listColumn
	add := func(v View, name string, t value.Type) {
		if c := (listColumn{v.Ref(), name, t}); !t.Scalar() && !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	for _, v := range views {
		for i, t := range v.featureTypes() {
			add(v, v.Features[i].Name, t)
		}
	}
	return out, nil
}

// encode makes the rows of a record, in Arrow's format: the online rows and the dataset
// read them as every other batch of rows. An event without a created time became
// known now.
func (l *eventLog) encode(events []Event, which []int, now time.Time) ([]byte, error) {
	b := array.NewRecordBuilder(memory.DefaultAllocator, l.schema)
	defer b.Release()
	for _, i := range which {
		for n, f := range l.schema.Fields() {
			x := events[i][f.Name]
			if x == nil && f.Name == l.view.CreatedTimestamp {
				x = now
			}
			if _, err := appendCell(b.Field(n), x); err != nil {
				return nil, err
			}
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	return packBatches(l.schema, []arrow.RecordBatch{rec})
}

func packBatches(schema *arrow.Schema, batches []arrow.RecordBatch) ([]byte, error) {
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(schema))
	for _, b := range batches {
		if err := w.Write(b); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// decode opens a record. The caller releases the batch.
func (l *eventLog) decode(r Record) (arrow.RecordBatch, error) {
	b, err := l.open(recordPlace(r.Seq), r.Sealed)
	if err != nil {
		return nil, err
	}
	rows, err := ipc.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fault.New(fault.Internal, "%s of the stream of %s: %w", recordPlace(r.Seq), l.dataset, err)
	}
	defer rows.Release()
	var parts []arrow.RecordBatch
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	for rows.Next() {
		p := rows.RecordBatch()
		p.Retain()
		parts = append(parts, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fault.New(fault.Internal, "%s of the stream of %s: %w", recordPlace(r.Seq), l.dataset, err)
	}
	return together(rows.Schema(), parts)
}

// together makes one batch of several; of none, one without rows.
func together(schema *arrow.Schema, parts []arrow.RecordBatch) (arrow.RecordBatch, error) {
	if len(parts) == 1 {
		parts[0].Retain()
		return parts[0], nil
	}
	columns := make([]arrow.Array, schema.NumFields())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	rows := int64(0)
	for _, p := range parts {
		rows += p.NumRows()
	}
	for i, f := range schema.Fields() {
		if len(parts) == 0 {
			columns[i] = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, 0)
			continue
		}
		pieces := make([]arrow.Array, len(parts))
		for n, p := range parts {
			pieces[n] = p.Column(i)
		}
		var err error
		if columns[i], err = array.Concatenate(pieces, memory.DefaultAllocator); err != nil {
			return nil, err
		}
	}
	return array.NewRecordBatch(schema, columns, rows), nil
}

// appendCell appends what JSON decoding gave, and gives it as a value unless it is null
// or a day. Error: fault.Invalid.
func appendCell(b array.Builder, x any) (value.Value, error) {
	if x == nil {
		b.AppendNull()
		return value.Value{}, nil
	}
	var t value.Type
	switch b := b.(type) {
	case *array.Int64Builder:
		t = value.Int64
	case *array.Int32Builder:
		t = value.Int32
	case *array.Float64Builder:
		t = value.Float64
	case *array.Float32Builder:
		t = value.Float32
	case *array.StringBuilder:
		t = value.String
	case *array.BooleanBuilder:
		t = value.Bool
	case *array.TimestampBuilder:
		t = value.Timestamp
	case *array.ListBuilder:
		t = value.ListOf(elementOf(b.ValueBuilder()), value.MaxLength)
	case *array.Date32Builder:
		text, _ := x.(string)
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return value.Value{}, fault.New(fault.Invalid, "the value is not a date such as 2013-01-31").WithData("%.80q", fmt.Sprint(x))
		}
		b.Append(arrow.Date32FromTime(day))
		return value.Value{}, nil
	default:
		return value.Value{}, fault.New(fault.Unsupported, "events do not support columns of type %s", b.Type())
	}
	v, err := value.Parse(t, x)
	if err != nil {
		return v, err
	}
	if len(v.Str()) > value.MaxString {
		return v, fault.New(fault.TooLarge, "a text of %d bytes is over the limit of %d", len(v.Str()), value.MaxString)
	}
	return v, offline.Append(b, v)
}

// elementOf is the type of the values that a builder of a list's elements takes.
func elementOf(b array.Builder) value.Type {
	for _, name := range value.Names() {
		var t value.Type
		if t.UnmarshalText([]byte(name)) == nil && arrow.TypeEqual(offline.ArrowType(t), b.Type()) {
			return t
		}
	}
	return 0
}
