package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/resource"
)

func TestMemoryLimit(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  resource.Bytes
	}{
		"machine":     {map[string]string{"proc/meminfo": "MemTotal: 1048576 kB\n"}, resource.GiB},
		"unlimited":   {map[string]string{"proc/meminfo": "MemTotal: 1048576 kB\n", "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "max\n"}, resource.GiB},
		"version 2":   {map[string]string{"proc/meminfo": "MemTotal: 1048576 kB\n", "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/b/memory.max": "2097152\n"}, resource.MiB},
		"version 1":   {map[string]string{"proc/meminfo": "MemTotal: 1048576 kB\n", "proc/self/cgroup": "4:cpu:/x\n3:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1048576\n"}, resource.MiB},
		"container":   {map[string]string{"proc/meminfo": "MemTotal: 1048576 kB\n", "proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/memory.max": "1048576\n"}, resource.MiB},
		"not known":   {nil, 0},
		"no such v 1": {map[string]string{"proc/meminfo": "MemTotal: 1048576 kB\n", "proc/self/cgroup": "3:memory:/x\nnonsense\n"}, resource.GiB},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			at := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(at), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := MemoryLimit(root); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
