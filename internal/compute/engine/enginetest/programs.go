package enginetest

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// program is a workload of the suite, for a shell and for Fake.
type program struct {
	script string
	run    Program
}

const bigLog = 3 << 20

var (
	progHello = program{`echo hello; echo "wörld ☃" >&2`, func(p *Process) Exit {
		fmt.Fprint(p.Log, "hello\nwörld ☃\n")
		return Exit{}
	}}
	progKillSelf = program{`kill -9 $$`, func(*Process) Exit { return Exit{Signal: syscall.SIGKILL} }}
	progForever  = program{`exec sleep 100000`, func(p *Process) Exit {
		<-p.Term
		return Exit{Signal: syscall.SIGTERM}
	}}
	progOnce = program{`echo once; exec >>out; echo once; exec sleep 100000`, func(p *Process) Exit {
		fmt.Fprintln(p.Log, "once")
		defer p.say("once").Close()
		<-p.Term
		return Exit{Signal: syscall.SIGTERM}
	}}
	progIgnore = program{`trap '' TERM; exec 3>out; echo ready >&3; while :; do sleep 100000; done`, func(p *Process) Exit {
		defer p.say("ready").Close()
		<-p.Kill
		return Exit{Signal: syscall.SIGKILL}
	}}
	progSaves = program{`trap 'echo saved; exit 75' TERM; exec 3>out; echo ready >&3; sleep 100000 3>&- & wait`, func(p *Process) Exit {
		defer p.say("ready").Close()
		<-p.Term
		fmt.Fprintln(p.Log, "saved")
		return Exit{Code: 75}
	}}
	// Processes that left the session, ignore what they can, and keep the pipe.
	progTree = program{`trap '' TERM HUP; exec 3>out
		(setsid sh -c '(sleep 100000 & sleep 100000) & sleep 100000' &)
		setsid sleep 100000 &
		echo ready >&3; wait; while :; do sleep 100000; done`, func(p *Process) Exit {
		defer p.say("ready").Close()
		<-p.Kill
		return Exit{Signal: syscall.SIGKILL}
	}}
	progGate = program{`for i in 0 1 2; do echo line $i; read x <gate$i; done; echo end; exit 3`, func(p *Process) Exit {
		for i := range 3 {
			fmt.Fprintf(p.Log, "line %d\n", i)
			if !p.hear(fmt.Sprintf("gate%d", i)) {
				return Exit{Signal: syscall.SIGKILL}
			}
		}
		fmt.Fprintln(p.Log, "end")
		return Exit{Code: 3}
	}}
	progBig = program{fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x`, bigLog), func(p *Process) Exit {
		_, _ = io.WriteString(p.Log, strings.Repeat("x", bigLog))
		return Exit{}
	}}
)

func progExit(code int) program {
	return program{fmt.Sprintf("exit %d", code), func(*Process) Exit { return Exit{Code: code} }}
}

// progLeaves leaves with a code when it is asked to stop.
func progLeaves(code int) program {
	return program{fmt.Sprintf(`trap 'exit %d' TERM; exec 3>out; echo ready >&3; sleep 100000 3>&- & wait`, code), func(p *Process) Exit {
		defer p.say("ready").Close()
		<-p.Term
		return Exit{Code: code}
	}}
}

// Conform makes a Fake run the suite's programs.
func Conform(f *Fake) {
	byScript := map[string]Program{}
	for _, p := range []program{progHello, progKillSelf, progForever, progOnce, progIgnore, progSaves, progTree, progGate, progBig} {
		byScript[p.script] = p.run
	}
	for code := range 256 {
		p := progExit(code)
		byScript[p.script] = p.run
		p = progLeaves(code)
		byScript[p.script] = p.run
	}
	f.Behave(func(p *Process) Exit {
		switch argv := p.Spec.Command; argv[0] {
		case "/bin/sh":
			if run := byScript[argv[len(argv)-1]]; run != nil {
				return run(p)
			}
		case "/usr/bin/env":
			for _, k := range slices.Sorted(maps.Keys(p.Spec.Env)) {
				fmt.Fprintf(p.Log, "%s=%s\x00", k, p.Spec.Env[k])
			}
			return Exit{}
		}
		return Exit{NotStarted: "no such program"}
	})
}

// say opens the pipe "out", writes a line and keeps it open.
func (p *Process) say(line string) *os.File {
	f, err := os.OpenFile(filepath.Join(p.Spec.Dir, "out"), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, _ = fmt.Fprintln(f, line)
	}
	return f
}

// hear reads a line from a pipe; false when the process was killed meanwhile.
func (p *Process) hear(pipe string) bool {
	heard := make(chan bool, 1)
	go func() {
		f, err := os.Open(filepath.Join(p.Spec.Dir, pipe))
		if err != nil {
			heard <- false
			return
		}
		defer f.Close()
		_, err = f.Read(make([]byte, 16))
		heard <- err == nil
	}()
	select {
	case ok := <-heard:
		return ok
	case <-p.Kill:
		return false
	}
}
