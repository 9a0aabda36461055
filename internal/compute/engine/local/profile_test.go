package local_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// spy stands for py-spy in the user's own environment: it tells what whoever
// looks may do, a line for each thing, and whom it was to look at.
const spy = `
import ctypes, os, socket, sys
args = dict(zip(sys.argv[2::1], sys.argv[3::1]))
if '--version' in sys.argv:
    sys.exit(print('py-spy 0.0.0'))
libc = ctypes.CDLL(None, use_errno=True)
pid, said = int(args['--pid']), []
def errno_of(r): return 0 if r >= 0 else ctypes.get_errno()
class iovec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
def memory(pid, call):
    """Of the first mapping that is there."""
    try:
        at = int(open('/proc/%d/maps' % pid).readline().split('-')[0], 16)
    except OSError as e:
        return e.errno
    b = ctypes.create_string_buffer(8)
    return errno_of(getattr(libc, call)(pid, ctypes.byref(iovec(ctypes.addressof(b), 8)), 1, ctypes.byref(iovec(at, 8)), 1, 0))
status = dict(l.split(':\t', 1) for l in open('/proc/self/status').read().splitlines() if ':\t' in l)
theirs = dict(l.split(':\t', 1) for l in open('/proc/%d/status' % pid).read().splitlines() if ':\t' in l)
said.append(('reads', memory(pid, 'process_vm_readv')))
said.append(('writes', memory(pid, 'process_vm_writev')))
said.append(('reads_first', memory(1, 'process_vm_readv')))
said.append(('traces', errno_of(libc.ptrace(16, pid, 0, 0))))
said.append(('same_user', status['Uid'] == theirs['Uid'] and status['Gid'] == theirs['Gid']))
said.append(('user', status['Uid'].split()[0]))
said.append(('groups', sorted(set(status['Groups'].split()) - set(theirs['Groups'].split()))))
said.append(('rights', [status[c] for c in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb')]))
said.append(('no_new', status['NoNewPrivs'], status['Seccomp']))
said.append(('unshare', errno_of(libc.unshare(0x10000000))))
said.append(('mount', errno_of(libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))))
for name in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts'):
    said.append(('ns_' + name, os.readlink('/proc/self/ns/' + name) == os.readlink('/proc/%d/ns/%s' % (pid, name))))
def limits(pid): return [l.split()[-2 if l.split()[-1] in ('bytes', 'processes', 'files') else -1] for l in open('/proc/%d/limits' % pid) if l.startswith(('Max data', 'Max proc', 'Max open'))]
def least(l): return [l[0]] + [min(int(n), most) if n != 'unlimited' else most for n, most in zip(l[1:], (4096, 65536))]
said.append(('limits', least(limits(os.getpid())) == least(limits(pid))))
said.append(('processors', os.sched_getaffinity(0) == os.sched_getaffinity(pid)))
if os.fork() == 0: # it is nobody's, and would stay
    os.setsid()
    if os.fork() == 0:
        os.close(1), os.close(2)
        __import__('time').sleep(1000)
    os._exit(0)
os.wait()
def argv(n):
    try: return open('/proc/%s/cmdline' % n).read()
    except OSError: return ''
left = [n for n in os.listdir('/proc') if n.isdigit() and 'falaj-profile-' in argv(n) and os.path.dirname(args['--output']) not in argv(n)]
said.append(('left', left))
said.append(('cgroup', open('/proc/self/cgroup').read() == open('/proc/%d/cgroup' % pid).read()))
said.append(('files', sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists('/proc/self/fd/' + n))))
said.append(('secret', os.path.exists('$DATA/master.key')))
said.append(('environment', sorted(set(os.environ) - {'LC_CTYPE'})))
said.append(('target', open('/proc/%d/environ' % pid).read().split('\0').count('MARK=me')))
open(args['--output'], 'w').write(''.join('%s;%r 1\n' % (s[0], s[1:]) for s in said))
`

// TestProfile: who looks has the program's walls and rights, but that it may
// read the memory of the program's processes.
func TestProfile(t *testing.T) {
	t.Parallel()
	for name, workers := range map[string]int{"one": 0, "gang": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, nil)
			s := m.python("print('began', flush=True)\nos.environ.get('RANK') == '1' and os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)'], os.environ | {'MARK': 'me'})\ntime.sleep(1000)")
			bin := filepath.Join(m.work, "bin")
			check(t, os.Mkdir(bin, 0o700))
			check(t, os.WriteFile(filepath.Join(bin, "py-spy"), []byte("#!"+s.Command[0]+"\n"+strings.ReplaceAll(spy, "$DATA", m.data)), 0o700))
			s.Env["PATH"], s.Workers = bin+":"+s.Env["PATH"], workers
			if workers == 0 {
				s.Env["RANK"] = "1"
			} else {
				s.Launch.Framework = launch.Plain
			}
			h, err := m.Start(t.Context(), s)
			check(t, err)
			r := profiler.Request{ID: "prf_1", Tool: profiler.PySpy, Seconds: 1, Worker: min(workers, 1)}
			var got profiler.Result
			for deadline := time.Now().Add(20 * time.Second); ; {
				got, err = m.Profile(t.Context(), h, r)
				if err == nil && strings.Contains(string(got.Files[0].Data), "target;(1,) 1") || time.Now().After(deadline) {
					break
				}
			}
			check(t, err)
			got, err = m.Profile(t.Context(), h, r) // nothing is left of the one before
			check(t, err)
			if got.Version != "py-spy 0.0.0" || got.Processes != 1 || len(got.Files) != 2 {
				t.Errorf("%+v", got)
			}
			said := map[string]string{}
			for line := range strings.Lines(string(got.Files[0].Data)) {
				k, v, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), " 1"), ";")
				said[k] = v
			}
			const zero = "'0000000000000000'"
			want := map[string]string{
				"reads": "(0,)", "writes": "(1,)", "reads_first": "(13,)", "traces": "(1,)", "same_user": "(True,)", "user": "('1000',)",
				"groups": "([],)", "rights": "([" + strings.Join([]string{zero, zero, zero, zero}, ", ") + "],)", "no_new": "('1', '2')",
				"unshare": "(1,)", "mount": "(1,)", "cgroup": "(True,)", "files": "([],)", "secret": "(False,)", "target": "(1,)",
				"limits": "(True,)", "processors": "(True,)", "left": "([],)",
				"ns_user": "(True,)", "ns_mnt": "(True,)", "ns_pid": "(True,)", "ns_net": "(True,)", "ns_ipc": "(True,)", "ns_uts": "(True,)",
				"environment": "(['PATH', 'TMPDIR'],)",
			}
			for _, k := range slices.Sorted(maps.Keys(want)) {
				if said[k] != want[k] {
					t.Errorf("%s: %s, want %s", k, said[k], want[k])
				}
			}
			check(t, m.Stop(t.Context(), h, 0))
			if _, err := m.Profile(t.Context(), h, r); !fault.Is(err, fault.Conflict) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

func TestNoProfile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(c *local.Config) { c.Level = sandbox.Process })
	start := func(isolation string) engine.Handle {
		s := m.python("time.sleep(1000)")
		s.Isolation = isolation
		h, err := m.Start(t.Context(), s)
		check(t, err)
		t.Cleanup(func() { _ = m.Stop(context.WithoutCancel(t.Context()), h, 0) })
		return h
	}
	weak, strong := start("process"), start("sandbox")
	r := profiler.Request{ID: "prf_1", Tool: profiler.PySpy, Seconds: 1}
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := m.Profile(t.Context(), weak, r)
		if fault.Is(err, fault.Unsupported) {
			break
		}
		if !fault.Is(err, fault.Conflict) || time.Now().After(deadline) { // it has not begun
			t.Fatalf("without a sandbox: %v", err)
		}
	}
	for { // until the interpreter is there
		_, err := m.Profile(t.Context(), strong, r)
		if fault.Is(err, fault.Unsupported) && strings.Contains(fault.HintOf(err), "py-spy") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("without py-spy: %v", err)
		}
	}
	if _, err := m.Profile(t.Context(), strong, profiler.Request{ID: "prf_1", Tool: "magic", Seconds: 1}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	if _, err := m.Profile(t.Context(), "nobody", r); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// TestProfileUnprivileged runs the same without root.
func TestProfileUnprivileged(t *testing.T) {
	t.Parallel()
	sandboxtest.Unprivileged(t, "^(TestProfile|TestNoProfile)$")
}
