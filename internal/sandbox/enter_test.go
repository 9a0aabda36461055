package sandbox_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// TestEnter: who is entered is the program's own sandbox, and it is so only while
// this very one runs. What may be done there is TestProfile's of engine/local.
func TestEnter(t *testing.T) {
	t.Parallel()
	worker, root := sandboxtest.Worker(t), sandboxtest.BusyboxRoot(t)
	for name, p := range map[string]sandbox.Policy{
		"sandbox":   {Level: sandbox.Sandbox, Env: map[string]string{"PATH": "/bin:/usr/bin"}},
		"container": container(t, root),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, err := sandbox.Command(t.Context(), worker, p, "sh", "-c", "echo there; exec sleep 1000")
			check(t, err)
			out, err := cmd.StdoutPipe()
			check(t, err)
			check(t, cmd.Start())
			said := make([]byte, 6)
			if _, err := out.Read(said); err != nil || string(said) != "there\n" {
				t.Fatalf("%q %v", said, err)
			}
			init, err := shim.ProcessOf(cmd.Process.Pid)
			check(t, err)
			box := sandbox.Box{Init: init.PID, Start: init.Start, Cgroups: cmd.Cgroups()}
			enter := func(b sandbox.Box, args ...string) (string, error) {
				look, err := b.Enter(t.Context(), worker, args...)
				check(t, err)
				said, err := look.CombinedOutput()
				return string(said), err
			}
			if said, err := enter(box, "version"); err != nil || !strings.HasPrefix(said, "falaj-worker protocol") {
				t.Errorf("%v: %s", err, said)
			}
			other := box
			other.Start++
			if said, err := enter(other, "version"); err == nil || said != "the program has ended\n" {
				t.Errorf("another with its number: %v: %s", err, said)
			}
			check(t, cmd.Kill())
			_ = cmd.Wait()
			if said, err := enter(box, "version"); err == nil || said != "the program has ended\n" {
				t.Errorf("after its end: %v: %s", err, said)
			}
		})
	}
	if _, err := (sandbox.Box{Init: 1, Start: 1}).Enter(t.Context(), worker, "version"); err == nil {
		t.Error("entered the machine itself")
	}
}

// TestEnterEndsWithItsCaller: what looks does not go on when nobody waits for it.
func TestEnterEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	cmd, err := sandbox.Command(t.Context(), worker, sandbox.Policy{Level: sandbox.Sandbox, Env: map[string]string{"PATH": "/bin:/usr/bin"}},
		"sh", "-c", "echo there; exec sleep 1000")
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	defer func() {
		_ = cmd.Kill()
		_ = cmd.Wait()
	}()
	_, err = out.Read(make([]byte, 6))
	check(t, err)
	init, err := shim.ProcessOf(cmd.Process.Pid)
	check(t, err)
	box := sandbox.Box{Init: init.PID, Start: init.Start, Cgroups: cmd.Cgroups()}
	look, err := box.Enter(t.Context(), worker, "profile") // waits for its standard input
	check(t, err)
	in, err := look.StdinPipe()
	check(t, err)
	defer in.Close()
	end, err := look.StdoutPipe() // has an end when the one inside is gone
	check(t, err)
	check(t, look.Start())
	children := fmt.Sprintf("/proc/%d/task/%[1]d/children", look.Process.Pid)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for there := false; !there; {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("nothing looks")
		}
		pid, _ := os.ReadFile(children)
		argv, _ := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
		there = string(argv) == "falaj-worker\x00profile\x00"
	}
	check(t, look.Process.Kill())
	if _, err := end.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	_ = look.Wait()
}
