package sandbox

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

func TestParseHierarchies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mounts, groups, controllers string
		want                        map[string]hierarchy
	}{
		"version 1": {
			"30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup none rw,memory\n" +
				"31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup none rw,cpu,cpuacct\n",
			"4:memory:/a/b\n3:cpu,cpuacct:/c\n0::/\n", "",
			map[string]hierarchy{
				"memory": {base: "/sys/fs/cgroup/memory/a/b"}, "cpu": {base: "/sys/fs/cgroup/cpu,cpuacct/c"}, "cpuacct": {base: "/sys/fs/cgroup/cpu,cpuacct/c"},
			},
		},
		"version 2": {
			"30 25 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n", "0::/system.slice/falaj.service\n", "cpu memory pids",
			map[string]hierarchy{
				"memory": {base: "/sys/fs/cgroup/system.slice/falaj.service", v2: true}, "cpu": {base: "/sys/fs/cgroup/system.slice/falaj.service", v2: true},
				"pids": {base: "/sys/fs/cgroup/system.slice/falaj.service", v2: true},
			},
		},
		"a delegated subgroup": {
			"30 25 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n", "0::/falaj.service/server\n", "memory",
			map[string]hierarchy{"memory": {base: "/sys/fs/cgroup/falaj.service", v2: true}},
		},
		"in a container": {
			"30 25 0:26 /docker/123 /sys/fs/cgroup/memory ro - cgroup none rw,memory\n", "4:memory:/docker/123\n", "",
			map[string]hierarchy{"memory": {base: "/sys/fs/cgroup/memory"}},
		},
		"nothing": {"garbage\n - \n", "x\n", "", map[string]hierarchy{}},
	} {
		got := parseHierarchies(bufio.NewScanner(strings.NewReader(c.mounts)), c.groups, func(string) string { return c.controllers })
		if len(got) != len(c.want) {
			t.Errorf("%s: %v", name, got)
		}
		for k, w := range c.want {
			if got[k] != w {
				t.Errorf("%s: %s is %v, want %v", name, k, got[k], w)
			}
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/", "/a", false}, {"/a", "/", true}} {
		if within(c.path, c.dir) != c.want {
			t.Errorf("%+v", c)
		}
	}
}

func FuzzSockaddr(f *testing.F) {
	for _, family := range []uint16{unix.AF_INET, unix.AF_INET6, unix.AF_UNIX, unix.AF_NETLINK} {
		f.Add(append(binary.NativeEndian.AppendUint16(nil, family), "/a/path\x00and more than is needed, for all of them"...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := parseSockaddr(b); ok && a.String() == "" {
			t.Errorf("%x has no name", b)
		}
	})
}

func FuzzHierarchies(f *testing.F) {
	f.Add("30 25 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n", "0::/../../a\n")
	f.Fuzz(func(t *testing.T, mounts, groups string) {
		for name, h := range parseHierarchies(bufio.NewScanner(strings.NewReader(mounts)), groups, func(string) string { return "memory" }) {
			if h.base == "" {
				t.Errorf("%s has no place", name)
			}
		}
	})
}

// TestOlderServer: a server of before this worker names no namespace of owners;
// what it gives keeps its owner all the same.
func TestOlderServer(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("without root nothing is mapped")
		return
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o700), os.WriteFile(filepath.Join(dir, "in"), []byte("given"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, writable := range map[string]bool{"writable": true, "private and read-only": false} {
		script := "cat in"
		if writable {
			script += "; echo made > out"
		}
		c, err := Command(t.Context(), sandboxtest.Worker(t), Policy{Level: Sandbox, Dir: dir, Mounts: []Mount{{Path: dir, Writable: writable}}}, "/bin/sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		c.groups = newCgroups(c.policy)
		if err := errors.Join(c.launch(c.spec()), c.Wait()); err != nil || out.String() != "given" {
			t.Errorf("%s: %v %s", name, err, &out)
		}
	}
	for _, name := range []string{"", "in", "out"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%q: %v %+v", name, err, info)
		}
	}

	// What is no such namespace is refused, and nothing is given away.
	c, err := Command(t.Context(), sandboxtest.Worker(t), Policy{Level: Sandbox, Mounts: []Mount{{Path: dir, Writable: true}}}, "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	spec := c.spec()
	spec.Owners = wire.FirstFD
	c.groups = newCgroups(c.policy)
	if err := errors.Join(c.launch(spec, null), c.Wait()); err == nil || !strings.Contains(err.Error(), "namespace of owners") {
		t.Errorf("%v", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v %+v", err, info)
	}
}

func TestWhatPassesIsNotUnsupported(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{nil: false, syscall.EAGAIN: false, syscall.EMFILE: false, syscall.ENOMEM: false, syscall.EPERM: true, syscall.ENOSPC: true} {
		if forbidden(err) != want {
			t.Errorf("%v", err)
		}
	}
}
