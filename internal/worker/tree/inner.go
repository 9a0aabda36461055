package tree

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors that Start gives to the process between.
const (
	controlFD = 3
	reportFD  = 4
)

// Main is the process between: it runs the program that it reads from its
// control pipe and returns when nothing below it runs any more.
func Main() error {
	// The signal that kills the program with us belongs to this thread.
	runtime.LockOSThread()
	// Our caller speaks through the pipe; whoever signals us means the caller.
	// Not ignored, because the program would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(reportFD)
	control := bufio.NewReader(os.NewFile(controlFD, "control"))
	report := os.NewFile(reportFD, "report")
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming a subreaper: %w", err)
	}
	var p Program
	line, err := control.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p)
	}
	if err != nil {
		return fmt.Errorf("reading what to run: %w", err)
	}
	e := run(p, control)
	return json.NewEncoder(report).Encode(e)
}

// path finds a program that is named without a directory, as in an image, in
// the PATH that the program itself gets.
func (p Program) path() string {
	name := p.Argv[0]
	if strings.Contains(name, "/") {
		return name
	}
	for _, kv := range p.Env {
		dirs, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(dirs, ":") {
			full := dir + "/" + name
			if info, err := os.Stat(full); dir != "" && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return full
			}
		}
	}
	return name
}

// run runs the program and buries everything below.
func run(p Program, control io.Reader) Exit {
	if len(p.Argv) == 0 {
		return Exit{Failed: "the program is missing"}
	}
	if len(p.CPUs) > 0 {
		var set unix.CPUSet
		for _, c := range p.CPUs {
			set.Set(c)
		}
		_ = unix.SchedSetaffinity(0, &set) // a hint: cores that are not there do not stop it
	}
	if len(p.Nodes) > 0 {
		var set unix.CPUSet // a set of numbers as the kernel reads it
		for _, n := range p.Nodes {
			set.Set(n)
		}
		if err := unix.SetMemPolicy(unix.MPOL_BIND, &set); err != nil {
			return Exit{Failed: fmt.Sprintf("binding memory to NUMA nodes %v: %v", p.Nodes, err)}
		}
	}
	pid, err := syscall.ForkExec(p.path(), p.Argv, &syscall.ProcAttr{
		Dir: p.Dir, Env: p.Env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return Exit{Failed: fmt.Sprintf("starting %s in %s: %v", p.Argv[0], p.Dir, err)}
	}
	self := os.Getpid()
	go func() {
		b := make([]byte, 1)
		for {
			if _, err := control.Read(b); err != nil || b[0] == 'k' {
				slay(self)
				if err != nil {
					return
				}
				continue
			}
			_ = syscall.Kill(-pid, syscall.SIGTERM)
		}
	}()
	var e Exit
	for ended := false; ; {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil: // nothing is left
			var u syscall.Rusage
			if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) == nil {
				e.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
				e.RSS = u.Maxrss << 10
			}
			return e
		case got == pid && !ended:
			ended = true
			if e.Code = ws.ExitStatus(); ws.Signaled() {
				e.Signal = ws.Signal()
			}
			e.Left = slay(self)
		case ended: // it may have left children in between
			slay(self)
		}
	}
}

// slay kills everything below a process; false when there was nothing.
func slay(root int) bool {
	all := below(root, nil)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(all) > 0
}
