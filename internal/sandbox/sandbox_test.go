package sandbox_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	for _, level := range []sandbox.Level{sandbox.None, sandbox.Process, sandbox.Sandbox} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			extra := filepath.Join(t.TempDir(), "extra")
			check(t, os.WriteFile(extra, []byte("from a file\n"), 0o600))
			f, err := os.Open(extra)
			check(t, err)
			defer f.Close()
			cmd, err := sandbox.Command(t.Context(), worker, sandbox.Policy{Level: level, Env: map[string]string{"A": "b c"}},
				"sh", "-c", "cat; cat <&3; echo $A; pwd; echo err >&2; exit 7")
			check(t, err)
			var out, errs bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("from stdin\n"), &out, &errs
			cmd.ExtraFiles = []*os.File{f}
			err = cmd.Run()
			if want := "from stdin\nfrom a file\nb c\n/tmp\n"; out.String() != want || errs.String() != "err\n" {
				t.Errorf("%q %q", out.String(), errs.String())
			}
			exit, ok := err.(*exec.ExitError) //nolint:errorlint // Exactly this type is promised.
			if !ok || exit.ExitCode() != 7 || cmd.Outcome().ExitCode != 7 {
				t.Errorf("%v %+v", err, cmd.Outcome())
			}
			if o := cmd.Outcome(); o.CPU <= 0 || o.PeakRSS <= 0 {
				t.Errorf("no usage: %+v", o)
			}
		})
	}
}

// TestYields: bulk work is nicer than its caller, everything else is not.
func TestYields(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 less the niceness
	check(t, err)
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		for yields, want := range map[bool]int{false: 20 - own, true: min(19, 20-own+5)} {
			cmd, err := sandbox.Command(t.Context(), worker, sandbox.Policy{Level: level, Limits: sandbox.Limits{Yields: yields}}, "cut", "-d ", "-f19", "/proc/self/stat")
			check(t, err)
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != strconv.Itoa(want) {
				t.Errorf("%s, yields %v: niceness %s, want %d; %v", level, yields, got, want, err)
			}
		}
	}
}

func TestNotStarted(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	for name, c := range map[string]struct {
		policy sandbox.Policy
		argv   []string
		say    string
	}{
		"no such program":    {sandbox.Policy{Level: sandbox.Sandbox}, []string{"no-such-program"}, "no-such-program"},
		"no such path":       {sandbox.Policy{Level: sandbox.Sandbox}, []string{"/no/such"}, "/no/such"},
		"outside the mounts": {sandbox.Policy{Level: sandbox.Sandbox}, []string{worker, "version"}, worker},
		"no such directory":  {sandbox.Policy{Level: sandbox.Sandbox, Dir: "/nowhere"}, []string{"true"}, "/nowhere"},
		"no such mount":      {sandbox.Policy{Level: sandbox.Sandbox, Mounts: []sandbox.Mount{{Path: "/no/mount"}}}, []string{"true"}, "/no/mount"},
		"process":            {sandbox.Policy{Level: sandbox.Process}, []string{"no-such-program"}, "no-such-program"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, err := sandbox.Command(t.Context(), worker, c.policy, c.argv...)
			check(t, err)
			if err := cmd.Run(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestPolicyRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy sandbox.Policy
		kind   fault.Kind
	}{
		"a level of others":      {sandbox.Policy{Level: sandbox.Container}, fault.Unsupported},
		"a relative mount":       {sandbox.Policy{Mounts: []sandbox.Mount{{Path: "a"}}}, fault.Invalid},
		"a mount with dots":      {sandbox.Policy{Mounts: []sandbox.Mount{{Path: "/a/../etc"}}}, fault.Invalid},
		"the whole root":         {sandbox.Policy{Mounts: []sandbox.Mount{{Path: "/"}}}, fault.Invalid},
		"another /etc":           {sandbox.Policy{Mounts: []sandbox.Mount{{Path: "/etc"}}}, fault.Invalid},
		"the host's processes":   {sandbox.Policy{Mounts: []sandbox.Mount{{Path: "/proc/1"}}}, fault.Invalid},
		"the host's groups":      {sandbox.Policy{Mounts: []sandbox.Mount{{Path: "/sys/fs/cgroup"}}}, fault.Invalid},
		"a device elsewhere":     {sandbox.Policy{Devices: []string{"/etc/shadow"}}, fault.Invalid},
		"a device with dots":     {sandbox.Policy{Devices: []string{"/dev/../etc/shadow"}}, fault.Invalid},
		"a variable with equals": {sandbox.Policy{Env: map[string]string{"A=B": ""}}, fault.Invalid},
		"root as user":           {sandbox.Policy{UID: 1}, fault.Invalid},
		"a name with a path":     {sandbox.Policy{Name: "../up"}, fault.Invalid},
		"a negative limit":       {sandbox.Policy{Limits: sandbox.Limits{Memory: -1}}, fault.Invalid},
		"too many mounts":        {sandbox.Policy{Mounts: make([]sandbox.Mount, 1000)}, fault.TooLarge},
	} {
		if err := c.policy.Validate(); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for _, l := range []sandbox.Level{sandbox.None, sandbox.Process, sandbox.Sandbox, sandbox.Container, sandbox.Node} {
		if got, err := sandbox.ParseLevel(l.String()); err != nil || got != l {
			t.Errorf("%v %v", got, err)
		}
	}
	if _, err := sandbox.ParseLevel("perfect"); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

// TestNoWorker checks that a missing binary is said as such.
func TestNoWorker(t *testing.T) {
	t.Parallel()
	_, err := sandbox.Command(t.Context(), "/no/falaj-worker", sandbox.Policy{}, "true")
	if !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

var inner = flag.Bool("inner", false, "this process was started by TestForbidden, in a sandbox")

// TestForbidden runs itself where the kernel forbids namespaces: in a sandbox.
func TestForbidden(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	if *inner {
		err := sandbox.Check(t.Context(), worker, sandbox.Sandbox)
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "--isolation process") {
			t.Fatalf("not refused: %v", err)
		}
		report := sandbox.Probe(t.Context(), worker)
		if report.Level != sandbox.Process || len(report.Missing) == 0 {
			t.Fatalf("%+v", report)
		}
		t.Logf("refused as it should be: %v; %s; %s", err, fault.HintOf(err), report)
		return
	}
	self, err := os.Executable()
	check(t, err)
	r := run(t, sandbox.Policy{
		Level: sandbox.Sandbox, Mounts: []sandbox.Mount{{Path: worker}, {Path: self}},
	}, self, "-test.run=^TestForbidden$", "-test.v", "-falaj-worker="+worker, "-inner")
	if !strings.Contains(r.out, "refused as it should be") {
		t.Errorf("%v\n%s", r.err, r.out)
	}
}

// TestUnprivileged runs the tests of this package as a user who is not root.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	sandboxtest.Unprivileged(t, "^(TestAttacks|TestUse|TestLimits|TestCommand|TestEndWithCaller|TestNetwork)$")
}
