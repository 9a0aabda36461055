package machine

import (
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/resource"
)

// MemoryLimit is what this process may use: the machine's memory, or less where a cgroup
// that it is in, or one above that, has a limit. 0 when it is not known. root is "/".
func MemoryLimit(root string) resource.Bytes {
	at := func(parts ...string) string { return filepath.Join(append([]string{root}, parts...)...) }
	least := memTotal(at("proc/meminfo"))
	for l := range strings.Lines(read(at("proc/self/cgroup"))) {
		parts := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, file := "", "memory.max"
		switch {
		case parts[1] == "": // version 2
		case strings.Contains(","+parts[1]+",", ",memory,"):
			dir, file = "memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// A container sees its own cgroup as the root: then the path is not there, and the
		// root's files are those of the container.
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			n, err := strconv.ParseInt(line(at("sys/fs/cgroup", dir, group, file)), 10, 64)
			if err == nil && n > 0 && (least == 0 || resource.Bytes(n) < least) {
				least = resource.Bytes(n)
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}
