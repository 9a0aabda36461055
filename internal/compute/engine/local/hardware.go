package local

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
)

// Options of a pool on this engine, for how its workloads use the hardware.
const (
	optionAffinity  = "affinity"   // close: threads of OpenMP stay on their cores
	optionAllocator = "allocator"  // jemalloc or tcmalloc instead of the C library's
	optionHugePages = "huge_pages" // "true": memory in huge pages where programs ask for much
	optionMemory    = "memory"     // near: only memory of the NUMA nodes of a worker's cores
	optionShared    = "shared"     // understood, and always so here
)

// CheckOptions refuses options of a pool that this engine does not have.
func CheckOptions(options map[string]string) error {
	for name, v := range options {
		var may []string
		switch name {
		case optionAffinity:
			may = []string{"close", "none"}
		case optionAllocator:
			may = []string{"jemalloc", "tcmalloc", "system"}
		case optionMemory:
			may = []string{"near", "any"}
		case optionSharing:
			may = []string{"mps"}
		case optionAcross:
			may = []string{"projects"}
		case optionShares, optionPipe:
			may = []string{v} // sharingOf looks
		case optionHugePages, optionShared:
			may = []string{"true", "false"}
		default:
			return fault.New(fault.Invalid, "this machine's engine has no option %.60q", name).
				WithHint("It has affinity, allocator, huge_pages, memory, shared, sharing, shares, mps_pipe and share_across.")
		}
		if !slices.Contains(may, v) {
			return fault.New(fault.Invalid, "option %s is %.60q", name, v).WithHint("Use %s.", strings.Join(may, " or "))
		}
	}
	_, err := sharingOf(options)
	return err
}

// Check refuses options of a pool that this machine cannot keep.
func (d *Driver) Check(options map[string]string) error {
	if err := d.tune(options, 1, map[string]string{}); err != nil {
		return err
	}
	if _, err := d.near(options, nil, 0); err != nil {
		return err
	}
	return d.checkSharing(options)
}

// near gives the NUMA nodes of cores, all of them for none, where the pool binds
// memory to them; nil where it does not. While those have less memory than is asked
// for, the node with the most of the others is added: of a program that finds none
// left on its nodes, the kernel's out-of-memory killer kills a process there.
func (d *Driver) near(options map[string]string, cores []int, memory resource.Bytes) ([]int, error) {
	if options[optionMemory] != "near" {
		return nil, nil
	}
	numa := d.c.Facts.CPU.NUMA
	if len(numa) == 0 {
		return nil, fault.New(fault.Invalid, "this machine's kernel reports no NUMA nodes, so memory cannot be bound to them").
			WithHint("Remove the option memory.")
	}
	var nodes []int
	var others []machine.NUMA
	for _, n := range numa {
		if len(cores) == 0 || slices.ContainsFunc(n.CPUs, func(c int) bool { return slices.Contains(cores, c) }) {
			nodes = append(nodes, n.ID)
			memory -= n.Memory
		} else {
			others = append(others, n)
		}
	}
	slices.SortStableFunc(others, func(a, b machine.NUMA) int { return cmp.Compare(b.Memory, a.Memory) })
	for _, n := range others {
		if memory <= 0 {
			break
		}
		nodes = append(nodes, n.ID)
		memory -= n.Memory
	}
	slices.Sort(nodes)
	return nodes, nil
}

// libraries are where distributions put the allocators.
var libraries = map[string][]string{
	"jemalloc": {"libjemalloc.so.2"},
	"tcmalloc": {"libtcmalloc_minimal.so.4", "libtcmalloc.so.4"},
}

var libraryDirs = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"}

// tune adds what the number of threads and the pool's options say to a
// worker's variables, where it does not say so itself.
func (d *Driver) tune(options map[string]string, threads int, env map[string]string) error {
	if err := CheckOptions(options); err != nil {
		return err
	}
	set := func(name, v string) {
		if _, given := env[name]; !given {
			env[name] = v
		}
	}
	if threads > 0 {
		// Else numerical libraries start a thread for each core they see.
		for _, name := range []string{"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"} {
			set(name, strconv.Itoa(threads))
		}
	}
	if options[optionAffinity] == "close" {
		set("OMP_PROC_BIND", "close")
		set("OMP_PLACES", "cores")
		set("KMP_AFFINITY", "granularity=fine,compact,1,0")
		set("KMP_BLOCKTIME", "1")
	}
	if options[optionHugePages] == "true" {
		if d.c.Facts.Transparent == "never" {
			return fault.New(fault.Invalid, "this machine's transparent huge pages are off, so huge_pages has no effect").
				WithHint("Write madvise to /sys/kernel/mm/transparent_hugepage/enabled, or remove the option.")
		}
		set("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1") // since glibc 2.35: madvise
		set("MALLOC_CONF", "thp:always")                // jemalloc
		set("THP_MEM_ALLOC_ENABLE", "1")                // PyTorch's tensors on the CPU
	}
	if names := libraries[options[optionAllocator]]; names != nil {
		path := library(names)
		if path == "" {
			return fault.New(fault.Invalid, "the allocator %s is not on this machine", options[optionAllocator]).
				WithHint("Install it (apt-get install libjemalloc2, or libtcmalloc-minimal4), or remove the option.")
		}
		set("LD_PRELOAD", path)
	}
	return nil
}

func library(names []string) string {
	for _, dir := range libraryDirs {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	return ""
}

// assign picks accelerators for each worker that no live workload has. Those
// that the inventory does not know — declared in the pool's manifest — are not
// picked: then known is false.
func (d *Driver) assign(spec engine.Spec) (each [][]machine.Accelerator, known bool, err error) {
	all, err := d.c.Accelerators.List()
	if err != nil {
		return nil, false, fault.Wrap(err, "detecting accelerators")
	}
	taken := map[string]bool{}
	for _, w := range d.live() {
		for _, uuids := range w.extras.Devices {
			for _, uuid := range uuids {
				taken[uuid] = true
			}
		}
	}
	each = make([][]machine.Accelerator, spec.Size())
	for i := range each {
		for name, n := range spec.Of(i).Accelerators {
			if n == 0 || !slices.ContainsFunc(all, func(a machine.Accelerator) bool { return a.Resource == name }) {
				continue
			}
			known = true
			for _, a := range all {
				if n > 0 && a.Resource == name && !taken[a.UUID] {
					taken[a.UUID] = true
					each[i] = append(each[i], a)
					n--
				}
			}
			if n > 0 {
				return nil, true, fault.New(fault.Unavailable, "workload %s needs %d more of %s than are free on this machine", spec.ID, n, name)
			}
		}
	}
	return each, known, nil
}

// shown are the variables that show a worker its accelerators and no others,
// by names that do not depend on other allocations.
func shown(devices []machine.Accelerator) map[string]string {
	visible := strings.Join(uuids(devices), ",")
	return map[string]string{"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
}

func uuids(devices []machine.Accelerator) []string {
	names := make([]string, len(devices))
	for i, a := range devices {
		names[i] = a.UUID
	}
	return names
}

// equip gives the workload's workers their accelerators: variables for each
// (for one worker in env itself), device files for all, and what to remember.
func (d *Driver) equip(spec engine.Spec, level sandbox.Level, env map[string]string) (files []string, each []map[string]string, remember [][]string, err error) {
	devices, s, err := d.share(spec, level)
	known := devices != nil
	if !known && err == nil {
		devices, known, err = d.assign(spec)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if !known {
		files := acceleratorDevices(spec.Total().Accelerators, env)
		if all, err := d.c.Accelerators.List(); err == nil && len(all) > 0 && len(files) == 0 {
			env["CUDA_VISIBLE_DEVICES"] = "" // where devices cannot be hidden
		}
		return files, nil, nil, nil
	}
	for _, mine := range devices {
		sees := shown(mine)
		if s.shares > 0 && len(mine) > 0 {
			maps.Copy(sees, s.limits(mine[0]))
		}
		each = append(each, sees)
		remember = append(remember, uuids(mine))
		for _, a := range mine {
			for _, f := range a.Files {
				if _, err := os.Stat(f); err == nil && !slices.Contains(files, f) {
					files = append(files, f)
				} else if err != nil && !errors.Is(err, os.ErrNotExist) {
					return nil, nil, nil, fault.Wrap(err, "allocating %s to %s", f, spec.ID)
				}
			}
		}
	}
	if !supervised(spec) {
		maps.Copy(env, each[0])
	}
	return files, each, remember, nil
}

// accelerators samples what a worker's accelerators do.
func (d *Driver) accelerators(w *workload, index int) []engine.Accelerator {
	if index >= len(w.extras.Devices) {
		return nil
	}
	all, err := d.c.Accelerators.List()
	if err != nil {
		return nil
	}
	var out []engine.Accelerator
	for _, uuid := range w.extras.Devices[index] {
		k := slices.IndexFunc(all, func(a machine.Accelerator) bool { return a.UUID == uuid })
		s, ok := d.c.Accelerators.Sample(uuid)
		if k < 0 || !ok {
			continue
		}
		out = append(out, engine.Accelerator{
			Name: all[k].Name, Index: all[k].Index, Utilisation: s.Utilisation, Memory: s.Memory, Watts: s.Watts, Celsius: s.Celsius,
		})
	}
	return out
}
