// Package alertsql keeps alerts on their way, and the secrets that sign them, in
// the metadata database.
package alertsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("alert", files)

// Store implements alert.Store.
type Store struct{}

var _ alert.Store = Store{}

type deliveryRow struct {
	bun.BaseModel `bun:"table:alert_delivery"`

	ID        string     `bun:"id,pk"`
	Project   string     `bun:"project"`
	TargetKey string     `bun:"target_key"`
	Dedup     string     `bun:"dedup"`
	Target    string     `bun:"target"`
	EventID   string     `bun:"event_id"`
	Type      string     `bun:"type"`
	Source    string     `bun:"source"`
	State     string     `bun:"state"`
	Attempts  int64      `bun:"attempts"`
	Created   store.Time `bun:"created"`
	Next      store.Time `bun:"next"`
	Ended     store.Time `bun:"ended"`
	Reason    string     `bun:"reason"`
	Label     string     `bun:"label"`
	Form      string     `bun:"form"`
	Body      []byte     `bun:"body"`
}

type secretRow struct {
	bun.BaseModel `bun:"table:alert_secret"`

	Project string     `bun:"project,pk"`
	Name    string     `bun:"name,pk"`
	Created store.Time `bun:"created"`
	Sealed  []byte     `bun:"sealed"`
}

// Insert implements alert.Store.
func (Store) Insert(ctx context.Context, tx *store.Tx, r alert.Row) (bool, error) {
	target, err := json.Marshal(r.To) //nolint:gosec // G117: the name of a secret
	if err != nil {
		return false, err
	}
	label, err := json.Marshal(r.Label)
	if err != nil {
		return false, err
	}
	if r.Body == nil {
		r.Body = []byte{}
	}
	return changed(tx.NewInsert().Model(&deliveryRow{
		ID: string(r.ID), Project: r.Project, TargetKey: r.TargetKey, Dedup: r.Dedup, Target: string(target),
		EventID: r.Event, Type: r.Type, Source: r.Source, State: string(r.State), Attempts: r.Attempts,
		Created: store.At(r.Created), Next: store.At(r.Next), Ended: store.At(r.Ended), Reason: r.Reason,
		Label: string(label), Form: r.Form, Body: r.Body,
	}).On("CONFLICT (project, dedup) DO NOTHING").Exec(ctx))
}

// CountQueued implements alert.Store.
func (Store) CountQueued(ctx context.Context, tx *store.Tx, project string) (n int, err error) {
	err = tx.NewRaw("SELECT count(*) FROM alert_delivery WHERE project = ? AND state = 'queued'", project).Scan(ctx, &n)
	return n, err
}

// Due implements alert.Store. Identifiers sort by time.
func (Store) Due(ctx context.Context, tx *store.Tx, at time.Time, limit int) (ids []alert.ID, err error) {
	err = tx.NewRaw(`SELECT t.id FROM (
			SELECT d.id, d.next, ROW_NUMBER() OVER (PARTITION BY d.project ORDER BY d.next, d.id) AS turn FROM alert_delivery d
			JOIN (SELECT min(id) AS id FROM alert_delivery WHERE state = 'queued' GROUP BY target_key) o ON o.id = d.id
			WHERE d.next <= ?) t
		ORDER BY t.turn, t.next, t.id LIMIT ?`, store.At(at), limit).Scan(ctx, &ids)
	return ids, err
}

// One implements alert.Store.
func (Store) One(ctx context.Context, tx *store.Tx, delivery alert.ID) (alert.Row, error) {
	var r deliveryRow
	err := tx.NewSelect().Model(&r).Where("id = ?", string(delivery)).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return alert.Row{}, fault.New(fault.NotFound, "there is no delivery %s", delivery)
	}
	if err != nil {
		return alert.Row{}, err
	}
	return r.row()
}

// Change implements alert.Store.
func (Store) Change(ctx context.Context, tx *store.Tx, d alert.Delivery, was alert.State, attempts int64) (bool, error) {
	return changed(tx.NewUpdate().Model((*deliveryRow)(nil)).
		Set("state = ?, attempts = ?, next = ?, ended = ?, reason = ?", string(d.State), d.Attempts, store.At(d.Next), store.At(d.Ended), d.Reason).
		Where("id = ? AND state = ? AND attempts = ?", string(d.ID), string(was), attempts).Exec(ctx))
}

// Postpone implements alert.Store.
func (Store) Postpone(ctx context.Context, tx *store.Tx, targetKey string, until time.Time) error {
	_, err := tx.NewUpdate().Model((*deliveryRow)(nil)).Set("next = ?", store.At(until)).
		Where("target_key = ? AND state = 'queued' AND next < ?", targetKey, store.At(until)).Exec(ctx)
	return err
}

// Retarget implements alert.Store.
func (Store) Retarget(ctx context.Context, tx *store.Tx, project, source string, to alert.Target, key string, due time.Time) error {
	target, err := json.Marshal(to) //nolint:gosec // G117: the name of a secret
	if err != nil {
		return err
	}
	_, err = tx.NewUpdate().Model((*deliveryRow)(nil)).Set("target = ?, target_key = ?, next = ?", string(target), key, store.At(due)).
		Where("project = ? AND source = ? AND state = 'queued'", project, source).Exec(ctx)
	return err
}

// List implements alert.Store.
func (Store) List(ctx context.Context, tx *store.Tx, project string, state alert.State, before alert.ID, limit int) ([]alert.Delivery, error) {
	var rows []deliveryRow
	q := tx.NewSelect().Model(&rows).ExcludeColumn("body").Where("project = ?", project).OrderBy("id", bun.OrderDesc).Limit(limit)
	if state != "" {
		q = q.Where("state = ?", string(state))
	}
	if before != "" {
		q = q.Where("id < ?", string(before))
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]alert.Delivery, 0, len(rows))
	for _, r := range rows {
		d, err := r.row()
		if err != nil {
			return nil, err
		}
		out = append(out, d.Delivery)
	}
	return out, nil
}

// Trim implements alert.Store.
func (Store) Trim(ctx context.Context, tx *store.Tx, before time.Time) error {
	_, err := tx.NewDelete().Model((*deliveryRow)(nil)).Where("state <> 'queued' AND ended < ?", store.At(before)).Exec(ctx)
	return err
}

// Forget implements alert.Store.
func (Store) Forget(ctx context.Context, tx *store.Tx, project string) error {
	_, deliveries := tx.NewDelete().Model((*deliveryRow)(nil)).Where("project = ?", project).Exec(ctx)
	_, secrets := tx.NewDelete().Model((*secretRow)(nil)).Where("project = ?", project).Exec(ctx)
	return errors.Join(deliveries, secrets)
}

// PutSecret implements alert.Store.
func (Store) PutSecret(ctx context.Context, tx *store.Tx, project string, s alert.Secret, sealed []byte) error {
	_, err := tx.NewInsert().Model(&secretRow{Project: project, Name: s.Name, Created: store.At(s.Created), Sealed: sealed}).
		On("CONFLICT (project, name) DO UPDATE").Set("created = EXCLUDED.created, sealed = EXCLUDED.sealed").Exec(ctx)
	return err
}

// SealedSecret implements alert.Store.
func (Store) SealedSecret(ctx context.Context, tx *store.Tx, project, name string) ([]byte, error) {
	var r secretRow
	err := tx.NewSelect().Model(&r).Where("project = ? AND name = ?", project, name).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, noSecret(name)
	}
	return r.Sealed, err
}

// Secrets implements alert.Store.
func (Store) Secrets(ctx context.Context, tx *store.Tx, project string) ([]alert.Secret, error) {
	var rows []secretRow
	if err := tx.NewSelect().Model(&rows).Column("name", "created").Where("project = ?", project).OrderBy("name", bun.OrderAsc).Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]alert.Secret, 0, len(rows))
	for _, r := range rows {
		out = append(out, alert.Secret{Name: r.Name, Created: r.Created.Time()})
	}
	return out, nil
}

// DeleteSecret implements alert.Store.
func (Store) DeleteSecret(ctx context.Context, tx *store.Tx, project, name string) error {
	done, err := changed(tx.NewDelete().Model((*secretRow)(nil)).Where("project = ? AND name = ?", project, name).Exec(ctx))
	if err == nil && !done {
		return noSecret(name)
	}
	return err
}

func noSecret(name string) error {
	return fault.New(fault.NotFound, "there is no webhook secret %q", name).WithHint("Create a secret with that name.")
}

func (r deliveryRow) row() (out alert.Row, err error) {
	out = alert.Row{
		Delivery: alert.Delivery{
			ID: alert.ID(r.ID), Project: r.Project, Event: r.EventID, Type: r.Type, Source: r.Source, State: alert.State(r.State),
			Attempts: r.Attempts, Created: r.Created.Time(), Ended: r.Ended.Time(), Reason: r.Reason,
		},
		TargetKey: r.TargetKey, Dedup: r.Dedup, Form: r.Form, Body: r.Body,
	}
	if out.State == alert.Queued {
		out.Next = r.Next.Time()
	}
	err = errors.Join(json.Unmarshal([]byte(r.Target), &out.To), json.Unmarshal([]byte(r.Label), &out.Label))
	out.Target = out.To.String()
	return out, fault.Wrap(err, "delivery %s", r.ID)
}

func changed(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}
