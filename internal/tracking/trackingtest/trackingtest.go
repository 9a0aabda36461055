// Package trackingtest helps tests of tracking, registry and their edges: a real
// artifact store whose files a test can reach, a policy made of a map, a journal
// that remembers.
package trackingtest

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// NewArtifacts makes an encrypted store on files in a temporary directory, which
// it also gives, and the keys that seal it.
func NewArtifacts(tb testing.TB) (*blob.Store, string, *blobtest.Sealer) {
	tb.Helper()
	dir := tb.TempDir()
	driver, err := fileblob.Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { driver.Close() })
	sealer := blobtest.NewSealer()
	return blob.New(driver, sealer), dir, sealer
}

// Objects are the files of stored objects under dir whose path has part in it.
func Objects(tb testing.TB, dir, part string) []string {
	tb.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(p, part) {
			out = append(out, p)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// Policy allows what is in it: principal id, then project, then action. "*"
// stands for every action. Loops may do everything, as they may in Falaj.
type Policy map[string]map[string][]policy.Action

// Allow implements Authorizer.
func (p Policy) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	who := identity.From(ctx)
	if who.Kind == identity.System {
		return nil
	}
	for _, a := range p[who.ID][object.Project] {
		if a == action || a == "*" {
			return nil
		}
	}
	return fault.New(fault.PermissionDenied, "%s may not %s in project %q", who, action, object.Project)
}

// Journal remembers what was recorded.
type Journal struct {
	mu      sync.Mutex
	entries []audit.Entry
}

// Record implements audit.Journal.
func (j *Journal) Record(_ context.Context, e audit.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)
	return nil
}

// Entries are the recorded entries.
func (j *Journal) Entries() []audit.Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]audit.Entry(nil), j.entries...)
}
