package gang_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/worker/gang"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/secret"
)

// started is a gang that runs.
type started struct {
	*testing.T
	cmd    *exec.Cmd
	out    *bufio.Reader
	report string
}

func start(t *testing.T, n int, script string, grace time.Duration, roles ...launch.Role) *started {
	t.Helper()
	dir := t.TempDir()
	s := &started{T: t, report: filepath.Join(dir, "members.json")}
	spec := protocol.Gang{Launch: launch.Spec{Command: []string{"/bin/sh", "-c", script}, Run: "run", Roles: roles}, Dir: dir, Grace: grace, Report: s.report}
	for i := range n {
		spec.Members = append(spec.Members, protocol.GangMember{Env: map[string]string{"OWN": string(rune('a' + i))}})
	}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "gang.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	s.cmd = exec.CommandContext(ctx, sandboxtest.Worker(t), "gang", "--spec", path)
	s.cmd.Env = []string{"PATH=/usr/bin:/bin", "SHARED=yes"}
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		s.cmd.Stderr = s.cmd.Stdout
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(out)
	return s
}

// hear reads until all the lines have come.
func (s *started) hear(lines ...string) {
	s.Helper()
	for len(lines) > 0 {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.Fatalf("waiting for %q: %v", lines, err)
		}
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == strings.TrimSpace(line) })
	}
}

func (s *started) end() (code int, rest string, members []protocol.Member) {
	s.Helper()
	b, err := io.ReadAll(s.out)
	if err != nil {
		s.Fatal(err)
	}
	_ = s.cmd.Wait()
	report, err := os.ReadFile(s.report)
	if err == nil {
		err = json.Unmarshal(report, &members)
	}
	if err != nil {
		s.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode(), string(b), members
}

func TestGang(t *testing.T) {
	t.Parallel()
	s := start(t, 3, `echo "$RANK $WORLD_SIZE $FALAJ_WORKERS $MASTER_ADDR $OWN $SHARED"; printf rest`, time.Second)
	code, out, members := s.end()
	lines := slices.Sorted(strings.SplitSeq(strings.TrimSpace(out), "\n"))
	want := []string{
		"[0] 0 3 3 127.0.0.1 a yes", "[0] rest", "[1] 1 3 3 127.0.0.1 b yes", "[1] rest", "[2] 2 3 3 127.0.0.1 c yes", "[2] rest",
	}
	if code != 0 || !slices.Equal(lines, want) {
		t.Errorf("code %d, %q", code, lines)
	}
	for i, m := range members {
		if m.Index != i || m.State != "ended" || m.Reason != "exited" || m.ExitCode != 0 {
			t.Errorf("%+v", m)
		}
	}
	if len(members) != 3 {
		t.Errorf("%d members", len(members))
	}
}

// server is the role of a worker that does not end by itself.
func server(script string) launch.Role {
	return launch.Role{Name: "ps", Workers: 1, Command: []string{"/bin/sh", "-c", script}, Serves: true}
}

// TestServes: who serves is stopped when all others have ended, and how it ends
// then says nothing; even when it does not heed the order.
func TestServes(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"heeds": `trap 'echo bye; exit 3' TERM; echo ready; : >ready; sleep 1000 & wait`, "heeds not": `trap "" TERM; : >ready; while :; do sleep 0.05; done`, "ended": `: >ready`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3, `while ! [ -e ready ]; do sleep 0.05; done; echo "$FALAJ_ROLE $FALAJ_ROLE_INDEX $FALAJ_PEERS_PS"`, 5*time.Second,
				server(script), launch.Role{Name: "worker", Workers: 2})
			code, out, members := s.end()
			if code != 0 || !strings.Contains(out, "[1] worker 0 127.0.0.1:") || !strings.Contains(out, "[2] worker 1 127.0.0.1:") {
				t.Errorf("code %d\n%s", code, out)
			}
			if name == "heeds" && (!strings.Contains(out, "[0] bye") || members[0].Reason != "stopped") {
				t.Errorf("%+v\n%s", members[0], out)
			}
		})
	}
}

// TestServerFails: who serves and fails ends the gang as any other does, and one
// who serves does not hide the failure of another.
func TestServerFails(t *testing.T) {
	t.Parallel()
	s := start(t, 2, `sleep 1000`, time.Second, server(`exit 7`), launch.Role{Name: "worker", Workers: 1})
	if code, out, _ := s.end(); code != 7 {
		t.Errorf("code %d\n%s", code, out)
	}
	s = start(t, 2, `exit 9`, time.Second, server(`trap 'exit 0' TERM; sleep 1000 & wait`), launch.Role{Name: "worker", Workers: 1})
	if code, out, _ := s.end(); code != 9 {
		t.Errorf("code %d\n%s", code, out)
	}
}

// TestOneFails: the others may save, and the code is the one's that failed.
func TestOneFails(t *testing.T) {
	t.Parallel()
	s := start(t, 3, `
		if [ "$RANK" = 1 ]; then while ! [ -e go ]; do sleep 0.05; done; exit 9; fi
		trap 'echo saved; exit 75' TERM; echo ready; sleep 1000 & wait`, time.Minute)
	s.hear("[0] ready", "[2] ready")
	if err := os.WriteFile(filepath.Join(filepath.Dir(s.report), "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, members := s.end()
	if code != 9 || !strings.Contains(out, "[0] saved") || !strings.Contains(out, "[2] saved") {
		t.Errorf("code %d, %q", code, out)
	}
	if members[0].Reason != "stopped" || members[0].ExitCode != 75 || members[1].ExitCode != 9 {
		t.Errorf("%+v", members)
	}
}

// TestAsked: SIGTERM asks all, and those that do not listen are killed after the
// grace.
func TestAsked(t *testing.T) {
	t.Parallel()
	s := start(t, 2, `
		if [ "$RANK" = 1 ]; then trap '' TERM; echo deaf; while :; do sleep 1000; done; fi
		trap 'exit 75' TERM; echo ready; sleep 1000 & wait`, 5*time.Second)
	s.hear("[0] ready", "[1] deaf")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code, _, members := s.end()
	if code != 75 || members[1].Reason != "stopped" || members[1].Signal != "SIGKILL" {
		t.Errorf("code %d, %+v", code, members)
	}
}

// TestKilled: nothing outlives a supervisor that was killed, whatever it left.
func TestKilled(t *testing.T) {
	t.Parallel()
	s := start(t, 2, `trap '' TERM HUP; (setsid sleep 100000 &) ; setsid sleep 100000 & echo ready; wait; sleep 100000`, time.Second)
	s.hear("[0] ready", "[1] ready")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The output ends when the last process that holds it is gone.
	if _, err := io.ReadAll(s.out); err != nil {
		t.Error(err)
	}
	_ = s.cmd.Wait()
}

// TestNotThere: a program that cannot be started.
func TestNotThere(t *testing.T) {
	t.Parallel()
	spec := `{"launch":{"command":["/no/such"]},"members":[{},{}]}`
	cmd := exec.CommandContext(t.Context(), sandboxtest.Worker(t), "gang", "--spec", "-")
	cmd.Stdin = strings.NewReader(spec)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 127 || !strings.Contains(string(out), "no such file") {
		t.Errorf("%v: %s", err, out)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"launch":{"command":["/bin/true"]},"members":[{"env":{"A":"b"},"cpus":[0]}],"grace_ns":1}`))
	f.Add([]byte(`{"members":[]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := gang.Parse(b)
		if err == nil && (len(g.Members) == 0 || len(g.Members) > launch.MaxWorkers || g.Grace < 0) {
			t.Errorf("%+v", g)
		}
	})
}

// TestSecrets: one program that has secrets gets them, and its output is as it is
// without a supervisor, but masked.
func TestSecrets(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/projects/p/workloads/att_1/worker/secrets" || r.Header.Get("Authorization") != "Bearer tok" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(secret.Set{Variables: map[string]string{"PASSWORD": "hunter-22"}, Files: map[string]string{"KEY": "AAAA\nBBBBBBBB\n"}})
	}))
	t.Cleanup(server.Close)
	run := func(token string) (int, string) {
		spec, err := json.Marshal(protocol.Gang{
			Launch: launch.Spec{Command: []string{"/bin/sh", "-c", `echo "$PASSWORD ${#PASSWORD} $RANK"; tail -n 1 "$KEY"; echo "$KEY"; printf hunter; exit 3`}},
			Dir:    t.TempDir(), Members: []protocol.GangMember{{}}, Secrets: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), sandboxtest.Worker(t), "gang", "--spec", "-")
		cmd.Env = []string{"PATH=/usr/bin:/bin", "FALAJ_URL=" + server.URL, "FALAJ_TOKEN=" + token, "FALAJ_PROJECT=p", "FALAJ_ATTEMPT=att_1"}
		cmd.Stdin = bytes.NewReader(spec)
		out, err := cmd.CombinedOutput()
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	code, out := run("tok")
	lines := strings.Split(out, "\n")
	if code != 3 || len(lines) != 4 || lines[0] != "(secret) 9 " || lines[1] != "(secret)" || lines[3] != "hunter" {
		t.Fatalf("%d %q", code, lines)
	}
	if _, err := os.Stat(lines[2]); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", lines[2], err)
	}
	if code, out := run("other"); code != 1 || !strings.Contains(out, "fetching the job's secrets") {
		t.Errorf("%d %s", code, out)
	}
}
