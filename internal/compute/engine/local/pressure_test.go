package local

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// TestLowered: what a workload may keep is what it asks for, else the default, and never more
// than the most.
func TestLowered(t *testing.T) {
	t.Parallel()
	given := engine.Disk{Scratch: 10, Output: 20, Checkpoints: 30, Files: 40}
	for _, c := range []struct{ asks, most, want engine.Disk }{
		{want: given},
		{asks: engine.Disk{Scratch: 100}, want: engine.Disk{Scratch: 100, Output: 20, Checkpoints: 30, Files: 40}},
		{asks: engine.Disk{Scratch: 100}, most: engine.Disk{Scratch: 50, Files: 1}, want: engine.Disk{Scratch: 50, Output: 20, Checkpoints: 30, Files: 1}},
	} {
		if got := lowered(merge(c.asks, given), c.most); got != c.want {
			t.Errorf("%+v of %+v: %+v", c.asks, c.most, got)
		}
	}
}

// TestDiskShare: on a small disk no workload gets more than a part of what is free.
func TestDiskShare(t *testing.T) {
	t.Parallel()
	d := &Driver{c: Config{Dir: t.TempDir()}}
	free, ok := freeOn(d.c.Dir)
	if !ok {
		t.Fatal("no statfs")
	}
	d.c.Disk.Reserve = Room{Bytes: free.Bytes / 2, Files: 1}
	d.c.Disk.setDefaults()
	dir := t.TempDir()
	got := d.disk(engine.Spec{
		Dir: dir, Disk: engine.Disk{Scratch: 1 << 60, Files: 1 << 60},
		Mounts: []engine.Mount{{Path: dir, Writable: true}, {Path: dir + "/read"}, {Path: dir + "/shared", Writable: true, Role: engine.Shared}, {Path: dir + "/out", Writable: true, Role: engine.Output}},
	})
	all := got.Limits[len(got.Limits)-1]
	if all.Kind != "" || all.Bytes > free.Bytes/2 || all.Bytes < free.Bytes/8 || all.Why == "" {
		t.Errorf("%+v of %+v", all, free)
	}
	want := []shim.Tree{{Dir: dir, Kind: kindScratch, Drop: true}, {Dir: dir + "/out", Kind: kindOutput}}
	if len(got.Trees) != 2 || got.Trees[0] != want[0] || got.Trees[1] != want[1] {
		t.Errorf("%+v", got.Trees)
	}
	if size := fileSize(got, 1<<61); size != 1<<61 {
		t.Errorf("a file of %s in memory is refused", resource.Bytes(1<<61))
	}
}

// TestTaskBudget: the server keeps a part of the machine's process numbers.
func TestTaskBudget(t *testing.T) {
	t.Parallel()
	there := taskNumbers()
	if b := taskBudget(); b > there-there/4 && b != leastTasks {
		t.Errorf("%d of %d", b, there)
	}
	if n := new(Driver).tasks(); n < leastTasks || n > mostTasks {
		t.Errorf("a workload may have %d", n)
	}
}
