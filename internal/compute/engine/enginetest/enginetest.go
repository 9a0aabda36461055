// Package enginetest is the conformance suite of engine.Driver, and Fake, a
// driver in memory whose workloads a test scripts.
//
// The suite's workloads are programs that exist twice: as a shell script for
// engines that run processes, and as a Go function for Fake. They meet the test
// at named pipes in a mounted directory, so nothing waits by the clock.
package enginetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// deadline bounds a test that hangs.
const deadline = time.Minute

// Options adapt the suite to an engine.
type Options struct {
	// New opens a driver; a second call with the same directory is the driver
	// after a restart of Falaj. A driver that is an io.Closer is closed before.
	New func(t *testing.T, dir string) engine.Driver
	// Lose kills what stands for the workload without a word.
	Lose func(t *testing.T, dir string, h engine.Handle)
	// Isolation that the specs ask for.
	Isolation string
	// Pool are the options that a pool gives to the specs.
	Pool map[string]string
	// Deadline bounds each test; 0 is a minute.
	Deadline time.Duration
	// AtOnce is how many workloads start together; 0 is twenty.
	AtOnce int
	// Record is the file of a workload's directory below the driver's that says what to
	// run; empty of a driver that keeps none.
	Record string
	// Gangs is false of a driver whose workloads have one worker.
	Gangs bool
}

// Run runs the suite.
func Run(t *testing.T, o Options) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(s *suite)
	}{
		{"ends and tells how", (*suite).ends},
		{"a program that is not there", (*suite).missing},
		{"start is idempotent", (*suite).idempotent},
		{"environment exactly as given", (*suite).environment},
		{"time-out", (*suite).timeout},
		{"time-out with a program that ignores SIGTERM", (*suite).timeoutIgnored},
		{"stop lets it save", (*suite).stopSaves},
		{"what a stopped program says", (*suite).stopWords},
		{"stop kills after the grace", (*suite).stopKills},
		{"stop ends the whole tree", (*suite).stopTree},
		{"stop without grace, twice", (*suite).stopTwice},
		{"wait gives up with its context", (*suite).waitContext},
		{"logs from an offset", (*suite).logsOffset},
		{"logs live", (*suite).logsFollow},
		{"logs stop following with the context", (*suite).logsContext},
		{"big logs", (*suite).logsBig},
		{"attach after a restart", (*suite).attach},
		{"attach to what has ended", (*suite).attachEnded},
		{"lost", (*suite).lost},
		{"a record that cannot be read", (*suite).unreadable},
		{"list and forget", (*suite).forget},
		{"unknown handles", (*suite).unknown},
		{"opaque handles", (*suite).opaque},
		{"output while it runs", (*suite).output},
		{"many at once", (*suite).parallel},
		{"bad specs", (*suite).bad},
		{"roles", (*suite).roles},
		{"roles that fail", (*suite).rolesFail},
		{"roles that are stopped", (*suite).rolesStopped},
	} {
		if !o.Gangs && strings.HasPrefix(c.name, "roles") {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), max(o.Deadline, deadline))
			t.Cleanup(cancel)
			s := &suite{T: t, o: o, ctx: ctx, dir: t.TempDir(), work: t.TempDir()}
			s.restart()
			c.test(s)
			s.clean()
		})
	}
}

// suite is one test with a driver of its own.
type suite struct {
	*testing.T
	o    Options
	ctx  context.Context //nolint:containedctx // The life of one test.
	dir  string          // the driver's
	work string          // mounted into the workloads
	d    engine.Driver
}

func (s *suite) restart() {
	s.close()
	s.d = s.o.New(s.T, s.dir)
}

func (s *suite) close() {
	if c, ok := s.d.(io.Closer); ok {
		s.check(c.Close())
	}
}

// clean leaves no workload behind.
func (s *suite) clean() {
	all, err := s.d.List(s.ctx)
	s.check(err)
	for _, h := range all {
		s.check(s.d.Stop(s.ctx, h, 0))
		s.check(s.d.Forget(s.ctx, h))
	}
	if all, err = s.d.List(s.ctx); err != nil || len(all) > 0 {
		s.Errorf("after forgetting everything: %v %v", all, err)
	}
	s.close()
}

func (s *suite) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) spec(p program) engine.Spec {
	return engine.Spec{
		ID: id.New("att"), Project: "test", Command: []string{"/bin/sh", "-c", p.script}, Dir: s.work,
		Env:    map[string]string{"PATH": "/usr/bin:/bin"},
		Mounts: []engine.Mount{{Path: s.work, Writable: true}}, Isolation: s.o.Isolation, Grace: deadline, Options: s.o.Pool,
	}
}

func (s *suite) start(spec engine.Spec) engine.Handle {
	s.Helper()
	h, err := s.d.Start(s.ctx, spec)
	s.check(err)
	return h
}

func (s *suite) wait(h engine.Handle) engine.Status {
	s.Helper()
	st, err := s.d.Wait(s.ctx, h)
	s.check(err)
	return st
}

func (s *suite) logs(h engine.Handle, offset int64, follow bool) string {
	s.Helper()
	r, err := s.d.Logs(s.ctx, h, offset, follow)
	s.check(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	s.check(err)
	return string(b)
}

// pipe makes a named pipe in the mounted directory.
func (s *suite) pipe(name string) string {
	s.Helper()
	p := filepath.Join(s.work, name)
	s.check(syscall.Mkfifo(p, 0o666))
	s.check(os.Chmod(p, 0o666)) //nolint:gosec // The workload may be another user.
	return p
}

// gates are the pipes at which progGate waits.
func (s *suite) gates() []string {
	s.Helper()
	return []string{s.pipe("gate0"), s.pipe("gate1"), s.pipe("gate2")}
}

// meet waits until the program opens the pipe for reading, which lets it go on.
func (s *suite) meet(pipe string) {
	s.Helper()
	f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	s.check(err)
	_, err = f.WriteString("go\n")
	s.check(err)
	s.check(f.Close())
}

// hear waits until the program opens the pipe for writing and writes a line.
func (s *suite) hear(pipe string) *bufio.Reader {
	s.Helper()
	var f *os.File
	opened := make(chan error, 1)
	go func() {
		var err error
		f, err = os.Open(pipe)
		opened <- err
	}()
	select {
	case err := <-opened:
		s.check(err)
	case <-s.ctx.Done():
		s.Fatal("the program did not open the pipe")
	}
	s.Cleanup(func() { _ = f.Close() })
	r := bufio.NewReader(f)
	if _, err := r.ReadString('\n'); err != nil {
		s.Fatalf("the program wrote nothing: %v", err)
	}
	return r
}

func (s *suite) ends() {
	for _, c := range []struct {
		p      program
		reason engine.Reason
		code   int
		signal string
		log    string
	}{
		{progHello, engine.Exited, 0, "", "hello\nwörld ☃\n"},
		{progExit(1), engine.Exited, 1, "", ""},
		{progExit(75), engine.Exited, 75, "", ""},
		{progExit(255), engine.Exited, 255, "", ""},
		{progKillSelf, engine.Signalled, -1, "SIGKILL", ""},
	} {
		h := s.start(s.spec(c.p))
		st := s.wait(h)
		if st.State != engine.Ended || st.Reason != c.reason || st.ExitCode != c.code || st.Signal != c.signal {
			s.Errorf("%q: %+v", c.p.script, st)
		}
		if st.Started.IsZero() || st.Ended.Before(st.Started) || st.Isolated == "" {
			s.Errorf("%q: times or isolation are missing: %+v", c.p.script, st)
		}
		if again, err := s.d.Status(s.ctx, h); err != nil || again != st {
			s.Errorf("%q: status %+v %v after wait %+v", c.p.script, again, err, st)
		}
		if log := s.logs(h, 0, true); log != c.log {
			s.Errorf("%q: log %q", c.p.script, log)
		}
	}
}

// gang is a spec of two roles with amounts of their own: two workers, and one that
// serves until they have ended.
func (s *suite) gang(worker, server string) engine.Spec {
	spec := s.spec(program{script: worker})
	spec.Workers, spec.Grace = 3, 30*time.Second
	spec.Roles = []engine.Role{
		{Name: "worker", Workers: 2, Resources: resource.Amount{CPU: 100, Memory: 256 * resource.MiB}},
		{Name: "ps", Workers: 1, Resources: resource.Amount{CPU: 200, Memory: 384 * resource.MiB}},
	}
	spec.Launch = launch.Spec{Framework: launch.Plain, Command: spec.Command, Run: spec.ID, Roles: []launch.Role{
		{Name: "worker", Workers: 2, Env: map[string]string{"OWN": "of workers"}},
		{Name: "ps", Workers: 1, Command: []string{"/bin/sh", "-c", server}, Serves: true},
	}}
	return spec
}

func (s *suite) roles() {
	s.pipe("ready0")
	ready := strings.TrimSuffix(s.pipe("ready1"), "1") // and the worker's rank
	h := s.start(s.gang(
		`read go <`+ready+`$RANK; echo "$FALAJ_ROLE $FALAJ_ROLE_INDEX of $FALAJ_ROLE_WORKERS, $RANK of $WORLD_SIZE, $OWN"; set -- $(echo "$FALAJ_PEERS_WORKER" | tr , ' '); echo "$# peers"`,
		`trap 'echo bye; exit 3' TERM; echo "$FALAJ_ROLE $RANK $OWN"; echo go >`+ready+`0; echo go >`+ready+`1; while :; do sleep 0.1; done`))
	st := s.wait(h)
	log := s.logs(h, 0, true)
	if st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 0 {
		s.Errorf("%+v\n%s", st, log)
	}
	for _, line := range []string{"[0] worker 0 of 2, 0 of 3, of workers", "[1] worker 1 of 2, 1 of 3, of workers", "[0] 2 peers", "[2] ps 2 ", "[2] bye"} {
		if !strings.Contains(log, line+"\n") {
			s.Errorf("the log has no %q:\n%s", line, log)
		}
	}
	if power, ok := s.d.(engine.Members); ok {
		members, err := power.Members(s.ctx, h)
		if err != nil || len(members) != 3 || members[0].Reason != engine.Exited || members[2].State != engine.Ended {
			s.Errorf("%+v, %v", members, err)
		}
	}
}

func (s *suite) rolesFail() {
	for name, c := range map[string]struct {
		worker, server string
		code           int
	}{
		"a worker": {`[ "$RANK" = 1 ] && exit 9; sleep 1000`, `trap 'exit 0' TERM; sleep 1000 & wait`, 9},
		"a server": {`sleep 1000`, `exit 7`, 7},
	} {
		h := s.start(s.gang(c.worker, c.server))
		if st := s.wait(h); st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != c.code {
			s.Errorf("%s fails: %+v\n%s", name, st, s.logs(h, 0, true))
		}
	}
	spec := s.gang(`exit 0`, `exit 0`)
	spec.Workers = 4
	if _, err := s.d.Start(s.ctx, spec); !fault.Is(err, fault.Invalid) {
		s.Errorf("roles of three workers and a gang of four: %v", err)
	}
}

func (s *suite) missing() {
	spec := s.spec(progHello)
	spec.Command = []string{"/no/such/program"}
	st := s.wait(s.start(spec))
	if st.State != engine.Ended || st.Reason != engine.NotStarted || st.Message == "" {
		s.Errorf("%+v", st)
	}
}

func (s *suite) idempotent() {
	out := s.pipe("out")
	spec := s.spec(progOnce)
	h := s.start(spec)
	rest := s.hear(out)
	for range 3 {
		if again := s.start(spec); again != h {
			s.Errorf("a second start gave %q after %q", again, h)
		}
	}
	s.restart()
	if again := s.start(spec); again != h {
		s.Errorf("after a restart start gave %q after %q", again, h)
	}
	s.check(s.d.Stop(s.ctx, h, 0))
	if again := s.start(spec); again != h {
		s.Errorf("after its end start gave %q after %q", again, h)
	}
	if b, err := io.ReadAll(rest); err != nil || len(b) > 0 {
		s.Errorf("a second process wrote %q %v", b, err)
	}
	if log := s.logs(h, 0, false); log != "once\n" {
		s.Errorf("log %q", log)
	}
}

func (s *suite) environment() {
	spec := s.spec(progHello)
	spec.Command = []string{"/usr/bin/env", "-0"}
	spec.Env = map[string]string{"PLAIN": "a", "EMPTY": "", "SPACE": "a b\nc", "UNICODE": "Zürich 東京", "EQUALS": "a=b=c", "QUOTE": `"'$(id)`}
	var want []string
	for k, v := range spec.Env {
		want = append(want, k+"="+v)
	}
	slices.Sort(want)
	h := s.start(spec)
	s.wait(h)
	got := strings.Split(strings.TrimSuffix(s.logs(h, 0, false), "\x00"), "\x00")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		s.Errorf("got %q, want %q", got, want)
	}
}

func (s *suite) timeout() {
	spec := s.spec(progForever)
	spec.Timeout = 200 * time.Millisecond
	if st := s.wait(s.start(spec)); st.State != engine.Ended || st.Reason != engine.TimedOut || st.Message == "" {
		s.Errorf("%+v", st)
	}
}

func (s *suite) timeoutIgnored() {
	spec := s.spec(progIgnore)
	spec.Timeout, spec.Grace = 5*time.Second, 200*time.Millisecond // by then it ignores SIGTERM
	out := s.pipe("out")
	h := s.start(spec)
	s.hear(out)
	if st := s.wait(h); st.State != engine.Ended || st.Reason != engine.TimedOut {
		s.Errorf("%+v", st)
	}
}

func (s *suite) stopSaves() {
	out := s.pipe("out")
	h := s.start(s.spec(progSaves))
	s.hear(out)
	s.check(s.d.Stop(s.ctx, h, deadline))
	st, err := s.d.Status(s.ctx, h)
	if err != nil || st.State != engine.Ended || st.Reason != engine.Stopped || st.ExitCode != 75 {
		s.Errorf("%+v %v", st, err)
	}
	if log := s.logs(h, 0, true); log != "saved\n" {
		s.Errorf("log %q", log)
	}
}

// stopWords: the exit code of a program that was asked to stop, or reached its time-out, is
// told, and 0 is a success.
func (s *suite) stopWords() {
	out := s.pipe("out")
	for _, code := range []int{0, 75, 3} {
		for _, reason := range []engine.Reason{engine.Stopped, engine.TimedOut} {
			spec := s.spec(progLeaves(code))
			spec.ID, spec.Grace = fmt.Sprintf("%s-%d-%s", spec.ID, code, strings.ReplaceAll(string(reason), "_", "-")), deadline
			if reason == engine.TimedOut {
				spec.Timeout = 3 * time.Second // by then it has its handler
			}
			h := s.start(spec)
			s.hear(out)
			if reason == engine.Stopped {
				s.check(s.d.Stop(s.ctx, h, deadline))
			}
			st := s.wait(h)
			if st.State != engine.Ended || st.Reason != reason || st.ExitCode != code || st.Finished() != (code == 0) {
				s.Errorf("%s, %d: %+v", reason, code, st)
			}
		}
	}
}

// rolesStopped: a gang that is asked to stop has succeeded when all its members end with 0,
// those that serve aside; one member that saved speaks for it.
func (s *suite) rolesStopped() {
	for name, c := range map[string]struct {
		first, second string
		code          int
	}{
		"all finish":               {"exit 0", "exit 0", 0},
		"the second does not":      {"exit 0", "exit 3", 3},
		"the first does not":       {"exit 3", "exit 0", 3},
		"the second saves":         {"exit 0", "exit 75", 75},
		"the first saves":          {"exit 75", "trap - TERM; kill -TERM $$", 75},
		"one saves, another fails": {"exit 3", "exit 75", 75},
	} {
		out := s.pipe("out-" + strings.ReplaceAll(name, " ", "-") + "0")
		other := s.pipe(strings.TrimSuffix(filepath.Base(out), "0") + "1")
		h := s.start(s.gang(
			`if [ "$RANK" = 0 ]; then trap '`+c.first+`' TERM; else trap '`+c.second+`' TERM; fi; exec 3>`+strings.TrimSuffix(out, "0")+`$RANK; echo ready >&3; sleep 100000 3>&- & wait`,
			`exec sleep 100000`))
		s.hear(out)
		s.hear(other)
		s.check(s.d.Stop(s.ctx, h, deadline))
		if st := s.wait(h); st.State != engine.Ended || st.Reason != engine.Stopped || st.ExitCode != c.code || st.Finished() != (c.code == 0) {
			s.Errorf("%s: %+v\n%s", name, st, s.logs(h, 0, true))
		}
	}
}

func (s *suite) stopKills() {
	out := s.pipe("out")
	h := s.start(s.spec(progIgnore))
	s.hear(out)
	s.check(s.d.Stop(s.ctx, h, 200*time.Millisecond))
	if st := s.wait(h); st.State != engine.Ended || st.Reason != engine.Stopped || st.ExitCode == 0 {
		s.Errorf("%+v", st)
	}
}

func (s *suite) stopTree() {
	out := s.pipe("out")
	h := s.start(s.spec(progTree))
	rest := s.hear(out)
	s.check(s.d.Stop(s.ctx, h, 200*time.Millisecond))
	// The pipe ends only when the last process that holds it is gone.
	if _, err := io.ReadAll(rest); err != nil {
		s.Error(err)
	}
	if st := s.wait(h); st.Reason != engine.Stopped {
		s.Errorf("%+v", st)
	}
}

func (s *suite) stopTwice() {
	h := s.start(s.spec(progForever))
	for range 2 {
		s.check(s.d.Stop(s.ctx, h, 0))
	}
	if st := s.wait(h); st.Reason != engine.Stopped {
		s.Errorf("%+v", st)
	}
}

func (s *suite) waitContext() {
	h := s.start(s.spec(progForever))
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if st, err := s.d.Wait(ctx, h); err == nil {
		s.Errorf("wait gave %+v", st)
	}
}

func (s *suite) logsOffset() {
	h := s.start(s.spec(progHello))
	s.wait(h)
	const log = "hello\nwörld ☃\n"
	for _, offset := range []int64{0, 1, 6, int64(len(log)) - 1, int64(len(log)), 1000} {
		want := log[min(int(offset), len(log)):]
		for _, follow := range []bool{false, true} {
			if got := s.logs(h, offset, follow); got != want {
				s.Errorf("from %d (follow %v): %q, want %q", offset, follow, got, want)
			}
		}
	}
	if r, err := s.d.Logs(s.ctx, h, -1, false); !fault.Is(err, fault.Invalid) {
		s.Errorf("a negative offset gave %v %v", r, err)
	}
}

func (s *suite) logsFollow() {
	gates := s.gates()
	h := s.start(s.spec(progGate))
	stream, err := s.d.Logs(s.ctx, h, 0, true)
	s.check(err)
	defer stream.Close()
	r := bufio.NewReader(stream)
	for i := range 3 {
		line, err := r.ReadString('\n')
		if want := fmt.Sprintf("line %d\n", i); err != nil || line != want {
			s.Fatalf("%q %v, want %q", line, err, want)
		}
		s.meet(gates[i])
	}
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "end\n" {
		s.Errorf("%q %v", rest, err)
	}
}

func (s *suite) logsContext() {
	h := s.start(s.spec(progForever))
	ctx, cancel := context.WithCancel(s.ctx)
	r, err := s.d.Logs(ctx, h, 0, true)
	s.check(err)
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(r)
		read <- err
	}()
	cancel()
	if err := <-read; err == nil {
		s.Error("the end of the context looked like the end of the log")
	}
	s.check(r.Close())

	r, err = s.d.Logs(s.ctx, h, 0, true)
	s.check(err)
	go func() {
		_, err := io.ReadAll(r)
		read <- err
	}()
	s.check(r.Close())
	if err := <-read; err == nil {
		s.Error("closing looked like the end of the log")
	}
}

func (s *suite) logsBig() {
	h := s.start(s.spec(progBig))
	got := s.logs(h, 0, true)
	if len(got) != bigLog || strings.Trim(got, "x") != "" {
		s.Errorf("%d bytes, want %d", len(got), bigLog)
	}
	if tail := s.logs(h, bigLog-5, false); tail != "xxxxx" {
		s.Errorf("tail %q", tail)
	}
}

func (s *suite) attach() {
	gates := s.gates()
	h := s.start(s.spec(progGate))
	s.restart()
	if st, err := s.d.Status(s.ctx, h); err != nil || st.State != engine.Running && st.State != engine.Pending {
		s.Errorf("after a restart: %+v %v", st, err)
	}
	s.meet(gates[0])
	s.meet(gates[1])
	s.restart()
	s.meet(gates[2])
	st := s.wait(h)
	if st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 3 {
		s.Errorf("%+v", st)
	}
	if log := s.logs(h, 0, true); log != "line 0\nline 1\nline 2\nend\n" {
		s.Errorf("log %q", log)
	}
}

func (s *suite) attachEnded() {
	h := s.start(s.spec(progExit(7)))
	before := s.wait(h)
	s.restart()
	if after := s.wait(h); after.State != engine.Ended || after.ExitCode != 7 || !after.Ended.Equal(before.Ended) {
		s.Errorf("%+v, before the restart %+v", after, before)
	}
	s.check(s.d.Stop(s.ctx, h, 0))
}

// unreadable: a workload whose record cannot be read after a restart is unknown while it
// runs, never lost, and is not started twice.
func (s *suite) unreadable() {
	if s.o.Record == "" {
		s.Skip("this driver keeps no record")
	}
	for name, damage := range map[string]func(file string) error{
		"half":  func(file string) error { return os.WriteFile(file, []byte(`{"id":`), 0o600) },
		"other": func(file string) error { return os.WriteFile(file, []byte(`{"format": 7, "ID": 5, "id": []}`), 0o600) },
		"replaced": func(file string) error {
			return errors.Join(os.Rename(file, file+".old"), os.WriteFile(file, nil, 0o600))
		},
		"removed":   os.Remove,
		"directory": func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
	} {
		out := s.pipe("out")
		spec := s.spec(progOnce)
		spec.ID += "-" + name
		h := s.start(spec)
		rest := s.hear(out)
		s.close()
		s.check(damage(filepath.Join(s.dir, string(h), s.o.Record)))
		s.restart()
		for range 2 { // looking ends nothing
			if st, err := s.d.Status(s.ctx, h); err != nil || st.State != engine.Running || !strings.Contains(st.Message, "cannot be read") {
				s.Errorf("%s: %+v, %v", name, st, err)
			}
			if again, err := s.d.Start(s.ctx, spec); err != nil || again != h {
				s.Errorf("%s: a second start: %q, %v", name, again, err)
			}
		}
		if all, err := s.d.List(s.ctx); err != nil || !slices.Contains(all, h) {
			s.Errorf("%s: it is not in the list: %v, %v", name, all, err)
		}
		if err := s.d.Forget(s.ctx, h); !fault.Is(err, fault.Conflict) {
			s.Errorf("%s: forgotten while it runs: %v", name, err)
		}
		if power, ok := s.d.(engine.Members); ok {
			if members, err := power.Members(s.ctx, h); err != nil || len(members) != 1 || len(members[0].Notes) == 0 {
				s.Errorf("%s: members %+v, %v", name, members, err)
			}
		}
		s.check(s.d.Stop(s.ctx, h, time.Second))
		if more, err := io.ReadAll(rest); err != nil || len(more) > 0 {
			s.Errorf("%s: it ran twice, or still runs: %q, %v", name, more, err)
		}
		if st := s.wait(h); st.State != engine.Lost && st.Reason != engine.Stopped {
			s.Errorf("%s: after its end %+v", name, st)
		}
		s.check(s.d.Forget(s.ctx, h))
		s.check(os.Remove(out))
	}
}

func (s *suite) lost() {
	for _, restart := range []bool{false, true} {
		out := s.pipe(fmt.Sprintf("out%v", restart))
		s.check(os.Rename(out, filepath.Join(s.work, "out")))
		spec := s.spec(progTree)
		h := s.start(spec)
		rest := s.hear(filepath.Join(s.work, "out"))
		if restart {
			s.close()
		}
		s.o.Lose(s.T, s.dir, h)
		if restart {
			s.d = s.o.New(s.T, s.dir)
		}
		if st := s.wait(h); st.State != engine.Lost || st.Message == "" {
			s.Errorf("%+v", st)
		}
		if _, err := io.ReadAll(rest); err != nil { // ends when nothing of it runs
			s.Error(err)
		}
		if again := s.start(spec); again != h {
			s.Errorf("start gave %q", again)
		}
		if st := s.wait(h); st.State != engine.Lost {
			s.Errorf("a lost workload was started a second time: %+v", st)
		}
		s.check(s.d.Stop(s.ctx, h, 0))
		s.check(os.Remove(filepath.Join(s.work, "out")))
	}
}

func (s *suite) forget() {
	var want []engine.Handle
	for range 3 {
		want = append(want, s.start(s.spec(progHello)))
	}
	running := s.start(s.spec(progForever))
	want = append(want, running)
	slices.Sort(want)
	got, err := s.d.List(s.ctx)
	s.check(err)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		s.Errorf("list %q, want %q", got, want)
	}
	if err := s.d.Forget(s.ctx, running); !fault.Is(err, fault.Conflict) {
		s.Errorf("forgetting what runs: %v", err)
	}
	for _, h := range want {
		if h == running {
			s.check(s.d.Stop(s.ctx, h, 0))
		}
		s.wait(h)
		s.check(s.d.Forget(s.ctx, h))
		if _, err := s.d.Status(s.ctx, h); !fault.Is(err, fault.NotFound) {
			s.Errorf("after forgetting: %v", err)
		}
	}
	s.restart()
	if got, err := s.d.List(s.ctx); err != nil || len(got) > 0 {
		s.Errorf("after a restart: %q %v", got, err)
	}
}

// output reads what a program has written while it runs, of a driver whose workers are
// elsewhere.
func (s *suite) output() {
	power, ok := s.d.(engine.OutputFiles)
	if !ok {
		return // the server reads the directory itself
	}
	spec := s.spec(program{script: `cd "$OUT"; mkdir events; printf one >events/a; : >empty; ln -s /etc/passwd link; ln -s /etc dir; mkfifo pipe
		truncate -s 2000 holes; printf b >"ü %2F#"; printf end >z; while :; do sleep 100000; done`})
	out := filepath.Join(s.TempDir(), "output")
	s.check(os.Mkdir(out, 0o700))
	spec.Mounts = append(spec.Mounts, engine.Mount{Path: out, Writable: true, Role: engine.Output})
	spec.Env["OUT"] = out
	h := s.start(spec)
	list := func(below string) (names []string, err error) {
		l, err := power.ListOutput(s.ctx, h, below)
		for _, f := range l.Files {
			names = append(names, f.Path)
		}
		return names, err
	}
	var names []string
	for !slices.Contains(names, "z") { // the last that it writes
		var err error
		if names, err = list("."); err != nil && !fault.Is(err, fault.Conflict) {
			s.check(err)
		}
		s.check(s.ctx.Err())
	}
	if want := []string{"empty", "events/a", "holes", "z", "ü %2F#"}; !slices.Equal(names, want) {
		s.Errorf("listed %q, want %q", names, want)
	}
	if names, err := list("events"); err != nil || !slices.Equal(names, []string{"events/a"}) {
		s.Errorf("below events: %q, %v", names, err)
	}
	for _, below := range []string{"nothing", "dir/passwd"} {
		if names, err := list(below); !fault.Is(err, fault.NotFound) {
			s.Errorf("%s: %q, %v", below, names, err)
		}
	}
	read := func(path string) (string, error) {
		r, err := power.OpenOutput(s.ctx, h, path, 1000)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(r)
		return string(b), errors.Join(err, r.Close())
	}
	for path, want := range map[string]string{"events/a": "one", "empty": "", "ü %2F#": "b"} {
		if got, err := read(path); err != nil || got != want {
			s.Errorf("%s is %q, %v", path, got, err)
		}
	}
	for path, kind := range map[string]fault.Kind{
		"link": fault.NotFound, "dir/passwd": fault.NotFound, "pipe": fault.NotFound, "events": fault.NotFound, "../../../etc/passwd": fault.NotFound, "holes": fault.TooLarge,
	} {
		if got, err := read(path); !fault.Is(err, kind) {
			s.Errorf("%s: %q, %v", path, got, err)
		}
	}
	s.check(s.d.Stop(s.ctx, h, 0))
	s.wait(h)
	if names, err := list("."); !fault.Is(err, fault.Conflict) {
		s.Errorf("after its end: %q, %v", names, err)
	}
}

func (s *suite) unknown() {
	for _, h := range []engine.Handle{"", "nobody", "../../etc", engine.Handle(id.New("att"))} {
		_, status := s.d.Status(s.ctx, h)
		_, wait := s.d.Wait(s.ctx, h)
		_, logs := s.d.Logs(s.ctx, h, 0, false)
		for what, err := range map[string]error{
			"status": status, "wait": wait, "logs": logs, "stop": s.d.Stop(s.ctx, h, 0), "forget": s.d.Forget(s.ctx, h),
		} {
			if !fault.Is(err, fault.NotFound) {
				s.Errorf("%s of %q: %v", what, h, err)
			}
		}
	}
}

// opaque: a handle is a short name that says nothing of the machine, of the program or of its
// secrets, finds its workload after a trip through text, and only as it is.
func (s *suite) opaque() {
	const secret = "s3cret-of-the-environment"
	spec := s.spec(progExit(0))
	spec.Env["TOKEN"] = secret
	h, other := s.start(spec), s.start(s.spec(progExit(0)))
	if h == other {
		s.Errorf("two workloads have the handle %q", h)
	}
	if len(h) == 0 || len(h) > 200 || strings.ContainsFunc(string(h), func(r rune) bool { return r <= ' ' || r > '~' }) {
		s.Errorf("the handle %q is not 1 to 200 printable ASCII characters", h)
	}
	for what, text := range map[string]string{"the driver's directory": s.dir, "the working directory": s.work, "a secret": secret, "the command": spec.Command[2]} {
		if strings.Contains(string(h), text) {
			s.Errorf("the handle %q has %s", h, what)
		}
	}
	s.wait(other)
	if st := s.wait(engine.Handle(strings.Clone(string(h)))); st.State != engine.Ended {
		s.Errorf("by its text: %+v", st)
	}
	for _, near := range []engine.Handle{h[1:], h[:len(h)-1], h + "x", h + "/", " " + h, "./" + h} {
		if _, err := s.d.Status(s.ctx, near); !fault.Is(err, fault.NotFound) {
			s.Errorf("the handle %q finds what %q names: %v", near, h, err)
		}
	}
}

func (s *suite) parallel() {
	n := s.o.AtOnce
	if n == 0 {
		n = 20
	}
	type result struct {
		i   int
		st  engine.Status
		err error
	}
	results := make(chan result, n)
	for i := range n {
		go func() {
			r := result{i: i}
			defer func() { results <- r }()
			h, err := s.d.Start(s.ctx, s.spec(progExit(i)))
			if r.err = err; err != nil {
				return
			}
			r.st, r.err = s.d.Wait(s.ctx, h)
		}()
	}
	for range n {
		if r := <-results; r.err != nil || r.st.ExitCode != r.i || r.st.State != engine.Ended {
			s.Errorf("%+v", r)
		}
	}
}

func (s *suite) bad() {
	for name, change := range map[string]func(*engine.Spec){
		"no id":              func(sp *engine.Spec) { sp.ID = "" },
		"an id with a path":  func(sp *engine.Spec) { sp.ID = "../../escape" },
		"no command":         func(sp *engine.Spec) { sp.Command = nil },
		"an empty command":   func(sp *engine.Spec) { sp.Command = []string{""} },
		"a negative timeout": func(sp *engine.Spec) { sp.Timeout = -1 },
		"negative resources": func(sp *engine.Spec) { sp.Resources.CPU = -1 },
		"a relative mount":   func(sp *engine.Spec) { sp.Mounts = []engine.Mount{{Path: "relative"}} },
		"a mount of nothing": func(sp *engine.Spec) { sp.Mounts = []engine.Mount{{Path: "/no/such/path"}} },
		"a bad variable":     func(sp *engine.Spec) { sp.Env = map[string]string{"A=B": "c"} },
		"a bad isolation":    func(sp *engine.Spec) { sp.Isolation = "perfect" },
		"a bad allow-list":   func(sp *engine.Spec) { sp.Network.Allow = []string{"no port"} },
	} {
		spec := s.spec(progHello)
		change(&spec)
		if h, err := s.d.Start(s.ctx, spec); !fault.Is(err, fault.Invalid) {
			s.Errorf("%s: %q %v", name, h, err)
		}
	}
	if all, err := s.d.List(s.ctx); err != nil || len(all) > 0 {
		s.Errorf("bad specs left %q %v", all, err)
	}
}
