// Package trackingtest helps tests of tracking, registry and their edges: an
// artifact store on plain files that a test can tamper with, and a policy made
// of a map.
package trackingtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// Artifacts keeps objects as plain files under Dir, by key. It does not
// encrypt, so what a test changes there is what a reader gets.
type Artifacts struct{ Dir string }

// NewArtifacts makes a store in a temporary directory.
func NewArtifacts(tb testing.TB) Artifacts {
	tb.Helper()
	return Artifacts{Dir: tb.TempDir()}
}

// Path is the file of a key.
func (a Artifacts) Path(key blob.Key) string {
	return filepath.Join(a.Dir, filepath.FromSlash(string(key)))
}

// Put implements tracking.Artifacts.
func (a Artifacts) Put(_ context.Context, ref blob.Ref, body io.Reader) (blob.Info, error) {
	name := a.Path(ref.Key)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return blob.Info{}, err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp")
	if err != nil {
		return blob.Info{}, err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), body)
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return blob.Info{}, err
	}
	if err := f.Close(); err != nil {
		return blob.Info{}, err
	}
	return blob.Info{Size: n, Digest: "sha256:" + hex.EncodeToString(h.Sum(nil))}, os.Rename(f.Name(), name)
}

// Open implements tracking.Artifacts.
func (a Artifacts) Open(_ context.Context, ref blob.Ref) (io.ReadCloser, error) {
	f, err := os.Open(a.Path(ref.Key))
	if os.IsNotExist(err) {
		return nil, fault.New(fault.NotFound, "no object %s", ref.Key)
	}
	return f, err
}

// Delete implements tracking.Artifacts.
func (a Artifacts) Delete(_ context.Context, ref blob.Ref) error {
	err := os.Remove(a.Path(ref.Key))
	if os.IsNotExist(err) {
		return fault.New(fault.NotFound, "no object %s", ref.Key)
	}
	return err
}

// List implements tracking.Artifacts.
func (a Artifacts) List(_ context.Context, prefix blob.Key, yield func(blob.Key) error) error {
	return filepath.WalkDir(a.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(a.Dir, p)
		if err != nil {
			return err
		}
		if key := filepath.ToSlash(rel); strings.HasPrefix(key, string(prefix)) {
			return yield(blob.Key(key))
		}
		return nil
	})
}

// Policy allows what is in it: principal id, then project, then action. "*"
// stands for every action.
type Policy map[string]map[string][]policy.Action

// Allow implements Authorizer.
func (p Policy) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	who := identity.From(ctx)
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
