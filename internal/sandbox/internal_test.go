package sandbox

import (
	"bufio"
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
