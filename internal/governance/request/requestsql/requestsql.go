// Package requestsql stores requests in SQLite or PostgreSQL.
package requestsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/request"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("request", files)

// Store implements request.Store. The zero Store is ready.
type Store struct{}

var _ request.Store = Store{}

type row struct {
	bun.BaseModel `bun:"table:request"`

	ID              string `bun:",pk"`
	Project         string
	Kind            string
	Object          string
	Summary         string
	Change          string
	Reason          string
	State           string
	Message         string
	RequestedBy     string
	RequestedByName string
	RequestedAt     store.Time
	ExpiresAt       store.Time
	DecidedBy       string
	DecidedByName   string
	DecidedAt       store.Time
	Approvers       string // JSON
	Act             string // JSON
}

func (r row) request() (request.Request, error) {
	out := request.Request{
		ID: r.ID, Project: r.Project, Kind: r.Kind, Object: r.Object, Summary: r.Summary, Change: r.Change, Reason: r.Reason, State: request.State(r.State), Message: r.Message,
		RequestedBy: r.RequestedBy, RequestedByName: r.RequestedByName, RequestedAt: r.RequestedAt.Time(), ExpiresAt: r.ExpiresAt.Time(),
		DecidedBy: r.DecidedBy, DecidedByName: r.DecidedByName, DecidedAt: r.DecidedAt.Time(),
	}
	return out, errors.Join(json.Unmarshal([]byte(r.Approvers), &out.Approvers), json.Unmarshal([]byte(r.Act), &out.Act))
}

// Put implements request.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, r request.Request) error {
	approvers, err := json.Marshal(r.Approvers)
	if err != nil {
		return err
	}
	act, err := json.Marshal(r.Act)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&row{
		ID: r.ID, Project: r.Project, Kind: r.Kind, Object: r.Object, Summary: r.Summary, Change: r.Change, Reason: r.Reason, State: string(r.State), Message: r.Message,
		RequestedBy: r.RequestedBy, RequestedByName: r.RequestedByName, RequestedAt: store.At(r.RequestedAt), ExpiresAt: store.At(r.ExpiresAt),
		DecidedBy: r.DecidedBy, DecidedByName: r.DecidedByName, DecidedAt: store.At(r.DecidedAt), Approvers: string(approvers), Act: string(act),
	}).On("CONFLICT (id) DO UPDATE").
		Set("state = EXCLUDED.state, message = EXCLUDED.message, decided_by = EXCLUDED.decided_by, decided_by_name = EXCLUDED.decided_by_name, decided_at = EXCLUDED.decided_at, act = EXCLUDED.act").Exec(ctx)
	return err
}

// One implements request.Store.
func (Store) One(ctx context.Context, tx *store.Tx, id string) (request.Request, error) {
	var r row
	err := tx.NewSelect().Model(&r).Where("id = ?", id).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return request.Request{}, fault.New(fault.NotFound, "request %s does not exist", id)
	}
	if err != nil {
		return request.Request{}, err
	}
	return r.request()
}

// List implements request.Store.
func (Store) List(ctx context.Context, tx *store.Tx, project string, all bool, state request.State, before string, limit int) ([]request.Request, error) {
	var rows []row
	q := tx.NewSelect().Model(&rows).Order("id DESC").Limit(limit)
	if !all {
		q.Where("project = ?", project)
	}
	if state != "" {
		q.Where("state = ?", string(state))
	}
	if before != "" {
		q.Where("id < ?", before)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	return requests(rows)
}

// Forget removes some requests that were made before a time and are decided, and says how
// many.
func (Store) Forget(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	var ids []string
	err := tx.NewSelect().Model((*row)(nil)).Column("id").Where("id < ? AND state NOT IN (?, ?)", id.First("req", before), string(request.Requested), string(request.Approved)).
		OrderExpr("id").Limit(limit).Scan(ctx, &ids)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = tx.NewDelete().Model((*row)(nil)).Where("id IN (?)", store.Texts(ids)).Exec(ctx)
	return len(ids), err
}

// Overdue implements request.Store.
func (Store) Overdue(ctx context.Context, tx *store.Tx, at time.Time, limit int) ([]request.Request, error) {
	var rows []row
	err := tx.NewSelect().Model(&rows).Where("state = ? AND expires_at <= ?", string(request.Requested), store.At(at)).Order("id").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	return requests(rows)
}

func requests(rows []row) ([]request.Request, error) {
	list := make([]request.Request, len(rows))
	for i, r := range rows {
		var err error
		if list[i], err = r.request(); err != nil {
			return nil, err
		}
	}
	return list, nil
}
