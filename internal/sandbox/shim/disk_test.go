package shim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

func write(t *testing.T, path string, size int) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestMeasure: what counts, what does not, and where a measurement ends.
func TestMeasure(t *testing.T) {
	t.Parallel()
	const block = 64 << 10
	for name, c := range map[string]struct {
		make  func(t *testing.T, dir string)
		limit Limit
		bytes [2]resource.Bytes // from, to
		files int64
		over  bool
		err   string
	}{
		"nothing": {make: func(*testing.T, string) {}},
		"files":   {make: func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/a", block); write(t, dir+"/b/c", block) }, bytes: [2]resource.Bytes{2 * block, 3 * block}, files: 3},
		"a hole": {make: func(t *testing.T, dir string) {
			t.Helper()
			write(t, dir+"/a", 0)
			must(t, os.Truncate(dir+"/a", 1<<40))
		}, bytes: [2]resource.Bytes{0, block}, files: 1},
		"hard links": {make: func(t *testing.T, dir string) {
			t.Helper()
			write(t, dir+"/a", block)
			must(t, os.Link(dir+"/a", dir+"/b"))
		}, bytes: [2]resource.Bytes{block, block}, files: 1},
		"a link out": {make: func(t *testing.T, dir string) { t.Helper(); must(t, os.Symlink("/usr", dir+"/a")) }, bytes: [2]resource.Bytes{0, block}, files: 1},
		"a closed directory": {make: func(t *testing.T, dir string) {
			t.Helper()
			write(t, dir+"/shut/a", block)
			must(t, os.Chmod(dir+"/shut", 0))
		}, bytes: [2]resource.Bytes{block, 2 * block}, files: 2},
		"bytes beyond the limit": {make: func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/a", 3*block) }, limit: Limit{Bytes: 2 * block}, bytes: [2]resource.Bytes{3 * block, 4 * block}, files: 1, over: true},
		"of a kind":              {make: func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/a", 3*block) }, limit: Limit{Kind: "scratch", Bytes: 2 * block}, bytes: [2]resource.Bytes{3 * block, 4 * block}, files: 1, over: true},
		"of another kind":        {make: func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/a", 3*block) }, limit: Limit{Kind: "output", Bytes: 2 * block}, bytes: [2]resource.Bytes{3 * block, 4 * block}, files: 1},
		"files beyond the limit": {make: func(t *testing.T, dir string) {
			t.Helper()
			for i := range 100 {
				write(t, fmt.Sprint(dir, "/", i), 0)
			}
		}, limit: Limit{Files: 10}, bytes: [2]resource.Bytes{0, 1 << 40}, files: 11, over: true}, // and it stops there
		"too deep": {make: func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.MkdirAll(dir+strings.Repeat("/d", maxDepth+1), 0o700))
		}, bytes: [2]resource.Bytes{0, 1 << 40}, files: maxDepth, err: "nested deeper"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c.make(t, dir)
			d := Disk{Trees: []Tree{{Dir: dir, Kind: "scratch"}, {Dir: filepath.Join(dir, "absent"), Kind: "output"}}, Limits: []Limit{c.limit}}
			used, err := d.Measure(nil)
			sum := Total(used)
			if sum.Bytes < c.bytes[0] || sum.Bytes > c.bytes[1] || sum.Files != c.files {
				t.Errorf("%+v", sum)
			}
			if _, over := d.exceeded(used); over != c.over {
				t.Errorf("beyond the limit: %v", over)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%v", err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMeasureBefore: what a shared directory held before does not count.
func TestMeasureBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir+"/old", 1<<20)
	d := Disk{Trees: []Tree{{Dir: dir, Kind: "other", Others: true}}, Limits: []Limit{{Bytes: 1 << 19}}}
	before := d.Before()
	if used, err := d.Measure(before); err != nil || Total(used) != (Use{}) {
		t.Errorf("%+v %v", used, err)
	}
	write(t, dir+"/new", 1<<20)
	used, err := d.Measure(before)
	if _, over := d.exceeded(used); err != nil || !over {
		t.Errorf("%+v %v", used, err)
	}
}

// TestNameless: a file that a process holds open counts after its name is gone.
func TestNameless(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec 3>f; rm f; head -c 1048576 /dev/zero >&3; echo; read x")
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _, _ = in.Close(), cmd.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	d := Disk{Trees: []Tree{{Dir: dir, Kind: "scratch"}}}
	used, _ := d.Measure(nil)
	d.nameless(used, os.Getpid())
	if used["scratch"].Bytes < 1<<20 {
		t.Errorf("%+v", used)
	}
}

// TestDue: a walk over the trees is worth it when what the disk has lost could take the
// program beyond a limit, and now and then.
func TestDue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	free, ok := freeSpace(dir)
	if !ok {
		t.Fatal("no statfs")
	}
	now := time.Unix(1e9, 0)
	limited := Disk{Trees: []Tree{{Dir: dir, Kind: "scratch"}}, Limits: []Limit{{Bytes: resource.GiB, Files: 1000}}}
	for name, c := range map[string]struct {
		w    diskWatch
		want bool
	}{
		"never measured":  {diskWatch{disk: limited, dir: dir}, true},
		"just measured":   {diskWatch{disk: limited, dir: dir, at: now.Add(-leastRest / 2), free: space{bytes: free.bytes + 1<<40, files: free.files + 1<<30}}, false},
		"nothing is lost": {diskWatch{disk: limited, dir: dir, at: now.Add(-10 * time.Second), free: space{bytes: free.bytes - 1<<30, files: free.files - 1<<20}}, false},
		"bytes are lost":  {diskWatch{disk: limited, dir: dir, at: now.Add(-10 * time.Second), free: space{bytes: free.bytes + 1<<40, files: free.files - 1<<20}}, true},
		"files are lost":  {diskWatch{disk: limited, dir: dir, at: now.Add(-10 * time.Second), free: space{bytes: free.bytes - 1<<30, files: free.files + 1<<30}}, true},
		"long ago":        {diskWatch{disk: limited, dir: dir, at: now.Add(-measureEvery), free: free}, true},
		"long ago, slow":  {diskWatch{disk: limited, dir: dir, at: now.Add(-measureEvery), took: measureEvery, free: space{bytes: free.bytes - 1<<30, files: free.files - 1<<20}}, false},
	} {
		if got := c.w.due(now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestDrop: the scratch goes, the output only when it is most of what the program may keep, the
// checkpoints never.
func TestDrop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		output int
		stays  bool
	}{{1 << 10, true}, {3 << 19, false}} {
		dir := t.TempDir()
		write(t, dir+"/scratch/shut/a", 1<<20)
		must(t, os.Chmod(dir+"/scratch/shut", 0o500))
		write(t, dir+"/output/a", c.output)
		write(t, dir+"/checkpoints/a", 1<<20)
		d := Disk{
			Trees: []Tree{
				{Dir: dir + "/scratch", Kind: "scratch", Drop: true}, {Dir: dir + "/output", Kind: "output"}, {Dir: dir + "/checkpoints", Kind: "checkpoints"},
			},
			Limits: []Limit{{Bytes: 2 << 20}},
		}
		d.drop()
		there := func(name string) bool {
			_, err := os.Lstat(dir + "/" + name)
			return err == nil
		}
		if there("scratch/shut") || there("output/a") != c.stays || !there("checkpoints/a") {
			t.Errorf("output of %d bytes: %v %v %v", c.output, there("scratch/shut"), there("output/a"), there("checkpoints/a"))
		}
	}
}

// TestSpare: the record of an end is written on a disk with no room for bytes, nor for
// files, by a process that mounts one of its own.
func TestSpare(t *testing.T) {
	dir := os.Getenv("FALAJ_TEST_SMALL_DISK") //nolint:forbidigo // How this test calls itself.
	if dir == "" {
		inSmallDisk(t, "^TestSpare$")
		return
	}
	for what, options := range map[string]string{"bytes": "size=1m", "files": "nr_inodes=20"} {
		must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, options))
		must(t, Write(dir, StatusFile, Status{State: Running}))
		must(t, Spare(dir, StatusFile))
		var err error
		for i := 0; err == nil; i++ {
			err = os.WriteFile(fmt.Sprint(dir, "/", i), make([]byte, 64<<10), 0o600)
			if what == "files" && err == nil {
				err = os.Truncate(fmt.Sprint(dir, "/", i), 0)
			}
		}
		if !full(err) {
			t.Fatal(err)
		}
		for _, message := range []string{"the first", "and one more"} { // by what the first has freed
			must(t, Write(dir, StatusFile, Status{State: Ended, Message: message}))
			if st, err := Read[Status](dir, StatusFile); err != nil || st.Message != message {
				t.Errorf("%s: %+v %v", what, st, err)
			}
		}
		must(t, syscall.Unmount(dir, 0))
	}
}

// inSmallDisk runs a test again in a mount namespace of its own.
func inSmallDisk(t *testing.T, run string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+run)
	cmd.Env = append(os.Environ(), "FALAJ_TEST_SMALL_DISK="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this machine permits no user namespaces (%v)", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
