package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestAuditObjects: archived audit entries are sealed where they lie; an object that is missing
// or changed is told from a store that fails.
func TestAuditObjects(t *testing.T) {
	ring, err := keys.Open(t.Context(), keys.Config{DB: storetest.SQLite(t, keyssql.Migrations), Store: keyssql.Store{}, MasterFile: filepath.Join(t.TempDir(), "master.key")})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files, err := fileblob.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	o := auditObjects{blob.New(files, ring)}
	const key, text = "audit/000000000000-seg_1", "alice read the dataset weather"
	if err := o.Put(t.Context(), key, []byte(text)); err != nil {
		t.Fatal(err)
	}
	if b, err := o.Get(t.Context(), key, 1000); err != nil || string(b) != text {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := o.Get(t.Context(), key, 10); !errors.Is(err, audit.ErrObjectDamaged) {
		t.Errorf("a larger object than was put: %v", err)
	}
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !strings.Contains(path, "seg_1") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.Contains(string(b), "alice") {
			t.Error("it is not sealed")
		}
		b[len(b)/2] ^= 1
		return os.WriteFile(path, b, 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Get(t.Context(), key, 1000); !errors.Is(err, audit.ErrObjectDamaged) {
		t.Errorf("a changed object: %v", err)
	}
	for range 2 {
		if err := o.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.Get(t.Context(), key, 1000); !fault.Is(err, fault.NotFound) {
		t.Errorf("a missing object: %v", err)
	}
}
