package training_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/diagnosis"
)

func sandboxed(t *testing.T) *world {
	t.Helper()
	d, err := local.New(local.Config{Dir: filepath.Join(t.TempDir(), "engine"), Worker: sandboxtest.Worker(t), Level: sandbox.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return newWorld(t, engine.Driver(d))
}

// TestOutOfDisk: a job that keeps more than it asked for fails once, with the reason.
func TestOutOfDisk(t *testing.T) {
	w := sandboxed(t)
	j := w.submit(t, training.Spec{
		Disk:    engine.Disk{Scratch: 4 * resource.MiB},
		Command: []string{"sh", "-c", `i=0; while :; do i=$((i+1)); head -c 262144 /dev/zero > $FALAJ_SCRATCH_DIR/$i || sleep 300; done`},
	})
	j = w.ended(t, j.ID)
	if j.State != training.Failed || j.Class != training.OutOfDisk || j.Attempts != 1 || !strings.Contains(j.Reason, "of its disk limit of 4MiB (scratch)") || !strings.Contains(j.Hint, "spec.disk") {
		t.Errorf("%+v", j)
	}
}

// TestNoRoomForOutput: an output that the disk has no room for fails the job, once, and is
// gone; so does a store that is full when some of it is stored: a disk, a bucket, or the
// project's quota of them.
func TestNoRoomForOutput(t *testing.T) {
	for name, c := range map[string]struct {
		refuse func(w *world)
		exit   enginetest.Exit
		class  diagnosis.Class
		reason string
	}{
		"before": {refuse: func(w *world) {
			w.cfg.Room = func(bytes, files int64) error {
				if bytes < 1<<40 || files != 1 {
					t.Errorf("asked for %d bytes in %d files", bytes, files)
				}
				return fault.New(fault.Exhausted, "the disk has less: %w", syscall.ENOSPC)
			}
		}, class: training.Unstored, reason: "no space left on device"},
		"meanwhile": {refuse: func(w *world) {
			w.runs.refuse = fault.New(fault.Exhausted, "storing an object: %w", syscall.ENOSPC)
		}, class: training.Unstored, reason: "no space left on device"},
		"the quota": {refuse: quotaUsed, class: training.Unstored, reason: "project nyc has a quota"},
		"the quota, and it failed": {
			refuse: quotaUsed, exit: enginetest.Exit{Code: 3}, class: training.UserError,
			reason: "its output was not stored: storing the output: project nyc has a quota",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.stop()
			c.refuse(w)
			w.cfg.MaxOutput = 1 << 50
			w.start(t)
			var failed error
			w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				hole := filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "hole")
				failed = errors.Join(os.WriteFile(hole, nil, 0o600), os.Truncate(hole, 1<<40))
				return c.exit
			})
			j := w.ended(t, w.submit(t, training.Spec{}).ID)
			if failed != nil {
				t.Fatal(failed)
			}
			if j.State != training.Failed || j.Class != c.class || j.Attempts != 1 || !strings.Contains(j.Reason, c.reason) {
				t.Errorf("%+v", j)
			}
		})
	}
}

func quotaUsed(w *world) {
	w.runs.refuse = fault.New(fault.Exhausted, "project nyc has a quota of 1 GiB, and stores 1 GiB").WithCause(fault.ErrFull)
}

// TestScriptWithoutInterpreter: torchrun itself takes a script alone; here the command names Python.
func TestScriptWithoutInterpreter(t *testing.T) {
	w := sandboxed(t)
	j := w.ended(t, w.submit(t, training.Spec{Command: []string{"ddp.py", "--steps", "3"}}).ID)
	if j.Class != diagnosis.UserError || !strings.Contains(j.Hint, "command: [python, ddp.py]") {
		t.Errorf("%s %q, hint %q", j.Class, j.Reason, j.Hint)
	}
}

// TestCommandOutside: whether the machine has a file outside the job's directory is not told by
// how a command that names it is refused.
func TestCommandOutside(t *testing.T) {
	dir := t.TempDir()
	there, absent := filepath.Join(dir, "there"), filepath.Join(dir, "gone!")
	if err := os.WriteFile(there, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	up := func(f string) string { return strings.Repeat("../", 20) + f[1:] }
	for what, command := range map[string]func(f string) []string{
		"the program": func(f string) []string { return []string{up(f)} },
		"its script":  func(f string) []string { return []string{"python3", up(f) + ".py"} },
	} {
		if err := os.WriteFile(there+".py", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, f := range []string{there, absent} {
			w := sandboxed(t)
			j := w.submit(t, training.Spec{Command: command(f)})
			j = w.ended(t, j.ID)
			said = append(said, strings.ReplaceAll(string(j.State)+" "+string(j.Class)+" "+j.Reason+" "+j.Hint, up(f), "FILE"))
		}
		if said[0] != said[1] || !strings.Contains(said[0], "is not in the job's source") {
			t.Errorf("%s: %q and %q", what, said[0], said[1])
		}
	}
}
