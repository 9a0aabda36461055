package featuresql

import (
	"context"
	"encoding/json"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

type streamRow struct {
	bun.BaseModel `bun:"table:feature_stream,alias:s"`

	Project string `bun:",pk"`
	Dataset string `bun:",pk"`
	First   int64
	Head    int64
	Cut     int64
	Version string
	CutAt   store.Time
	Bytes   int64
	Events  int64
	Offsets string
}

func (r streamRow) stream() (feature.Stream, error) {
	s := feature.Stream{
		Project: project.Name(r.Project), Dataset: r.Dataset, First: r.First, Head: r.Head, SnapshotSeq: r.Cut, Version: r.Version,
		SnapshotAt: r.CutAt.Time(), Bytes: r.Bytes, Events: r.Events,
	}
	return s, fault.Wrap(json.Unmarshal([]byte(r.Offsets), &s.Offsets), "reading the stream of %s", r.Dataset)
}

// Stream implements feature.Store.
func (StreamStore) Stream(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (feature.Stream, error) {
	var r streamRow
	if err := tx.NewSelect().Model(&r).Where("s.project = ? AND s.dataset = ?", string(p), dataset).Scan(ctx); err != nil {
		return feature.Stream{}, found(err, "stream")
	}
	return r.stream()
}

// Streams implements feature.Store.
func (StreamStore) Streams(ctx context.Context, tx *store.Tx) ([]feature.Stream, error) {
	var rows []streamRow
	if err := tx.NewSelect().Model(&rows).OrderExpr("s.project, s.dataset").Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]feature.Stream, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.stream(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// PutStream implements feature.Store.
func (StreamStore) PutStream(ctx context.Context, tx *store.Tx, s feature.Stream) error {
	_, err := tx.NewInsert().Model(&streamRow{
		Project: string(s.Project), Dataset: s.Dataset, First: s.First, Head: s.Head, Cut: s.SnapshotSeq, Version: s.Version,
		CutAt: store.At(s.SnapshotAt), Bytes: s.Bytes, Events: s.Events, Offsets: encode(s.Offsets),
	}).On("CONFLICT (project, dataset) DO UPDATE").
		Set("first = EXCLUDED.first").Set("head = EXCLUDED.head").Set("cut = EXCLUDED.cut").Set("version = EXCLUDED.version").
		Set("cut_at = EXCLUDED.cut_at").Set("bytes = EXCLUDED.bytes").Set("events = EXCLUDED.events").Set("offsets = EXCLUDED.offsets").Exec(ctx)
	return err
}

// StreamViews implements feature.Store.
func (StreamStore) StreamViews(ctx context.Context, tx *store.Tx) ([]feature.Definition, error) {
	var rows []definitionRow
	err := tx.NewSelect().Model(&rows).
		Join("JOIN feature_alias a ON a.project = d.project AND a.kind = d.kind AND a.name = d.name AND a.version = d.version AND a.alias = 'latest'").
		Where("d.kind = ? AND d.body LIKE ?", string(feature.ViewKind), `%"stream":{%`).OrderExpr("d.project, d.name").Scan(ctx)
	return definitions(rows), err
}

type recordRow struct {
	bun.BaseModel `bun:"table:feature_stream_record,alias:r"`

	Project string `bun:",pk"`
	Dataset string `bun:",pk"`
	Seq     int64  `bun:",pk"`
	Events  int
	At      store.Time
	Sealed  []byte
}

// PutRecord implements feature.Store.
func (StreamStore) PutRecord(ctx context.Context, tx *store.Tx, p project.Name, dataset string, r feature.Record) error {
	_, err := tx.NewInsert().Model(&recordRow{
		Project: string(p), Dataset: dataset, Seq: r.Seq, Events: r.Events, At: store.At(r.At), Sealed: r.Sealed,
	}).On("CONFLICT (project, dataset, seq) DO UPDATE").Set("events = EXCLUDED.events").Set("sealed = EXCLUDED.sealed").Exec(ctx)
	return err
}

// Records implements feature.Store.
func (StreamStore) Records(ctx context.Context, tx *store.Tx, p project.Name, dataset string, after, until int64, limit int) ([]feature.Record, error) {
	var rows []recordRow
	err := tx.NewSelect().Model(&rows).Where("r.project = ? AND r.dataset = ? AND r.seq > ? AND r.seq <= ?", string(p), dataset, after, until).
		OrderExpr("r.seq").Limit(limit).Scan(ctx)
	out := make([]feature.Record, len(rows))
	for i, r := range rows {
		out[i] = feature.Record{Seq: r.Seq, Events: r.Events, At: r.At.Time(), Sealed: r.Sealed}
	}
	return out, err
}

// TrimRecords implements feature.Store.
func (StreamStore) TrimRecords(ctx context.Context, tx *store.Tx, p project.Name, dataset string, until int64) (freed int64, err error) {
	err = tx.NewRaw("SELECT COALESCE(SUM(LENGTH(sealed)), 0) FROM feature_stream_record WHERE project = ? AND dataset = ? AND seq <= ?",
		string(p), dataset, until).Scan(ctx, &freed)
	if err != nil {
		return 0, err
	}
	_, err = tx.NewRaw("DELETE FROM feature_stream_record WHERE project = ? AND dataset = ? AND seq <= ?", string(p), dataset, until).Exec(ctx)
	return freed, err
}

// Seen implements feature.Store.
func (StreamStore) Seen(ctx context.Context, tx *store.Tx, p project.Name, dataset string, hashes []string) ([]string, error) {
	var out []string
	err := tx.NewRaw("SELECT hash FROM feature_stream_seen WHERE project = ? AND dataset = ? AND hash IN ?", string(p), dataset, bun.Tuple(hashes)).Scan(ctx, &out)
	return out, err
}

type seenRow struct {
	bun.BaseModel `bun:"table:feature_stream_seen,alias:h"`

	Project string `bun:",pk"`
	Dataset string `bun:",pk"`
	Hash    string `bun:",pk"`
	At      store.Time
}

// PutSeen implements feature.Store.
func (StreamStore) PutSeen(ctx context.Context, tx *store.Tx, p project.Name, dataset string, hashes []string, at time.Time) error {
	rows := make([]seenRow, len(hashes))
	for i, h := range hashes {
		rows[i] = seenRow{Project: string(p), Dataset: dataset, Hash: h, At: store.At(at)}
	}
	_, err := tx.NewInsert().Model(&rows).Exec(ctx)
	return err
}

// ForgetSeen implements feature.Store.
func (StreamStore) ForgetSeen(ctx context.Context, tx *store.Tx, p project.Name, dataset string, before time.Time) error {
	_, err := tx.NewRaw("DELETE FROM feature_stream_seen WHERE project = ? AND dataset = ? AND at < ?", string(p), dataset, store.At(before)).Exec(ctx)
	return err
}

type deadRow struct {
	bun.BaseModel `bun:"table:feature_stream_dead,alias:d"`

	ID      string `bun:",pk"`
	Project string
	Dataset string
	At      store.Time
	Sealed  []byte
}

// PutDeadLetter implements feature.Store.
func (StreamStore) PutDeadLetter(ctx context.Context, tx *store.Tx, p project.Name, dataset string, l feature.SealedDeadLetter) error {
	_, err := tx.NewInsert().Model(&deadRow{ID: l.ID, Project: string(p), Dataset: dataset, At: store.At(l.At), Sealed: l.Sealed}).
		On("CONFLICT (id) DO UPDATE").Set("sealed = EXCLUDED.sealed").Exec(ctx)
	return err
}

// DeadLetters implements feature.Store.
func (StreamStore) DeadLetters(ctx context.Context, tx *store.Tx, p project.Name, dataset, after string, limit int) ([]feature.SealedDeadLetter, error) {
	var rows []deadRow
	err := tx.NewSelect().Model(&rows).Where("d.project = ? AND d.dataset = ? AND d.id > ?", string(p), dataset, after).OrderExpr("d.id").Limit(limit).Scan(ctx)
	out := make([]feature.SealedDeadLetter, len(rows))
	for i, r := range rows {
		out[i] = feature.SealedDeadLetter{ID: r.ID, At: r.At.Time(), Sealed: r.Sealed}
	}
	return out, err
}

// CountDeadLetters implements feature.Store.
func (StreamStore) CountDeadLetters(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (n int, err error) {
	err = tx.NewRaw("SELECT COUNT(*) FROM feature_stream_dead WHERE project = ? AND dataset = ?", string(p), dataset).Scan(ctx, &n)
	return n, err
}

// DeleteDeadLetter implements feature.Store.
func (StreamStore) DeleteDeadLetter(ctx context.Context, tx *store.Tx, p project.Name, dataset, id string) (bool, error) {
	res, err := tx.NewRaw("DELETE FROM feature_stream_dead WHERE project = ? AND dataset = ? AND id = ?", string(p), dataset, id).Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// DropDeadLetters implements feature.Store.
func (StreamStore) DropDeadLetters(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (int, error) {
	res, err := tx.NewRaw("DELETE FROM feature_stream_dead WHERE project = ? AND dataset = ?", string(p), dataset).Exec(ctx)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}
