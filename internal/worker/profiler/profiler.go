// Package profiler looks for a while at what a running worker does, by a
// profiler that its environment or its node has. It runs beside the worker, as
// the same user: inside the sandbox on this machine (falaj-worker profile), in
// the agent on another node.
//
// The tools: py-spy samples the Python stacks of all processes of a worker,
// without stopping them; torch has the program's own torch.profiler write a
// trace (torch.go says how they meet); nsys has the Nsight Systems that the program
// was started under record. What comes out of any is whatever the user's own
// environment makes of it: readers trust nothing in it.
//
// Standard library only.
package profiler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Mode is the first argument of falaj-worker: a Request comes on standard input,
// an Answer goes to standard output.
const Mode = "profile"

// Tool is what looks.
type Tool string

// The tools.
const (
	PySpy Tool = "py-spy"
	Torch Tool = "torch"
	Nsys  Tool = "nsys"
)

// Tools lists all of them; the first is taken where none is named.
var Tools = []Tool{PySpy, Torch, Nsys}

// Limits.
const (
	MaxSeconds = 300
	// MaxResult bounds all files of a result together, in bytes.
	MaxResult = 20 << 20

	rate         = 50 // samples a second, of each of the two looks
	maxProcesses = 8  // that are looked at; below each come its own
	margin       = 45 * time.Second
	maxWords     = 4 << 10
	idChars      = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
)

// Request is what to look at.
type Request struct {
	ID      string `json:"id"`
	Tool    Tool   `json:"tool"`
	Seconds int    `json:"seconds"`
	// Worker is looked at. Among says that other workers are visible, too: only
	// processes that carry its number count.
	Worker int  `json:"worker"`
	Among  bool `json:"among,omitempty"`
}

// Check refuses what makes no sense. Errors: fault.Invalid; fault.Unsupported for
// VTune.
func (r Request) Check() error {
	switch {
	case r.Tool == "vtune":
		return fault.New(fault.Unsupported, "VTune cannot be attached to running jobs, because it would stop them").
			WithHint("Start the program under VTune, and its result becomes an artifact: sh -c 'vtune -collect hotspots -result-dir \"$FALAJ_OUTPUT_DIR/vtune\" -- python train.py'.")
	case !slices.Contains(Tools, r.Tool):
		return fault.New(fault.Invalid, "tool %.40q does not exist", string(r.Tool)).WithHint("Use py-spy, torch or nsys.")
	case r.Seconds < 1 || r.Seconds > MaxSeconds:
		return fault.New(fault.Invalid, "a profile of %d seconds is not between 1 and %d", r.Seconds, MaxSeconds)
	case r.ID == "" || len(r.ID) > 64 || strings.Trim(r.ID, idChars) != "":
		return fault.New(fault.Invalid, "%.80q cannot name a profile", r.ID)
	case r.Worker < 0:
		return fault.New(fault.Invalid, "worker %d does not exist", r.Worker)
	}
	return nil
}

// Patience is how long a profile may take altogether.
func (r Request) Patience() time.Duration {
	return time.Duration(r.Seconds)*time.Second + margin
}

// File is one thing that a tool wrote.
type File struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// The files of py-spy: the stacks of all threads, and of those that ran.
const (
	AllStacks     = "all.folded"
	RunningStacks = "running.folded"
)

// Result is what was seen. Torch writes one file for each process,
// "trace-RANK.json.gz".
type Result struct {
	Tool      Tool   `json:"tool"`
	Version   string `json:"version,omitempty"` // of the tool
	Rate      int    `json:"rate,omitempty"`    // samples a second
	Processes int    `json:"processes"`
	// Lasted is how long nsys recorded.
	Lasted time.Duration `json:"lasted,omitempty"`
	Files  []File        `json:"files"`
}

// Answer is a result, or why there is none.
type Answer struct {
	Result *Result `json:"result,omitempty"`
	Kind   string  `json:"kind,omitempty"` // a fault.Kind
	Detail string  `json:"detail,omitempty"`
	Hint   string  `json:"hint,omitempty"`
}

// Answered packs what Take gave.
func Answered(r Result, err error) Answer {
	if err == nil {
		return Answer{Result: &r}
	}
	return Answer{Kind: fault.KindOf(err).String(), Detail: clip(err.Error()), Hint: clip(fault.HintOf(err))}
}

// Unpack is the inverse of Answered for answers that come from inside: the words
// are bounded and plain, and so is what they may claim.
func (a Answer) Unpack() (Result, error) {
	if a.Result == nil {
		e := &fault.Error{Kind: fault.ParseKind(a.Kind), Message: "the worker's side: " + Plain(a.Detail), Hint: Plain(a.Hint)}
		if e.Kind != fault.Unsupported && e.Kind != fault.Timeout && e.Kind != fault.TooLarge {
			e.Kind = fault.Conflict
		}
		return Result{}, e
	}
	r := *a.Result
	size := 0
	for _, f := range r.Files {
		size += len(f.Data)
		if !named(f.Name) {
			return Result{}, fault.New(fault.Invalid, "the profile has a file with an invalid name")
		}
	}
	if size > MaxResult || len(r.Files) > 4*maxProcesses {
		return Result{}, fault.New(fault.TooLarge, "the profile has more than %d bytes", MaxResult)
	}
	r.Version = Plain(r.Version)
	return r, nil
}

func named(name string) bool {
	return name != "" && len(name) < 64 && name[0] != '.' && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == ""
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxWords)], "") }

// Plain bounds words and takes out of them what a terminal would obey.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, clip(s))
}

// Main is the mode. Whatever goes wrong is in the answer.
func Main(stdin io.Reader, stdout io.Writer) int {
	var r Request
	b, err := io.ReadAll(io.LimitReader(stdin, 64<<10))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	// The end of who waits for it comes as SIGTERM (of sandbox's Look): what was
	// started ends first.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var result Result
	if err == nil {
		result, err = Take(ctx, r, Place{})
	}
	if json.NewEncoder(stdout).Encode(Answered(result, err)) != nil {
		return 1
	}
	return 0
}

// Sweep kills what is left below this process, which gets what its children leave
// (Linux: a child subreaper). It ends where more is started than it can kill: that
// has the limits of the program, and ends with it.
func Sweep() {
	for range 100 {
		parents, left := parents(), false
		for pid := range parents {
			if pid != os.Getpid() && below(parents, pid, os.Getpid()) {
				left = syscall.Kill(pid, syscall.SIGKILL) == nil || left
			}
		}
		if !left {
			return
		}
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil {
			return
		}
	}
}

// Place is where a worker runs.
type Place struct {
	Root int    // the process that all of the worker's are below; 0 is all that are visible
	Dir  string // for what is kept meanwhile; "" is the machine's own
	Path string // the node's own PATH, for tools that the worker's has not
}

// Take looks at a worker. Errors: fault.Unsupported without the tool, or where
// this machine forbids it; fault.Conflict when there is nothing to look at;
// fault.Timeout.
func Take(ctx context.Context, r Request, at Place) (Result, error) {
	if err := r.Check(); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.Patience())
	defer cancel()
	found := pythons(r, at.Root)
	if len(found) == 0 {
		return Result{}, fault.New(fault.Conflict, "worker %d has no Python process", r.Worker).
			WithHint("Try again when its program has started; other programs cannot be profiled.")
	}
	dir, err := os.MkdirTemp(at.Dir, "falaj-profile-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	var out Result
	switch r.Tool {
	case Torch:
		out, err = torch(ctx, r, found)
	case Nsys:
		out, err = nsys(ctx, r, found, dir, at.Path)
	default:
		out, err = pyspy(ctx, r, found, dir, at.Path)
	}
	out.Tool = r.Tool
	return out, err
}

// pyspy runs it twice at once over each process: once for all threads, once for
// those that run, so that both are known of every function: how often a thread
// was in it, and how often it waited there.
func pyspy(ctx context.Context, r Request, found []python, dir, path string) (Result, error) {
	program, err := found[0].look("py-spy", path)
	if err != nil {
		return Result{}, fault.New(fault.Unsupported, "py-spy is neither in the job's environment nor on its node").
			WithHint("Add py-spy to the environment's packages, or install it on the nodes: pip install py-spy.")
	}
	type look struct {
		python
		file string
		args []string
		err  error
	}
	var looks []*look
	for i, p := range found[:min(len(found), maxProcesses)] {
		n := strconv.Itoa(i)
		looks = append(
			looks,
			&look{python: p, file: filepath.Join(dir, n+AllStacks), args: []string{"--idle"}},
			&look{python: p, file: filepath.Join(dir, n+RunningStacks)},
		)
	}
	var all sync.WaitGroup
	for _, l := range looks {
		all.Go(func() {
			_, l.err = run(ctx, dir, program, append([]string{
				"record", "--pid", strconv.Itoa(l.pid), "--duration", strconv.Itoa(r.Seconds), "--rate", strconv.Itoa(rate),
				"--format", "raw", "--output", l.file, "--nonblocking", "--threads", "--subprocesses",
			}, l.args...)...)
		})
	}
	all.Wait()
	out := Result{Rate: rate, Processes: len(looks) / 2, Files: []File{{Name: AllStacks}, {Name: RunningStacks}}}
	var errs []error
	for i, l := range looks {
		b, err := os.ReadFile(l.file)
		if err != nil {
			errs = append(errs, l.err)
			continue
		}
		out.Files[i%2].Data = append(out.Files[i%2].Data, compact(string(b))...)
	}
	if len(out.Files[0].Data) == 0 {
		return Result{}, refused(errors.Join(errs...))
	}
	if len(out.Files[0].Data)+len(out.Files[1].Data) > MaxResult {
		return Result{}, fault.New(fault.TooLarge, "the profile has more than %d bytes", MaxResult).WithHint("Profile for a shorter time.")
	}
	if b, err := run(ctx, dir, program, "--version"); err == nil {
		out.Version = strings.TrimSpace(string(b))
	}
	return out, nil
}

// refused says why py-spy saw nothing.
func refused(err error) error {
	switch {
	case err == nil:
		return fault.New(fault.Conflict, "there was nothing to profile").WithHint("Try again when the program has started.")
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Timeout, "py-spy did not end in time: %w", err)
	case !strings.Contains(err.Error(), "ermission"):
		return fault.New(fault.Conflict, "%w", err)
	}
	e := fault.New(fault.Unsupported, "the node does not let py-spy read another process of the same user: %w", err)
	if b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && strings.TrimSpace(string(b)) != "0" {
		return e.WithHint("Its kernel.yama.ptrace_scope is %s; py-spy needs 0. Or use the tool torch.", strings.TrimSpace(string(b)))
	}
	return e.WithHint("The node forbids process_vm_readv, for example by a seccomp profile. Or use the tool torch.")
}

// run runs a program to its end; the error has its last words. It is the user's:
// nothing of our own environment, which may hold a token, is for it.
func run(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	out, words := Limited{Left: 1 << 20}, Limited{Left: 64 << 10}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=" + filepath.Dir(program) + ":/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + dir}
	cmd.Stdout, cmd.Stderr = &out, &words
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	err := cmd.Run()
	if err == nil {
		return out.B.Bytes(), nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	said := strings.Join(strings.Fields(words.B.String()), " ")
	return nil, fmt.Errorf("%s: %w: %s", filepath.Base(program), err, said[max(0, len(said)-600):])
}

// Limited keeps the beginning of what is written.
type Limited struct {
	B    bytes.Buffer
	Left int
}

func (l *Limited) Write(b []byte) (int, error) {
	n := min(len(b), l.Left)
	l.Left -= n
	_, _ = l.B.Write(b[:n])
	return len(b), nil
}
