package sandbox_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// container is a policy that runs in a busybox image.
func container(t *testing.T, root string) sandbox.Policy {
	t.Helper()
	return sandbox.Policy{
		Level: sandbox.Container, Image: &sandbox.Image{Root: root, Runtime: sandboxtest.Runc(t)},
		Env: map[string]string{"PATH": "/bin"},
	}
}

func TestContainer(t *testing.T) {
	t.Parallel()
	worker, root := sandboxtest.Worker(t), sandboxtest.BusyboxRoot(t)
	extra := filepath.Join(t.TempDir(), "extra")
	check(t, os.WriteFile(extra, []byte("from a file\n"), 0o600))
	f, err := os.Open(extra)
	check(t, err)
	defer f.Close()
	p := container(t, root)
	work := t.TempDir()
	p.Dir, p.Mounts = work, []sandbox.Mount{{Path: work, Writable: true}}
	cmd, err := sandbox.Command(t.Context(), worker, p,
		"sh", "-c", "cat; cat <&3; whoami; id -u; hostname; pwd; echo mine >made; kill -9 $$")
	check(t, err)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("from stdin\n"), &out, &errs
	cmd.ExtraFiles = []*os.File{f}
	err = cmd.Run()
	if want := "from stdin\nfrom a file\nfalaj\n1000\nfalaj\n" + work + "\n"; out.String() != want || errs.Len() > 0 {
		t.Errorf("%q %q", out.String(), errs.String())
	}
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 137 { //nolint:errorlint // Exactly this type is promised.
		t.Errorf("%v", err)
	}
	if o := cmd.Outcome(); o.ExitCode != -1 || o.Signal != 9 || o.CPU <= 0 || o.PeakRSS <= 0 {
		t.Errorf("%+v", o)
	}
	// What it made in an id-mapped mount is ours.
	if fi, err := os.Stat(filepath.Join(work, "made")); err != nil || fi.Size() != 5 {
		t.Errorf("%v %v", fi, err)
	}
	entries, err := os.ReadDir(root)
	check(t, err)
	if len(entries) != 2 {
		t.Errorf("the image was written to: %v", entries)
	}
}

// TestContainerWalls tries what a program in a container may not.
func TestContainerWalls(t *testing.T) {
	t.Parallel()
	worker, root := sandboxtest.Worker(t), sandboxtest.BusyboxRoot(t)
	for name, c := range map[string]struct{ script, want string }{
		"no capability, no new privilege, a filter": {
			`while read k v; do case $k in CapPrm:|CapEff:|CapBnd:|NoNewPrivs:|Seccomp:) echo $k$v;; esac; done </proc/self/status`,
			"CapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n",
		},
		"the host's files":       {`ls -d /usr /home /var /work 2>/dev/null; echo $?`, "1\n"},
		"the image is read-only": {`touch /etc/x /bin/x /x /dev/x 2>/dev/null; echo $?`, "1\n"},
		"tmp is writable":        {`touch /tmp/x /dev/shm/x && echo yes`, "yes\n"},
		"root's files":           {`cat /etc/secret 2>/dev/null || echo no`, "no\n"},
		"only its own processes": {`set -- /proc/[0-9]*; echo $#`, "2\n"},
		"the first process":      {`cat /proc/1/environ /proc/1/maps 2>/dev/null; ls /proc/1/fd 2>/dev/null; ls /proc/1/root/ 2>/dev/null; kill -9 1 2>/dev/null; echo alive`, "alive\n"},
		"only loopback":          {`ls /proc/sys/net/ipv4/conf | tr '\n' ' '`, "all default lo "},
		"no new namespaces":      {`unshare -U true 2>/dev/null || echo no`, "no\n"},
		"no mounts":              {`mount -t tmpfs x /tmp 2>/dev/null || echo no`, "no\n"},
		"no kernel settings":     {`echo 1 2>/dev/null >/proc/sys/net/ipv4/ip_forward || echo no`, "no\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, err := sandbox.Command(t.Context(), worker, container(t, root), "sh", "-c", c.script)
			check(t, err)
			if out, _ := cmd.CombinedOutput(); string(out) != c.want {
				t.Errorf("%q, want %q", out, c.want)
			}
		})
	}
}

// TestContainerForward reaches a socket of ours, and reports what else it tries.
func TestContainerForward(t *testing.T) {
	t.Parallel()
	worker, root := sandboxtest.Worker(t), sandboxtest.BusyboxRoot(t)
	dir := filepath.Join(t.TempDir(), "net")
	check(t, os.Mkdir(dir, 0o711))
	l, err := net.Listen("unix", filepath.Join(dir, "api"))
	check(t, err)
	defer l.Close()
	check(t, os.Chmod(filepath.Join(dir, "api"), 0o666))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("the API\n"))
			_ = c.Close()
		}
	}()
	guarded := filepath.Join(t.TempDir(), "keys")
	check(t, os.WriteFile(guarded, nil, 0o600))
	p := container(t, root)
	p.Guard = []string{filepath.Dir(guarded)}
	p.Network.Forwards = []sandbox.Forward{{Port: 7070, Socket: filepath.Join(dir, "api"), Env: []string{"FALAJ_URL"}}}
	cmd, err := sandbox.Command(t.Context(), worker, p, "sh", "-c",
		"echo $FALAJ_URL; nc 127.0.0.1 7070; cat "+guarded+" 2>/dev/null; nc -w 1 192.0.2.1 80 2>/dev/null; echo $?")
	check(t, err)
	var denied []string
	cmd.OnDenial = func(d sandbox.Denial) { denied = append(denied, d.Kind+" "+d.Target) }
	out, err := cmd.CombinedOutput()
	if want := "http://127.0.0.1:7070\nthe API\n1\n"; err != nil || string(out) != want {
		t.Errorf("%q %v", out, err)
	}
	if got, want := strings.Join(denied, ", "), "open "+guarded+", connect 192.0.2.1:80"; got != want {
		t.Errorf("denied %q, want %q", got, want)
	}
}

// TestContainerHostileRoot runs in images that were made to lead mounts astray.
func TestContainerHostileRoot(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	outside := t.TempDir()
	for name, links := range map[string]map[string]string{
		"absolute":  {"tmp": outside, "dev": outside, "proc": outside, "etc/hosts": filepath.Join(outside, "hosts"), "sys": outside, ".falaj-net": outside},
		"relative":  {"tmp": "../../../../../.." + outside, "dev": "../../../../../.." + outside},
		"to itself": {".falaj-worker": "etc/passwd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := sandboxtest.BusyboxRoot(t)
			for at, to := range links {
				check(t, os.Symlink(to, filepath.Join(root, at)))
			}
			cmd, err := sandbox.Command(t.Context(), worker, container(t, root), "sh", "-c", "echo ran; touch /tmp/made")
			check(t, err)
			out, err := cmd.CombinedOutput() // a refusal is as good as a run
			if err == nil && string(out) != "ran\n" {
				t.Errorf("%q", out)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
				t.Errorf("outside: %v %v", entries, err)
			}
		})
	}
}

func TestContainerNotStarted(t *testing.T) {
	t.Parallel()
	worker, root := sandboxtest.Worker(t), sandboxtest.BusyboxRoot(t)
	cmd, err := sandbox.Command(t.Context(), worker, container(t, root), "/no/such/program")
	check(t, err)
	if err := cmd.Run(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "/no/such/program") {
		t.Error(err)
	}
	bad := container(t, root)
	bad.Image.Runtime = "/bin/false"
	cmd, err = sandbox.Command(t.Context(), worker, bad, "true")
	check(t, err)
	if err := cmd.Run(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "false failed") {
		t.Error(err)
	}
	for name, change := range map[string]func(*sandbox.Policy){
		"no image":      func(p *sandbox.Policy) { p.Image = nil },
		"wrong level":   func(p *sandbox.Policy) { p.Level = sandbox.Sandbox },
		"relative root": func(p *sandbox.Policy) { p.Image = &sandbox.Image{Root: "x", Runtime: p.Image.Runtime} },
		"absent root":   func(p *sandbox.Policy) { p.Image = &sandbox.Image{Root: "/no/such", Runtime: p.Image.Runtime} },
		"no runtime":    func(p *sandbox.Policy) { p.Image = &sandbox.Image{Root: root, Runtime: "/no/runc"} },
	} {
		p := container(t, root)
		change(&p)
		if _, err := sandbox.Command(t.Context(), worker, p, "true"); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
