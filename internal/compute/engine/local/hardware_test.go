package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
)

// rack is a simulated inventory: three GPUs, one of them cut.
type rack struct{ machine.None }

func (rack) List() ([]machine.Accelerator, error) {
	file := []string{"/dev/null"}
	return []machine.Accelerator{
		{Resource: "nvidia.com/gpu", UUID: "GPU-0", Name: "H100", Files: file},
		{Resource: "nvidia.com/gpu", UUID: "GPU-1", Index: 1, Name: "H100", Files: append(file, "/dev/zero", "/dev/absent")},
		{Resource: "nvidia.com/mig-1g.10gb", UUID: "MIG-0", Index: 2, Name: "H100", Files: file},
	}, nil
}

func (rack) Sample(uuid string) (machine.Sample, bool) {
	return machine.Sample{Utilisation: new(0.25), Watts: 300}, uuid != "MIG-0"
}

func simulated(live ...*workload) *Driver {
	d := &Driver{c: Config{Accelerators: rack{}}, workloads: map[engine.Handle]*workload{}, open: map[engine.Handle]*workload{}}
	for _, w := range live {
		w.done = make(chan struct{})
		d.hold(w)
	}
	return d
}

func asking(workers int, of map[string]int64) engine.Spec {
	return engine.Spec{ID: "att_1", Workers: workers, Resources: resource.Amount{Accelerators: of}}
}

func TestAcceleratorsAreExclusive(t *testing.T) {
	t.Parallel()
	env := map[string]string{"CUDA_VISIBLE_DEVICES": "0,1,2"}
	files, _, remember, err := simulated().equip(asking(1, map[string]int64{"nvidia.com/gpu": 1}), 0, env)
	if err != nil || env["CUDA_VISIBLE_DEVICES"] != "GPU-0" || cmp.Diff([]string{"/dev/null"}, files) != "" || cmp.Diff([][]string{{"GPU-0"}}, remember) != "" {
		t.Errorf("%v, %v, %v, %v", env, files, remember, err)
	}
	other := &workload{handle: "att_0", extras: extras{Devices: [][]string{{"GPU-0"}}}}
	env = map[string]string{}
	files, _, _, err = simulated(other).equip(asking(1, map[string]int64{"nvidia.com/gpu": 1}), 0, env)
	if err != nil || env["NVIDIA_VISIBLE_DEVICES"] != "GPU-1" || cmp.Diff([]string{"/dev/null", "/dev/zero"}, files) != "" {
		t.Errorf("beside another: %v, %v, %v", env, files, err)
	}
	if _, _, _, err := simulated(other).equip(asking(2, map[string]int64{"nvidia.com/gpu": 1}), 0, env); !fault.Is(err, fault.Unavailable) {
		t.Errorf("more than there are: %v", err)
	}
	_, each, remember, err := simulated().equip(asking(2, map[string]int64{"nvidia.com/gpu": 1}), 0, env)
	if err != nil || len(each) != 2 || each[0]["CUDA_VISIBLE_DEVICES"] != "GPU-0" || each[1]["CUDA_VISIBLE_DEVICES"] != "GPU-1" || len(remember) != 2 {
		t.Errorf("a gang: %v, %v, %v", each, remember, err)
	}
	_, _, remember, err = simulated().equip(asking(1, map[string]int64{"nvidia.com/mig-1g.10gb": 1}), 0, env)
	if err != nil || cmp.Diff([][]string{{"MIG-0"}}, remember) != "" {
		t.Errorf("a slice: %v, %v", remember, err)
	}
	env = map[string]string{}
	if _, _, _, err = simulated().equip(asking(1, nil), 0, env); err != nil || len(env) != 1 || env["CUDA_VISIBLE_DEVICES"] != "" {
		t.Errorf("who asks for none sees none: %v, %v", env, err)
	}
	want := []engine.Accelerator{{Name: "H100", Utilisation: new(0.25), Watts: 300}}
	if diff := cmp.Diff(want, simulated().accelerators(other, 0)); diff != "" {
		t.Error(diff)
	}
	if got := simulated().accelerators(other, 1); got != nil {
		t.Errorf("%v", got)
	}
}

func TestTune(t *testing.T) {
	// Not parallel: libraryDirs are for one test.
	d, dir := &Driver{}, t.TempDir()
	was := libraryDirs
	libraryDirs = []string{dir}
	defer func() { libraryDirs = was }()
	if err := d.tune(map[string]string{"allocator": "jemalloc"}, 1, map[string]string{}); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "libjemalloc2") {
		t.Errorf("an allocator that is not there: %v", err)
	}
	path := filepath.Join(dir, "libtcmalloc.so.4")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"MKL_NUM_THREADS": "9"}
	if err := d.tune(map[string]string{"allocator": "tcmalloc", "affinity": "close", "huge_pages": "true", "shared": "true"}, 4, env); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "9", "OPENBLAS_NUM_THREADS": "4", "NUMEXPR_NUM_THREADS": "4",
		"OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1",
		"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_CONF": "thp:always", "THP_MEM_ALLOC_ENABLE": "1", "LD_PRELOAD": path,
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Error(diff)
	}
	d.c.Facts.Transparent = "never"
	if err := d.Check(map[string]string{"huge_pages": "true"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("huge pages that are off: %v", err)
	}
	for _, bad := range []map[string]string{{"partition": "gpu"}, {"allocator": "mimalloc"}, {"huge_pages": "yes"}} {
		if err := CheckOptions(bad); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestNear: memory comes from the nodes of the cores, and from others until what is
// asked for fits.
func TestNear(t *testing.T) {
	t.Parallel()
	d := &Driver{}
	for i, size := range []resource.Bytes{128, 64, 256} {
		d.c.Facts.CPU.NUMA = append(d.c.Facts.CPU.NUMA, machine.NUMA{ID: i, CPUs: []int{2 * i, 2*i + 1}, Memory: size * resource.GiB})
	}
	near := map[string]string{"memory": "near"}
	for _, c := range []struct {
		cores   []int
		memory  resource.Bytes
		options map[string]string
		want    []int
	}{
		{[]int{0, 1}, 100, near, []int{0}},
		{[]int{0, 1}, 128, near, []int{0}},
		{[]int{0, 1}, 200, near, []int{0, 2}},
		{[]int{2}, 400, near, []int{0, 1, 2}},
		{[]int{2}, 4000, near, []int{0, 1, 2}},
		{[]int{1, 2}, 0, near, []int{0, 1}},
		{nil, 1, near, []int{0, 1, 2}},
		{[]int{0}, 200, nil, nil},
	} {
		got, err := d.near(c.options, c.cores, c.memory*resource.GiB)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("cores %v, %d GiB: %v %s", c.cores, c.memory, err, diff)
		}
	}
}
