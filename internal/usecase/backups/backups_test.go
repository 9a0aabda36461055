package backups

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// What is whole stays whole when somebody stops it right then; how each ended is on record.
func TestEndOfABackup(t *testing.T) {
	db := storetest.SQLite(t, schema.Migrations...)
	b := &Service{Config: Config{DB: db, Log: slog.New(slog.DiscardHandler)}}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	b.end(ctx, "first", backup.Report{Digest: "9f2c"}, nil)
	if b.now.State != backup.Whole || b.now.Digest != "9f2c" || b.now.Error != "" {
		t.Errorf("stopped when it was whole: %+v", b.now)
	}
	b.end(ctx, "second", backup.Report{Digest: "9f2c"}, errors.New("no room"))
	if b.now.State != backup.Failed || b.now.Digest != "" || b.now.Error != "no room" {
		t.Errorf("failed: %+v", b.now)
	}
	records, _, err := db.ReadStream(t.Context(), "audit", store.Position{}, 10)
	if err != nil || len(records) != 2 || !strings.Contains(string(records[0].Body), "done") || !strings.Contains(string(records[1].Body), "no room") {
		t.Errorf("on record: %v, %v", records, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b.end(t.Context(), "third", backup.Report{Digest: "9f2c"}, nil)
	if b.now.State != backup.Whole || !strings.Contains(b.now.Error, "audit log") {
		t.Errorf("whole, and not on record: %+v", b.now)
	}
}
