package fileblob_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Two tests run this binary again as a child with a role and a directory.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "child-writer" {
		writer(os.Args[2])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "child-full-disk" {
		fullDisk(os.Args[2])
		return
	}
	m.Run()
}

func child(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, role, dir)
	cmd.Stderr = os.Stderr
	return cmd
}

func open(t *testing.T, dir string) *fileblob.Driver {
	t.Helper()
	d, err := fileblob.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Driver {
		t.Helper()
		return open(t, t.TempDir())
	})
}

func TestFilesArePrivateAndNothingIsLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "objects")
	d := open(t, dir)
	if err := d.Put(t.Context(), "a/b", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{".": 0o700, "a": 0o700, "a/b,": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if err := d.Delete(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(rest) != 0 {
		t.Errorf("left: %v, %v", rest, err)
	}
}

// Other programs read and write an object of a named directory under its key.
func TestNamed(t *testing.T) {
	dir := t.TempDir()
	d, err := fileblob.OpenNamed(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Put(t.Context(), "t/v1/data.parquet", strings.NewReader("ours")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "t/v1/data.parquet")); err != nil || string(b) != "ours" {
		t.Fatal(string(b), err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "t/data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "t/data/theirs.parquet"), []byte("theirs"), 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := d.Open(t.Context(), "t/data/theirs.parquet")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if b, err := io.ReadAll(o); err != nil || string(b) != "theirs" {
		t.Fatal(string(b), err)
	}
	var keys []string
	if err := d.List(t.Context(), "", func(k blob.Key) error {
		keys = append(keys, string(k))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(keys, " "); got != "t/data/theirs.parquet t/v1/data.parquet" {
		t.Errorf("listed: %s", got)
	}
	if err := d.Delete(t.Context(), "t/data/theirs.parquet"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "t/data")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory that deleting left empty: %v", err)
	}
}

func TestLinksAreRefused(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir)
	if err := d.Put(t.Context(), "in/side", strings.NewReader("inside")); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(secret, in("out,")))
	must(os.Symlink("in/side,", in("sym,")))
	must(os.Link(in("in/side,"), in("hard,")))
	must(os.Symlink(outside, in("outdir")))
	must(os.Symlink("in", in("symdir")))
	must(syscall.Mkfifo(in("pipe,"), 0o600))
	must(os.Mkdir(in("dir,"), 0o700))

	for _, k := range []blob.Key{"out", "sym", "hard", "outdir/secret", "symdir/side", "pipe", "dir"} {
		if o, err := d.Open(t.Context(), k); err == nil || fault.Is(err, fault.NotFound) {
			t.Errorf("open %s: %v", k, err)
			if err == nil {
				_ = o.Close()
			}
		}
	}
	for _, k := range []blob.Key{"outdir/new", "symdir/new"} {
		if err := d.Put(t.Context(), k, strings.NewReader("x")); err == nil {
			t.Errorf("put %s went over a link", k)
		}
		if err := d.Delete(t.Context(), k); err == nil {
			t.Errorf("delete %s went over a link", k)
		}
	}
	// A put replaces a link itself; it does not write through it.
	must(d.Put(t.Context(), "out", strings.NewReader("mine")))
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the file outside is %q, %v", b, err)
	}
	var all []blob.Key
	must(d.List(t.Context(), "", func(k blob.Key) error { all = append(all, k); return nil }))
	if fmt.Sprint(all) != "[hard in/side out]" {
		t.Errorf("list: %v", all)
	}
}

func TestLeftoversOfTheDeadAreRemoved(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, ",staging", "stg_dead")
	if err := os.MkdirAll(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "put_1"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	alive := open(t, dir)
	pr, pw := io.Pipe()
	done := make(chan error)
	go func() { done <- alive.Put(t.Context(), "k", pr) }()
	if _, err := pw.Write([]byte("first ")); err != nil { // the staged file exists now
		t.Fatal(err)
	}
	open(t, dir) // must leave the living driver's alone
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
	if _, err := pw.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	if err := pw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the put beside it: %v", err)
	}
}

// A put killed at any moment leaves the old object or the new one, and what was
// acknowledged is there.
func TestKillDuringPut(t *testing.T) {
	dir := t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	acked := uint64(0)
	for range 25 {
		cmd := child(t, "child-writer", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		// Each version is announced twice, before and after its put; stopping
		// after a random number of lines kills inside and between puts.
		for range rnd.IntN(12) + 1 {
			if !lines.Scan() {
				t.Fatal("the child ended by itself")
			}
			if v, ok := strings.CutPrefix(lines.Text(), "put "); ok {
				if _, err := fmt.Sscan(v, &acked); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range rnd.IntN(20_000) { // a moment of no fixed length
			_ = rnd.Uint64()
		}
		_ = cmd.Process.Kill()
		for lines.Scan() { // what it acknowledged before it died
			if v, ok := strings.CutPrefix(lines.Text(), "put "); ok {
				if _, err := fmt.Sscan(v, &acked); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()

		d := open(t, dir)
		version, err := readVersion(d)
		switch {
		case fault.Is(err, fault.NotFound) && acked == 0:
		case err != nil:
			t.Fatalf("after version %d: %v", acked, err)
		case version < acked:
			t.Fatalf("version %d was acknowledged, and %d is there", acked, version)
		}
		acked = max(acked, version)
		staged, err := filepath.Glob(filepath.Join(dir, ",staging", "*", "*"))
		if err != nil || len(staged) != 0 {
			t.Errorf("left: %v, %v", staged, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if acked == 0 {
		t.Error("no put was ever acknowledged")
	}
}

const objectSize = 300_000

// writer puts version after version until it is killed.
func writer(dir string) {
	d, err := fileblob.Open(dir)
	if err != nil {
		panic(err)
	}
	version, err := readVersion(d)
	if err != nil && !fault.Is(err, fault.NotFound) {
		panic(err)
	}
	for {
		version++
		fmt.Fprintf(os.Stdout, "begin %d\n", version)
		body := bytes.Repeat(binary.BigEndian.AppendUint64(nil, version), objectSize/8)
		if err := d.Put(context.Background(), "deep/in/object", bytes.NewReader(body)); err != nil {
			panic(err)
		}
		fmt.Fprintf(os.Stdout, "put %d\n", version)
	}
}

func readVersion(d *fileblob.Driver) (uint64, error) {
	o, err := d.Open(context.Background(), "deep/in/object")
	if err != nil {
		return 0, err
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		return 0, err
	}
	if len(b) != objectSize/8*8 {
		return 0, fmt.Errorf("torn: %d bytes", len(b))
	}
	for i := 8; i < len(b); i += 8 {
		if !bytes.Equal(b[i:i+8], b[:8]) {
			return 0, errors.New("torn: two versions in one object")
		}
	}
	return binary.BigEndian.Uint64(b), nil
}

// On a disk that is really full (a small tmpfs in a mount namespace of the
// child) a put says so and leaves nothing.
func TestFullDisk(t *testing.T) {
	cmd := child(t, "child-full-disk", t.TempDir())
	cmd.Stdout = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		t.Fatalf("child: %v", err)
	}
}

// fullDisk panics, which fails the child, when something is not as it should be.
func fullDisk(dir string) {
	fail := func(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		fail("mount: %v", err)
	}
	d, err := fileblob.Open(filepath.Join(dir, "objects"))
	if err != nil {
		fail("open: %v", err)
	}
	s := blob.New(d, blobtest.NewSealer())
	ctx := context.Background()
	ref := blob.Ref{Project: "wind", Key: "a"}
	if _, err := s.Put(ctx, ref, strings.NewReader("old")); err != nil {
		fail("small put: %v", err)
	}
	for _, key := range []blob.Key{"a", "b/c"} {
		_, err = s.Put(ctx, blob.Ref{Project: "wind", Key: key}, bytes.NewReader(make([]byte, 4<<20)))
		if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
			fail("large put: %v", err)
		}
	}
	r, err := s.Open(ctx, ref)
	if err != nil {
		fail("open the old one: %v", err)
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "old" {
		fail("the old object is %q, %v", b, err)
	}
	n := 0
	if err := s.List(ctx, "", func(blob.Key) error { n++; return nil }); err != nil || n != 1 {
		fail("%d objects, %v", n, err)
	}
	// The room that the failed puts took is free again.
	if _, err := s.Put(ctx, ref, bytes.NewReader(make([]byte, 512<<10))); err != nil {
		fail("put after the full disk: %v", err)
	}
}

// Who may write to a part of a named directory puts a link in the place of a
// directory between our looks: no other object is ever read or removed by it.
func TestMovedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	d, err := fileblob.OpenNamed(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Put(t.Context(), "other/a", strings.NewReader("theirs")); err != nil {
		t.Fatal(err)
	}
	mine, link := filepath.Join(dir, "t/data/mine"), filepath.Join(dir, "t/data/link")
	if err := errors.Join(os.MkdirAll(mine, 0o700), os.WriteFile(mine+"/a", []byte("mine"), 0o600), os.Symlink("../../other", link)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var moves sync.WaitGroup
	moves.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, mine, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
				if !errors.Is(err, unix.ENOENT) { // with its last object the directory goes
					t.Error(err)
				}
				return
			}
		}
	})
	for range 5000 {
		o, err := d.Open(t.Context(), "t/data/mine/a")
		if err != nil {
			continue
		}
		b, err := io.ReadAll(o)
		_ = o.Close()
		if err != nil || string(b) != "mine" {
			t.Errorf("read %q, %v", b, err)
			break
		}
	}
	for range 500 {
		_ = d.Delete(t.Context(), "t/data/mine/a")
	}
	close(done)
	moves.Wait()
	if b, err := os.ReadFile(filepath.Join(dir, "other/a")); err != nil || string(b) != "theirs" {
		t.Errorf("the other object is %q, %v", b, err)
	}
}
