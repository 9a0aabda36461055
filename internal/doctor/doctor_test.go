package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/store"
)

// The doctor looks at the master key's file, not only at what is configured.
func TestDoctorComparesTheMasterKey(t *testing.T) {
	dir := t.TempDir()
	passphrase := filepath.Join(dir, "passphrase")
	if err := os.WriteFile(passphrase, []byte("a long passphrase\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(passphraseFile, mark, text string) {
		t.Helper()
		got := render(masterKey(dir, passphraseFile))
		if !slices.ContainsFunc(strings.Split(got, "\n"), func(line string) bool {
			return strings.HasPrefix(line, mark+" ") && strings.Contains(line, text)
		}) {
			t.Errorf("with %q there is no %s %q in:\n%s", passphraseFile, mark, text, got)
		}
	}
	check("", "!", "will be a plain file")
	check(passphrase, "✓", "will be sealed")
	check(filepath.Join(dir, "absent"), "✗", "passphrase file")

	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + filepath.Join(dir, "falaj.db"), Migrations: []store.Migrations{keyssql.Migrations}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = keys.Open(t.Context(), keys.Config{
		DB: db, Store: keyssql.Store{}, MasterFile: filepath.Join(dir, "master.key"), Passphrase: []byte("a long passphrase"),
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	check("", "✗", "no passphrase is configured")
	check(passphrase, "✓", "the master key is sealed")

	if err := keys.Reseal(filepath.Join(dir, "master.key"), []byte("a long passphrase"), nil); err != nil {
		t.Fatal(err)
	}
	check("", "!", "is a plain file")
	check(passphrase, "!", "is a plain file")
}
