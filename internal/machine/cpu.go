package machine

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/resource"
)

// CPU is a machine's processors.
type CPU struct {
	Model   string   `json:"model,omitempty"`
	Sockets int      `json:"sockets"`
	Cores   int      `json:"cores"`   // of all sockets
	Threads int      `json:"threads"` // that the kernel runs programs on
	Vector  []string `json:"vector"`  // of the vector instructions below, those it has
	NUMA    []NUMA   `json:"numa"`
	// Where each thread is, in order of its number.
	Topology []Thread `json:"topology"`
}

// NUMA is a group of threads and the memory that is near to them.
type NUMA struct {
	ID     int            `json:"id"`
	CPUs   []int          `json:"cpus"`
	Memory resource.Bytes `json:"memory"`
}

// Thread is one processor as the kernel numbers them.
type Thread struct {
	CPU    int `json:"cpu"`
	Socket int `json:"socket"`
	Core   int `json:"core"` // within the socket
	NUMA   int `json:"numa"`
}

// vector are the instruction sets that numerical libraries choose by, as the
// kernel names them: on x86-64, then on ARM.
var vector = []string{
	"sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
	"avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
	"asimd", "asimddp", "sve", "sve2", "bf16", "i8mm",
}

func readCPU(root string) CPU {
	c := CPU{Vector: []string{}}
	sockets := map[string]bool{}
	for l := range strings.Lines(read(filepath.Join(root, "proc/cpuinfo"))) {
		name, v, _ := strings.Cut(l, ":")
		v = strings.TrimSpace(v)
		switch strings.TrimSpace(name) {
		case "processor":
			c.Threads++
		case "model name":
			c.Model = v
		case "physical id":
			sockets[v] = true
		case "flags", "Features":
			if len(c.Vector) > 0 {
				continue
			}
			has := strings.Fields(v)
			for _, set := range vector {
				if slices.Contains(has, set) {
					c.Vector = append(c.Vector, set)
				}
			}
		}
	}
	near := map[int]int{}
	nodes, _ := filepath.Glob(filepath.Join(root, "sys/devices/system/node/node[0-9]*"))
	for _, dir := range nodes {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		n := NUMA{ID: id, CPUs: list(read(filepath.Join(dir, "cpulist")))}
		for l := range strings.Lines(read(filepath.Join(dir, "meminfo"))) {
			if f := strings.Fields(l); len(f) == 5 && f[2] == "MemTotal:" {
				kb, _ := strconv.ParseInt(f[3], 10, 64)
				n.Memory = resource.Bytes(kb) * resource.KiB
			}
		}
		for _, cpu := range n.CPUs {
			near[cpu] = id
		}
		c.NUMA = append(c.NUMA, n)
	}
	slices.SortFunc(c.NUMA, func(a, b NUMA) int { return cmp.Compare(a.ID, b.ID) })
	cores := map[[2]int]bool{}
	for _, cpu := range list(read(filepath.Join(root, "sys/devices/system/cpu/online"))) {
		dir := filepath.Join(root, "sys/devices/system/cpu/cpu"+strconv.Itoa(cpu), "topology")
		t := Thread{CPU: cpu, Socket: max(number(filepath.Join(dir, "physical_package_id")), 0), Core: number(filepath.Join(dir, "core_id")), NUMA: near[cpu]}
		if t.Core < 0 {
			t.Core = cpu // each is its own where nothing is said
		}
		cores[[2]int{t.Socket, t.Core}] = true
		sockets[strconv.Itoa(t.Socket)] = true
		c.Topology = append(c.Topology, t)
	}
	c.Sockets, c.Cores = max(len(sockets), 1), len(cores)
	return c
}
