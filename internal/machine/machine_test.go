package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
)

// twoSockets is the part of /proc and /sys of a machine with two sockets of two
// cores of two threads, a fabric and huge pages.
func twoSockets(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	put := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var cpuinfo strings.Builder
	for cpu := range 8 {
		n := string(rune('0' + cpu))
		socket, core := string(rune('0'+cpu%4/2)), string(rune('0'+cpu%2))
		fmt.Fprintf(&cpuinfo, "processor\t: %s\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\nphysical id\t: %s\n"+
			"flags\t\t: fpu avx avx2 fma avx512f avx512_vnni amx_tile amx_bf16\n\n", n, socket)
		put("sys/devices/system/cpu/cpu"+n+"/topology/physical_package_id", socket+"\n")
		put("sys/devices/system/cpu/cpu"+n+"/topology/core_id", core+"\n")
	}
	put("proc/cpuinfo", cpuinfo.String())
	put("proc/meminfo", "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\n")
	put("proc/sys/kernel/osrelease", "6.1.0-13-amd64\n")
	put("sys/devices/system/cpu/online", "0-7\n")
	put("sys/devices/system/node/node0/cpulist", "0-1,4-5\n")
	put("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  524288 kB\n")
	put("sys/devices/system/node/node1/cpulist", "2-3,6-7\n")
	put("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  524288 kB\n")
	put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
	put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16\n")
	put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4\n")
	put("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")
	put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
	put("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n")
	put("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n")
	put("lib64/libc.so.6", "\x7fELF\x00GNU C Library (Debian GLIBC 2.36-9+deb12u4) stable release version 2.36.\n\x00")
	return root
}

func TestRead(t *testing.T) {
	f := Read(twoSockets(t))
	if f.CPU.Sockets != 2 || f.CPU.Cores != 4 || f.CPU.Threads != 8 || len(f.CPU.NUMA) != 2 || f.CPU.Topology[6] != (Thread{CPU: 6, Socket: 1, Core: 0, NUMA: 1}) {
		t.Errorf("%+v", f.CPU)
	}
	if f.Memory != resource.GiB || f.CPU.NUMA[1].Memory != resource.GiB/2 {
		t.Errorf("%+v", f)
	}
	if diff := cmp.Diff([]HugePages{{Size: 2 * resource.MiB, Total: 16, Free: 4}}, f.HugePages); diff != "" || f.Transparent != "madvise" {
		t.Error(f.Transparent, diff)
	}
	want := map[string]string{
		LabelKernel: "6.1.0-13-amd64", LabelGlibc: "2.36", LabelCPU: "Intel(R) Xeon(R) Platinum 8480+", LabelVector: "avx,avx2,fma,avx512f,avx512_vnni,amx_tile,amx_bf16",
		LabelSockets: "2", LabelCores: "4", LabelNUMA: "2", LabelFabric: "InfiniBand 400 Gb/sec (4X NDR)",
	}
	if diff := cmp.Diff(want, f.Labels()); diff != "" {
		t.Error(diff)
	}
	empty := Read(t.TempDir())
	if nothing := empty.Labels(); len(nothing) > 1 { // one socket, at least
		t.Errorf("of nothing: %v", nothing)
	}
}

// TestGlibc: wherever in the file the words are.
func TestGlibc(t *testing.T) {
	const words = "GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n\x00"
	for _, before := range []int{0, 100, 64<<10 - len(words), 64<<10 - 10, 64 << 10, 150 << 10} {
		for _, behind := range []int{0, 100, 70 << 10} {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "lib64"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "lib64/libc.so.6"), []byte(strings.Repeat("\x7f", before)+words+strings.Repeat("x", behind)), 0o600); err != nil {
				t.Fatal(err)
			}
			if v := glibc(root); v != "2.36" {
				t.Errorf("%d bytes before, %d behind: %q", before, behind, v)
			}
		}
	}
}

func TestHere(t *testing.T) {
	f := Read("/")
	if f.CPU.Threads == 0 || len(f.CPU.Topology) == 0 || f.Memory == 0 || f.Kernel == "" || f.Architecture == "" {
		t.Errorf("%+v", f)
	}
	file := filepath.Join(t.TempDir(), "machine.json")
	if err := f.Measured(t.Context(), file, false); err != nil || f.Bandwidth != 0 {
		t.Errorf("not measured: %v, %v", f.Bandwidth, err)
	}
	if err := f.Measured(t.Context(), file, true); err != nil || f.Bandwidth < 1e8 {
		t.Errorf("%v bytes a second, %v", f.Bandwidth, err)
	}
	again := Read("/")
	if err := again.Measured(t.Context(), file, false); err != nil || again.Bandwidth != f.Bandwidth {
		t.Errorf("%v is not %v (%v)", again.Bandwidth, f.Bandwidth, err)
	}
}

func TestSpread(t *testing.T) {
	topology := Read(twoSockets(t)).CPU.Topology
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for name, tt := range map[string]struct {
		may        []int
		busy       map[int]int
		n, workers int
		want       [][]int
	}{
		"two in one node":         {all, nil, 2, 1, [][]int{{0, 4}}},
		"a node each":             {all, nil, 4, 2, [][]int{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		"away from the busy node": {all, map[int]int{0: 1, 1: 1, 4: 1, 5: 1}, 2, 1, [][]int{{2, 6}}},
		"more than a node":        {all, nil, 5, 1, [][]int{{0, 1, 2, 4, 5}}},
		"too many":                {all, nil, 5, 2, nil},
		"what may be used":        {[]int{1, 3, 7}, nil, 2, 1, [][]int{{3, 7}}},
		"crowded beats close":     {[]int{0, 4, 2}, map[int]int{4: 3}, 2, 1, [][]int{{0, 2}}},
	} {
		if diff := cmp.Diff(tt.want, Spread(topology, tt.may, tt.busy, slices.Repeat([]int{tt.n}, tt.workers)...)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestSpreadProperties: what is chosen is different, allowed and as many as asked,
// and in one NUMA node when an idle machine has room.
func TestSpreadProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, per := rapid.IntRange(1, 4).Draw(t, "nodes"), rapid.IntRange(1, 8).Draw(t, "per")
		var topology []Thread
		var may []int
		for cpu := range nodes * per {
			topology = append(topology, Thread{CPU: cpu, Socket: cpu / per / 2, Core: cpu, NUMA: cpu / per})
			if rapid.Float64().Draw(t, "allowed") < 0.8 {
				may = append(may, cpu)
			}
		}
		busy := map[int]int{}
		if rapid.Bool().Draw(t, "used") {
			for _, cpu := range may {
				busy[cpu] = rapid.IntRange(0, 2).Draw(t, "busy")
			}
		}
		n, workers := rapid.IntRange(1, 8).Draw(t, "n"), rapid.IntRange(1, 4).Draw(t, "workers")
		each := Spread(topology, may, busy, slices.Repeat([]int{n}, workers)...)
		if (each == nil) != (n*workers > len(may)) {
			t.Fatalf("%v of %v", each, may)
		}
		var seen []int
		for i, part := range each {
			room := map[int]int{}
			for _, cpu := range may {
				if !slices.Contains(seen, cpu) {
					room[cpu/per]++
				}
			}
			fits := false
			for _, free := range room {
				fits = fits || free >= n
			}
			in := map[int]bool{}
			for _, cpu := range part {
				if slices.Contains(seen, cpu) || !slices.Contains(may, cpu) {
					t.Fatalf("%v of %v", each, may)
				}
				seen = append(seen, cpu)
				in[cpu/per] = true
			}
			if len(part) != n || len(busy) == 0 && fits && len(in) != 1 {
				t.Fatalf("worker %d has %v", i, part)
			}
		}
	})
}
