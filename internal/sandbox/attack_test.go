package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

const secret = "the-master-key"

// victim is a host with things that a program in a sandbox wants.
type victim struct {
	data, work, other string // the server's directory; the program's own and another's in it
	key, db           string
	public            string // a read-only mount
	process           int    // has the secret in its environment
	tcp               int    // port of a host service
	socket, abstract  string
	outside           string // a socket outside the data directory
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	data := t.TempDir()
	v := &victim{
		data: data, work: filepath.Join(data, "jobs", "mine"), other: filepath.Join(data, "jobs", "other"),
		key: filepath.Join(data, "master.key"), db: filepath.Join(data, "falaj.db"), public: t.TempDir(),
	}
	for _, dir := range []string{v.work, v.other} {
		check(t, os.MkdirAll(dir, 0o700))
	}
	for _, f := range []string{v.key, v.db, filepath.Join(v.other, "model.pt")} {
		check(t, os.WriteFile(f, []byte(secret), 0o600))
	}
	check(t, os.WriteFile(filepath.Join(v.public, "rows.csv"), []byte("a,b\n1,2\n"), 0o600))

	p := exec.Command("sleep", "100000")
	p.Env = []string{"TOKEN=" + secret}
	check(t, p.Start())
	v.process = p.Process.Pid
	t.Cleanup(func() { _, _ = p.Process.Kill(), p.Wait() })

	serve := func(network, address string) net.Addr {
		l, err := net.Listen(network, address)
		check(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, secret)
				_ = c.Close()
			}
		}()
		return l.Addr()
	}
	v.tcp = serve("tcp", "127.0.0.1:0").(*net.TCPAddr).Port
	short, err := os.MkdirTemp("", "v") //nolint:usetesting // A socket's path must be short.
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	v.outside = filepath.Join(short, "s")
	serve("unix", v.outside)
	v.abstract = "falaj-test-" + strconv.Itoa(os.Getpid()) + "-" + filepath.Base(short)
	serve("unix", "@"+v.abstract)
	v.socket = filepath.Join(data, "s")
	if len(v.socket) < 100 {
		serve("unix", v.socket)
	}
	return v
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// result is what came of running a program.
type result struct {
	out     string
	err     error
	outcome sandbox.Outcome
	denials []sandbox.Denial
}

func (r result) denied(kind, target string) bool {
	for _, d := range r.denials {
		if d.Kind == kind && strings.Contains(d.Target, target) {
			return true
		}
	}
	return false
}

// python runs a script in a sandbox; change may be nil.
func (v *victim) python(t *testing.T, script string, change func(*sandbox.Policy)) result {
	t.Helper()
	path, dirs := sandboxtest.Python(t)
	p := sandbox.Policy{
		Level: sandbox.Sandbox, Dir: v.work, Env: map[string]string{"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
		Mounts: []sandbox.Mount{{Path: v.work, Writable: true}, {Path: v.public}}, Guard: []string{v.data},
		Limits: sandbox.Limits{Processes: 200, Memory: 512 * resource.MiB},
	}
	for _, d := range dirs {
		p.Mounts = append(p.Mounts, sandbox.Mount{Path: d})
	}
	if change != nil {
		change(&p)
	}
	return run(t, p, path, "-c", v.expand(script))
}

// run runs a program and collects what is known of it.
func run(t *testing.T, p sandbox.Policy, argv ...string) result {
	t.Helper()
	cmd, err := sandbox.Command(t.Context(), sandboxtest.Worker(t), p, argv...)
	check(t, err)
	var r result
	var mu sync.Mutex
	if p.Level == sandbox.Sandbox {
		cmd.OnDenial = func(d sandbox.Denial) {
			mu.Lock()
			defer mu.Unlock()
			r.denials = append(r.denials, d)
		}
	}
	out, err := cmd.CombinedOutput()
	r.out, r.err, r.outcome = string(out), err, cmd.Outcome()
	return r
}

func (v *victim) expand(s string) string {
	return "import os, sys, socket, ctypes, errno, glob, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n" + strings.NewReplacer(
		"$KEY", v.key, "$DB", v.db, "$DATA", v.data, "$OTHER", v.other, "$WORK", v.work, "$PUBLIC", v.public, "$PID", strconv.Itoa(v.process),
		"$TCP", strconv.Itoa(v.tcp), "$SOCKET", v.socket, "$ABSTRACT", v.abstract, "$OUTSIDE", v.outside,
	).Replace(s)
}

// attack is a program that tries to get out. It prints "in" when it got what it
// wanted.
type attack struct {
	name   string
	script string
	kind   string // of the denial that must be recorded, empty for none
	target string
}

// attacks are all of them. Each has a key file of its own, so that its denial
// can be told from the others'.
func attacks(t *testing.T, v *victim) []attack {
	t.Helper()
	connect := func(family, address string) string {
		return "s = socket.socket(" + family + "); s.settimeout(2); s.connect(" + address + "); print('in', s.recv(99))"
	}
	call := func(name string, args string) string {
		return "r = libc." + name + "(" + args + ")\nif r != -1: print('in')\nelse: print(errno.errorcode[ctypes.get_errno()])"
	}
	list := []attack{
		// Files.
		{"read the key", `print('in', open('$KEY').read())`, "open", v.key},
		{"write the key", `open('$KEY', 'w').write('x')`, "open", v.key},
		{"read the database", `print('in', open('$DB', 'rb').read())`, "open", v.db},
		{"read another job", `print('in', open('$OTHER/model.pt').read())`, "open", filepath.Join(v.other, "model.pt")},
		{"list another job", `print('in', os.listdir('$OTHER'))`, "open", v.other},
		{"by a path with dots", `print('in', open('$WORK/../../master.key').read())`, "open", v.key},
		{"by a relative path", `os.chdir('$WORK'); print('in', open('../../master.key').read())`, "open", v.key},
		{"by a directory's descriptor", `d = os.open('$WORK', os.O_RDONLY); print('in', os.open('../../master.key', os.O_RDONLY, dir_fd=d))`, "open", v.key},
		{"by a symbolic link", `os.symlink('$KEY', '$WORK/link'); print('in', open('$WORK/link').read())`, "open", v.key},
		{"by a link in /tmp", `os.symlink('$DATA', '/tmp/d'); print('in', open('/tmp/d/falaj.db').read())`, "open", v.db},
		{"by a relative link", `os.symlink('../../master.key', '$WORK/rel'); print('in', open('$WORK/rel').read())`, "open", v.key},
		{"by a chain of links", `os.symlink('/tmp/b', '/tmp/a'); os.symlink('$KEY', '/tmp/b'); print('in', open('/tmp/a').read())`, "open", v.key},
		{"by a hard link", `os.link('$KEY', '$WORK/hard'); print('in')`, "", ""},
		{"by a rename", `os.rename('$KEY', '$WORK/renamed'); print('in')`, "", ""},
		{"by /proc/self/root", `print('in', open('/proc/self/root$KEY').read())`, "open", v.key},
		{"by /proc/self/cwd", `print('in', open('/proc/self/cwd/../../master.key').read())`, "open", v.key},
		{"by the root of the first process", `print('in', open('/proc/1/root$KEY').read())`, "open", "/proc/1/root"},
		{"by the descriptors of the first process", `print('in', os.listdir('/proc/1/fd'), open('/proc/1/fd/3').read())`, "open", "/proc/1/fd"},
		{"write a read-only mount", `open('$PUBLIC/rows.csv', 'a').write('x'); print('in')`, "", ""},
		{"write the system", `
for p in ['/usr/bin/env', '/etc/passwd', '/new', '/usr/new', '/etc/new', '/dev/new', '/run/new', '/.falaj-worker', '/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger']:
    try: os.close(os.open(p, os.O_WRONLY | (0 if os.path.exists(p) else os.O_CREAT))); print('in', p)
    except OSError: pass`, "", ""},
		{"see the host's files", `
for p in ['/root', '/home', '/work', '/opt', '/boot', '/mnt', '/srv', '/etc/shadow', '/etc/ssh', '/var/lib', '/sys/fs/cgroup', '/sys/kernel']:
    if p not in '$WORK $PUBLIC ' + sys.base_prefix and os.path.exists(p) and os.listdir(p) if os.path.isdir(p) else os.path.exists(p): 
        if not (sys.base_prefix + '/').startswith(p + '/'): print('in', p)`, "", ""},
		{"make a device", `os.mknod('/tmp/vda', 0o60600, os.makedev(254, 0)); print('in')`, "", ""},
		{"use host descriptors", `print([f for f in os.listdir('/proc/self/fd') if int(f) > 3])
if [f for f in os.listdir('/proc/self/fd') if int(f) > 3]: print('in')`, "", ""},
		{"make a set-user-id file", `
for f in [lambda: os.chmod('$WORK/suid', 0o4755), lambda: os.open('$WORK/s2', os.O_CREAT | os.O_WRONLY, 0o4755), lambda: os.chmod('$WORK/suid', 0o2755)]:
    open('$WORK/suid', 'w').close()
    try: f(); print('in')
    except PermissionError: pass`, "", ""},

		// Processes.
		{"environment of the first process", `print('in', open('/proc/1/environ').read())`, "open", "/proc/1/environ"},
		{"environment of the server", `print('in', open('/proc/$PID/environ').read())`, "open", fmt.Sprintf("/proc/%d/environ", v.process)},
		{"all environments", `
for p in glob.glob('/proc/[0-9]*/environ'):
    try:
        if '` + secret + `' in open(p).read(): print('in', p)
    except OSError: pass`, "open", "/proc/1/environ"},
		{"memory of the first process", `print('in', open('/proc/1/mem', 'rb').read(1))`, "open", "/proc/1/mem"},
		{"see the server", `os.kill($PID, 0); print('in')`, "", ""},
		{"kill the first process", `os.kill(1, signal.SIGKILL); print('in')`, "", ""},
		{"ask the first process to end", `os.kill(1, signal.SIGTERM); print('in')`, "", ""},
		{"trace the first process", call("ptrace", "16, 1, 0, 0"), "", ""},
		{"trace a child", `
pid = os.fork()
if pid == 0: signal.pause()
r = libc.ptrace(16, pid, 0, 0)
if r != -1: print('in')
os.kill(pid, 9)`, "", ""},

		// Rights.
		{"become root", `os.setuid(0); print('in')`, "", ""},
		{"become root's group", `os.setgroups([0]); print('in')`, "", ""},
		{"mount", call("mount", "b'none', b'/tmp', b'tmpfs', 0, 0"), "", ""},
		{"unmount", call("umount2", "b'/proc', 2"), "", ""},
		{"change the root", call("chroot", "b'/tmp'"), "", ""},
		{"new user namespace", call("unshare", "0x10000000"), "", ""},
		{"new user namespace by clone", call("syscall", "56, 0x10000000 | 17, 0, 0, 0, 0"), "", ""},
		{"clone3", call("syscall", "435, 0, 0"), "", ""},
		{"bpf", call("syscall", "321, 0, 0, 0"), "", ""},
		{"io_uring", call("syscall", "425, 8, b'x' * 200"), "", ""},
		{"userfaultfd", call("syscall", "323, 0"), "", ""},
		{"perf", call("syscall", "298, b'x' * 200, 0, -1, -1, 0"), "", ""},
		{"keys", call("syscall", "250, 0, -3, 0"), "", ""},
		{"openat2", call("syscall", "437, -100, b'/etc/passwd', b'x' * 24, 24"), "", ""},
		{"vsock", `socket.socket(40, socket.SOCK_STREAM); print('in')`, "", ""},
		{"packets", `socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('in')`, "", ""},

		// Network.
		{"a host service", connect("socket.AF_INET", "('127.0.0.1', $TCP)"), "connect", fmt.Sprintf("127.0.0.1:%d", v.tcp)},
		{"an address", connect("socket.AF_INET", "('192.0.2.1', 443)"), "connect", "192.0.2.1:443"},
		{"an address by IPv6", connect("socket.AF_INET6", "('2001:db8::1', 443)"), "connect", "[2001:db8::1]:443"},
		{"the metadata service", connect("socket.AF_INET", "('169.254.169.254', 80)"), "connect", "169.254.169.254:80"},
		{"a datagram", `socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.9', 53)); print('in')`, "connect", "192.0.2.9:53"},
		{"a name", `import urllib.request; print('in', urllib.request.urlopen('http://example.com/', timeout=5).read())`, "connect", "example.com"},
		{"an abstract socket", connect("socket.AF_UNIX", `'\0$ABSTRACT'`), "connect", "@" + v.abstract},
		{"a socket of the server", connect("socket.AF_UNIX", `'$SOCKET'`), "connect", "unix:" + v.socket},
		{"a socket of the host", connect("socket.AF_UNIX", `'$OUTSIDE'`), "connect", "unix:" + v.outside},
	}
	for i := range list {
		a := &list[i]
		if !strings.Contains(a.script, "$KEY") && !strings.Contains(a.script, "master.key") {
			continue
		}
		name := fmt.Sprintf("master.key%d", i)
		check(t, os.WriteFile(filepath.Join(v.data, name), []byte(secret), 0o600))
		a.script = strings.ReplaceAll(strings.ReplaceAll(a.script, "$KEY", v.key), "master.key", name)
		if a.target == v.key {
			a.target = filepath.Join(v.data, name)
		}
	}
	return list
}

// TestAttacks runs every attack in a child of its own of one program.
func TestAttacks(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	list := attacks(t, v)
	var script strings.Builder
	// The attacks would harm this machine if they ran on it.
	script.WriteString("import traceback\nif socket.gethostname() != 'falaj' or os.getpid() > 1000: sys.exit('not in a sandbox')\nattacks = [\n")
	for _, a := range list {
		fmt.Fprintf(&script, "%q,\n", v.expand(a.script))
	}
	script.WriteString(`]
for i, code in enumerate(attacks):
    print('=== %d' % i, flush=True)
    pid = os.fork()
    if pid == 0:
        try: exec(code)
        except BaseException: traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status: print('ended by', status, flush=True)
print('=== end')
`)
	r := v.python(t, script.String(), nil)
	check(t, r.err)
	if !strings.HasSuffix(r.out, "=== end\n") || r.outcome.Signal != 0 {
		t.Fatalf("the attacker was ended: %+v\n%s", r.outcome, r.out)
	}
	expected := map[string]bool{}
	for i, a := range list {
		_, out, _ := strings.Cut(r.out, fmt.Sprintf("=== %d\n", i))
		out, _, _ = strings.Cut(out, "=== ")
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "in") || strings.HasPrefix(line, "ended by") {
				t.Errorf("%s: %s", a.name, line)
			}
		}
		if strings.Contains(strings.ReplaceAll(out, "'"+secret+"'", ""), secret) {
			t.Errorf("%s: it knows the secret: %s", a.name, out)
		}
		if a.kind == "" {
			continue
		}
		expected[a.target] = true
		if !r.denied(a.kind, a.target) {
			t.Errorf("%s: no denial of %s %s; it said %s", a.name, a.kind, a.target, out)
		}
	}
	for _, d := range r.denials {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(expected)), func(target string) bool { return strings.Contains(d.Target, target) }) {
			t.Errorf("reported although nothing guarded was tried: %+v", d)
		}
	}
	files, err := filepath.Glob(filepath.Join(v.data, "*.*"))
	check(t, err)
	for _, f := range append(files, filepath.Join(v.other, "model.pt")) {
		if b, err := os.ReadFile(f); err != nil || string(b) != secret {
			t.Errorf("%s was changed to %q %v", f, b, err)
		}
	}
}

// TestUse runs what a program may do; none of it is a denial.
func TestUse(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	r := v.python(t, `
import tempfile, multiprocessing, threading, subprocess, pwd, ssl, hashlib
print(open('$PUBLIC/rows.csv').read().split()[1])
open('$WORK/model.txt', 'w').write('weights')
os.rename('$WORK/model.txt', '$WORK/final.txt')
os.makedirs('$WORK/a/b'); os.chmod('$WORK/a', 0o755)
open('/tmp/t', 'w').write('x' * 1000); os.symlink('/tmp/t', '/tmp/l'); open('/tmp/l').read()
tempfile.TemporaryFile().write(b'x')
print(pwd.getpwuid(os.getuid()).pw_name, os.getuid(), socket.gethostname())
print(subprocess.run(['/bin/sh', '-c', 'echo child; echo $$ > /dev/null; cat /proc/self/environ | wc -c'], capture_output=True, text=True).stdout.split()[0])
child = subprocess.Popen(['sleep', '5'])
open('/proc/%d/environ' % child.pid).read()
child.kill()
with multiprocessing.Pool(2) as p: print(sum(p.map(abs, range(10))))
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(); c = socket.create_connection(l.getsockname()); c.close()
try: socket.create_connection(('127.0.0.1', 29500))
except ConnectionRefusedError: print('refused')
print(socket.gethostbyname('localhost'))
ssl.create_default_context()
os.urandom(8); open('/dev/null', 'w').write('x'); open('/dev/shm/m', 'w').write('x')
for p in ['$DATA/pyproject.toml', '$DATA/jobs/.git/config', '$DATA/jobs']:
    try: os.close(os.open(p, os.O_RDONLY))
    except FileNotFoundError: pass
print(len(os.sched_getaffinity(0)) > 0, hashlib.sha256(b'').hexdigest()[:4])
`, nil)
	want := "1,2\nfalaj 1000 falaj\nchild\n45\nrefused\n127.0.0.1\nTrue e3b0\n"
	if r.err != nil || r.out != want || len(r.denials) > 0 {
		t.Errorf("%v\n%s\n%v", r.err, r.out, r.denials)
	}
	// What it made is ours, with its content.
	fi, err := os.Stat(filepath.Join(v.work, "final.txt"))
	check(t, err)
	if st := fi.Sys().(*syscall.Stat_t); int(st.Uid) != os.Getuid() {
		t.Errorf("the output belongs to user %d", st.Uid)
	}
	if b, err := os.ReadFile(filepath.Join(v.work, "final.txt")); err != nil || string(b) != "weights" {
		t.Errorf("%q %v", b, err)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	report := sandbox.Probe(t.Context(), worker)
	memory := strings.Contains(strings.Join(report.Cgroups, " "), "memory")
	for _, c := range []struct {
		name   string
		script string
		limits sandbox.Limits
		want   func(r result) bool
	}{
		{"fork bomb", `
n = 0
try:
    while n < 1000:
        if os.fork() == 0: signal.pause()
        n += 1
except OSError as e: print('stopped', errno.errorcode[e.errno])
print('few' if n < 100 else 'many')`, sandbox.Limits{Processes: 60}, func(r result) bool {
			return r.out == "stopped EAGAIN\nfew\n"
		}},
		{"memory hog", `x = bytearray(1 << 30)
for i in range(0, len(x), 4096): x[i] = 1
print('in')`, sandbox.Limits{Memory: 96 * resource.MiB, Tmp: resource.MiB}, func(r result) bool {
			return !strings.Contains(r.out, "in\n") && (r.outcome.OutOfMemory && r.outcome.Signal == syscall.SIGKILL || !memory && strings.Contains(r.out, "MemoryError"))
		}},
		{"memory hog in a child", `
pid = os.fork()
if pid == 0:
    x = bytearray(1 << 30)
    for i in range(0, len(x), 4096): x[i] = 1
sys.exit(1 if os.waitpid(pid, 0)[1] else 0)`, sandbox.Limits{Memory: 96 * resource.MiB, Tmp: resource.MiB}, func(r result) bool {
			return r.outcome.ExitCode == 1 && r.outcome.OutOfMemory == memory
		}},
		{"large file", `
try:
    with open('$WORK/big', 'wb') as f:
        for i in range(64): f.write(b'x' * (1 << 20))
    print('in')
except OSError as e: print(errno.errorcode[e.errno])
print(os.path.getsize('$WORK/big') <= 2 << 20)`, sandbox.Limits{FileSize: 2 * resource.MiB}, func(r result) bool { return r.out == "EFBIG\nTrue\n" }},
		{"much in /tmp", `
try:
    for i in range(64): open('/tmp/%d' % i, 'wb').write(b'x' * (1 << 20))
    print('in')
except OSError as e: print(errno.errorcode[e.errno])`, sandbox.Limits{Tmp: 4 * resource.MiB}, func(r result) bool { return r.out == "ENOSPC\n" }},
		{"many files open", `
try:
    fs = [open('/dev/null') for i in range(1000)]
    print('in')
except OSError as e: print(errno.errorcode[e.errno])`, sandbox.Limits{OpenFiles: 64}, func(r result) bool { return r.out == "EMFILE\n" }},
		{"cores", `print(len(os.sched_getaffinity(0)))`, sandbox.Limits{CPUs: []int{0}}, func(r result) bool { return r.out == "1\n" }},
		{"time", `signal.pause()`, sandbox.Limits{Wall: 1}, func(r result) bool {
			return r.outcome.TimedOut && fault.Is(r.err, fault.Timeout)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newVictim(t).python(t, c.script, func(p *sandbox.Policy) { p.Limits = c.limits })
			if !c.want(r) {
				t.Errorf("%v %+v\n%s", r.err, r.outcome, r.out)
			}
		})
	}
}

// TestProcessLevel checks what is promised without namespaces.
func TestProcessLevel(t *testing.T) {
	t.Parallel()
	path, _ := sandboxtest.Python(t)
	v := newVictim(t)
	weaker := func(p *sandbox.Policy) { p.Level = sandbox.Process }
	for name, script := range map[string]string{
		"no new rights":     `print('in' if 'NoNewPrivs:\t1' not in open('/proc/self/status').read() else 'ok')`,
		"no capabilities":   `print('in' if 'CapEff:\t0000000000000000' not in open('/proc/self/status').read() else 'ok')`,
		"no mount":          `libc.mount(0, 0, 0, 0, 0); print('ok' if ctypes.get_errno() == errno.EPERM else 'in')`,
		"no user namespace": `print('in' if libc.unshare(0x10000000) != -1 else 'ok')`,
		"no tracing":        `print('in' if libc.ptrace(16, os.getppid(), 0, 0) != -1 else 'ok')`,
		"own environment":   `print('ok' if set(os.environ) <= {'PATH', 'PYTHONDONTWRITEBYTECODE', 'LC_CTYPE'} else 'in')`,
		"no kernel settings": `
n = 0
for p in ['/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/1/oom_score_adj', '/proc/sys/vm/drop_caches']:
    try: os.close(os.open(p, os.O_WRONLY)); n += 1
    except OSError: pass
print('in' if n else 'ok')`,
		"no devices": `
n = 0
for p in ['/dev/kmsg', '/dev/mem', '/dev/vda', '/dev/loop-control', '/dev/fuse']:
    try: os.close(os.open(p, os.O_RDWR)); n += 1
    except OSError: pass
print('in' if n else 'ok')`,
		"no foreign descriptors": `print('in' if [f for f in os.listdir('/proc/self/fd') if int(f) > 3] else 'ok')`,
	} {
		if r := v.python(t, script, weaker); r.err != nil || r.out != "ok\n" {
			t.Errorf("%s with %s: %v %s", name, path, r.err, r.out)
		}
	}
}

// TestEndWithCaller checks that nothing survives the context.
func TestEndWithCaller(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		ctx, cancel := context.WithCancel(t.Context())
		p := sandbox.Policy{Level: level, Env: map[string]string{"PATH": "/usr/bin:/bin"}}
		cmd, err := sandbox.Command(ctx, sandboxtest.Worker(t), p, "sh", "-c", "trap '' TERM HUP INT; setsid sleep 100000 & (setsid setsid sleep 100000 &) ; echo ready; while :; do sleep 100000; done")
		check(t, err)
		r, w, err := os.Pipe()
		check(t, err)
		cmd.Stdout = w
		check(t, cmd.Start())
		check(t, w.Close())
		if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		cancel()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", level, err)
		}
		// Every process held the pipe; it ends when the last is gone.
		if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
			t.Errorf("%s: %q %v", level, b, err)
		}
		_ = r.Close()
	}
}

func mkfifo(path string) error {
	if err := syscall.Mkfifo(path, 0o666); err != nil {
		return err
	}
	return os.Chmod(path, 0o666)
}
