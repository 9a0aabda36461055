// Package datasettest builds a dataset service for tests: real SQLite and files
// in a temporary directory, and the test binary itself as the parser and SQL
// processes.
//
// A test package that imports files calls Main from its TestMain:
//
//	func TestMain(m *testing.M) { datasettest.Main(m, nil) }
//
// and one that runs SQL, which only sqlworker's own tests and app's should,
// gives the worker's mode too.
package datasettest

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// Project is the project of the tests.
const Project project.Name = "nyc"

// childArgument begins the command line of a child.
const childArgument = "falaj-test-child"

// Mode is the entry of a child process.
type Mode func(stdin io.Reader, stdout io.Writer) error

// Main runs the tests, or, in a child that a Launcher started, the child. The
// parser's modes are always there.
func Main(m *testing.M, modes map[string]Mode) {
	if len(os.Args) != 3 || os.Args[1] != childArgument {
		m.Run() // the exit code is what it says
		return
	}
	run := modes[os.Args[2]]
	if run == nil {
		run = map[string]Mode{child.ParserMode: parser.Main, child.SnapshotMode: parser.SnapshotMain}[os.Args[2]]
	}
	if run == nil {
		panic("no mode " + os.Args[2])
	}
	if err := run(os.Stdin, os.Stdout); err != nil {
		panic(err)
	}
}

// Launcher starts the test binary as a child, without any isolation.
type Launcher struct{}

// Launch implements child.Launcher.
func (Launcher) Launch(ctx context.Context, mode string, _ child.LaunchOptions) (child.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, childArgument, mode)
	cmd.Env = []string{}
	return child.Plain{Cmd: cmd}, nil
}

// Harness is the services with their dependencies.
type Harness struct {
	dataset.Services
	DB      *store.DB
	Files   *Files
	Policy  *Policy
	Journal *Journal
	Config  dataset.Config
	Inputs  []dataset.JobInputs // what attempts could read
}

// New makes a harness in a temporary directory. change may alter the
// configuration before the service is made; it may be nil.
func New(tb testing.TB, change func(*dataset.Config)) *Harness {
	tb.Helper()
	return At(tb, tb.TempDir(), change)
}

// At is New in a directory, where a former harness may have left its database
// and files.
func At(tb testing.TB, dir string, change func(*dataset.Config)) *Harness {
	tb.Helper()
	h, err := Build(dir, change)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = h.DB.Close() })
	return h
}

// Build is At outside a test, such as in a child process. Close its DB.
func Build(dir string, change func(*dataset.Config)) (*Harness, error) {
	path := filepath.Join(dir, "falaj.db")
	if err := storetest.CreateSQLite(path, datasetsql.Migrations); err != nil {
		return nil, err
	}
	db, err := store.Open(context.Background(), store.Config{URL: "sqlite://" + path, Migrations: []store.Migrations{datasetsql.Migrations}})
	if err != nil {
		return nil, err
	}
	return On(db, dir, change)
}

// On is Build on a database that has the migrations.
func On(db *store.DB, dir string, change func(*dataset.Config)) (*Harness, error) {
	h := &Harness{DB: db, Files: &Files{Dir: filepath.Join(dir, "objects")}, Policy: &Policy{}, Journal: &Journal{}}
	h.Config = dataset.Config{
		DB: db, Store: datasetsql.Store{}, Files: h.Files, Keys: Keys{}, Authorizer: h.Policy, Guard: Guard{}, Journal: h.Journal,
		Launcher: Launcher{}, Instance: "test",
		JobInputs: func(context.Context, string) ([]dataset.JobInputs, error) { return h.Inputs, nil },
	}
	if change != nil {
		change(&h.Config)
	}
	h.Services = dataset.New(h.Config)
	return h, h.Maintenance.Recover(context.Background())
}

// Context is the context of a user of the tests.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	return identity.With(tb.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Name: "amal"})
}

// Declare applies a spec.
func (h *Harness) Declare(tb testing.TB, name string, spec dataset.Spec) dataset.Dataset {
	tb.Helper()
	d, _, err := h.Definitions.Apply(Context(tb), dataset.ApplyRequest{Project: Project, Name: name, Spec: spec})
	if err != nil {
		tb.Fatalf("apply %s: %v", name, err)
	}
	return d
}

// Put declares a dataset and imports a file that must be accepted.
func (h *Harness) Put(tb testing.TB, name string, spec dataset.Spec, file string) dataset.Version {
	tb.Helper()
	h.Declare(tb, name, spec)
	v, err := h.Writes.Import(Context(tb), dataset.ImportRequest{Project: Project, Name: name, Filename: name + ".csv", Body: strings.NewReader(file), SchemaChange: true})
	if err != nil {
		tb.Fatalf("import %s: %v", name, err)
	}
	if v.State != dataset.Accepted {
		tb.Fatalf("import %s: %s: %s", name, v.State, v.Reason)
	}
	return v
}

// Keys derives keys from names: as secret as this file.
type Keys struct{}

// DataKey implements dataset.Keys.
func (Keys) DataKey(_ context.Context, project, owner, use string) ([]byte, error) {
	k := sha256.Sum256([]byte(project + "\x00" + owner + "\x00" + use))
	return k[:], nil
}

// AEAD implements dataset.Keys.
func (k Keys) AEAD(ctx context.Context, project, owner string) (tink.AEAD, error) {
	key, err := k.DataKey(ctx, project, owner, "aead")
	if err != nil {
		return nil, err
	}
	return subtle.NewAESGCM(key)
}

// Guard is the residency rule without its journal.
type Guard struct{}

// Pass implements dataset.Guard.
func (Guard) Pass(_ context.Context, p residency.Transfer) error {
	return residency.Check(p.What, p.Label, p.Where, p.Zone)
}

// Policy allows everything but what Deny says. Safe for concurrent use.
type Policy struct {
	mu   sync.Mutex
	deny func(action policy.Action, object policy.Object) bool
	seen []Asked
}

// Asked is a question that was put to the policy.
type Asked struct {
	Action policy.Action
	Object policy.Object
}

// Deny refuses what f reports; nil refuses nothing.
func (p *Policy) Deny(f func(action policy.Action, object policy.Object) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deny = f
}

// Asked lists the questions so far.
func (p *Policy) Asked() []Asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// Allow implements dataset.Authorizer.
func (p *Policy) Allow(_ context.Context, action policy.Action, object policy.Object) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, Asked{action, object})
	if p.deny != nil && p.deny(action, object) {
		return fault.New(fault.PermissionDenied, "%s on %s is not allowed", action, object)
	}
	return nil
}

// Permits implements policy.Permitter; it is no question on record.
func (p *Policy) Permits(_ context.Context, action policy.Action, object policy.Object) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deny == nil || !p.deny(action, object), nil
}

// Journal keeps entries in memory, or fails. Safe for concurrent use.
type Journal struct {
	mu      sync.Mutex
	entries []audit.Entry
	err     error
}

// Record implements audit.Journal.
func (j *Journal) Record(_ context.Context, e audit.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return j.err
	}
	j.entries = append(j.entries, e)
	return nil
}

// Fail makes Record return err.
func (j *Journal) Fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
}

// Entries lists the audit entries.
func (j *Journal) Entries() []audit.Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries)
}

// Files keeps files in a directory, whatever their form. Hook, when set, is
// asked before each file is created and committed, and before files are removed
// ("create", "commit", "remove").
type Files struct {
	Dir  string
	Hook func(step, key string) error
}

var _ datafile.Store = (*Files)(nil)

func (f *Files) path(key string) string { return filepath.Join(f.Dir, filepath.FromSlash(key)) }

// Create implements datafile.Store.
func (f *Files) Create(_ context.Context, file datafile.File) (datafile.Writer, error) {
	if f.Hook != nil {
		if err := f.Hook("create", file.Key); err != nil {
			return nil, err
		}
	}
	name := f.path(file.Key)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return nil, err
	}
	return &fileWriter{File: tmp, files: f, key: file.Key}, nil
}

type fileWriter struct {
	*os.File
	files *Files
	key   string
	ended bool
}

// Commit implements datafile.Writer.
func (w *fileWriter) Commit() error {
	if w.files.Hook != nil {
		if err := w.files.Hook("commit", w.key); err != nil {
			return err
		}
	}
	w.ended = true
	if err := w.Close(); err != nil {
		return err
	}
	return os.Rename(w.Name(), w.files.path(w.key))
}

// Abort implements datafile.Writer.
func (w *fileWriter) Abort() {
	if !w.ended {
		w.ended = true
		_ = w.Close()
		_ = os.Remove(w.Name())
	}
}

// Open implements datafile.Store.
func (f *Files) Open(_ context.Context, file datafile.File) (datafile.Reader, error) {
	r, err := os.Open(f.path(file.Key))
	if err != nil {
		return nil, fault.New(fault.NotFound, "there is no file %s", file.Key)
	}
	info, err := r.Stat()
	if err != nil {
		return nil, err
	}
	return fileReader{r, info.Size()}, nil
}

type fileReader struct {
	*os.File
	size int64
}

// Size implements datafile.Reader.
func (r fileReader) Size() int64 { return r.size }

// Remove implements datafile.Store.
func (f *Files) Remove(_ context.Context, prefix string) error {
	if f.Hook != nil {
		if err := f.Hook("remove", prefix); err != nil {
			return err
		}
	}
	return os.RemoveAll(f.path(strings.TrimSuffix(prefix, "/")))
}

// Sweep implements datafile.Store.
func (f *Files) Sweep(_ context.Context, prefix string, before time.Time, stray func(key string) bool) (n int, err error) {
	root, err := os.OpenRoot(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	err = fs.WalkDir(root.FS(), strings.TrimSuffix(prefix, "/"), func(key string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() || !stray(key) {
			return err
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().Before(before) {
			return err
		}
		n++
		return root.Remove(key)
	})
	return n, err
}

// URI implements datafile.Store.
func (f *Files) URI(key string) string { return "file://" + f.path(key) }

// List is every file's key, temporary ones too.
func (f *Files) List(tb testing.TB) []string {
	tb.Helper()
	var keys []string
	err := filepath.WalkDir(f.Dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(f.Dir, path)
		keys = append(keys, filepath.ToSlash(rel))
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		tb.Fatal(err)
	}
	return keys
}
