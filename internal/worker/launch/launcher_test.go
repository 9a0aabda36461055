package launch_test

import (
	"context"
	"maps"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// horovod runs a worker's plan with the machine's Python and a program in it, and
// gives what it printed and its exit code.
func horovod(t *testing.T, processes int, program string) (string, int) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("Python 3 is needed to build and test Falaj: ", err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := launch.Plan(launch.Spec{
		Framework: launch.Horovod, Processes: processes, Command: []string{python, "-u", "-c", program}, Python: python, Grace: 20,
	}, []launch.Peer{{Address: "127.0.0.1", Port: port}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
	for k, v := range maps.All(p.Env) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.WaitDelay = time.Second // what it left running does not hold the test
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("it does not end: %s", out)
	}
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestHorovodProcessesMeet in the store that the first worker serves: each tells
// its rank there and waits for the other's.
func TestHorovodProcessesMeet(t *testing.T) {
	out, code := horovod(t, 2, `
import os, time, urllib.error, urllib.request as u
store = "http://%s:%s/global/" % (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
rank = int(os.environ["HOROVOD_RANK"])
u.urlopen(u.Request(store + str(rank), ("rank %d" % rank).encode(), method="PUT")).close()
while True:
    try:
        with u.urlopen(store + str(1 - rank)) as r:
            print("%d met %s" % (rank, r.read().decode()), flush=True)
        break
    except urllib.error.HTTPError as e:
        assert e.code == 404
        time.sleep(0.05)
while rank == 0: # the store goes with the first worker
    try:
        u.urlopen(store + "done").close()
        break
    except urllib.error.HTTPError:
        time.sleep(0.05)
if rank == 1:
    u.urlopen(u.Request(store + "done", b"x", method="PUT")).close()
`)
	if code != 0 || !strings.Contains(out, "0 met rank 1") || !strings.Contains(out, "1 met rank 0") {
		t.Fatalf("%d: %s", code, out)
	}
}

// TestHorovodPassesCodesOn: the first failure ends the others, and is the
// worker's.
func TestHorovodPassesCodesOn(t *testing.T) {
	for want, program := range map[int]string{
		0:   "pass",
		75:  "import sys; sys.exit(75)",
		3:   "import os, sys, time\nif os.environ['HOROVOD_RANK'] == '1': sys.exit(3)\ntime.sleep(30)",
		139: "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
	} {
		if out, code := horovod(t, 2, program); code != want {
			t.Errorf("%q ends with %d: %s", program, code, out)
		}
	}
}
