package live

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Installed is the Python of an environment that make engines installs.
func Installed(tb testing.TB, name string) string {
	tb.Helper()
	return ofEngines(tb, "the environment "+name, "venv", name, "bin", "python")
}

// Built is a program that make engines builds.
func Built(tb testing.TB, name string) string {
	tb.Helper()
	return ofEngines(tb, name, "bin", name)
}

func ofEngines(tb testing.TB, what string, path ...string) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("runs a real server and real clients")
	}
	file, err := filepath.Abs(filepath.Join(append([]string{"..", "..", ".tmp"}, path...)...))
	if err == nil {
		_, err = os.Stat(file)
	}
	if err != nil {
		Absent(tb, "%s is not there: make engines", what)
	}
	return file
}

// Address is one on loopback where nobody listens, and its port. The port is none that the
// kernel gives to who asks for any: a server may take half a minute until it listens.
func Address(tb testing.TB) (address, port string) {
	tb.Helper()
	var err error
	for range 100 {
		port = strconv.Itoa(15_000 + rand.IntN(17_000))
		address = net.JoinHostPort("127.0.0.1", port)
		var l net.Listener
		if l, err = new(net.ListenConfig).Listen(tb.Context(), "tcp", address); err == nil {
			if err = l.Close(); err == nil {
				return address, port
			}
		}
	}
	tb.Fatal(err)
	return "", ""
}

// Peer starts another server, waits until it is ready, and ends it, and all that it
// started, with the test. It is told to end before it is killed where it is polite.
type Peer struct {
	*exec.Cmd
	Ready  func(ctx context.Context) bool
	Polite bool
}

// Start does so.
func (p Peer) Start(tb testing.TB) {
	tb.Helper()
	var log bytes.Buffer
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Stdout, p.Stderr = &log, &log
	if err := p.Cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	name, ended := filepath.Base(p.Path), make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.Wait()
	}()
	kill := func() {
		_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		<-ended
	}
	tb.Cleanup(func() {
		if p.Polite {
			_ = p.Process.Signal(syscall.SIGTERM)
			select {
			case <-ended:
			case <-time.After(Wait):
			}
		}
		kill()
	})
	late := time.NewTimer(WaitProgram)
	defer late.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if p.Ready(tb.Context()) {
				return
			}
		case <-ended:
			tb.Fatalf("%s ended:\n%s", name, log.String())
		case <-late.C:
			kill()
			tb.Fatalf("%s is not ready:\n%s", name, log.String())
		}
	}
}

// Answers says whether a server answers 200.
func Answers(url string) func(ctx context.Context) bool {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, Wait)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return false
		}
		a, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return false
		}
		_ = a.Body.Close()
		return a.StatusCode == http.StatusOK
	}
}

// Differences compares what differs from another server with what is listed in a file,
// which rewrite writes anew.
func Differences(tb testing.TB, peer, golden, got string, rewrite bool) {
	tb.Helper()
	var err error
	if rewrite {
		err = os.WriteFile(golden, []byte(got), 0o600)
	}
	listed, errRead := os.ReadFile(golden)
	if err := errors.Join(err, errRead); err != nil {
		tb.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(listed), "\n"), strings.Split(got, "\n")); diff != "" {
		tb.Errorf("differences from %s (-listed +now); list them by -rewrite, with their reasons\n%s", peer, diff)
	}
}
