// Package identitysql stores accounts and tokens in SQLite or PostgreSQL. Of a
// secret it sees only the hash.
package identitysql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("identity", files)

// Store implements account.Store. The zero Store is ready.
type Store struct{}

var _ account.Store = Store{}

type accountRow struct {
	bun.BaseModel `bun:"table:identity_account"`

	ID        string `bun:",pk"`
	Kind      string
	Name      string
	Project   string
	CreatedAt store.Time
	CreatedBy string

	Provider       string
	Issuer         string
	Subject        string
	DisplayName    string
	Email          string
	ProvedUntil    store.Time
	DisabledAt     store.Time
	DisabledReason string
}

func (r accountRow) account() account.Account {
	return account.Account{
		ID: r.ID, Kind: identity.Kind(r.Kind), Name: r.Name, Project: project.Name(r.Project),
		CreatedAt: r.CreatedAt.Time(), CreatedBy: r.CreatedBy,
		External: account.External{
			Provider: r.Provider, Issuer: r.Issuer, Subject: r.Subject, DisplayName: r.DisplayName, Email: r.Email, ProvedUntil: r.ProvedUntil.Time(),
		},
		DisabledAt: r.DisabledAt.Time(), DisabledReason: r.DisabledReason,
	}
}

type tokenRow struct {
	bun.BaseModel `bun:"table:identity_token,alias:t"`

	ID         string `bun:",pk"`
	Hash       []byte
	Kind       string
	Principal  string
	Name       string
	Label      string
	Behalf     string `bun:"on_behalf_of"`
	Bound      bool
	Project    string
	Scopes     string // JSON
	CreatedAt  store.Time
	CreatedBy  string
	Parent     string
	ExpiresAt  store.Time
	LastUsedAt store.Time
	RevokedAt  store.Time
	RevokedBy  string
}

func (r tokenRow) token() (account.Token, error) {
	t := account.Token{
		ID: r.ID, Kind: account.Kind(r.Kind), Principal: r.Principal, Name: r.Name, Label: r.Label, Behalf: r.Behalf, Bound: r.Bound,
		Project: project.Name(r.Project), CreatedAt: r.CreatedAt.Time(), CreatedBy: r.CreatedBy, Parent: r.Parent,
		ExpiresAt: r.ExpiresAt.Time(), LastUsedAt: r.LastUsedAt.Time(), RevokedAt: r.RevokedAt.Time(), RevokedBy: r.RevokedBy,
	}
	return t, json.Unmarshal([]byte(r.Scopes), &t.Scopes)
}

// InsertAccount implements account.Store.
func (Store) InsertAccount(ctx context.Context, tx *store.Tx, a account.Account) error {
	_, err := tx.NewInsert().Model(&accountRow{
		ID: a.ID, Kind: string(a.Kind), Name: a.Name, Project: string(a.Project),
		CreatedAt: store.At(a.CreatedAt), CreatedBy: a.CreatedBy,
		Provider: a.Provider, Issuer: a.Issuer, Subject: a.Subject, DisplayName: a.DisplayName, Email: a.Email, ProvedUntil: store.At(a.ProvedUntil),
		DisabledAt: store.At(a.DisabledAt), DisabledReason: a.DisabledReason,
	}).Exec(ctx)
	return err
}

// AccountBySubject implements account.Store.
func (Store) AccountBySubject(ctx context.Context, tx *store.Tx, issuer, subject string) (account.Account, error) {
	var r accountRow
	err := tx.NewSelect().Model(&r).Where("issuer = ? AND issuer <> '' AND subject = ?", issuer, subject).Scan(ctx)
	return r.account(), found(err, "account")
}

// SetExternal implements account.Store.
func (Store) SetExternal(ctx context.Context, tx *store.Tx, id string, e account.External) error {
	_, err := tx.NewUpdate().Model((*accountRow)(nil)).
		Set("provider = ?, display_name = ?, email = ?, proved_until = ?", e.Provider, e.DisplayName, e.Email, store.At(e.ProvedUntil)).
		Where("id = ?", id).Exec(ctx)
	return err
}

// SetDisabled implements account.Store.
func (Store) SetDisabled(ctx context.Context, tx *store.Tx, id string, at time.Time, reason string) error {
	_, err := tx.NewUpdate().Model((*accountRow)(nil)).Set("disabled_at = ?, disabled_reason = ?", store.At(at), reason).Where("id = ?", id).Exec(ctx)
	return err
}

// Account implements account.Store.
func (Store) Account(ctx context.Context, tx *store.Tx, id string) (account.Account, error) {
	var r accountRow
	err := tx.NewSelect().Model(&r).Where("id = ?", id).Scan(ctx)
	return r.account(), found(err, "account")
}

// AccountByName implements account.Store.
func (Store) AccountByName(ctx context.Context, tx *store.Tx, kind identity.Kind, in project.Name, name string) (account.Account, error) {
	var r accountRow
	err := tx.NewSelect().Model(&r).Where("kind = ? AND project = ? AND name = ?", kind, in, name).Scan(ctx)
	return r.account(), found(err, "account")
}

// Accounts implements account.Store.
func (Store) Accounts(ctx context.Context, tx *store.Tx, in project.Name, after string, limit int) ([]account.Account, error) {
	var rows []accountRow
	q := tx.NewSelect().Model(&rows).Where("id > ?", after).Order("id").Limit(limit)
	if in != "" {
		q.Where("project = ?", in)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	accounts := make([]account.Account, len(rows))
	for i, r := range rows {
		accounts[i] = r.account()
	}
	return accounts, nil
}

// Names implements account.Store.
func (Store) Names(ctx context.Context, tx *store.Tx, ids []string) (map[string]string, error) {
	names := make(map[string]string, len(ids))
	for part := range slices.Chunk(ids, 500) {
		var rows []accountRow
		if err := tx.NewSelect().Model(&rows).Column("id", "name").Where("id IN (?)", bun.List(part)).Scan(ctx); err != nil {
			return nil, err
		}
		for _, r := range rows {
			names[r.ID] = r.Name
		}
	}
	return names, nil
}

// CountAccounts implements account.Store.
func (Store) CountAccounts(ctx context.Context, tx *store.Tx, kind identity.Kind, in project.Name) (int, error) {
	return tx.NewSelect().Model((*accountRow)(nil)).Where("kind = ? AND project = ?", kind, in).Count(ctx)
}

// DeleteAccount implements account.Store.
func (Store) DeleteAccount(ctx context.Context, tx *store.Tx, id string) error {
	res, err := tx.NewDelete().Model((*accountRow)(nil)).Where("id = ?", id).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, fault.New(fault.NotFound, "account %s does not exist", id))
	}
	for _, of := range []any{(*sessionRow)(nil), (*codeRow)(nil)} {
		if _, err := tx.NewDelete().Model(of).Where("account = ?", id).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// InsertToken implements account.Store.
func (Store) InsertToken(ctx context.Context, tx *store.Tx, t account.Token, hash []byte) error {
	scopes, err := json.Marshal(t.Scopes)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&tokenRow{
		ID: t.ID, Hash: hash, Kind: string(t.Kind), Principal: t.Principal, Name: t.Name, Label: t.Label, Behalf: t.Behalf, Bound: t.Bound,
		Project: string(t.Project), Scopes: string(scopes), CreatedAt: store.At(t.CreatedAt), CreatedBy: t.CreatedBy, Parent: t.Parent,
		ExpiresAt: store.At(t.ExpiresAt), LastUsedAt: store.At(t.LastUsedAt), RevokedAt: store.At(t.RevokedAt), RevokedBy: t.RevokedBy,
	}).Exec(ctx)
	return err
}

// Token implements account.Store.
func (Store) Token(ctx context.Context, tx *store.Tx, id string) (account.Token, error) {
	var r tokenRow
	if err := tx.NewSelect().Model(&r).Where("id = ?", id).Scan(ctx); err != nil {
		return account.Token{}, found(err, "token")
	}
	return r.token()
}

// TokenByHash implements account.Store.
func (Store) TokenByHash(ctx context.Context, tx *store.Tx, hash []byte) (account.Token, time.Time, error) {
	var r struct {
		tokenRow `bun:",extend"`

		Clock    store.Time `bun:",scanonly"`
		Until    store.Time `bun:",scanonly"`
		Disabled store.Time `bun:",scanonly"`
	}
	err := tx.NewSelect().Model(&r).ColumnExpr("t.*").ColumnExpr("COALESCE(a.proved_until, 0) AS until, COALESCE(a.disabled_at, 0) AS disabled").
		Join("LEFT JOIN identity_account AS a ON a.id = t.principal").
		ColumnExpr("COALESCE((SELECT at FROM identity_state WHERE name = 'clock'), 0) AS clock").
		Where("hash = ?", hash).Scan(ctx)
	if err != nil {
		return account.Token{}, time.Time{}, found(err, "token")
	}
	t, err := r.token()
	t.HolderUntil, t.HolderDisabled = r.Until.Time(), r.Disabled.Time()
	return t, r.Clock.Time(), err
}

// Tokens implements account.Store.
func (Store) Tokens(ctx context.Context, tx *store.Tx, sel account.Selection) ([]account.Token, error) {
	var rows []tokenRow
	q := tx.NewSelect().Model(&rows).Order("id")
	if sel.Limit > 0 {
		q.Limit(sel.Limit)
	}
	for _, c := range conditions(sel) {
		q.Where(c.expr, c.value)
	}
	if !sel.Live.IsZero() {
		q.Where("t.revoked_at = 0 AND t.expires_at > ?", store.At(sel.Live))
	}
	return tokens(rows, q.Scan(ctx))
}

// NextExpiry implements account.Store.
func (Store) NextExpiry(ctx context.Context, tx *store.Tx, kind account.Kind, now time.Time) (time.Time, error) {
	var rows []tokenRow
	err := tx.NewSelect().Model(&rows).Where("t.kind = ? AND t.revoked_at = 0 AND t.expires_at > ?", kind, store.At(now)).Order("expires_at").Limit(1).Scan(ctx)
	if err != nil || len(rows) == 0 {
		return time.Time{}, err
	}
	return rows[0].ExpiresAt.Time(), nil
}

// CountLive implements account.Store.
func (Store) CountLive(ctx context.Context, tx *store.Tx, principal string, at time.Time) (int, error) {
	return tx.NewSelect().Model((*tokenRow)(nil)).
		Where("principal = ? AND kind <> ? AND revoked_at = 0 AND expires_at > ?", principal, account.SessionToken, store.At(at)).Count(ctx)
}

// Revoke implements account.Store.
func (Store) Revoke(ctx context.Context, tx *store.Tx, sel account.Selection, by string, at time.Time) ([]account.Token, error) {
	var rows []tokenRow
	q := tx.NewUpdate().Model(&rows).Set("revoked_at = ?, revoked_by = ?", store.At(at), by).
		Where("revoked_at = 0 AND expires_at > ?", store.At(at)).Returning("*")
	for _, c := range conditions(sel) {
		q.Where(c.expr, c.value)
	}
	if len(sel.Children) > 0 {
		q.Where("t.parent IN (?) AND EXISTS (SELECT 1 FROM identity_token p WHERE p.id = t.parent AND p.principal = t.principal)", bun.List(sel.Children))
	}
	_, err := q.Exec(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return tokens(rows, err)
}

// Used implements account.Store.
func (Store) Used(ctx context.Context, tx *store.Tx, id string, at time.Time) error {
	_, err := tx.NewUpdate().Model((*tokenRow)(nil)).Set("last_used_at = ?", store.At(at)).
		Where("id = ? AND last_used_at < ?", id, store.At(at)).Exec(ctx)
	return err
}

// Prune implements account.Store.
func (Store) Prune(ctx context.Context, tx *store.Tx, kind account.Kind, before time.Time, limit int) (int, error) {
	old := tx.NewSelect().Model((*tokenRow)(nil)).Column("id").Where("kind = ?", kind).
		Where("expires_at < ? OR (revoked_at > 0 AND revoked_at < ?)", store.At(before), store.At(before)).Limit(limit)
	res, err := tx.NewDelete().Model((*tokenRow)(nil)).Where("id IN (?)", old).Exec(ctx)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// RaiseClock implements account.Store.
func (Store) RaiseClock(ctx context.Context, tx *store.Tx, at time.Time) error {
	_, err := tx.NewRaw(`INSERT INTO identity_state (name, at) VALUES ('clock', ?)
		ON CONFLICT (name) DO UPDATE SET at = excluded.at WHERE identity_state.at < excluded.at`, store.At(at)).Exec(ctx)
	return err
}

// Claim implements account.Store.
func (Store) Claim(ctx context.Context, tx *store.Tx, name string, at time.Time) (bool, error) {
	res, err := tx.NewRaw(`INSERT INTO identity_state (name, at) VALUES (?, ?) ON CONFLICT (name) DO NOTHING`, name, store.At(at)).Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

type condition struct {
	expr  string
	value string
}

func conditions(sel account.Selection) []condition {
	all := []condition{
		{"t.id = ?", sel.ID},
		{"t.principal = ?", sel.Principal},
		{"t.project = ?", string(sel.Project)},
		{"t.kind = ?", string(sel.Kind)},
		{"t.id > ?", sel.After},
	}
	set := all[:0]
	for _, c := range all {
		if c.value != "" {
			set = append(set, c)
		}
	}
	return set
}

func tokens(rows []tokenRow, err error) ([]account.Token, error) {
	if err != nil {
		return nil, err
	}
	list := make([]account.Token, len(rows))
	for i, r := range rows {
		if list[i], err = r.token(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// found turns "no rows" into the kind that callers know.
func found(err error, what string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fault.New(fault.NotFound, "no such %s", what)
	}
	return err
}

// FirstAccount is when the installation's first account was made; the zero time where
// there is none.
func (Store) FirstAccount(ctx context.Context, tx *store.Tx) (time.Time, error) {
	var first sql.Null[store.Time]
	err := tx.NewSelect().Model((*accountRow)(nil)).ColumnExpr("MIN(created_at)").Scan(ctx, &first)
	if err != nil || !first.Valid {
		return time.Time{}, err
	}
	return first.V.Time(), nil
}
