package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/fault"
)

// installation has files of all kinds, open tables elsewhere and some objects.
func installation(t *testing.T) backup.Installation {
	t.Helper()
	dir := t.TempDir()
	of := backup.Installation{
		Data: filepath.Join(dir, "data"), Tables: filepath.Join(dir, "open"), Ledger: filepath.Join(dir, "data", "erasures.jsonl"),
		Objects: &blobtest.Memory{}, Owner: "obj_1",
	}
	for path, content := range map[string]string{
		"data/falaj.db": "rows", "data/online/1.sst": strings.Repeat("x", 1<<20), "data/empty": "", "data/env/bin/python": "#!", "data/erasures.jsonl": "one\n",
		"open/projects/p/a.parquet": "plain",
		"data/tmp/scratch":          "no", "data/ballast": "no", "data/falaj.lock": "no", "data/objects/x": "no", "data/objects.id": "no", "data/online.id": "no",
		"data/training/attempts/att_1/data/orders/data.parquet": "no", "data/workloads/att_1/log": "no", "data/engines/hpc/workloads/att_2/log": "no",
	} {
		put(t, filepath.Join(dir, path), content)
	}
	must(t, os.Chmod(filepath.Join(of.Data, "env/bin/python"), 0o755))
	must(t, os.Chtimes(filepath.Join(of.Data, "env/bin/python"), time.Time{}, time.Unix(1e9, 7)))
	must(t, os.Symlink("/usr/bin/python3", filepath.Join(of.Data, "env/bin/python3")))
	for _, key := range []blob.Key{"a", "a/b", "projects/p/large"} {
		must(t, of.Objects.Put(t.Context(), key, strings.NewReader("object "+string(key)+strings.Repeat("y", 2000))))
	}
	return of
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// empty is where a backup is restored.
func empty(t *testing.T) backup.Installation {
	t.Helper()
	dir := t.TempDir()
	to := backup.Installation{Data: filepath.Join(dir, "data"), Tables: filepath.Join(dir, "open"), Ledger: filepath.Join(dir, "data", "erasures.jsonl"), Objects: &blobtest.Memory{}}
	must(t, os.Mkdir(to.Data, 0o700))
	return to
}

func restore(t *testing.T, dir string, to backup.Installation) (backup.Report, error) {
	t.Helper()
	if _, err := backup.Prepare(dir, to, ""); err != nil {
		return backup.Report{}, err
	}
	return backup.Restore(t.Context(), dir, to)
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func TestThereAndBack(t *testing.T) {
	of := installation(t)
	dir := filepath.Join(t.TempDir(), "backup")
	made, err := backup.Make(t.Context(), dir, of, "v1")
	must(t, err)
	if made.Files != 6 || made.Objects != 3 {
		t.Errorf("made %+v", made)
	}
	to := empty(t)
	owner, err := backup.Prepare(dir, to, "")
	if err != nil || owner != "obj_1" {
		t.Fatal(owner, err)
	}
	if err := backup.Unfinished(to.Data); !fault.Is(err, fault.Conflict) {
		t.Errorf("while it is restored: %v", err)
	}
	r, err := backup.Restore(t.Context(), dir, to)
	must(t, err)
	if err := backup.Unfinished(to.Data); err != nil || !r.Ledger || r.Objects != 3 {
		t.Errorf("%v, %+v", err, r)
	}
	for _, name := range []string{"falaj.db", "online/1.sst", "empty", "env/bin/python", "erasures.jsonl"} {
		if content(t, filepath.Join(to.Data, name)) != content(t, filepath.Join(of.Data, name)) {
			t.Errorf("%s is another", name)
		}
	}
	if got := content(t, filepath.Join(to.Tables, "projects/p/a.parquet")); got != "plain" {
		t.Errorf("the open table is %q", got)
	}
	info, err := os.Stat(filepath.Join(to.Data, "env/bin/python"))
	if err != nil || info.Mode().Perm() != 0o755 || info.ModTime().UnixNano() != 1e18+7 {
		t.Errorf("%v %v", info, err)
	}
	if at, err := os.Readlink(filepath.Join(to.Data, "env/bin/python3")); err != nil || at != "/usr/bin/python3" {
		t.Error(at, err)
	}
	for _, name := range []string{"tmp", "ballast", "objects", "objects.id", "training", "workloads", "engines/hpc/workloads"} {
		if _, err := os.Lstat(filepath.Join(to.Data, name)); err == nil {
			t.Errorf("%s was restored", name)
		}
	}
	if got := content(t, filepath.Join(to.Data, "online.id")); !strings.HasPrefix(got, "restored onl_") {
		t.Errorf("of the online store it says %q", got)
	}
	n := 0
	must(t, of.Objects.List(t.Context(), "", func(k blob.Key) error {
		n++
		var all [2][]byte
		for i, d := range []blob.Driver{of.Objects, to.Objects} {
			o, err := d.Open(t.Context(), k)
			must(t, err)
			all[i], err = io.ReadAll(o)
			must(t, err)
		}
		if !bytes.Equal(all[0], all[1]) {
			t.Errorf("object %s is another", k)
		}
		return nil
	}))
	if n != 3 {
		t.Errorf("%d objects", n)
	}
	if _, err := restore(t, dir, to); !fault.Is(err, fault.Conflict) {
		t.Errorf("over an installation: %v", err)
	}
	if _, err := backup.Make(t.Context(), dir, of, "v1"); !fault.Is(err, fault.Conflict) {
		t.Errorf("over a backup: %v", err)
	}
	if _, err := backup.Make(t.Context(), filepath.Join(of.Data, "backup"), of, "v1"); !fault.Is(err, fault.Invalid) {
		t.Errorf("into itself: %v", err)
	}
}

// rootless takes from the test's thread what root may do to files of any mode.
func rootless(t *testing.T) (again func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		return func() {}
	}
	runtime.LockOSThread()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	must(t, unix.Capget(&h, &d[0]))
	had := d[0].Effective
	d[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	must(t, unix.Capset(&h, &d[0]))
	return func() {
		d[0].Effective = had
		must(t, unix.Capset(&h, &d[0]))
		runtime.UnlockOSThread()
	}
}

// What programs of jobs, images and packages leave keeps nobody from making a backup,
// and what Make made Restore takes.
func TestWhatProgramsLeave(t *testing.T) {
	of := installation(t)
	for _, dir := range []string{filepath.Join(of.Tables, "orders", "data"), filepath.Join(of.Data, "images", "1", "rootfs"), filepath.Join(of.Data, "environments", "py")} {
		put(t, filepath.Join(dir, "caf\xe9"), "coffee")
		put(t, filepath.Join(dir, "th\xe9\xff", "vert\nou\\noir"), "tea")
		must(t, os.Symlink("../caf\xe9", filepath.Join(dir, "th\xe9\xff", "other")))
		must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
		put(t, filepath.Join(dir, "shadow"), "nobody's")
		must(t, os.Chmod(filepath.Join(dir, "shadow"), 0))
		put(t, filepath.Join(dir, "closed", "x"), "nobody's")
		must(t, os.Chmod(filepath.Join(dir, "closed"), 0))
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o700) })
		put(t, filepath.Join(dir, "hollow"), "begin")
		must(t, os.Truncate(filepath.Join(dir, "hollow"), 1<<24))
	}
	again := rootless(t)
	defer again()
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := backup.Make(t.Context(), dir, of, "v1")
	must(t, err)
	to := empty(t)
	_, err = restore(t, dir, to)
	must(t, err)
	for _, dir := range []string{filepath.Join(to.Tables, "orders", "data"), filepath.Join(to.Data, "images", "1", "rootfs"), filepath.Join(to.Data, "environments", "py")} {
		if got := content(t, filepath.Join(dir, "caf\xe9")) + content(t, filepath.Join(dir, "th\xe9\xff", "vert\nou\\noir")); got != "coffeetea" {
			t.Errorf("%s: %q", dir, got)
		}
		if got, err := os.Readlink(filepath.Join(dir, "th\xe9\xff", "other")); err != nil || got != "../caf\xe9" {
			t.Errorf("%s: the link is to %q, %v", dir, got, err)
		}
		for _, name := range []string{"pipe", "shadow"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				t.Errorf("%s is in %s", name, dir)
			}
		}
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, "hollow"), &st))
		if st.Size != 1<<24 || st.Blocks*512 > 1<<20 {
			t.Errorf("the hollow file of %s is of %d bytes and takes %d", dir, st.Size, st.Blocks*512)
		}
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o700) })
	}
	// What is the server's own is there, or there is no backup.
	must(t, os.Chmod(filepath.Join(of.Data, "falaj.db"), 0))
	if _, err := backup.Make(t.Context(), filepath.Join(t.TempDir(), "backup"), of, "v1"); !errors.Is(err, os.ErrPermission) {
		t.Errorf("without the database: %v", err)
	}
}

// Whatever is changed in a backup is found, and no server starts on what it left.
func TestEveryChangeIsFound(t *testing.T) {
	of := installation(t)
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := backup.Make(t.Context(), dir, of, "v1")
	must(t, err)
	files := 0
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		whole := content(t, path)
		for what, changed := range map[string]string{"longer": whole + "x", "flipped": flip(whole), "shorter": whole[:len(whole)/2]} {
			if changed == whole {
				continue
			}
			put(t, path, changed)
			to := empty(t)
			if _, err := restore(t, dir, to); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s is %s: %v", path, what, err)
			}
		}
		must(t, os.Remove(path))
		to := empty(t)
		_, err = restore(t, dir, to)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s is not there: %v", path, err)
		}
		if entries, _ := os.ReadDir(to.Data); len(entries) > 0 && backup.Unfinished(to.Data) == nil {
			t.Errorf("%s is not there: %v is left, and a server would start", path, entries)
		}
		put(t, path, whole)
		// What was left is no hindrance to another attempt.
		if _, err := restore(t, dir, to); err != nil {
			t.Errorf("again: %v", err)
		}
		return nil
	}))
	if files != 10 { // six files, three objects, the manifest
		t.Errorf("%d files", files)
	}
}

func flip(s string) string {
	if s == "" {
		return s
	}
	b := []byte(s)
	b[len(b)/2] ^= 1
	return string(b)
}

// stopping is a driver that breaks off.
type stopping struct{ blob.Driver }

func (stopping) List(context.Context, blob.Key, func(blob.Key) error) error {
	return errors.New("the disk is full")
}

func TestUnfinished(t *testing.T) {
	of := installation(t)
	of.Objects = stopping{of.Objects}
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Make(t.Context(), dir, of, "v1"); err == nil {
		t.Fatal("made")
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what failed takes room: %v", err)
	}
	theirs := t.TempDir()
	if _, err := backup.Make(t.Context(), theirs, of, "v1"); err == nil {
		t.Fatal("made")
	}
	if left, err := os.ReadDir(theirs); err != nil || len(left) > 0 {
		t.Errorf("what failed takes room: %v, %v", left, err)
	}
	put(t, filepath.Join(dir, "manifest.jsonl.part"), "{}\n") // as when it was killed
	put(t, filepath.Join(dir, "files", "x"), "half of it")
	to := empty(t)
	if _, err := restore(t, dir, to); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "is incomplete") {
		t.Errorf("%v", err)
	}
	must(t, backup.Discard(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was killed takes room: %v", err)
	}
	put(t, filepath.Join(dir, "files", "x"), "somebody's")
	if err := backup.Discard(dir); !fault.Is(err, fault.NotFound) || content(t, filepath.Join(dir, "files", "x")) != "somebody's" {
		t.Errorf("what is no backup: %v", err)
	}
	if entries, _ := os.ReadDir(to.Data); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	if _, err := restore(t, t.TempDir(), to); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "no backup") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := backup.Make(ctx, filepath.Join(t.TempDir(), "backup"), of, "v1"); !fault.Is(err, fault.Timeout) {
		t.Errorf("a context that has ended: %v", err)
	}
}

func TestLedgers(t *testing.T) {
	of := installation(t) // whose ledger is "one"
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := backup.Make(t.Context(), dir, of, "v1")
	must(t, err)
	for _, c := range []struct {
		there, want string
		backups     bool
	}{{"one\ntwo\n", "one\ntwo\n", false}, {"one\n", "one\n", true}, {"on", "one\n", true}} {
		to := empty(t)
		put(t, to.Ledger, c.there)
		r, err := restore(t, dir, to)
		if err != nil || r.Ledger != c.backups || content(t, to.Ledger) != c.want {
			t.Errorf("%q: %v %+v", c.there, err, r)
		}
	}
	to := empty(t)
	if r, err := restore(t, dir, to); err != nil || !r.Ledger || content(t, to.Ledger) != "one\n" {
		t.Errorf("none there: %v %+v", err, r)
	}
	to = empty(t)
	put(t, to.Ledger, "another\n")
	if _, err := restore(t, dir, to); !fault.Is(err, fault.Conflict) || content(t, to.Ledger) != "another\n" {
		t.Errorf("another's: %v", err)
	}
}

// The backup's last line was cut off by a kill; the server cut it away and went on.
func TestLedgerWithATornLine(t *testing.T) {
	of := installation(t)
	put(t, of.Ledger, "one\ntw")
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := backup.Make(t.Context(), dir, of, "v1")
	must(t, err)
	to := empty(t)
	put(t, to.Ledger, "one\nthree\n")
	if r, err := restore(t, dir, to); err != nil || r.Ledger || content(t, to.Ledger) != "one\nthree\n" {
		t.Errorf("%v %+v", err, r)
	}
}

// Where no person was erased before the backup, those since are not known either.
func TestNoLedgerAnywhere(t *testing.T) {
	of := installation(t)
	must(t, os.Remove(of.Ledger))
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := backup.Make(t.Context(), dir, of, "v1")
	must(t, err)
	if r, err := restore(t, dir, empty(t)); err != nil || !r.Ledger {
		t.Errorf("%v %+v", err, r)
	}
	to := empty(t)
	put(t, to.Ledger, "one\n")
	if r, err := restore(t, dir, to); err != nil || r.Ledger {
		t.Errorf("with a ledger: %v %+v", err, r)
	}
}

// Only what the interrupted restoring had found empty is emptied.
func TestAgainIntoAnotherDirectoryOfTables(t *testing.T) {
	of := installation(t)
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := backup.Make(t.Context(), dir, of, "v1")
	must(t, err)
	to := empty(t)
	if _, err := backup.Prepare(dir, to, ""); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(to.Tables, "half")
	put(t, half, "of a table")
	tablesInUse := to
	tablesInUse.Tables = t.TempDir()
	theirs := filepath.Join(tablesInUse.Tables, "orders.parquet")
	put(t, theirs, "theirs")
	if _, err := backup.Prepare(dir, tablesInUse, ""); !fault.Is(err, fault.Conflict) || content(t, theirs) != "theirs" {
		t.Errorf("%v", err)
	}
	if _, err := restore(t, dir, to); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(half); err == nil {
		t.Error("what the interrupted one left is there")
	}
}

// What cuts a note short, such as a full disk, makes no damaged file of the next one.
func TestNoteAfterATornOne(t *testing.T) {
	data := t.TempDir()
	must(t, backup.AddNote(data, backup.Note{Act: "one"}))
	files, err := os.ReadDir(data)
	must(t, err)
	at := filepath.Join(data, files[0].Name())
	put(t, at, content(t, at)+`{"act":"backup.ma`)
	must(t, backup.AddNote(data, backup.Note{Act: "two"}))
	all, _, err := backup.Notes(data)
	if err != nil || len(all) != 2 || all[0].Act != "one" || all[1].Act != "two" {
		t.Errorf("%v, %v", all, err)
	}
}
