package app

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	held       = flag.Int("held", 0, "run TestHeldConnections with so many connections, such as 10000")
	heldServer = flag.Bool("held-server", false, "this process was started by TestHeldConnections")
)

// TestHeldServer is the other process of TestHeldConnections: the listener's server,
// until its standard input ends.
func TestHeldServer(t *testing.T) {
	if !*heldServer {
		t.Skip("it is started by TestHeldConnections")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := (&App{log: slog.New(slog.DiscardHandler)}).newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	go func() { _ = s.Serve(l) }()
	_, _ = os.Stdout.WriteString(l.Addr().String() + "\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Close()
}

// TestHeldConnections: thousands of connections are held, idle ones and such as send
// a byte of a header now and then, in bounded memory; the idle ones go on being
// answered, others are, and the slow ones are closed. With -held.
func TestHeldConnections(t *testing.T) {
	if *held == 0 {
		t.Skip("it takes half a minute and as many files: go test ./internal/app -run TestHeldConnections -args -held 10000")
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	n := *held
	if uint64(n)+500 > files.Cur {
		t.Fatalf("%d connections need more open files than the %d that `ulimit -n` allows", n, files.Cur)
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHeldServer$", "-held-server")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = child.Wait()
	}()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address = strings.TrimSpace(address)
	memory := func() int64 {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return kib << 10
	}
	ask := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err == nil && string(b) != "here" {
			err = errors.New("it answered " + string(b))
		}
		return err
	}
	dial := func() net.Conn {
		c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first := dial()
	if err := ask(first); err != nil {
		t.Fatal(err)
	}
	before := memory()
	var idle, slow []net.Conn
	for i := range n {
		c := dial()
		if i%5 > 0 {
			if err := ask(c); err != nil {
				t.Fatal(err)
			}
			idle = append(idle, c)
			continue
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nSlow: "); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	each := (memory() - before) / int64(n)
	t.Logf("%d connections take %d bytes each", n, each)
	if each > 64<<10 {
		t.Errorf("a held connection takes %d bytes", each)
	}
	if err := ask(dial()); err != nil {
		t.Errorf("another connection beside: %v", err)
	}
	var all sync.WaitGroup
	for _, c := range slow { // a byte each second, until it is closed
		all.Go(func() {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				_, _ = io.Copy(io.Discard, c)
			}()
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for range 40 {
				select {
				case <-closed:
					return
				case <-tick.C:
					_, _ = c.Write([]byte("x"))
				}
			}
			t.Error("a slow connection was held for 40 s")
		})
	}
	all.Wait()
	for _, c := range idle {
		if err := ask(c); err != nil {
			t.Fatalf("an idle connection: %v", err)
		}
	}
}
