package sourcetest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// serve runs the server until its standard input ends, which it does when the
// test process does, however that ends.
const serve = `
trap '' INT TERM HUP
log=$1; shift
"$@" >"$log" 2>&1 &
server=$!
while read -r _; do :; done
kill -9 $server
wait $server
`

// begin runs a server until the test ends, and gives the file of what it says.
func begin(t *testing.T, env []string, server string, args ...string) (log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "log")
	cmd := exec.Command("/bin/sh", append([]string{"-c", serve, "sh", log, server}, args...)...) //nolint:noctx // its end is that of its standard input
	cmd.Env = append(os.Environ(), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return log
}

// eventually asks a server until it answers.
func eventually(t *testing.T, log string, ask func() error) {
	t.Helper()
	give := time.NewTimer(time.Minute)
	defer give.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-give.C:
			said, _ := os.ReadFile(log)
			t.Fatalf("the server does not answer: %v\n%s", err, said)
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// absent skips a test whose server is not installed, or fails it under CI=true.
func absent(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" { //nolint:forbidigo // CI tells the tests that nothing may be skipped
		t.Fatalf("there is no %s; install it with: make engines", what)
	}
	t.Skipf("there is no %s; install it with: make engines", what)
}
