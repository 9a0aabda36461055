package audit_test

import (
	"bytes"
	"context"
	"database/sql"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestAnErasureBehindAnOlderTransaction: PostgreSQL withholds the entry of an erasure from
// the log while a transaction runs that is older, of another database of the server, too.
// Until then the erased entry is neither a finding nor proven.
func TestAnErasureBehindAnOlderTransaction(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t, schema...)
	p, err := openPlaceOn(t.Context(), t.TempDir(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.db.Close() })
	log := p.log(t)
	svc := p.service(log)
	p.varied(t, 0, 30)
	runOnce(t, log)

	other, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	older, err := other.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = older.Rollback() }()
	if _, err := older.ExecContext(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	eraseBoth(t, svc, []int64{7}, "request 2026-18")

	short := func() context.Context {
		ctx, cancel := context.WithTimeout(alice(t.Context()), time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	_, _, err = svc.List(short(), audit.Filter{}, 100, "")
	wantFault(t, err, fault.Unavailable, "older transaction")
	if _, err := log.Sweep(short(), 1000); audit.Contradicted(err) || err == nil {
		t.Errorf("the sweep says %v", err)
	}
	wantFault(t, svc.Export(short(), &bytes.Buffer{}), fault.Unavailable, "older transaction")

	if err := older.Rollback(); err != nil {
		t.Fatal(err)
	}
	for _, r := range list(t, svc, audit.Filter{}) {
		if r.Damaged != "" || r.Erased != (r.Index == 7) {
			t.Errorf("%+v", r)
		}
	}
	if err := sweepAll(t, log, 1000); err != nil {
		t.Error(err)
	}
	r, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{PublicKey: log.PublicKey()})
	if err != nil || r.Erased != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}
