package gatewaysql

import (
	"context"
	"database/sql"
	"errors"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/gateway/mirror"
	"github.com/falaj-ml/falaj/internal/store"
)

// Mirror implements mirror.Store.
type Mirror struct{}

var _ mirror.Store = Mirror{}

type versionRow struct {
	Model  string `bun:"model"`
	Number int64  `bun:"number"`
	Digest string `bun:"digest"`
	Bundle string `bun:"bundle"`
}

func (r versionRow) version() gateway.Version {
	return gateway.Version{Model: r.Model, Number: r.Number, Digest: r.Digest, Bundle: []byte(r.Bundle)}
}

// Version implements mirror.Store.
func (Mirror) Version(ctx context.Context, tx *store.Tx, project, model string, number int64) (gateway.Version, error) {
	var r versionRow
	err := tx.NewRaw("SELECT model, number, digest, bundle FROM mirror_version WHERE project = ? AND model = ? AND number = ?", project, model, number).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return gateway.Version{}, fault.New(fault.NotFound, "version %d of %s is not mirrored here", number, model)
	}
	return r.version(), err
}

// PutVersion implements mirror.Store.
func (Mirror) PutVersion(ctx context.Context, tx *store.Tx, project string, v gateway.Version) error {
	_, err := tx.NewRaw(`INSERT INTO mirror_version (project, model, number, digest, bundle) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (project, model, number) DO UPDATE SET digest = EXCLUDED.digest, bundle = EXCLUDED.bundle`,
		project, v.Model, v.Number, v.Digest, string(v.Bundle)).Exec(ctx)
	return err
}

// DropVersion implements mirror.Store.
func (Mirror) DropVersion(ctx context.Context, tx *store.Tx, project, model string, number int64) error {
	_, err := tx.NewRaw("DELETE FROM mirror_version WHERE project = ? AND model = ? AND number = ?", project, model, number).Exec(ctx)
	return err
}

// Versions implements mirror.Store.
func (Mirror) Versions(ctx context.Context, tx *store.Tx, project string) ([]gateway.Version, error) {
	var rows []versionRow
	if err := tx.NewRaw("SELECT model, number, digest, bundle FROM mirror_version WHERE project = ? ORDER BY model, number", project).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]gateway.Version, len(rows))
	for i, r := range rows {
		out[i] = r.version()
	}
	return out, nil
}

// Fact implements mirror.Store.
func (Mirror) Fact(ctx context.Context, tx *store.Tx, name string) (value string, err error) {
	err = tx.NewRaw("SELECT value FROM mirror_fact WHERE name = ?", name).Scan(ctx, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fault.New(fault.NotFound, "%s not found", name)
	}
	return value, err
}

// PutFact implements mirror.Store.
func (Mirror) PutFact(ctx context.Context, tx *store.Tx, name, value string) error {
	_, err := tx.NewRaw("INSERT INTO mirror_fact (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value", name, value).Exec(ctx)
	return err
}
