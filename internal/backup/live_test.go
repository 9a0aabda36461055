package backup_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// stepping tells before an object is yielded.
type stepping struct {
	blob.Driver
	before func(key blob.Key)
	read   func(key blob.Key) // before an object is read
}

func (s *stepping) Open(ctx context.Context, key blob.Key) (blob.Object, error) {
	o, err := s.Driver.Open(ctx, key)
	if err == nil && s.read != nil {
		o = &slow{o, func() { s.read(key) }}
	}
	return o, err
}

type slow struct {
	blob.Object
	before func()
}

func (s *slow) Read(p []byte) (int, error) {
	s.before()
	return s.Object.Read(p)
}

func (s *stepping) List(ctx context.Context, prefix blob.Key, yield func(blob.Key) error) error {
	return s.Driver.List(ctx, prefix, func(k blob.Key) error {
		if s.before != nil {
			s.before(k)
		}
		return yield(k)
	})
}

// used is an installation in use, with a real database.
type used struct {
	t       *testing.T
	of      backup.Installation
	db      *store.DB
	objects *stepping
}

func inUse(t *testing.T) *used {
	t.Helper()
	u := &used{t: t, of: installation(t), objects: &stepping{Driver: &blobtest.Memory{}}}
	must(t, os.Remove(filepath.Join(u.of.Data, "falaj.db")))
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + filepath.Join(u.of.Data, "falaj.db")})
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	u.db = db
	tables, err := fileblob.OpenNamed(u.of.Tables)
	must(t, err)
	t.Cleanup(func() { _ = tables.Close() })
	objects := backup.Hold(u.objects)
	u.of.Objects = objects
	u.of.Live = &backup.Live{
		Database: "falaj.db", Objects: objects, Tables: backup.Hold(tables), Scratch: filepath.Join(u.of.Data, "tmp", "backup"),
		Parts: []backup.Part{{Path: "online", Take: func(_ context.Context, to string) error {
			return os.CopyFS(to, os.DirFS(filepath.Join(u.of.Data, "online")))
		}}},
		Still: func(ctx context.Context, take func(ctx context.Context, sequence string) error) (*store.Snapshot, error) {
			return db.Snapshot(ctx, func(context.Context, *store.Tx) error { return nil }, func(ctx context.Context, s store.Position) error { return take(ctx, s.String()) })
		},
	}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		u.put(key, "of the moment")
		must(t, u.of.Live.Tables.Put(t.Context(), blob.Key("dir/"+key), strings.NewReader("of the moment")))
	}
	return u
}

func (u *used) put(key, content string) {
	u.t.Helper()
	must(u.t, u.of.Objects.Put(u.t.Context(), blob.Key(key), strings.NewReader(content)))
}

// What is removed, replaced or added while a backup is made is in it as it was at its
// moment; what is restored is exactly that.
func TestWhatChangesMeanwhile(t *testing.T) {
	u := inUse(t)
	tables := u.of.Live.Tables
	still := u.of.Live.Still
	u.of.Live.Still = func(ctx context.Context, take func(ctx context.Context, sequence string) error) (*store.Snapshot, error) {
		s, err := still(ctx, take)
		must(t, errors.Join(
			tables.Delete(t.Context(), "dir/a"), tables.Delete(t.Context(), "dir/b"),
			tables.Put(t.Context(), "dir/b", strings.NewReader("younger")), tables.Put(t.Context(), "dir/c", strings.NewReader("younger")),
			tables.Put(t.Context(), "dir/new", strings.NewReader("younger")),
		))
		return s, err
	}
	u.objects.before = func(key blob.Key) {
		if key != "b" { // a is saved; b and what follows is not
			return
		}
		must(t, errors.Join(
			u.of.Objects.Delete(t.Context(), "a"), u.of.Objects.Delete(t.Context(), "b"), u.of.Objects.Delete(t.Context(), "d"),
			tables.Delete(t.Context(), "dir/e"),
		))
		u.put("c", "younger")
		u.put("bb", "younger")
		u.put("bb", "younger still")
		u.put("d", "younger")
		put(t, filepath.Join(u.of.Data, "online", "1.sst"), "younger")
		must(t, u.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return tx.Append(ctx, "acts", "", "younger", nil) }))
	}
	dir := filepath.Join(t.TempDir(), "backup")
	made, err := backup.Make(t.Context(), dir, u.of, "v1")
	must(t, err)
	if made.Objects != 5 || made.Sequence != "0-0" || made.Digest == "" {
		t.Errorf("made %+v", made)
	}
	if s, err := backup.Look(dir); err != nil || s.Digest != made.Digest || s.Sequence != made.Sequence || !s.Time.Equal(made.Time) {
		t.Errorf("it says of itself %+v, %v", s, err)
	}
	if _, err := os.Stat(u.of.Live.Scratch); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was linked is left: %v", err)
	}
	to := empty(t)
	must(t, to.Objects.Put(t.Context(), "left", strings.NewReader("of another restoring")))
	_, err = restore(t, dir, to)
	must(t, err)
	var keys []string
	must(t, to.Objects.List(t.Context(), "", func(k blob.Key) error {
		keys = append(keys, string(k))
		o, err := to.Objects.Open(t.Context(), k)
		must(t, err)
		b := make([]byte, o.Size())
		_, err = o.ReadAt(b, 0)
		must(t, err)
		if string(b) != "of the moment" {
			t.Errorf("object %s is %q", k, b)
		}
		return nil
	}))
	if got := strings.Join(keys, " "); got != "a b c d e" {
		t.Errorf("restored are the objects %s", got)
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if got := content(t, filepath.Join(to.Tables, "dir", name)); got != "of the moment" {
			t.Errorf("the table's file %s is %q", name, got)
		}
	}
	if _, err := os.Stat(filepath.Join(to.Tables, "dir", "new")); err == nil {
		t.Error("a younger file of a table was restored")
	}
	if got := content(t, filepath.Join(to.Data, "online", "1.sst")); got == "younger" {
		t.Error("the online features are of later")
	}
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + filepath.Join(to.Data, "falaj.db")})
	must(t, err)
	defer db.Close()
	if records, _, err := db.ReadStream(t.Context(), "acts", store.Position{}, 10); err != nil || len(records) > 0 {
		t.Errorf("the database has %v, %v", records, err)
	}
	if notes, _, err := backup.Notes(to.Data); err != nil || len(notes) != 1 || notes[0].Act != "backup.restore" || notes[0].Detail["digest"] != made.Digest {
		t.Errorf("for the audit log: %v, %v", notes, err)
	}
	// Afterwards nothing is kept, nor held up.
	must(t, u.of.Objects.Delete(t.Context(), "e"))
}

// One that was stopped is none, and is made anew in its place; where something else is, or
// another is being made, it is refused.
func TestStoppedAndMadeAnew(t *testing.T) {
	u := inUse(t)
	dir := filepath.Join(t.TempDir(), "backup")
	ctx, cancel := context.WithCancel(t.Context())
	u.objects.before = func(key blob.Key) {
		if key == "c" {
			if _, err := backup.Make(t.Context(), dir, u.of, "v1"); !fault.Is(err, fault.Conflict) {
				t.Errorf("two at once: %v", err)
			}
			cancel()
		}
	}
	if _, err := backup.Make(ctx, dir, u.of, "v1"); err == nil {
		t.Fatal("it was stopped, and is whole")
	}
	if _, err := backup.Look(dir); !fault.Is(err, fault.NotFound) {
		t.Errorf("of one that was stopped: %v", err)
	}
	u.objects.before = nil
	made, err := backup.Make(t.Context(), dir, u.of, "v1")
	if err != nil || made.Objects != 5 {
		t.Fatalf("%+v, %v", made, err)
	}
	if _, err := restore(t, dir, empty(t)); err != nil {
		t.Error(err)
	}
	theirs := t.TempDir()
	put(t, filepath.Join(theirs, "files", "x"), "theirs")
	if _, err := backup.Make(t.Context(), theirs, u.of, "v1"); !fault.Is(err, fault.Conflict) || content(t, filepath.Join(theirs, "files", "x")) != "theirs" {
		t.Errorf("over somebody's files: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(u.of.Data, link))
	if _, err := backup.Make(t.Context(), filepath.Join(link, "backup"), u.of, "v1"); !fault.Is(err, fault.Invalid) {
		t.Errorf("into itself, by a link: %v", err)
	}
	if _, err := backup.Prepare(dir, empty(t), strings.Repeat("0", 64)); !fault.Is(err, fault.Invalid) {
		t.Errorf("with another digest: %v", err)
	}
	nested := empty(t)
	nested.Ledger = filepath.Join(nested.Data, "gov", "erasures.jsonl")
	if _, err := backup.Prepare(dir, nested, ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("a ledger deeper in the data directory: %v", err)
	}
}

// While an object is copied only who removes that one waits, and no longer than they
// want to; when the backup is stopped nobody does.
func TestASlowObjectHoldsUpNobodyElse(t *testing.T) {
	u := inUse(t)
	reading, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	u.objects.read = func(key blob.Key) {
		if key == "c" {
			once.Do(func() { close(reading) })
			<-let
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := backup.Make(ctx, filepath.Join(t.TempDir(), "backup"), u.of, "v1")
		ended <- err
	}()
	<-reading
	u.put("e", "younger")
	u.put("new", "younger")
	must(t, u.of.Objects.Delete(t.Context(), "d"))
	must(t, u.of.Objects.Delete(t.Context(), "a"))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := u.of.Objects.Delete(gone, "c"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("who has no time: %v", err)
	}
	waits := make(chan error, 1)
	go func() { waits <- u.of.Objects.Delete(t.Context(), "c") }()
	stop()
	must(t, <-waits)
	close(let)
	if err := <-ended; err == nil {
		t.Error("it was stopped, and is whole")
	}
}

// A part that takes too long holds up nobody's writes for longer than the moment may last.
func TestASlowPartHoldsUpNobody(t *testing.T) {
	u := inUse(t)
	still := u.of.Live.Still
	u.of.Live.Still = func(ctx context.Context, take func(ctx context.Context, sequence string) error) (*store.Snapshot, error) {
		return still(ctx, func(ctx context.Context, sequence string) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			return take(ctx, sequence)
		})
	}
	taking, let := make(chan struct{}), make(chan struct{})
	u.of.Live.Parts[0].Take = func(context.Context, string) error {
		close(taking)
		<-let
		return nil
	}
	ended := make(chan error, 1)
	go func() {
		_, err := backup.Make(t.Context(), filepath.Join(t.TempDir(), "backup"), u.of, "v1")
		ended <- err
	}()
	<-taking
	must(t, u.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return tx.Append(ctx, "acts", "", "theirs", nil) }))
	close(let)
	if err := <-ended; !fault.Is(err, fault.Timeout) {
		t.Errorf("it took too long: %v", err)
	}
}
