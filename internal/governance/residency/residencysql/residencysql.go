// Package residencysql stores zones and widenings in SQLite or PostgreSQL.
package residencysql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("residency", files)

// Store implements border.Store. The zero Store is ready.
type Store struct{}

var _ border.Store = Store{}

type zoneRow struct {
	bun.BaseModel `bun:"table:residency_zone"`

	Zone         string `bun:",pk"`
	Jurisdiction string
	Provider     string
	Trust        string
	Description  string
	CreatedAt    store.Time
	UpdatedAt    store.Time
	Revision     int64
}

func (r zoneRow) place() residency.Place {
	return residency.Place{
		Zone: residency.Zone(r.Zone),
		ZoneSpec: residency.ZoneSpec{
			Jurisdiction: r.Jurisdiction, Provider: r.Provider, Trust: residency.Trust(r.Trust), Description: r.Description,
		},
		CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision,
	}
}

type wideningRow struct {
	bun.BaseModel `bun:"table:residency_widening"`

	ID          string `bun:",pk"`
	Project     string
	Kind        string
	Name        string
	FromZones   string // JSON
	ToZones     string // JSON
	FromClass   string
	ToClass     string
	FromLaw     string // JSON; '' but of a zone
	ToLaw       string // JSON
	Reason      string
	State       string
	RequestedBy string
	RequestedAt store.Time
	ExpiresAt   store.Time
	DecidedBy   string
	DecidedAt   store.Time
}

func (r wideningRow) widening() (border.Widening, error) {
	w := border.Widening{
		FromClass: project.Classification(r.FromClass), ToClass: project.Classification(r.ToClass),
		ID: r.ID, Project: project.Name(r.Project), Kind: r.Kind, Name: r.Name, Reason: r.Reason, State: border.State(r.State),
		RequestedBy: r.RequestedBy, RequestedAt: r.RequestedAt.Time(), ExpiresAt: r.ExpiresAt.Time(),
		DecidedBy: r.DecidedBy, DecidedAt: r.DecidedAt.Time(),
	}
	err := errors.Join(json.Unmarshal([]byte(r.FromZones), &w.From), json.Unmarshal([]byte(r.ToZones), &w.To))
	if r.FromLaw != "" {
		err = errors.Join(err, json.Unmarshal([]byte(r.FromLaw), &w.FromLaw), json.Unmarshal([]byte(r.ToLaw), &w.ToLaw))
	}
	return w, err
}

// Zone implements border.Store.
func (Store) Zone(ctx context.Context, tx *store.Tx, z residency.Zone) (residency.Place, error) {
	var r zoneRow
	err := tx.NewSelect().Model(&r).Where("zone = ?", z).Scan(ctx)
	return r.place(), found(err, "zone", string(z))
}

// Zones implements border.Store.
func (Store) Zones(ctx context.Context, tx *store.Tx) ([]residency.Place, error) {
	var rows []zoneRow
	if err := tx.NewSelect().Model(&rows).Order("zone").Scan(ctx); err != nil {
		return nil, err
	}
	places := make([]residency.Place, len(rows))
	for i, r := range rows {
		places[i] = r.place()
	}
	return places, nil
}

// PutZone implements border.Store.
func (Store) PutZone(ctx context.Context, tx *store.Tx, p residency.Place) error {
	_, err := tx.NewInsert().Model(&zoneRow{
		Zone: string(p.Zone), Jurisdiction: p.Jurisdiction, Provider: p.Provider, Trust: string(p.Trust), Description: p.Description,
		CreatedAt: store.At(p.CreatedAt), UpdatedAt: store.At(p.UpdatedAt), Revision: p.Revision,
	}).On("CONFLICT (zone) DO UPDATE").
		Set("jurisdiction = EXCLUDED.jurisdiction, provider = EXCLUDED.provider, trust = EXCLUDED.trust, description = EXCLUDED.description").
		Set("updated_at = EXCLUDED.updated_at, revision = EXCLUDED.revision").
		Exec(ctx)
	return err
}

// Widening implements border.Store.
func (Store) Widening(ctx context.Context, tx *store.Tx, id string) (border.Widening, error) {
	var r wideningRow
	if err := tx.NewSelect().Model(&r).Where("id = ?", id).Scan(ctx); err != nil {
		return border.Widening{}, found(err, "widening", id)
	}
	return r.widening()
}

// Widenings implements border.Store.
func (Store) Widenings(ctx context.Context, tx *store.Tx, in project.Name, state border.State, before string, limit int) ([]border.Widening, error) {
	var rows []wideningRow
	q := tx.NewSelect().Model(&rows).Where("project = ?", in).Order("id DESC").Limit(limit)
	if state != "" {
		q.Where("state = ?", state)
	}
	if before != "" {
		q.Where("id < ?", before)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]border.Widening, len(rows))
	for i, r := range rows {
		var err error
		if list[i], err = r.widening(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// PutWidening implements border.Store.
func (Store) PutWidening(ctx context.Context, tx *store.Tx, w border.Widening) error {
	from, err := json.Marshal(w.From)
	if err != nil {
		return err
	}
	to, err := json.Marshal(w.To)
	if err != nil {
		return err
	}
	var law [2]string
	for i, l := range []*residency.Law{w.FromLaw, w.ToLaw} {
		if l == nil {
			continue
		}
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		law[i] = string(b)
	}
	_, err = tx.NewInsert().Model(&wideningRow{
		ID: w.ID, Project: string(w.Project), Kind: w.Kind, Name: w.Name, FromZones: string(from), ToZones: string(to),
		FromClass: string(w.FromClass), ToClass: string(w.ToClass), FromLaw: law[0], ToLaw: law[1],
		Reason: w.Reason, State: string(w.State), RequestedBy: w.RequestedBy, RequestedAt: store.At(w.RequestedAt),
		ExpiresAt: store.At(w.ExpiresAt), DecidedBy: w.DecidedBy, DecidedAt: store.At(w.DecidedAt),
	}).On("CONFLICT (id) DO UPDATE").
		Set("state = EXCLUDED.state, decided_by = EXCLUDED.decided_by, decided_at = EXCLUDED.decided_at").Exec(ctx)
	return err
}

func found(err error, what, name string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fault.New(fault.NotFound, "%s %s does not exist", what, name)
	}
	return err
}
