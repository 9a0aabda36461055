package registrysql

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

type versionRow struct {
	bun.BaseModel  `bun:"table:registry_version,alias:t"`
	Model          string `bun:",pk"`
	Number         int    `bun:",pk"`
	Project        string
	ModelName      string
	State          string
	Message        string
	Stage          string
	Description    string
	Source         string
	Run            string
	LoggedModel    string
	RunLink        string
	Owner          string
	Created        store.Time
	Updated        store.Time
	Job            string
	Attempt        string
	Parents        string
	OfJob          bool
	Datasets       string
	TrainedOn      string
	FeatureViews   string
	Environment    string
	Residency      string
	Classification string
	Digest         string
	KeyID          string
	Content        string
	Line           string
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what we keep always encodes
	}
	return string(b)
}

func (r versionRow) version() (registry.Version, error) {
	v := registry.Version{
		Project: project.Name(r.Project), ModelID: registry.ModelID(r.Model), Model: r.ModelName, Number: r.Number,
		State: registry.State(r.State), Message: r.Message, Stage: registry.Stage(r.Stage), Description: r.Description,
		Source: r.Source, Run: tracking.RunID(r.Run), LoggedModel: tracking.LoggedModelID(r.LoggedModel),
		RunLink: r.RunLink, Owner: r.Owner, Created: r.Created.Time(), Updated: r.Updated.Time(),
		Origin: tracking.Origin{Job: r.Job, Attempt: r.Attempt, TrainedOn: r.TrainedOn, Environment: r.Environment, Classification: r.Classification},
		OfJob:  r.OfJob, Digest: r.Digest, KeyID: r.KeyID,
	}
	var label residency.Label
	err := errors.Join(
		json.Unmarshal([]byte(r.Datasets), &v.Datasets),
		json.Unmarshal([]byte(r.Parents), &v.Parents),
		json.Unmarshal([]byte(r.FeatureViews), &v.FeatureViews),
		json.Unmarshal([]byte(r.Residency), &label),
	)
	v.Residency = label
	if r.Content != "" {
		v.Content = &scan.Report{}
		err = errors.Join(err, json.Unmarshal([]byte(r.Content), v.Content))
	}
	return v, err
}

// NextVersion implements registry.Store.
func (VersionStore) NextVersion(ctx context.Context, tx *store.Tx, id registry.ModelID) (int, error) {
	var last int
	err := tx.NewRaw("SELECT COALESCE(MAX(number), 0) FROM registry_version WHERE model = ?", string(id)).Scan(ctx, &last)
	return last + 1, err
}

// PutVersion implements registry.Store.
func (VersionStore) PutVersion(ctx context.Context, tx *store.Tx, v registry.Version) error {
	row := versionRow{
		Model: string(v.ModelID), Number: v.Number, Project: string(v.Project), ModelName: v.Model, State: string(v.State),
		Message: v.Message, Stage: string(v.Stage), Description: v.Description, Source: v.Source, Run: string(v.Run),
		LoggedModel: string(v.LoggedModel), RunLink: v.RunLink, Owner: v.Owner, Created: store.At(v.Created),
		Updated: store.At(v.Updated), Job: v.Job, Attempt: v.Attempt, Parents: toJSON(v.Parents), OfJob: v.OfJob, Datasets: toJSON(v.Datasets), TrainedOn: v.TrainedOn,
		FeatureViews: toJSON(v.FeatureViews), Environment: v.Environment, Residency: toJSON(v.Residency),
		Classification: v.Classification, Digest: v.Digest, KeyID: v.KeyID,
		Line: store.JoinFields(v.SearchFields()),
	}
	if v.Content != nil {
		row.Content = toJSON(v.Content)
	}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (model, number) DO UPDATE").Set("content = EXCLUDED.content").
		Set("state = EXCLUDED.state").Set("message = EXCLUDED.message").Set("stage = EXCLUDED.stage").
		Set("description = EXCLUDED.description").Set("updated = EXCLUDED.updated").
		Set("digest = EXCLUDED.digest").Set("key_id = EXCLUDED.key_id").Exec(ctx)
	return err
}

// Version implements registry.Store.
func (s VersionStore) Version(ctx context.Context, tx *store.Tx, p project.Name, model string, number int) (registry.Version, error) {
	var row versionRow
	err := tx.NewSelect().Model(&row).
		Where("t.model = (SELECT m.id FROM registry_model m WHERE m.project = ? AND m.name = ?) AND t.number = ?", string(p), model, number).Scan(ctx)
	if err != nil {
		return registry.Version{}, store.NotFound(err, "Model Version (name=%s, version=%d) not found", model, number)
	}
	out, err := s.filledVersions(ctx, tx, []versionRow{row})
	if err != nil {
		return registry.Version{}, err
	}
	return out[0], nil
}

func (VersionStore) filledVersions(ctx context.Context, tx *store.Tx, rows []versionRow) ([]registry.Version, error) {
	out := make([]registry.Version, len(rows))
	for i, row := range rows {
		v, err := row.version()
		if err != nil {
			return nil, err
		}
		if err := tx.NewRaw("SELECT key, value FROM registry_version_tag WHERE model = ? AND number = ? ORDER BY key", row.Model, row.Number).Scan(ctx, &v.Tags); err != nil {
			return nil, err
		}
		if err := tx.NewRaw("SELECT name FROM registry_alias WHERE model = ? AND version = ? ORDER BY name", row.Model, row.Number).Scan(ctx, &v.Aliases); err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// Versions implements registry.Store.
func (s VersionStore) Versions(ctx context.Context, tx *store.Tx, id registry.ModelID) ([]registry.Version, error) {
	var rows []versionRow
	err := tx.NewSelect().Model(&rows).Where("t.model = ? AND t.state <> ?", string(id), string(registry.Deleted)).OrderExpr("t.number").Scan(ctx)
	if err != nil {
		return nil, err
	}
	return s.filledVersions(ctx, tx, rows)
}

// SameFiles implements registry.Store.
func (s VersionStore) SameFiles(ctx context.Context, tx *store.Tx, p project.Name, digest string) ([]registry.Version, error) {
	var rows []versionRow
	if err := tx.NewSelect().Model(&rows).Where("t.project = ? AND t.digest = ?", string(p), digest).OrderExpr("t.model, t.number").Scan(ctx); err != nil {
		return nil, err
	}
	return s.filledVersions(ctx, tx, rows)
}

var versionColumns = map[string]string{
	"name": "t.model_name", "version_number": "t.number", "run_id": "t.run", "source_path": "t.source",
	"creation_timestamp": "t.created / 1000", "last_updated_timestamp": "t.updated / 1000",
}

// SearchVersions implements registry.Store.
func (s VersionStore) SearchVersions(ctx context.Context, tx *store.Tx, p project.Name, q registry.Query) ([]registry.Version, error) {
	var c condition
	c.and("t.project = ?", string(p))
	if !q.Deleted {
		c.and("t.state <> ?", string(registry.Deleted))
	}
	sqlite := isSQLite(tx)
	for _, cmp := range q.Where {
		c.where(cmp, versionColumns, isTimestamp, "registry_version_tag x WHERE x.model = t.model AND x.number = t.number", sqlite)
	}
	sel := tx.NewSelect().Model((*versionRow)(nil)).Where(c.String(), c.args...)
	for _, o := range q.Order {
		if o.Entity == search.Tag {
			sel = sel.OrderExpr("(SELECT x.value FROM registry_version_tag x WHERE x.model = t.model AND x.number = t.number AND x.key = ?) "+map[bool]string{true: "DESC", false: "ASC"}[o.Desc], o.Key)
			continue
		}
		sel = sel.OrderExpr(direction(o, versionColumns))
	}
	var rows []versionRow
	if len(q.Order) == 0 {
		sel = sel.OrderExpr("t.updated DESC")
	}
	if err := sel.OrderExpr("t.model_name, t.number DESC").Limit(q.Limit).Offset(q.Offset).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	return s.filledVersions(ctx, tx, rows)
}

// PendingVersions implements registry.Store.
func (s VersionStore) PendingVersions(ctx context.Context, tx *store.Tx) ([]registry.Version, error) {
	var rows []versionRow
	err := tx.NewSelect().Model(&rows).Where("t.state = ?", string(registry.Pending)).OrderExpr("t.model, t.number").Scan(ctx)
	if err != nil {
		return nil, err
	}
	return s.filledVersions(ctx, tx, rows)
}

// PutVersionTags implements registry.Store.
func (VersionStore) PutVersionTags(ctx context.Context, tx *store.Tx, id registry.ModelID, number int, tags []tracking.Pair) error {
	for _, t := range tags {
		_, err := tx.NewRaw("INSERT INTO registry_version_tag (model, number, key, value) VALUES (?, ?, ?, ?) ON CONFLICT (model, number, key) DO UPDATE SET value = excluded.value",
			string(id), number, t.Key, t.Value).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteVersionTag implements registry.Store.
func (VersionStore) DeleteVersionTag(ctx context.Context, tx *store.Tx, id registry.ModelID, number int, key string) error {
	_, err := tx.NewRaw("DELETE FROM registry_version_tag WHERE model = ? AND number = ? AND key = ?", string(id), number, key).Exec(ctx)
	return err
}

type fileRow struct {
	bun.BaseModel `bun:"table:registry_file,alias:t"`
	Model         string `bun:",pk"`
	Number        int    `bun:",pk"`
	Path          string `bun:",pk"`
	Size          int64
	Digest        string
	Object        string
}

// PutFiles implements registry.Store.
func (VersionStore) PutFiles(ctx context.Context, tx *store.Tx, id registry.ModelID, number int, files []registry.Stored, signature []byte) error {
	for len(files) > 0 {
		n := min(len(files), 500)
		rows := make([]fileRow, n)
		for i, f := range files[:n] {
			rows[i] = fileRow{Model: string(id), Number: number, Path: f.Path, Size: f.Size, Digest: f.Digest, Object: f.Object}
		}
		if _, err := tx.NewInsert().Model(&rows).Exec(ctx); err != nil {
			return err
		}
		files = files[n:]
	}
	_, err := tx.NewUpdate().TableExpr("registry_version").Set("signature = ?", signature).Where("model = ? AND number = ?", string(id), number).Exec(ctx)
	return err
}

// Files implements registry.Store.
func (VersionStore) Files(ctx context.Context, tx *store.Tx, id registry.ModelID, number int) ([]registry.Stored, []byte, error) {
	var rows []fileRow
	if err := tx.NewSelect().Model(&rows).Where("t.model = ? AND t.number = ?", string(id), number).OrderExpr("t.path").Scan(ctx); err != nil {
		return nil, nil, err
	}
	var signature []byte
	err := tx.NewRaw("SELECT signature FROM registry_version WHERE model = ? AND number = ?", string(id), number).Scan(ctx, &signature)
	out := make([]registry.Stored, len(rows))
	for i, r := range rows {
		out[i] = registry.Stored{File: registry.File{Path: r.Path, Size: r.Size, Digest: r.Digest}, Object: r.Object}
	}
	return out, signature, store.NotFound(err, "model version %s v%d not found", id, number)
}

// State implements registry.Store.
func (VersionStore) State(ctx context.Context, tx *store.Tx, p project.Name, id registry.ModelID, number int) (registry.State, error) {
	var state string
	err := tx.NewRaw("SELECT state FROM registry_version WHERE model = ? AND number = ? AND project = ?", string(id), number, string(p)).Scan(ctx, &state)
	return registry.State(state), store.NotFound(err, "model version %s v%d not found", id, number)
}
