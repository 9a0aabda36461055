package identitysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
	"github.com/falaj-ml/falaj/internal/store"
)

// Sessions implements signin.Store. The zero Sessions is ready.
type Sessions struct{}

var _ signin.Store = Sessions{}

type sessionRow struct {
	bun.BaseModel `bun:"table:identity_session,alias:s"`

	Token        string `bun:",pk"`
	Account      string
	Provider     string
	Subject      string
	ProviderSID  string `bun:"provider_sid"`
	Refresh      []byte
	DueAt        store.Time
	ClaimedUntil store.Time
	AuthTime     store.Time
	ACR          string `bun:"acr"`
	Address      string
	Client       string
	CreatedAt    store.Time

	ExpiresAt store.Time `bun:",scanonly"` // of the token
}

func (r sessionRow) session() signin.Session {
	return signin.Session{
		Token: r.Token, Account: r.Account, Provider: r.Provider, Subject: r.Subject, ProviderSID: r.ProviderSID, Refresh: r.Refresh,
		DueAt: r.DueAt.Time(), Claimed: r.ClaimedUntil.Time(), AuthTime: r.AuthTime.Time(), ACR: r.ACR, Address: r.Address, Client: r.Client,
		CreatedAt: r.CreatedAt.Time(), ExpiresAt: r.ExpiresAt.Time(),
	}
}

// sessionsWith selects sessions with when their tokens expire.
func sessionsWith(tx *store.Tx, rows *[]sessionRow) *bun.SelectQuery {
	return tx.NewSelect().Model(rows).ColumnExpr("s.*").ColumnExpr("COALESCE(t.expires_at, 0) AS expires_at").
		Join("LEFT JOIN identity_token AS t ON t.id = s.token")
}

func sessionsOf(rows []sessionRow) []signin.Session {
	list := make([]signin.Session, len(rows))
	for i, r := range rows {
		list[i] = r.session()
	}
	return list
}

// InsertSession implements signin.Store.
func (Sessions) InsertSession(ctx context.Context, tx *store.Tx, s signin.Session) error {
	_, err := tx.NewInsert().Model(&sessionRow{
		Token: s.Token, Account: s.Account, Provider: s.Provider, Subject: s.Subject, ProviderSID: s.ProviderSID, Refresh: s.Refresh,
		DueAt: store.At(s.DueAt), AuthTime: store.At(s.AuthTime), ACR: s.ACR, Address: s.Address, Client: s.Client, CreatedAt: store.At(s.CreatedAt),
	}).Exec(ctx)
	return err
}

// Sessions implements signin.Store.
func (Sessions) Sessions(ctx context.Context, tx *store.Tx, account string, now time.Time, after string, limit int) ([]signin.Session, error) {
	var rows []sessionRow
	q := sessionsWith(tx, &rows).Where("t.revoked_at = 0 AND t.expires_at > ?", store.At(now)).Order("s.token DESC").Limit(limit)
	if account != "" {
		q.Where("s.account = ?", account)
	}
	if after != "" {
		q.Where("s.token < ?", after)
	}
	err := q.Scan(ctx)
	return sessionsOf(rows), err
}

// SessionsOf implements signin.Store.
func (Sessions) SessionsOf(ctx context.Context, tx *store.Tx, provider, sid, subject string) ([]signin.Session, error) {
	var rows []sessionRow
	q := sessionsWith(tx, &rows).Where("s.provider = ?", provider)
	switch {
	case subject != "":
		q.Where("s.subject = ?", subject)
	case sid != "":
		q.Where("s.provider_sid = ?", sid)
	default:
		return nil, nil
	}
	err := q.Scan(ctx)
	return sessionsOf(rows), err
}

// Due implements signin.Store.
func (Sessions) Due(ctx context.Context, tx *store.Tx, now time.Time, limit int) ([]signin.Session, error) {
	var rows []sessionRow
	err := sessionsWith(tx, &rows).Where("s.due_at > 0 AND s.due_at <= ? AND s.claimed_until <= ?", store.At(now), store.At(now)).Order("s.due_at").Limit(limit).Scan(ctx)
	return sessionsOf(rows), err
}

// ClaimSession implements signin.Store.
func (Sessions) ClaimSession(ctx context.Context, tx *store.Tx, s signin.Session, until time.Time) (bool, error) {
	res, err := tx.NewUpdate().Model((*sessionRow)(nil)).Set("claimed_until = ?", store.At(until)).
		Where("token = ? AND claimed_until = ? AND due_at = ?", s.Token, store.At(s.Claimed), store.At(s.DueAt)).Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// RefreshedSession implements signin.Store.
func (Sessions) RefreshedSession(ctx context.Context, tx *store.Tx, s signin.Session, refresh []byte, due time.Time) error {
	_, err := tx.NewUpdate().Model((*sessionRow)(nil)).Set("refresh = ?, due_at = ?, claimed_until = 0", refresh, store.At(due)).
		Where("token = ? AND claimed_until = ?", s.Token, store.At(s.Claimed)).Exec(ctx)
	return err
}

// DeleteSession implements signin.Store.
func (Sessions) DeleteSession(ctx context.Context, tx *store.Tx, token string) error {
	_, err := tx.NewDelete().Model((*sessionRow)(nil)).Where("token = ?", token).Exec(ctx)
	return err
}

// PruneSessions implements signin.Store. Of an account whose sessions have ended, the newest
// refresh token stays while the account has tokens: it confirms the person for these.
func (Sessions) PruneSessions(ctx context.Context, tx *store.Tx, now time.Time) error {
	if _, err := tx.NewDelete().Model((*codeRow)(nil)).Where("expires_at <= ?", store.At(now)).Exec(ctx); err != nil {
		return err
	}
	_, err := tx.NewRaw(`DELETE FROM identity_session WHERE token IN (
		SELECT s.token FROM identity_session s LEFT JOIN identity_token t ON t.id = s.token
		WHERE (t.id IS NULL OR t.revoked_at > 0 OR t.expires_at <= ?)
		AND (s.due_at = 0 OR EXISTS (SELECT 1 FROM identity_session o WHERE o.account = s.account AND o.due_at > 0 AND o.token > s.token)
			OR NOT EXISTS (SELECT 1 FROM identity_token k WHERE k.principal = s.account AND k.kind <> 'ses' AND k.revoked_at = 0 AND k.expires_at > ?)))`,
		store.At(now), store.At(now)).Exec(ctx)
	return err
}

type codeRow struct {
	bun.BaseModel `bun:"table:identity_code"`

	Hash      []byte `bun:",pk"`
	Account   string
	Token     string
	Challenge string
	Label     string
	ExpiresAt store.Time
}

// InsertCode implements signin.Store.
func (Sessions) InsertCode(ctx context.Context, tx *store.Tx, c signin.Code) error {
	_, err := tx.NewInsert().Model(&codeRow{Hash: c.Hash, Account: c.Account, Token: c.Token, Challenge: c.Challenge, Label: c.Label, ExpiresAt: store.At(c.ExpiresAt)}).Exec(ctx)
	return err
}

// TakeCode implements signin.Store.
func (Sessions) TakeCode(ctx context.Context, tx *store.Tx, hash []byte, now time.Time) (signin.Code, error) {
	var rows []codeRow
	if _, err := tx.NewDelete().Model(&rows).Where("hash = ? AND expires_at > ?", hash, store.At(now)).Returning("*").Exec(ctx); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return signin.Code{}, err
	}
	if len(rows) == 0 {
		return signin.Code{}, fault.New(fault.NotFound, "no such code")
	}
	r := rows[0]
	return signin.Code{Hash: r.Hash, Account: r.Account, Token: r.Token, Challenge: r.Challenge, Label: r.Label, ExpiresAt: r.ExpiresAt.Time()}, nil
}
