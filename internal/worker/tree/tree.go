// Package tree runs a program so that nothing of it outlives its caller.
//
// Start runs `falaj-worker tree`, and that the program: the one between is the
// program's subreaper, so whatever leaves the session or loses its parent is
// still below it. It kills all of that when the program has ended, when it is
// told to, and when the pipe to its caller breaks, which is when the caller was
// killed. Should it be killed itself, the program dies with it and the rest
// falls to the caller, which is a subreaper, too.
//
// inner.go is the process between, sample.go what a tree uses.
package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/machine"
)

// Mode is the first argument of falaj-worker for the process between.
const Mode = "tree"

// Program is what to run.
type Program struct {
	Argv   []string `json:"argv"`
	Env    []string `json:"env"` // complete
	Dir    string   `json:"dir"`
	CPUs   []int    `json:"cpus,omitempty"`  // cores that it is bound to; empty is all
	Nodes  []int    `json:"nodes,omitempty"` // NUMA nodes whose memory it may use; empty is all
	Output *os.File `json:"-"`               // standard output and error
	Worker string   `json:"-"`               // falaj-worker; empty is this program itself
}

// Exit is how a program ended.
type Exit struct {
	Failed string         `json:"failed,omitempty"` // it could not be started: why
	Code   int            `json:"code"`             // -1 for a signal
	Signal syscall.Signal `json:"signal,omitempty"`
	CPU    time.Duration  `json:"cpu"`  // of it and all below
	RSS    int64          `json:"rss"`  // of the largest single process, in bytes
	Left   bool           `json:"left"` // processes were left, and were killed
}

// Tree is a started program and all below it.
type Tree struct {
	cmd     *exec.Cmd
	control *os.File
	done    chan struct{}
	exit    Exit

	mu       sync.Mutex // for control
	resident machine.Resident
}

// Start starts a program. Its output file may be closed when it returns. An
// error means that this machine cannot run any; a program that cannot be
// started is an Exit.
func Start(p Program) (*Tree, error) {
	// What loses its parent when the process between is killed comes to us.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming a subreaper: %w", err)
	}
	if p.Worker == "" {
		p.Worker = "/proc/self/exe"
	}
	theirControl, control, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirControl.Close()
	report, theirReport, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	defer theirReport.Close()
	t := &Tree{
		cmd:     exec.CommandContext(context.Background(), p.Worker, Mode),
		control: control, done: make(chan struct{}),
	}
	t.cmd.Env = []string{}
	t.cmd.Stdout, t.cmd.Stderr = p.Output, p.Output
	t.cmd.ExtraFiles = []*os.File{theirControl, theirReport}
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals to our group are for us
	if err := t.cmd.Start(); err != nil {
		return nil, errors.Join(err, control.Close(), report.Close())
	}
	enter(t.cmd.Process.Pid, true)
	go t.wait(report)
	if err := json.NewEncoder(control).Encode(p); err != nil {
		t.Kill() // it has died: wait says so
	}
	return t, nil
}

// wait reads the report, which comes when nothing runs any more.
func (t *Tree) wait(report *os.File) {
	defer close(t.done)
	defer report.Close()
	b, _ := io.ReadAll(io.LimitReader(report, 1<<20))
	err := t.cmd.Wait()
	enter(t.cmd.Process.Pid, false)
	if json.Unmarshal(b, &t.exit) != nil {
		t.exit = Exit{Code: -1, Signal: syscall.SIGKILL, Left: true}
		if ws, ok := t.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() {
			t.exit = Exit{Failed: fmt.Sprintf("falaj-worker %s failed: %v", Mode, err)}
		}
		reap() // what it left has come to us
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.control.Close()
}

// live are the processes between of this program's trees.
var live = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

func enter(pid int, in bool) {
	live.Lock()
	defer live.Unlock()
	if in {
		live.pids[pid] = true
		return
	}
	delete(live.pids, pid)
}

// reap kills and buries the orphans that have come to this process: all below
// it that is not below another tree.
func reap() {
	self := os.Getpid()
	for {
		live.Lock()
		others := maps.Clone(live.pids)
		live.Unlock()
		orphans := below(self, others)
		if len(orphans) == 0 {
			return
		}
		for _, pid := range orphans {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, pid := range orphans { // those that are not our children wait for theirs
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	}
}

// PID is the process between; all of the tree is below it.
func (t *Tree) PID() int { return t.cmd.Process.Pid }

// Terminate sends SIGTERM to the program's process group.
func (t *Tree) Terminate() { t.say('t') }

// Kill kills all of it.
func (t *Tree) Kill() { t.say('k') }

func (t *Tree) say(b byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = t.control.Write([]byte{b}) // it has ended: nobody to tell
}

// Done is closed when nothing of it runs any more.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Exit is how it ended, once Done is closed.
func (t *Tree) Exit() Exit {
	<-t.done
	return t.exit
}
