// Package featuresql keeps features' definitions, materialisations and training
// sets in SQLite or PostgreSQL.
package featuresql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("feature", migrations)

// Store implements feature.Store.
type Store struct {
	DefinitionStore
	RunStore
	OnlineRecordStore
	StreamStore
	TrainingSetStore
}

type (
	// DefinitionStore implements feature.DefinitionStore.
	DefinitionStore struct{}
	// RunStore implements feature.RunStore.
	RunStore struct{}
	// OnlineRecordStore implements feature.OnlineRecordStore.
	OnlineRecordStore struct{}
	// StreamStore implements feature.StreamStore.
	StreamStore struct{}
	// TrainingSetStore implements feature.TrainingSetStore.
	TrainingSetStore struct{}
)

var _ feature.Store = Store{}

func found(err error, what string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fault.New(fault.NotFound, "there is no such %s", what)
	}
	return err
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // slices and structs of plain values always encode
	}
	return string(b)
}

type definitionRow struct {
	bun.BaseModel `bun:"table:feature_definition,alias:d"`

	Project   string `bun:",pk"`
	Kind      string `bun:",pk"`
	Name      string `bun:",pk"`
	Version   int    `bun:",pk"`
	Digest    string
	Body      string
	CreatedAt store.Time
	CreatedBy string
	Line      string
}

func (r definitionRow) definition() feature.Definition {
	return feature.Definition{Kind: feature.Kind(r.Kind), Body: json.RawMessage(r.Body), Header: feature.Header{
		Project: project.Name(r.Project), Name: r.Name, Version: r.Version, Digest: r.Digest,
		CreatedAt: r.CreatedAt.Time(), CreatedBy: r.CreatedBy,
	}}
}

func definitions(rows []definitionRow) []feature.Definition {
	out := make([]feature.Definition, len(rows))
	for i, r := range rows {
		out[i] = r.definition()
	}
	return out
}

// InsertDefinition implements feature.Store.
func (DefinitionStore) InsertDefinition(ctx context.Context, tx *store.Tx, d feature.Definition) error {
	fields, err := d.SearchFields()
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&definitionRow{
		Project: string(d.Project), Kind: string(d.Kind), Name: d.Name, Version: d.Version, Digest: d.Digest, Body: string(d.Body),
		CreatedAt: store.At(d.CreatedAt), CreatedBy: d.CreatedBy, Line: store.JoinFields(fields),
	}).Exec(ctx)
	return err
}

// Definition implements feature.Store.
func (DefinitionStore) Definition(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, name string, version int) (feature.Definition, error) {
	var r definitionRow
	err := tx.NewSelect().Model(&r).Where("d.project = ? AND d.kind = ? AND d.name = ? AND d.version = ?", string(p), string(k), name, version).Scan(ctx)
	return r.definition(), found(err, "definition")
}

// DefinitionByDigest implements feature.Store.
func (DefinitionStore) DefinitionByDigest(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, name, digest string) (feature.Definition, error) {
	var r definitionRow
	err := tx.NewSelect().Model(&r).Where("d.project = ? AND d.kind = ? AND d.name = ? AND d.digest = ?", string(p), string(k), name, digest).Scan(ctx)
	return r.definition(), found(err, "definition")
}

// Latest implements feature.Store.
func (DefinitionStore) Latest(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, after string, limit int) ([]feature.Definition, error) {
	var rows []definitionRow
	err := tx.NewSelect().Model(&rows).
		Join("JOIN feature_alias a ON a.project = d.project AND a.kind = d.kind AND a.name = d.name AND a.version = d.version AND a.alias = 'latest'").
		Where("d.project = ? AND d.kind = ? AND d.name > ?", string(p), string(k), after).OrderExpr("d.name").Limit(limit).Scan(ctx)
	return definitions(rows), err
}

// Lines implements feature.Store.
func (DefinitionStore) Lines(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, after string, limit int) ([]store.Line, error) {
	return store.ReadLines(ctx, tx.NewRaw(`SELECT d.name AS key, d.created_by AS owner, d.line FROM feature_alias a
		JOIN feature_definition d ON d.project = a.project AND d.kind = a.kind AND d.name = a.name AND d.version = a.version
		WHERE a.project = ? AND a.kind = ? AND a.name > ? AND a.alias = 'latest' ORDER BY a.name LIMIT ?`, string(p), string(k), after, limit))
}

// LatestOf implements feature.Store.
func (DefinitionStore) LatestOf(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, names []string) ([]feature.Definition, error) {
	var rows []definitionRow
	err := tx.NewSelect().Model(&rows).
		Join("JOIN feature_alias a ON a.project = d.project AND a.kind = d.kind AND a.name = d.name AND a.version = d.version AND a.alias = 'latest'").
		Where("d.project = ? AND d.kind = ? AND d.name IN (?)", string(p), string(k), bun.List(names)).Scan(ctx)
	return definitions(rows), err
}

// Definitions implements feature.Store.
func (DefinitionStore) Definitions(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, name string, below, limit int) ([]feature.Definition, error) {
	var rows []definitionRow
	q := tx.NewSelect().Model(&rows).Where("d.project = ? AND d.kind = ? AND d.name = ?", string(p), string(k), name)
	if below > 0 {
		q = q.Where("d.version < ?", below)
	}
	err := q.OrderExpr("d.version DESC").Limit(limit).Scan(ctx)
	return definitions(rows), err
}

// LastVersion implements feature.Store.
func (DefinitionStore) LastVersion(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, name string) (int, error) {
	var last int
	err := tx.NewRaw("SELECT COALESCE(MAX(version), 0) FROM feature_definition WHERE project = ? AND kind = ? AND name = ?", string(p), string(k), name).Scan(ctx, &last)
	return last, err
}

// PutAlias implements feature.Store.
func (DefinitionStore) PutAlias(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, name, alias string, version int) error {
	_, err := tx.NewRaw(`INSERT INTO feature_alias (project, kind, name, alias, version) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (project, kind, name, alias) DO UPDATE SET version = excluded.version`, string(p), string(k), name, alias, version).Exec(ctx)
	return err
}

// Aliases implements feature.Store.
func (DefinitionStore) Aliases(ctx context.Context, tx *store.Tx, p project.Name, k feature.Kind, name string) (map[string]int, error) {
	var rows []struct {
		Alias   string
		Version int
	}
	err := tx.NewRaw("SELECT alias, version FROM feature_alias WHERE project = ? AND kind = ? AND name = ?", string(p), string(k), name).Scan(ctx, &rows)
	out := make(map[string]int, len(rows))
	for _, r := range rows {
		out[r.Alias] = r.Version
	}
	return out, err
}

type runRow struct {
	bun.BaseModel `bun:"table:feature_run,alias:r"`

	ID             string `bun:",pk"`
	Project        string
	ViewName       string
	Version        int
	State          string
	FromTime       store.Time
	UntilTime      store.Time
	Inputs         string
	Residency      string
	Classification string
	RowCount       int64
	Newest         store.Time
	Stats          string
	Error          string
	Failures       int
	CreatedAt      store.Time
	CreatedBy      string
	StartedAt      store.Time
	EndedAt        store.Time
	Attempt        int
	Chain          string
	NotBefore      store.Time
	Generation     string
	Position       int64
}

func rowOf(r feature.Run) *runRow {
	return &runRow{
		ID: string(r.ID), Project: string(r.Project), ViewName: r.View, Version: r.Version, State: string(r.State),
		FromTime: store.At(r.From), UntilTime: store.At(r.Until), Inputs: encode(r.Inputs), Residency: encode(r.Residency),
		Classification: string(r.Classification), RowCount: r.Rows, Newest: store.At(r.Newest), Stats: encode(r.Stats),
		Error: r.Error, Failures: r.Failures, CreatedAt: store.At(r.CreatedAt), CreatedBy: r.CreatedBy,
		StartedAt: store.At(r.StartedAt), EndedAt: store.At(r.EndedAt), Attempt: r.Attempt, Chain: r.Chain, NotBefore: store.At(r.NotBefore),
		Generation: string(r.Generation), Position: r.Position,
	}
}

func (r runRow) run() (feature.Run, error) {
	out := feature.Run{
		ID: feature.RunID(r.ID), Project: project.Name(r.Project), View: r.ViewName, Version: r.Version, State: feature.State(r.State),
		From: r.FromTime.Time(), Until: r.UntilTime.Time(), Classification: project.Classification(r.Classification),
		Rows: r.RowCount, Newest: r.Newest.Time(), Error: r.Error, Failures: r.Failures, CreatedAt: r.CreatedAt.Time(), CreatedBy: r.CreatedBy,
		StartedAt: r.StartedAt.Time(), EndedAt: r.EndedAt.Time(), Attempt: r.Attempt, Chain: r.Chain, NotBefore: r.NotBefore.Time(),
		Generation: feature.Generation(r.Generation), Position: r.Position,
	}
	err := errors.Join(
		json.Unmarshal([]byte(r.Inputs), &out.Inputs),
		json.Unmarshal([]byte(r.Residency), &out.Residency),
		json.Unmarshal([]byte(r.Stats), &out.Stats),
	)
	return out, fault.Wrap(err, "reading materialisation %s", r.ID)
}

func runs(rows []runRow) ([]feature.Run, error) {
	out := make([]feature.Run, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.run(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// InsertRun implements feature.Store.
func (RunStore) InsertRun(ctx context.Context, tx *store.Tx, r feature.Run) error {
	_, err := tx.NewInsert().Model(rowOf(r)).Exec(ctx)
	return err
}

// open are the states that have not ended.
var open = []string{string(feature.Queued), string(feature.Running)}

// UpdateRun implements feature.Store.
func (RunStore) UpdateRun(ctx context.Context, tx *store.Tx, r feature.Run, attempt int) error {
	res, err := tx.NewUpdate().Model(rowOf(r)).
		Column("state", "row_count", "newest", "stats", "error", "failures", "started_at", "ended_at", "attempt", "chain", "not_before", "generation").
		Where("r.id = ? AND r.attempt = ? AND r.state IN ?", string(r.ID), attempt, bun.Tuple(open)).Exec(ctx)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		return fault.New(fault.Conflict, "materialisation %s has ended or was taken over", r.ID)
	}
	return err
}

// Run implements feature.Store.
func (RunStore) Run(ctx context.Context, tx *store.Tx, p project.Name, id feature.RunID) (feature.Run, error) {
	var r runRow
	if err := tx.NewSelect().Model(&r).Where("r.project = ? AND r.id = ?", string(p), string(id)).Scan(ctx); err != nil {
		return feature.Run{}, found(err, "materialisation")
	}
	return r.run()
}

// Runs implements feature.Store.
func (RunStore) Runs(ctx context.Context, tx *store.Tx, p project.Name, view string, version int, before feature.RunID, limit int) ([]feature.Run, error) {
	var rows []runRow
	q := tx.NewSelect().Model(&rows).Where("r.project = ? AND r.view_name = ? AND r.version = ?", string(p), view, version)
	if before != "" {
		q = q.Where("r.id < ?", string(before))
	}
	if err := q.OrderExpr("r.id DESC").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	return runs(rows)
}

// OpenRuns implements feature.Store.
func (RunStore) OpenRuns(ctx context.Context, tx *store.Tx, limit int) ([]feature.Run, error) {
	var rows []runRow
	if err := tx.NewSelect().Model(&rows).Where("r.state IN ?", bun.Tuple(open)).OrderExpr("r.id").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	return runs(rows)
}

// ForgetRuns removes some materialisations that had ended before a time, and returns their
// number. Of each view version the newest stays, the newest that succeeded, and of those from
// before the time the newest that succeeded: later answers are verified by what was online then.
func (RunStore) ForgetRuns(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	var ids []string
	const (
		ofView = "SELECT MAX(n.id) FROM feature_run AS n WHERE n.project = r.project AND n.view_name = r.view_name AND n.version = r.version"
		good   = ofView + " AND n.state = ?"
	)
	first, at, succeeded := id.First("fmr", before), store.At(before), string(feature.Succeeded) // an ID has the time of its making
	err := tx.NewSelect().Model((*runRow)(nil)).Column("id").Where("r.id < ? AND r.ended_at < ? AND r.state NOT IN ?", first, at, bun.Tuple(open)).
		Where("r.id < ("+ofView+") AND r.id <> COALESCE(("+good+"), '')", succeeded).
		Where("r.id <> COALESCE(("+good+" AND n.id < ? AND n.ended_at < ?), '')", succeeded, first, at).
		OrderExpr("r.id").Limit(limit).Scan(ctx, &ids)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = tx.NewDelete().Model((*runRow)(nil)).Where("r.id IN (?)", store.Texts(ids)).Exec(ctx)
	return len(ids), err
}

type onlineRow struct {
	bun.BaseModel `bun:"table:feature_online,alias:o"`

	Project        string `bun:",pk"`
	ViewName       string `bun:",pk"`
	Version        int    `bun:",pk"`
	Residency      string
	Classification string
	Watermark      store.Time
	Newest         store.Time
	UpdatedAt      store.Time
	Generation     string
	Inputs         string
	Pushed         string
	Subkey         int
	Former         int
	RotatedAt      store.Time
	Swept          store.Time
}

func (r onlineRow) online() (feature.Online, error) {
	o := feature.Online{
		Project: project.Name(r.Project), View: r.ViewName, Version: r.Version, Classification: project.Classification(r.Classification),
		Watermark: r.Watermark.Time(), Newest: r.Newest.Time(), UpdatedAt: r.UpdatedAt.Time(),
		Generation: feature.Generation(r.Generation), Pushed: feature.Generation(r.Pushed),
		Subkey: r.Subkey, Former: r.Former, RotatedAt: r.RotatedAt.Time(), HistorySince: r.Swept.Time(),
	}
	err := errors.Join(json.Unmarshal([]byte(r.Residency), &o.Residency), json.Unmarshal([]byte(r.Inputs), &o.Inputs))
	return o, fault.Wrap(err, "reading the online state of %s@%d", r.ViewName, r.Version)
}

// Online implements feature.Store.
func (OnlineRecordStore) Online(ctx context.Context, tx *store.Tx, p project.Name, view string, version int) (feature.Online, error) {
	var r onlineRow
	if err := tx.NewSelect().Model(&r).Where("o.project = ? AND o.view_name = ? AND o.version = ?", string(p), view, version).Scan(ctx); err != nil {
		return feature.Online{}, found(err, "online view")
	}
	return r.online()
}

// PutOnline implements feature.Store.
func (OnlineRecordStore) PutOnline(ctx context.Context, tx *store.Tx, o feature.Online) error {
	_, err := tx.NewInsert().Model(&onlineRow{
		Project: string(o.Project), ViewName: o.View, Version: o.Version, Residency: encode(o.Residency), Classification: string(o.Classification),
		Watermark: store.At(o.Watermark), Newest: store.At(o.Newest), UpdatedAt: store.At(o.UpdatedAt),
		Generation: string(o.Generation), Inputs: encode(o.Inputs), Pushed: string(o.Pushed),
		Subkey: o.Subkey, Former: o.Former, RotatedAt: store.At(o.RotatedAt), Swept: store.At(o.HistorySince),
	}).On("CONFLICT (project, view_name, version) DO UPDATE").
		Set("residency = EXCLUDED.residency").Set("classification = EXCLUDED.classification").Set("watermark = EXCLUDED.watermark").
		Set("newest = EXCLUDED.newest").Set("updated_at = EXCLUDED.updated_at").
		Set("generation = EXCLUDED.generation").Set("inputs = EXCLUDED.inputs").Set("pushed = EXCLUDED.pushed").
		Set("subkey = EXCLUDED.subkey").Set("former = EXCLUDED.former").Set("rotated_at = EXCLUDED.rotated_at").Set("swept = EXCLUDED.swept").Exec(ctx)
	return err
}

// DeleteOnline implements feature.Store.
func (OnlineRecordStore) DeleteOnline(ctx context.Context, tx *store.Tx, p project.Name, view string, version int) error {
	_, err := tx.NewRaw("DELETE FROM feature_online WHERE project = ? AND view_name = ? AND version = ?", string(p), view, version).Exec(ctx)
	return err
}

// OnlineStore implements feature.Store.
func (OnlineRecordStore) OnlineStore(ctx context.Context, tx *store.Tx) (o feature.OnlineStore, err error) {
	err = tx.NewRaw("SELECT id, owner FROM feature_store WHERE one = 1").Scan(ctx, &o.ID, &o.Owner)
	return o, found(err, "online store")
}

// PutOnlineStore implements feature.Store.
func (OnlineRecordStore) PutOnlineStore(ctx context.Context, tx *store.Tx, o feature.OnlineStore) error {
	_, err := tx.NewRaw(`INSERT INTO feature_store (one, id, owner) VALUES (1, ?, ?)
		ON CONFLICT (one) DO UPDATE SET id = EXCLUDED.id, owner = EXCLUDED.owner`, o.ID, o.Owner).Exec(ctx)
	return err
}

// Onlines implements feature.Store.
func (OnlineRecordStore) Onlines(ctx context.Context, tx *store.Tx, p project.Name) ([]feature.Online, error) {
	var rows []onlineRow
	q := tx.NewSelect().Model(&rows).OrderExpr("o.project, o.view_name, o.version")
	if p != "" {
		q = q.Where("o.project = ?", string(p))
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]feature.Online, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.online(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

type staleRow struct {
	bun.BaseModel `bun:"table:feature_stale,alias:s"`

	Project    string `bun:",pk"`
	ViewName   string `bun:",pk"`
	Version    int    `bun:",pk"`
	Generation string `bun:",pk"`
	Since      store.Time
	Subkey     int
}

// PutStale implements feature.Store.
func (OnlineRecordStore) PutStale(ctx context.Context, tx *store.Tx, g feature.Stale) error {
	_, err := tx.NewInsert().Model(&staleRow{
		Project: string(g.Project), ViewName: g.View, Version: g.Version, Generation: string(g.Generation), Since: store.At(g.Since), Subkey: g.Subkey,
	}).On("CONFLICT (project, view_name, version, generation) DO NOTHING").Exec(ctx)
	return err
}

// DeleteStale implements feature.Store.
func (OnlineRecordStore) DeleteStale(ctx context.Context, tx *store.Tx, g feature.Stale) error {
	_, err := tx.NewRaw("DELETE FROM feature_stale WHERE project = ? AND view_name = ? AND version = ? AND generation = ?",
		string(g.Project), g.View, g.Version, string(g.Generation)).Exec(ctx)
	return err
}

// Stales implements feature.Store.
func (OnlineRecordStore) Stales(ctx context.Context, tx *store.Tx, until time.Time, limit int) ([]feature.Stale, error) {
	var rows []staleRow
	err := tx.NewSelect().Model(&rows).Where("s.since <= ?", store.At(until)).
		OrderExpr("s.since, s.project, s.view_name, s.version, s.generation").Limit(limit).Scan(ctx)
	out := make([]feature.Stale, len(rows))
	for i, r := range rows {
		out[i] = feature.Stale{
			Project: project.Name(r.Project), View: r.ViewName, Version: r.Version, Generation: feature.Generation(r.Generation), Since: r.Since.Time(), Subkey: r.Subkey,
		}
	}
	return out, err
}

// PutTrainingSet implements feature.Store.
func (TrainingSetStore) PutTrainingSet(ctx context.Context, tx *store.Tx, t feature.TrainingSet) error {
	_, err := tx.NewRaw(`INSERT INTO feature_training_set (project, dataset, body, created_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (project, dataset) DO UPDATE SET body = excluded.body, created_at = excluded.created_at`,
		string(t.Project), t.Dataset, encode(t), store.At(t.CreatedAt)).Exec(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.NewRaw("DELETE FROM feature_training_view WHERE project = ? AND dataset = ?", string(t.Project), t.Dataset).Exec(ctx); err != nil {
		return err
	}
	for _, v := range t.Views {
		name, version, err := naming.SplitRef(v.View)
		if err != nil {
			return err
		}
		if _, err := tx.NewRaw("INSERT INTO feature_training_view (project, dataset, view_name, version) VALUES (?, ?, ?, ?)", string(t.Project), t.Dataset, name, version).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

func trainingSet(body string) (feature.TrainingSet, error) {
	var t feature.TrainingSet
	return t, fault.Wrap(json.Unmarshal([]byte(body), &t), "reading a training set")
}

// TrainingSet implements feature.Store.
func (TrainingSetStore) TrainingSet(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (feature.TrainingSet, error) {
	var body string
	if err := tx.NewRaw("SELECT body FROM feature_training_set WHERE project = ? AND dataset = ?", string(p), dataset).Scan(ctx, &body); err != nil {
		return feature.TrainingSet{}, found(err, "training set")
	}
	return trainingSet(body)
}

// TrainingSets implements feature.Store.
func (TrainingSetStore) TrainingSets(ctx context.Context, tx *store.Tx, p project.Name, view string, version, limit int) ([]feature.TrainingSet, error) {
	var bodies []string
	err := tx.NewRaw(`SELECT t.body FROM feature_training_set t JOIN feature_training_view v ON v.project = t.project AND v.dataset = t.dataset
		WHERE v.project = ? AND v.view_name = ? AND v.version = ? ORDER BY t.created_at DESC, t.dataset DESC LIMIT ?`,
		string(p), view, version, limit).Scan(ctx, &bodies)
	if err != nil {
		return nil, err
	}
	out := make([]feature.TrainingSet, len(bodies))
	for i, b := range bodies {
		if out[i], err = trainingSet(b); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Mentions gives the texts of definitions, materialisations and training sets that have a word in them.
func (Store) Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error {
	if err := store.Mentions(ctx, tx, store.Mention{Table: "feature_definition", Column: "body", By: "'feature definition ' || name || '@' || CAST(version AS TEXT)"}, string(p), word, each); err != nil {
		return err
	}
	if err := store.Mentions(ctx, tx, store.Mention{Table: "feature_run", Column: "inputs", By: "'materialisation ' || id"}, string(p), word, each); err != nil {
		return err
	}
	return store.Mentions(ctx, tx, store.Mention{Table: "feature_training_set", Column: "body", By: "'training set ' || dataset"}, string(p), word, each)
}
