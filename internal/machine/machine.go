// Package machine says what this machine is: processors and their vector
// instructions, sockets and NUMA nodes, memory and how fast it is, kernel and C
// library, fabric, accelerators.
//
// Parts: machine.go (Facts, labels), cpu.go (processors and topology),
// spread.go (which cores a worker gets), bandwidth.go (memory, measured),
// accelerator.go (accelerators as their vendor's library lists them), name.go
// (what records call the machine), allocatable.go (what it has for workloads),
// memory.go (the memory limit of this process); nvml/ is
// that library for NVIDIA's, loaded at run time.
//
// Everything is read from /proc, /sys and the C library's file, nothing is run.
// What a machine does not tell is left out: a fact that is missing is unknown,
// never a guess.
package machine

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Facts are what is known of a machine.
type Facts struct {
	Architecture string         `json:"architecture"` // "x86_64", as the kernel says
	Kernel       string         `json:"kernel"`
	Glibc        string         `json:"glibc,omitempty"` // "2.36"; empty on another C library
	CPU          CPU            `json:"cpu"`
	Memory       resource.Bytes `json:"memory"`
	HugePages    []HugePages    `json:"huge_pages,omitempty"`
	Transparent  string         `json:"transparent_huge_pages,omitempty"` // always, madvise or never
	Fabric       []Fabric       `json:"fabric,omitempty"`
	Bandwidth    float64        `json:"memory_bandwidth,omitempty"` // bytes a second, once measured
	Accelerators []Accelerator  `json:"accelerators,omitempty"`
	Driver       string         `json:"nvidia_driver,omitempty"`
	CUDA         string         `json:"nvidia_cuda,omitempty"` // the newest that the driver serves
}

// HugePages of one size.
type HugePages struct {
	Size  resource.Bytes `json:"size"`
	Total int            `json:"total"`
	Free  int            `json:"free"`
}

// Fabric is one port of a network for remote memory access.
type Fabric struct {
	Device string `json:"device"` // "mlx5_0"
	Port   int    `json:"port"`
	Kind   string `json:"kind"`  // "InfiniBand" or "Ethernet"
	State  string `json:"state"` // "ACTIVE"
	Rate   string `json:"rate"`  // "400 Gb/sec (4X NDR)"
}

// The labels of nodes. Engines whose nodes report facts use the same names.
const (
	LabelArchitecture = "arch"             // x86_64, aarch64
	LabelKernel       = "kernel"           // 6.1.0
	LabelGlibc        = "glibc"            // 2.36
	LabelPython       = "python"           // 3.11.2,3.12.1
	LabelCPU          = "cpu.model"        // AMD EPYC 9654
	LabelVector       = "cpu.vector"       // avx2,avx512f,amx_bf16
	LabelSockets      = "cpu.sockets"      // 2
	LabelCores        = "cpu.cores"        // 192
	LabelNUMA         = "cpu.numa"         // 8
	LabelBandwidth    = "memory.bandwidth" // 310GiB/s
	LabelFabric       = "fabric"           // InfiniBand 400 Gb/sec (4X NDR)
	LabelDriver       = "nvidia.driver"    // 550.54.15
	LabelCUDA         = "nvidia.cuda"      // 12.4
	LabelGPU          = "gpu.model"        // NVIDIA H100 80GB HBM3
	LabelGPUs         = "gpu.count"        // 8
	LabelCompute      = "gpu.compute"      // 9.0, the lowest of the node
	LabelGPUMemory    = "gpu.memory"       // 80GiB, the least of the node
	LabelECC          = "gpu.ecc"          // on, off
	LabelNVLink       = "gpu.nvlink"       // nvswitch, or the number of links
)

// Read reads the facts of the machine whose file systems are below root, "/"
// for this one. Accelerators and bandwidth are other calls.
func Read(root string) Facts {
	at := func(path string) string { return filepath.Join(root, path) }
	f := Facts{CPU: readCPU(root)}
	var uts unix.Utsname
	if root == "/" && unix.Uname(&uts) == nil {
		f.Architecture = unix.ByteSliceToString(uts.Machine[:])
	}
	f.Kernel = line(at("proc/sys/kernel/osrelease"))
	f.Glibc = glibc(root)
	f.Memory = memTotal(at("proc/meminfo"))
	if _, chosen, ok := strings.Cut(line(at("sys/kernel/mm/transparent_hugepage/enabled")), "["); ok {
		f.Transparent, _, _ = strings.Cut(chosen, "]")
	}
	sizes, _ := filepath.Glob(at("sys/kernel/mm/hugepages/hugepages-*kB"))
	for _, dir := range sizes {
		kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB"))
		if n := number(filepath.Join(dir, "nr_hugepages")); err == nil && n > 0 {
			f.HugePages = append(f.HugePages, HugePages{Size: resource.Bytes(kb) * resource.KiB, Total: n, Free: number(filepath.Join(dir, "free_hugepages"))})
		}
	}
	ports, _ := filepath.Glob(at("sys/class/infiniband/*/ports/*"))
	for _, dir := range ports {
		port, _ := strconv.Atoi(filepath.Base(dir))
		_, state, _ := strings.Cut(line(filepath.Join(dir, "state")), ": ")
		f.Fabric = append(f.Fabric, Fabric{
			Device: filepath.Base(filepath.Dir(filepath.Dir(dir))), Port: port, Kind: line(filepath.Join(dir, "link_layer")),
			State: state, Rate: line(filepath.Join(dir, "rate")),
		})
	}
	return f
}

// Labels are the facts as labels of a node; what is unknown is left out.
func (f *Facts) Labels() map[string]string {
	l := map[string]string{
		LabelArchitecture: f.Architecture, LabelKernel: f.Kernel, LabelGlibc: f.Glibc, LabelCPU: f.CPU.Model,
		LabelVector: strings.Join(f.CPU.Vector, ","), LabelDriver: f.Driver, LabelCUDA: f.CUDA,
		LabelSockets: count(f.CPU.Sockets), LabelCores: count(f.CPU.Cores), LabelNUMA: count(len(f.CPU.NUMA)),
	}
	if f.Bandwidth > 0 {
		l[LabelBandwidth] = strconv.FormatFloat(f.Bandwidth/float64(resource.GiB), 'f', 1, 64) + "GiB/s"
	}
	for _, p := range f.Fabric {
		if p.State == "ACTIVE" {
			l[LabelFabric] = strings.TrimSpace(p.Kind + " " + p.Rate)
			break
		}
	}
	label(l, f.Accelerators)
	for name, v := range l {
		if v == "" {
			delete(l, name)
		}
	}
	return l
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// maxSmall bounds files of /proc and /sys.
const maxSmall = 4 << 20

func read(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSmall))
	if err != nil {
		return ""
	}
	return string(b)
}

func line(path string) string { return strings.TrimSpace(read(path)) }

func number(path string) int {
	n, err := strconv.Atoi(line(path))
	if err != nil {
		return -1
	}
	return n
}

func memTotal(path string) resource.Bytes { return resource.Bytes(meminfo(path, "MemTotal:")) }

// meminfo reads a line such as "MemTotal:  24576000 kB", in bytes; 0 when it is
// not there.
func meminfo(path, name string) int64 {
	for l := range strings.Lines(read(path)) {
		if f := strings.Fields(l); len(f) == 3 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err == nil && n > 0 && n < 1<<50 {
				return n << 10
			}
		}
	}
	return 0
}

var glibcRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`GNU C Library [^\n]*?version ([0-9]+\.[0-9]+)`)
})

// glibc finds the version in the words that the library prints about itself.
func glibc(root string) string {
	for _, dir := range []string{"lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib"} {
		f, err := os.Open(filepath.Join(root, dir, "libc.so.6"))
		if err != nil {
			continue
		}
		words := after(io.LimitReader(f, 16<<20), "GNU C Library ")
		_ = f.Close()
		if m := glibcRE().FindSubmatch(words); m != nil {
			return string(m[1])
		}
	}
	return ""
}

// after gives what begins with a word that a binary has, some hundred bytes of it.
// Each worker reads its libc before it starts, so that is done in small pieces.
func after(r io.Reader, word string) []byte {
	const keep = 256
	buf := make([]byte, 64<<10)
	kept := 0
	for {
		n, err := io.ReadFull(r, buf[kept:])
		have := buf[:kept+n]
		if i := bytes.Index(have, []byte(word)); i >= 0 && (err != nil || len(have)-i >= keep) {
			return have[i:min(i+keep, len(have))]
		}
		if err != nil {
			return nil
		}
		kept = copy(buf, have[len(have)-keep-len(word):])
	}
}

// list reads "0-3,8,10-11".
func list(s string) []int {
	var all []int
	for part := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		from, to, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		b := a
		if ranged && err == nil {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 0 || b-a > 1<<16 {
			continue
		}
		for ; a <= b; a++ {
			all = append(all, a)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
