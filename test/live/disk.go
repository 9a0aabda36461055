package live

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Disk is a small file system in memory at a server's data directory, in a mount
// namespace of its own.
type Disk struct {
	Server *Server
	Root   string // the data directory as it is seen from here
	keeper int    // the process that keeps the namespace
}

// Disk mounts a file system of so many MiB. Where that is not permitted the test
// is skipped, and under CI=true fails.
func (s *Server) Disk(tb testing.TB, size int) *Disk {
	tb.Helper()
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		tb.Fatal(err)
	}
	args := []string{"--mount"}
	if os.Geteuid() != 0 {
		args = []string{"--user", "--map-root-user", "--mount"}
		// In there we are root with a single user, which is not enough for sandboxes.
		s.Env = append(s.Env, "FALAJ_ISOLATION=process")
	}
	script := fmt.Sprintf(`mount -t tmpfs -o size=%dm,mode=700 tmpfs "$1" && echo mounted && exec sleep 100000`, size)
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), "unshare", append(args, "sh", "-c", script, "sh", s.Data)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	line := ""
	if err == nil {
		tb.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		line, err = bufio.NewReader(out).ReadString('\n')
	}
	if err != nil || line != "mounted\n" {
		how := fmt.Sprintf("no file system can be mounted here: %v %s", err, said.String())
		if os.Getenv("CI") == "true" {
			tb.Fatal(how)
		}
		tb.Skip(how + "; run as root, or permit user namespaces")
	}
	return &Disk{Server: s, Root: fmt.Sprintf("/proc/%d/root%s", cmd.Process.Pid, s.Data), keeper: cmd.Process.Pid}
}

// Start starts the server on the disk.
func (d *Disk) Start(ctx context.Context) error {
	args := []string{"--target", strconv.Itoa(d.keeper), "--mount"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--preserve-credentials")
	}
	args = append(args, "--", d.Server.Bin.Falaj, "up", "--data", d.Server.Data, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0")
	return d.Server.StartCommand(ctx, exec.CommandContext(context.WithoutCancel(ctx), "nsenter", args...))
}

// Fill fills the file system of a directory until so many bytes are free.
func Fill(tb testing.TB, dir string, leave int64) {
	tb.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		tb.Fatal(err)
	}
	info, err := f.Stat()
	if err == nil && leave > 0 {
		err = f.Truncate(max(0, info.Size()-leave))
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Free gives the space back.
func Free(tb testing.TB, dir string) {
	tb.Helper()
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		tb.Fatal(err)
	}
}
