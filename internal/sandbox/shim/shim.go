// Package shim keeps one program running, and its record true, while the
// server that asked for it may restart. A shim is a falaj-worker process that
// owns one directory:
//
//	spec.json      what to run; written by the server, never changed; locked
//	               exclusively while a shim owns the directory: who gets the lock
//	               knows that none does
//	status.json    what is known; replaced atomically and synced
//	log            combined output, the first and the last of it up to Spec.LogLimit
//	denials.jsonl  one sandbox.Denial per line, each target once
//	stop.json      how to stop; written by the server before it sends SIGTERM
//	*.spare        room for status.json and stop.json on a full disk
//
// Guarantees: at most one shim ever runs the program of a directory; the last
// status is written when nothing of the program runs any more; a killed shim
// takes the program with it (see package sandbox), and its directory then says
// Running with nobody holding the lock, which readers call lost.
//
// A shim may own one directory after another (Serve), never two at a time: what
// starts it costs more than what it does for a short program.
package shim

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
)

// Files of a shim's directory.
const (
	SpecFile    = "spec.json"
	LockFile    = SpecFile
	OldLockFile = "lock" // of shims of before 2026-12, while they run
	StatusFile  = "status.json"
	LogFile     = "log"
	DenialsFile = "denials.jsonl"
	StopFile    = "stop.json"
)

const (
	defaultLogLimit = 64 << 20
	defaultGrace    = 30 * time.Second
	maxGrace        = 24 * time.Hour
	maxDenials      = 1000
	maxFile         = 16 << 20
	sampleEvery     = 5 * time.Second
)

// Spec is what a shim runs.
type Spec struct {
	ID       string         `json:"id"`
	Argv     []string       `json:"argv"`
	Policy   sandbox.Policy `json:"policy"`
	Timeout  time.Duration  `json:"timeout,omitempty"` // 0 is no limit
	Grace    time.Duration  `json:"grace,omitempty"`   // between SIGTERM and SIGKILL; 0 is 30 s
	LogLimit int64          `json:"log_limit,omitempty"`
	Disk     Disk           `json:"disk,omitzero"`
	// Owner is what the server wants to find again; the shim does not read it.
	Owner json.RawMessage `json:"owner,omitempty"`
}

// State of a program.
type State string

// The states.
const (
	Starting State = "starting"
	Running  State = "running"
	Ended    State = "ended"
)

// Reason why a program ended. The values are those of package engine.
type Reason string

// The reasons.
const (
	Exited      Reason = "exited"
	Signalled   Reason = "signalled"
	TimedOut    Reason = "timed_out"
	Stopped     Reason = "stopped"
	OutOfMemory Reason = "out_of_memory"
	OutOfDisk   Reason = "out_of_disk"      // it used more disk than it may
	OutOfTasks  Reason = "out_of_processes" // it had more processes and threads than it may
	NotStarted  Reason = "not_started"
)

// Status is what is known of a program.
type Status struct {
	State    State          `json:"state"`
	Reason   Reason         `json:"reason,omitempty"`
	ExitCode int            `json:"exit_code"`
	Signal   string         `json:"signal,omitempty"`
	Message  string         `json:"message,omitempty"`
	Started  time.Time      `json:"started,omitzero"`
	Ended    time.Time      `json:"ended,omitzero"`
	CPU      time.Duration  `json:"cpu"`
	PeakRSS  resource.Bytes `json:"peak_rss"`
	Isolated sandbox.Level  `json:"isolated"`
	Notes    []string       `json:"notes,omitempty"` // limits that could not be set

	// Disk is what it kept on disk when that was last measured, by kind.
	Disk map[string]Use `json:"disk,omitempty"`

	Shim    Process  `json:"shim"`
	Init    Process  `json:"init,omitzero"` // first process of the sandbox
	Cgroups []string `json:"cgroups,omitempty"`
}

// Process names a process for good: numbers are used again, start times not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}

// ProcessOf reads the start time of a process; the zero Process and an error
// when there is none or it is a zombie, which has ended and is only not reaped.
func ProcessOf(pid int) (Process, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	const state, start = 0, 19 // fields 3 and 22 of proc(5)
	if len(f) <= start || f[state] == "Z" || f[state] == "X" {
		return Process{}, os.ErrProcessDone
	}
	ticks, err := strconv.ParseUint(f[start], 10, 64)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: ticks}, nil
}

// Alive reports whether this very process runs.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	now, err := ProcessOf(p.PID)
	return err == nil && now == p
}

// Signal sends a signal to this very process; os.ErrProcessDone when it has
// ended.
func (p Process) Signal(s syscall.Signal) error {
	if p.PID <= 0 {
		return os.ErrProcessDone
	}
	// The descriptor is bound to the process before the start time is compared,
	// so the number cannot change its meaning in between.
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return os.ErrProcessDone
	}
	err = unix.PidfdSendSignal(fd, s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// Stop is the content of StopFile.
type Stop struct {
	Grace time.Duration `json:"grace"` // 0 kills at once
	// Reason and Message say why, where that is not that somebody asked: OutOfDisk.
	Reason  Reason `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Read decodes a JSON file of a shim's directory.
func Read[T any](dir, name string) (T, error) {
	var v T
	f, err := os.Open(filepath.Join(dir, name)) //nolint:gosec // The names are constants.
	if err != nil {
		return v, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// Write replaces a JSON file of a shim's directory atomically. When it returns
// nil the content survives a power loss.
func Write(dir, name string, v any) error {
	if err := Place(dir, name, v); err != nil {
		return err
	}
	return fsync.Dir(dir)
}

// Place is Write whose name survives a power loss only when something else has
// synced the directory: until the next Write there.
func Place(dir, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err = replace(dir, name, b); full(err) {
		if placeSpare(dir, name, b) == nil {
			return nil
		}
	}
	return err
}

func replace(dir, name string, b []byte) error {
	f, err := os.CreateTemp(dir, name+".*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name)) //nolint:gosec // The names are constants.
	}
	if err != nil {
		_ = os.Remove(f.Name()) //nolint:gosec // The names are constants.
	}
	return err
}

// Held reports whether a shim of the directory lives.
func Held(dir string) bool {
	return slices.ContainsFunc([]string{LockFile, OldLockFile}, func(name string) bool {
		return errors.Is(flock(dir, name, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
	})
}

// Await returns when no shim of the directory lives.
func Await(dir string) {
	_ = flock(dir, LockFile, unix.LOCK_SH)
	_ = flock(dir, OldLockFile, unix.LOCK_SH)
}

// flock locks a file and releases it at once.
func flock(dir, name string, how int) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), how)
}

// Version is that of what a server and its shims say to each other. 1 is Run: a
// directory is an argument, and the answer is the end of a pipe. 2 is Serve.
const Version = 2

// Run is the shim of a directory: it returns when the program has ended and
// that is recorded. The worker at its own path runs the sandbox. A server of
// version 1 waits for the end of descriptor ControlFD, a pipe, and for the lock
// in a file of its own.
func Run(dir string) error {
	signals := listen()
	lock, err := os.OpenFile(filepath.Join(dir, OldLockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = run(dir, signals, closeReady)
	return err
}

func closeReady() {
	var st unix.Stat_t
	if unix.Fstat(ControlFD, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
		_ = unix.Close(ControlFD)
	}
}

// What a shim says to its starter, in lines: Ready when it has recorded itself in
// the directory it was given, Over when the program's end is recorded, too.
const (
	Ready = "ready\n"
	Over  = "over\n"
)

// ControlFD is where Serve reads directories, in lines, and answers. Its end is
// the starter's wish that the shim takes no other.
const ControlFD = 3

// Serve is the shim of one directory after the other, until nobody gives it more,
// or until it was asked to stop: that may have been meant for a program that had
// just ended.
func Serve() error {
	signals := listen()
	unix.CloseOnExec(ControlFD)
	_ = unix.SetNonblock(ControlFD, true) // else a thread waits in each read
	control := os.NewFile(ControlFD, "control")
	defer control.Close()
	say := func(word string) error {
		_, err := control.WriteString(word)
		return err
	}
	given := make(chan string)
	go func() {
		defer close(given)
		for lines := bufio.NewScanner(control); lines.Scan(); {
			given <- lines.Text()
		}
	}()
	for {
		select {
		case dir, ok := <-given:
			if !ok {
				return nil
			}
			stopped, err := run(dir, signals, func() { _ = say(Ready) }) // without a starter the program runs all the same
			if err != nil {
				return err
			}
			if stopped || say(Over) != nil {
				return nil
			}
		case <-signals:
			return nil
		}
	}
}

// listen takes signals from now on: SIGTERM must not end us, it means stop.
func listen() chan os.Signal {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM)
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	return signals
}

// run runs the program of a directory, if no other shim has; ready is called
// when the first status is on disk. stopped says that a signal came.
func run(dir string, signals chan os.Signal, ready func()) (stopped bool, err error) {
	for _, name := range []string{LockFile, OldLockFile} {
		lock, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0) // over NFS who locks exclusively must write
		if errors.Is(err, fs.ErrNotExist) && name == OldLockFile {
			continue
		}
		if err != nil {
			return false, err
		}
		defer lock.Close() // the kernel releases it with us
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			return false, err
		}
	}
	if _, err := os.Stat(filepath.Join(dir, StatusFile)); !errors.Is(err, fs.ErrNotExist) {
		return false, err // another shim ran it, or runs no more: never twice
	}
	spec, err := Read[Spec](dir, SpecFile)
	if err != nil {
		return false, err
	}
	worker, err := os.Executable()
	if err != nil {
		return false, err
	}
	s := &shim{dir: dir, spec: spec, worker: worker, signals: signals, seen: map[sandbox.Denial]bool{}}
	s.status = Status{State: Starting, Isolated: spec.Policy.Level}
	if s.status.Shim, err = ProcessOf(os.Getpid()); err != nil {
		return false, err
	}
	if err := Write(dir, StatusFile, s.status); err != nil {
		return false, err
	}
	// The end is recorded also when the disk is full by then.
	if err := Spare(dir, StatusFile); err != nil {
		s.status.Notes = append(s.status.Notes, "disk space for the record of its end: "+err.Error())
	}
	ready()
	s.run()
	s.status.State, s.status.Ended = Ended, time.Now()
	return s.stopped, Write(dir, StatusFile, s.status)
}

type shim struct {
	dir     string
	spec    Spec
	worker  string
	signals chan os.Signal
	stopped bool // a signal came
	status  Status

	denials *os.File
	mu      sync.Mutex
	seen    map[sandbox.Denial]bool
}

// run runs the program and leaves how it ended in status.
func (s *shim) run() {
	st := &s.status
	st.Reason, st.ExitCode = NotStarted, -1
	out := newLog(s.dir, s.spec.LogLimit)
	defer out.Close()
	defer func() { _ = s.denials.Close() }() // nil is no file
	if _, err := os.Stat(filepath.Join(s.dir, StopFile)); err == nil {
		st.Reason, st.Message = Stopped, "stopped before it started"
		return
	}
	cmd, err := sandbox.Command(context.Background(), s.worker, s.spec.Policy, s.spec.Argv...)
	if err != nil {
		st.Message = message(err)
		return
	}
	// One writer for both, so that exec.Cmd keeps their order.
	cmd.Stdout, cmd.Stderr = out, out
	if s.spec.Policy.Level >= sandbox.Sandbox {
		cmd.OnDenial = s.deny
	}
	if err := cmd.Start(); err != nil {
		st.Message = message(err)
		return
	}
	st.State, st.Started, st.Cgroups = Running, time.Now(), cmd.Cgroups()
	st.Reason, st.ExitCode = "", 0
	st.Init, _ = ProcessOf(cmd.Process.Pid)
	// If this cannot be written the program runs on: the last status will say
	// how it ended. A power loss takes the program along, and that it began is
	// on disk already.
	_ = writeUnsynced(s.dir, *st)

	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	why, err := s.watch(cmd, ended)
	s.finish(cmd, why, err)
}

// watch waits for the end, and brings it about on order or time-out. why is
// empty when the program ended by itself.
func (s *shim) watch(cmd *sandbox.Cmd, ended <-chan error) (why Reason, err error) {
	var timeout, kill <-chan time.Time
	if s.spec.Timeout > 0 {
		timeout = time.After(s.spec.Timeout)
	}
	terminate := func(reason Reason, grace time.Duration) {
		if why == "" {
			why = reason
		}
		if grace <= 0 {
			_ = cmd.Kill()
			return
		}
		cmd.Terminate()
		kill = time.After(grace)
	}
	sample := time.NewTicker(sampleEvery)
	var resident machine.Resident
	defer sample.Stop()
	disk, look := s.watchDisk()
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			return why, err
		case <-s.signals:
			s.stopped = true
			stop := s.stopOrder()
			if stop.Reason != "" && why == "" {
				s.status.Message = stop.Message
			}
			terminate(cmp.Or(stop.Reason, Stopped), stop.Grace)
		case now := <-look.C:
			if why != "" || !disk.due(now) {
				break
			}
			over := disk.measure(cmd.Process.Pid)
			s.status.Disk = disk.used
			if over != "" {
				s.status.Message = over
				terminate(OutOfDisk, 0)
			}
		case <-timeout:
			timeout = nil
			terminate(TimedOut, grace(s.spec.Grace))
		case <-kill:
			_ = cmd.Kill()
		case <-sample.C:
			cpu, rss, tasks := TreeUsage(cmd.Process.Pid, &resident)
			s.status.CPU = max(s.status.CPU, cpu)
			s.status.PeakRSS = max(s.status.PeakRSS, rss)
			if most := s.spec.Policy.Limits.Processes; most > 0 && tasks > most+32 && why == "" { // where the kernel does not bound them
				s.status.Message = fmt.Sprintf("had %d processes and threads, its limit is %d", tasks, most)
				terminate(OutOfTasks, 0)
			}
			_ = writeUnsynced(s.dir, s.status)
		}
	}
}

func (s *shim) stopOrder() Stop {
	stop, err := Read[Stop](s.dir, StopFile)
	if err != nil {
		return Stop{Grace: grace(s.spec.Grace)}
	}
	stop.Grace = min(stop.Grace, maxGrace)
	return stop
}

// watchDisk gives what decides when the program's use of the disk is measured, and
// what ticks for it.
func (s *shim) watchDisk() (*diskWatch, *time.Ticker) {
	w := &diskWatch{disk: s.spec.Disk, dir: s.dir}
	if len(w.disk.Trees) == 0 || len(w.disk.Limits) == 0 {
		never := time.NewTicker(time.Hour)
		never.Stop()
		return w, never
	}
	w.dir, w.before = w.disk.Trees[0].Dir, w.disk.Before()
	return w, time.NewTicker(freeEvery)
}

func grace(d time.Duration) time.Duration {
	if d <= 0 {
		return defaultGrace
	}
	return min(d, maxGrace)
}

func (s *shim) finish(cmd *sandbox.Cmd, why Reason, err error) {
	st, o := &s.status, cmd.Outcome()
	st.ExitCode, st.CPU, st.PeakRSS, st.Notes = o.ExitCode, max(st.CPU, o.CPU), max(st.PeakRSS, o.PeakRSS), append(st.Notes, o.Unapplied...)
	if o.Signal != 0 {
		st.Signal = unix.SignalName(o.Signal)
	}
	switch {
	case why == TimedOut:
		st.Reason, st.Message = TimedOut, fmt.Sprintf("did not finish in %s", s.spec.Timeout)
	case why == OutOfDisk:
		st.Reason = why
		s.spec.Disk.drop() // before the end is recorded: the record needs room
	case why != "":
		st.Reason = why
	case fault.Is(err, fault.Unsupported) || fault.Is(err, fault.Invalid):
		st.Reason, st.ExitCode, st.Message = NotStarted, -1, message(err)
	case o.OutOfMemory:
		st.Reason = OutOfMemory
		st.Message = fmt.Sprintf("used more memory than its limit of %s", s.spec.Policy.Limits.Memory)
	case o.Signal != 0:
		st.Reason = Signalled
	default:
		st.Reason = Exited
	}
}

// message is an error with its hint.
func message(err error) string {
	if hint := fault.HintOf(err); hint != "" {
		return err.Error() + ". " + hint
	}
	return err.Error()
}

// deny records a refused attempt, each once.
func (s *shim) deny(d sandbox.Denial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sandbox.Denial{Kind: d.Kind, Target: d.Target}
	if s.seen[key] || len(s.seen) > maxDenials {
		return
	}
	s.seen[key] = true
	if len(s.seen) > maxDenials {
		d.Target = "(more than " + strconv.Itoa(maxDenials) + " targets; the rest is not listed)"
	}
	if s.denials == nil {
		var err error
		if s.denials, err = os.OpenFile(filepath.Join(s.dir, DenialsFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
			s.denials = nil
			return
		}
	}
	_ = AppendDenial(s.denials, d)
}

// AppendDenial writes one line with one system call, so that lines of two
// writers do not mix.
func AppendDenial(w io.Writer, d sandbox.Denial) error {
	const maxTarget = 2048
	if len(d.Target) > maxTarget {
		d.Target = d.Target[:maxTarget] + "…"
	}
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// writeUnsynced is Write for figures that the next writing replaces.
func writeUnsynced(dir string, st Status) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, StatusFile+".sample")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, StatusFile))
}

// Tasks counts the processes and threads below each root, and gives them by what the roots are of.
func Tasks[T comparable](roots map[int]T) map[T]int {
	counts := map[T]int{}
	children, threads := map[int][]int{}, map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return counts
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f, ok := statFields(pid); ok {
			const ppid, count = 1, 17
			parent, _ := strconv.Atoi(f[ppid])
			threads[pid], _ = strconv.Atoi(f[count])
			children[parent] = append(children[parent], pid)
		}
	}
	for root, of := range roots {
		for next := []int{root}; len(next) > 0; next = next[1:] {
			counts[of] += threads[next[0]]
			next = append(next, children[next[0]]...)
		}
	}
	return counts
}

// TreeUsage adds up what the descendants of a process use now. resident is kept for the
// next time.
func TreeUsage(root int, resident *machine.Resident) (cpu time.Duration, rss resource.Bytes, tasks int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, 0, 0
	}
	type process struct {
		cpu   time.Duration
		rss   resource.Bytes
		tasks int
	}
	const tick = time.Second / 100 // USER_HZ, a constant of the interface
	page := resource.Bytes(os.Getpagesize())
	all, children := map[int]process{}, map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		f, ok := statFields(pid)
		if !ok {
			continue
		}
		const ppid, utime, threads, rssPages = 1, 11, 17, 21
		var n [4]int64 // user, system, and both of reaped children
		for i := range n {
			n[i], _ = strconv.ParseInt(f[utime+i], 10, 64)
		}
		pages, _ := strconv.ParseInt(f[rssPages], 10, 64)
		parent, _ := strconv.Atoi(f[ppid])
		count, _ := strconv.Atoi(f[threads])
		all[pid] = process{cpu: time.Duration(n[0]+n[1]+n[2]+n[3]) * tick, rss: resource.Bytes(pages) * page, tasks: count}
		children[parent] = append(children[parent], pid)
	}
	of := map[int]int64{}
	for next := slices.Clone(children[root]); len(next) > 0; next = next[1:] {
		cpu += all[next[0]].cpu
		of[next[0]] = int64(all[next[0]].rss)
		tasks += all[next[0]].tasks
		next = append(next, children[next[0]]...)
	}
	return cpu, resource.Bytes(resident.Together(of)), tasks
}
