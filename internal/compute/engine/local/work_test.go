package local_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// machine is a driver with a data directory around it.
type machine struct {
	*local.Driver
	t    *testing.T
	c    local.Config
	data string
	work string
}

func newMachine(t *testing.T, change func(*local.Config)) *machine {
	t.Helper()
	data := t.TempDir()
	m := &machine{t: t, data: data, work: filepath.Join(data, "work")}
	check(t, os.Mkdir(m.work, 0o700))
	check(t, os.WriteFile(filepath.Join(data, "master.key"), []byte("secret"), 0o600))
	m.c = local.Config{Dir: filepath.Join(data, "workloads"), Worker: sandboxtest.Worker(t), Level: sandbox.Sandbox, Guard: []string{data}}
	if change != nil {
		change(&m.c)
	}
	m.restart()
	return m
}

func (m *machine) restart() {
	m.t.Helper()
	if m.Driver != nil {
		check(m.t, m.Close())
	}
	d, err := local.New(m.c)
	check(m.t, err)
	m.t.Cleanup(func() { _ = d.Close() })
	m.Driver = d
}

func (m *machine) python(script string) engine.Spec {
	m.t.Helper()
	path, dirs := sandboxtest.Python(m.t)
	s := engine.Spec{
		ID: id.New("att"), Command: []string{path, "-c", "import os, sys, socket, time\n" + strings.ReplaceAll(script, "$DATA", m.data)}, Dir: m.work,
		Env: map[string]string{"PATH": "/usr/bin:/bin"}, Mounts: []engine.Mount{{Path: m.work, Writable: true}},
	}
	for _, d := range dirs {
		s.Mounts = append(s.Mounts, engine.Mount{Path: d})
	}
	return s
}

// run starts a workload, waits for its end and gives its log.
func (m *machine) run(s engine.Spec) (engine.Handle, engine.Status, string) {
	m.t.Helper()
	h, err := m.Start(m.t.Context(), s)
	check(m.t, err)
	st, err := m.Wait(m.t.Context(), h)
	check(m.t, err)
	return h, st, m.log(h)
}

func (m *machine) log(h engine.Handle) string {
	m.t.Helper()
	r, err := m.Logs(m.t.Context(), h, 0, true)
	check(m.t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(m.t, err)
	return string(b)
}

func (m *machine) status(h engine.Handle) shim.Status {
	m.t.Helper()
	st, err := shim.Read[shim.Status](filepath.Join(m.c.Dir, string(h)), shim.StatusFile)
	check(m.t, err)
	return st
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDenials(t *testing.T) {
	t.Parallel()
	told := make(chan engine.Handle, 100)
	m := newMachine(t, func(c *local.Config) { c.OnDenial = func(h engine.Handle) { told <- h } })
	s := m.python(`
import urllib.request, http.client
def attempt(f):
    try: f(); print('in')
    except Exception as e: print(type(e).__name__)
attempt(lambda: open('$DATA/master.key'))
attempt(lambda: open('$DATA/master.key'))
attempt(lambda: open('$DATA/workloads/$ID/spec.json'))
attempt(lambda: open('/proc/1/environ'))
attempt(lambda: socket.create_connection(('192.0.2.1', 443), timeout=5))
attempt(lambda: urllib.request.urlopen('https://evil.example/', timeout=5))
p = os.environ['HTTPS_PROXY'][len('http://'):]
def direct():
    c = http.client.HTTPSConnection(p); c.set_tunnel('10.0.0.1', 22); c.request('GET', '/')
attempt(direct)
attempt(lambda: socket.gethostbyname('other.example'))
attempt(lambda: socket.gethostbyname('pypi.example'))
`)
	s.Command[2] = strings.ReplaceAll(s.Command[2], "$ID", s.ID)
	s.Network.Allow = []string{"pypi.example:443"}
	h, st, log := m.run(s)
	if st.ExitCode != 0 || strings.Contains(log, "in\n") {
		t.Errorf("%+v %s", st, log)
	}
	if got := <-told; got != h {
		t.Errorf("told of %s", got)
	}
	all, err := m.Denials(t.Context(), h, 0)
	check(t, err)
	want := []string{
		"open " + m.data + "/master.key", "open " + m.data + "/workloads/" + s.ID + "/spec.json", "open /proc/1/environ", "connect 192.0.2.1:443",
		"connect evil.example:443", "connect 10.0.0.1:22", "connect other.example",
	}
	var got []string
	for _, d := range all {
		if d.Time.IsZero() {
			t.Errorf("%+v has no time", d)
		}
		got = append(got, d.Kind+" "+d.Target)
	}
	for _, w := range want {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(g string) bool { return g != w })); n != 1 {
			t.Errorf("%d times %q in %q", n, w, got)
		}
	}
	if slices.Contains(got, "connect pypi.example") {
		t.Errorf("a look-up of what is allowed was reported: %q", got)
	}
	m.restart()
	rest, err := m.Denials(t.Context(), h, len(all)-1)
	if err != nil || len(rest) != 1 || !rest[0].Time.Equal(all[len(all)-1].Time) {
		t.Errorf("%v %v", rest, err)
	}
	if rest, err = m.Denials(t.Context(), h, 1000); err != nil || len(rest) > 0 {
		t.Errorf("%v %v", rest, err)
	}
}

// TestAPI reaches the API before and after the server restarts.
func TestAPI(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			paths := make(chan string, 10)
			m := newMachine(t, func(c *local.Config) {
				c.Level = level
				c.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					paths <- r.URL.Path + " " + r.Header.Get("Authorization")
					_, _ = io.WriteString(w, "answer "+r.URL.Path[1:])
				})
			})
			s := m.python(`
import urllib.request
def ask(path):
    r = urllib.request.Request(os.environ['FALAJ_URL'] + path, headers={'Authorization': 'Bearer ' + os.environ['FALAJ_TOKEN']})
    for i in range(600):
        try: return urllib.request.urlopen(r, timeout=60).read().decode()
        except Exception as e: last = e; time.sleep(0.05) # the server is away
    raise last
print(ask('/one'), flush=True)
sys.stdin = open('gate'); sys.stdin.read()
print(ask('/two'))`)
			s.Env["FALAJ_TOKEN"] = "t0ken"
			s.Network.API = true
			gate := filepath.Join(m.work, "gate")
			check(t, mkfifo(gate))
			h, err := m.Start(t.Context(), s)
			check(t, err)
			if got := <-paths; got != "/one Bearer t0ken" {
				t.Errorf("%q", got)
			}
			stream, err := m.Logs(t.Context(), h, 0, true)
			check(t, err)
			if _, err := io.ReadFull(stream, make([]byte, len("answer one\n"))); err != nil { // it has its answer
				t.Error(err)
			}
			check(t, stream.Close())
			m.restart()
			f, err := os.OpenFile(gate, os.O_WRONLY, 0)
			check(t, err)
			check(t, f.Close())
			if got := <-paths; got != "/two Bearer t0ken" {
				t.Errorf("%q", got)
			}
			if st, err := m.Wait(t.Context(), h); err != nil || st.ExitCode != 0 {
				t.Errorf("%+v %v", st, err)
			}
			if log := m.log(h); log != "answer one\nanswer two\n" {
				t.Errorf("%q", log)
			}
		})
	}
}

// TestNoAPI checks that what was not asked for is not there.
func TestNoAPI(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(c *local.Config) {
		c.API = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the API was reached") })
	})
	_, st, log := m.run(m.python(`
print([k for k in os.environ if 'FALAJ' in k or 'proxy' in k.lower()])
try: socket.create_connection(('127.0.0.1', 7070)); print('in')
except OSError as e: print('no')`))
	if st.ExitCode != 0 || log != "[]\nno\n" {
		t.Errorf("%+v %q", st, log)
	}
}

func TestEgress(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "reached %s", r.URL.Path)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		m := newMachine(t, func(c *local.Config) { c.Level = level })
		s := m.python(`
import http.client
p = os.environ['HTTPS_PROXY'][len('http://'):]
c = http.client.HTTPConnection(p, timeout=20); c.set_tunnel('127.0.0.1', ` + strconv.Itoa(l.Addr().(*net.TCPAddr).Port) + `); c.request('GET', '/x')
print(c.getresponse().read().decode())`)
		s.Network.Allow = []string{l.Addr().String()}
		if _, st, log := m.run(s); st.ExitCode != 0 || log != "reached /x\n" {
			t.Errorf("%s: %+v %q", level, st, log)
		}
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	s := m.python(`
print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])
x = bytearray(50 << 20)
for i in range(0, len(x), 4096): x[i] = 1
t = time.process_time()
while time.process_time() - t < 0.2: pass`)
	s.Resources = resource.Amount{CPU: 500, Memory: 256 * resource.MiB}
	h, st, log := m.run(s)
	if st.ExitCode != 0 || log != "1 1\n" {
		t.Errorf("%+v %q", st, log)
	}
	if st.CPU < 200e6 || st.PeakRSS < 50*resource.MiB || st.PeakRSS > 256*resource.MiB {
		t.Errorf("usage is not recorded: %+v", st)
	}
	for _, dir := range m.status(h).Cgroups {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("cgroup %s was left", dir)
		}
	}

	s = m.python(`
x = bytearray(1 << 30)
for i in range(0, len(x), 4096): x[i] = 1
print('in')`)
	s.Resources.Memory = 100 * resource.MiB
	_, st, log = m.run(s)
	if limited := len(sandbox.Probe(t.Context(), m.c.Worker).Cgroups) > 0; limited && st.Reason != engine.OutOfMemory || strings.Contains(log, "in\n") {
		t.Errorf("%+v %q", st, log)
	}
}

func TestLogLimit(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(c *local.Config) { c.LogLimit = 8000 })
	_, st, log := m.run(m.python(`
for i in range(10000): print('0123456789')
print('in', file=open('done', 'w'))
print('last words')`))
	if st.ExitCode != 0 || len(log) > 8000 || !strings.HasPrefix(log, strings.Repeat("0123456789\n", 300)) || !strings.Contains(log, "bytes are missing here") || !strings.HasSuffix(log, "last words\n") {
		t.Errorf("%+v %d bytes: …%s", st, len(log), log[max(0, len(log)-200):])
	}
	if _, err := os.Stat(filepath.Join(m.work, "done")); err != nil {
		t.Error(err)
	}
}

// TestNeverTwice starts a second shim by hand for a workload that ran.
func TestNeverTwice(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	h, _, log := m.run(m.python(`print('once')`))
	before := m.status(h)
	if out, err := exec.CommandContext(t.Context(), m.c.Worker, "shim", filepath.Join(m.c.Dir, string(h))).CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
	if again := m.log(h); again != log || !m.status(h).Ended.Equal(before.Ended) {
		t.Errorf("%q after %q", again, log)
	}
}

// TestUnborn finds what a server left that died between describing a workload
// and starting its shim.
func TestUnborn(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	s := m.python(`print('born')`)
	dir := filepath.Join(m.c.Dir, s.ID)
	check(t, os.Mkdir(dir, 0o700))
	check(t, shim.Write(dir, shim.SpecFile, shim.Spec{ID: s.ID, Argv: s.Command, Owner: json.RawMessage("{}")}))
	check(t, os.Mkdir(filepath.Join(m.c.Dir, "att_empty"), 0o700))
	check(t, os.WriteFile(filepath.Join(m.c.Dir, "a file"), nil, 0o600))
	m.restart()
	all, err := m.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("%v %v", all, err)
	}
	if st, err := m.Status(t.Context(), engine.Handle(s.ID)); err != nil || st.State != engine.Lost {
		t.Errorf("%+v %v", st, err)
	}
	if _, st, log := m.run(s); st.ExitCode != 0 || log != "born\n" {
		t.Errorf("%+v %q", st, log)
	}
}

// TestStopBeforeStart orders a stop that the shim finds when it starts.
func TestStopBeforeStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	check(t, shim.Write(dir, shim.SpecFile, shim.Spec{ID: "x", Argv: []string{"true"}}))
	check(t, shim.Write(dir, shim.StopFile, shim.Stop{}))
	if out, err := exec.CommandContext(t.Context(), sandboxtest.Worker(t), "shim", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	st, err := shim.Read[shim.Status](dir, shim.StatusFile)
	if err != nil || st.State != shim.Ended || st.Reason != shim.Stopped {
		t.Errorf("%+v %v", st, err)
	}
}

// TestClosed checks that a closed driver refuses and lets its waiters go.
func TestClosed(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	h, err := m.Start(t.Context(), m.python(`time.sleep(100000)`))
	check(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := m.Wait(context.WithoutCancel(t.Context()), h)
		waited <- err
	}()
	d := m.Driver
	check(t, d.Close())
	check(t, d.Close())
	if err := <-waited; err == nil {
		t.Error("a waiter was told of an end")
	}
	if _, err := d.Start(t.Context(), m.python(`pass`)); err == nil {
		t.Error("a closed driver starts workloads")
	}
	m.restart()
	check(t, m.Stop(t.Context(), h, 0))
}

func mkfifo(path string) error {
	return exec.Command("mkfifo", "-m", "666", path).Run()
}

// TestGang has workers find each other over loopback, in a network of their own
// and in the machine's.
func TestGang(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, func(c *local.Config) { c.Level = level })
			scratch := filepath.Join(m.data, "scratch")
			check(t, os.Mkdir(scratch, 0o700))
			s := m.python(`
rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
open(os.environ['HOME'] + '/mine', 'x').write(str(rank))
if rank == 0:
    l = socket.create_server(at)
    total = 0
    for _ in range(size - 1):
        c, _ = l.accept()
        total += int(c.recv(10))
    print('total', total, 'of', size)
else:
    for _ in range(1000):
        try:
            c = socket.create_connection(at)
            break
        except OSError:
            time.sleep(0.01)
    c.sendall(str(rank).encode())
    c.close()
print('worker', rank, os.path.basename(os.environ['HOME']), len(os.sched_getaffinity(0)) > 0)
`)
			s.Workers, s.Env["HOME"] = 3, scratch
			s.Mounts = append(s.Mounts, engine.Mount{Path: scratch, Writable: true, Role: engine.Scratch})
			h, st, log := m.run(s)
			if st.Reason != engine.Exited || st.ExitCode != 0 {
				t.Fatalf("%+v\n%s", st, log)
			}
			for _, line := range []string{"[0] total 3 of 3", "[0] worker 0 worker-0 True", "[1] worker 1 worker-1 True", "[2] worker 2 worker-2 True"} {
				if !slices.Contains(strings.Split(log, "\n"), line) {
					t.Errorf("the log has no line %q:\n%s", line, log)
				}
			}
			members, err := m.Members(t.Context(), h)
			check(t, err)
			if len(members) != 3 {
				t.Fatalf("%+v", members)
			}
			for i, x := range members {
				if x.Index != i || x.Node != "local" || x.State != engine.Ended || x.Reason != engine.Exited || x.ExitCode != 0 || x.CPU == 0 {
					t.Errorf("%+v", x)
				}
			}
		})
	}
}

// TestGangEndsTogether has one worker fail and one that would run on, and a
// gang that is stopped.
func TestGangEndsTogether(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	s := m.python(`
if os.environ['RANK'] == '1':
    sys.exit(7)
time.sleep(600)
`)
	s.Workers, s.Grace = 2, time.Second
	h, st, log := m.run(s)
	if st.Reason != engine.Exited || st.ExitCode != 7 {
		t.Fatalf("%+v\n%s", st, log)
	}
	members, err := m.Members(t.Context(), h)
	check(t, err)
	if len(members) != 2 || members[1].ExitCode != 7 || members[0].State != engine.Ended || members[0].ExitCode == 0 && members[0].Signal == "" {
		t.Errorf("%+v", members)
	}

	s = m.python(`
import signal
def term(*_):
    print('asked', os.environ['RANK'], flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, term)
print('up', flush=True)
while True: time.sleep(0.05)
`)
	s.Workers = 2
	h, err = m.Start(t.Context(), s)
	check(t, err)
	r, err := m.Logs(t.Context(), h, 0, true)
	check(t, err)
	defer r.Close()
	lines := bufio.NewScanner(r)
	for up := 0; up < 2 && lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "up") {
			up++
		}
	}
	members, err = m.Members(t.Context(), h)
	check(t, err)
	if len(members) != 2 || members[0].State != engine.Running || members[1].State != engine.Running {
		t.Errorf("%+v", members)
	}
	m.restart() // and found again
	check(t, m.Stop(t.Context(), h, 10*time.Second))
	if log := m.log(h); !strings.Contains(log, "[0] asked 0") || !strings.Contains(log, "[1] asked 1") {
		t.Errorf("%s", log)
	}
	st, err = m.Wait(t.Context(), h)
	check(t, err)
	members, err = m.Members(t.Context(), h)
	check(t, err)
	if st.Reason != engine.Stopped || members[0].ExitCode != 75 || members[1].ExitCode != 75 {
		t.Errorf("%+v, %+v", st, members)
	}
}

// TestAlone has a program for gangs run alone, and what it uses seen.
func TestAlone(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		m := newMachine(t, func(c *local.Config) { c.Level = level })
		s := m.python(`
l = socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))
print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['FALAJ_WORKERS'], flush=True)
b = bytearray(50_000_000)
while True: pass
`)
		s.Launch.Framework, s.Resources.CPU = launch.Plain, resource.Cores(1)
		h, err := m.Start(t.Context(), s)
		check(t, err)
		r, err := m.Logs(t.Context(), h, 0, true)
		check(t, err)
		if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "0 1 1\n" {
			t.Errorf("%q, %v", line, err)
		}
		check(t, r.Close())
		seen := false
		for range 100 { // until it computes
			members, err := m.Members(t.Context(), h)
			check(t, err)
			if len(members) != 1 || members[0].State != engine.Running {
				t.Fatalf("%+v", members)
			}
			if u := members[0].Usage; u.CPU > 0.1 && u.Memory > 40*resource.MiB {
				seen = true
				break
			}
		}
		if !seen {
			t.Errorf("%s: it is not seen computing", level)
		}
		check(t, m.Stop(t.Context(), h, 0))
	}
}
