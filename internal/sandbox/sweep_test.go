package sandbox_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// TestSweepCgroups: what a killed owner left goes, with what runs in it; the groups of
// another owner, and of programs without one, stay.
func TestSweepCgroups(t *testing.T) {
	worker := sandboxtest.Worker(t)
	if len(sandbox.Probe(t.Context(), worker).Cgroups) == 0 {
		t.Skip("this kernel gives no control groups to the test")
	}
	start := func(owner, name string) *sandbox.Cmd {
		t.Helper()
		cmd, err := sandbox.Command(t.Context(), worker, sandbox.Policy{
			Level: sandbox.Sandbox, Owner: owner, Name: name, Env: map[string]string{"PATH": "/usr/bin:/bin"},
			Limits: sandbox.Limits{Memory: 256 * resource.MiB, Processes: 16},
		}, "sleep", "1000")
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Started(t.Context()); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	there := func(c *sandbox.Cmd) (n int) {
		for _, dir := range c.Cgroups() {
			if _, err := os.Stat(dir); err == nil {
				n++
			}
		}
		return n
	}
	own, other, job := "5e0fa1a1", "5e0fa1a2", "sweep_test_"+filepath.Base(t.TempDir())
	ours, theirs, jobs := []*sandbox.Cmd{start(own, ""), start(own, "named")}, start(other, ""), start("", job)
	all := append(slices.Clone(ours), theirs, jobs)
	t.Cleanup(func() {
		for _, c := range all[2:] {
			_ = c.Kill()
			_ = c.Wait()
		}
	})
	for _, c := range all {
		if there(c) == 0 {
			t.Skip("this kernel gives no control groups to the test")
		}
	}
	want := there(ours[0]) + there(ours[1])
	if n := sandbox.SweepCgroups(sandbox.CgroupBases(), own); n != want {
		t.Errorf("%d groups were swept, want %d", n, want)
	}
	for _, c := range ours {
		if n := there(c); n != 0 {
			t.Errorf("%d groups of the owner are still there", n)
		}
		if err := c.Wait(); err == nil {
			t.Error("a program of the owner was not ended")
		}
	}
	if there(theirs) == 0 || there(jobs) == 0 {
		t.Errorf("groups of others were swept: %d of another owner and %d of a job are left", there(theirs), there(jobs))
	}
	if n := sandbox.SweepCgroups(sandbox.CgroupBases(), ""); n != 0 {
		t.Errorf("no owner: %d groups were swept", n)
	}
	if n := sandbox.SweepCgroups(sandbox.CgroupBases(), own); n != 0 {
		t.Errorf("again: %d groups were swept", n)
	}
}
