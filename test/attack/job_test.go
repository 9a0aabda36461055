package attack

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/test/live"
)

// service is a listener of the host that answers each connection with a word
// and counts them.
type service struct {
	net.Listener
	mu    sync.Mutex
	calls int
}

func serve(t *testing.T, network, address, word string) *service {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Listener: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.calls++
			s.mu.Unlock()
			_, _ = io.WriteString(c, word)
			_ = c.Close()
		}
	}()
	return s
}

func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// TestHostileJob has a job try everything that it must not be able to do.
func TestHostileJob(t *testing.T) {
	open, closed := serve(t, "tcp", "127.0.0.1:0", "open"), serve(t, "tcp", "127.0.0.1:0", "closed")
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // A socket's path must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := serve(t, "unix", filepath.Join(dir, "socket"), "closed")
	secret := "SECRET_" + id.New("x")
	s, c := start(t, func(s *live.Server) {
		s.Mark = secret
		s.Env = []string{"FALAJ_JOBS_NETWORK=" + open.Addr().String(), "SERVER_ONLY=" + secret}
	})
	apply(t, c, "{api_version: falaj/v1, kind: Project, name: secret}\n---\n{api_version: falaj/v1, kind: Dataset, name: rows, project: "+project+", spec: {}}\n---\n{api_version: falaj/v1, kind: Dataset, name: others, project: "+project+", spec: {}}")
	for _, name := range []string{"rows", "others"} { // a job's token reads its inputs and nothing else
		if _, err := c.Import(t.Context(), project, name, name+".csv", strings.NewReader("a,b\n1,x\n2,y\n")); err != nil {
			t.Fatal(err)
		}
	}

	// The victim: another job, with a secret in its environment and in a file.
	victim := submit(t, c, "victim", map[string]any{
		"command": []string{"/bin/sh", "-c", `echo "$MARK" > "$FALAJ_SCRATCH_DIR/secret"; echo "at $FALAJ_SCRATCH_DIR $FALAJ_ATTEMPT."; exec sleep 3600`},
		"env":     map[string]string{"MARK": secret}, "grace": "1s",
	})
	var scratch, attempt string
	eventually(t, func() string {
		out := logs(t, c, victim)
		if !strings.HasSuffix(out, ".\n") {
			return "the victim says: " + out
		}
		_, err := fmt.Sscanf(out, "at %s %s", &scratch, &attempt)
		if err != nil {
			t.Fatal(err)
		}
		attempt = strings.TrimSuffix(attempt, ".")
		return ""
	})
	other := 0
	eventually(t, func() string { // the shell comes first
		for _, p := range s.Processes() {
			if strings.HasPrefix(p.Line, "sleep ") {
				other = p.PID
				return ""
			}
		}
		return "the victim has said where it is and does not sleep"
	})
	file, spec := filepath.Join(scratch, "secret"), filepath.Join(s.Data, "workloads", attempt, "spec.json")
	key := filepath.Join(s.Data, "master.key")
	before, err := os.ReadFile(key)
	for _, path := range []string{file, spec, filepath.Join(s.Data, "falaj.db")} {
		if _, serr := os.Stat(path); serr != nil {
			err = errors.Join(err, serr) // what is not there is not protected
		}
	}
	if err != nil || other == 0 {
		t.Fatal("the victim is not as this test expects it: ", err, other)
	}

	program := source(t, c, map[string][]byte{"attacker": s.Bin.Program(t, "./test/attack/testdata/attacker")})
	reversed := []byte(secret)
	slices.Reverse(reversed)
	server, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	job := submit(t, c, "hostile", map[string]any{
		"command": []string{"./attacker", "all"}, "source": program, "network": []string{open.Addr().String()}, "grace": "1s",
		"data": map[string]string{"rows": "rows"},
		"env": map[string]string{
			"A_DATA": s.Data, "A_SECRET": string(reversed), "A_OTHER_FILE": file, "A_OTHER_SPEC": spec, "A_OTHER_JOB": victim,
			"A_OTHER": live.Identity(t, other), "A_SERVER": live.Identity(t, s.PID()), "A_CLOSED": closed.Addr().String(), "A_OPEN": open.Addr().String(),
			"A_API": server.Host, "A_SOCKET": socket.Addr().String(),
		},
	})
	o := ended(t, c, job)
	out := logs(t, c, job)
	if !strings.HasSuffix(out, "=== end\n") || o.Text("state") != "succeeded" {
		t.Errorf("the attacker was ended: %v", o)
	}
	token, tries := "", 0
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "PASS":
			tries++
		case "TOKEN":
			token = rest
		case "WROTE": // where it has a /tmp of its own; is it here, too?
			tries++
			if b, err := os.ReadFile(rest); !errors.Is(err, fs.ErrNotExist) && !strings.HasPrefix(string(b), "SQLite format 3\x00") {
				t.Errorf("it wrote %s: %v", rest, err)
			}
		case "===":
		default:
			t.Error(line)
		}
	}
	if tries < 90 {
		t.Errorf("only %d attempts were made", tries)
	}
	t.Log(out)
	if strings.Contains(out, secret) {
		t.Error("the attacker knows the secret")
	}
	if n := closed.count() + socket.count(); n > 0 {
		t.Errorf("%d connections came to where nobody may connect", n)
	}
	if open.count() == 0 {
		t.Error("nothing came by the way that is allowed")
	}

	// The victims are unharmed.
	var running client.Object
	if err := c.Do(t.Context(), http.MethodGet, base+"/jobs/"+victim, nil, &running); err != nil || running.Text("state") != "running" {
		t.Errorf("the other job: %v %v", running, err)
	}
	if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) != secret {
		t.Errorf("the other job's file: %q %v", b, err)
	}
	if after, err := os.ReadFile(key); err != nil || !slices.Equal(before, after) {
		t.Errorf("the key was changed: %v", err)
	}
	found, err := filepath.Glob(filepath.Join(s.Data, "mine*"))
	if err != nil || len(found) > 0 {
		t.Errorf("the attacker made %v %v", found, err)
	}

	// Its token ends with it.
	err = s.ClientWith(t, token).Do(t.Context(), http.MethodGet, "/api/v1/whoami", nil, nil)
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
		t.Errorf("the token of an ended attempt: %v", err)
	}

	// A job that asks for more of the network than the installation has is refused.
	err = c.Do(t.Context(), http.MethodPost, base+"/jobs", map[string]any{"name": "wide", "spec": map[string]any{
		"command": []string{"/bin/true"}, "network": []string{"192.0.2.1:443"},
	}}, nil)
	if !errors.As(err, &refused) || refused.Status != http.StatusForbidden || !strings.Contains(refused.Hint, open.Addr().String()) {
		t.Errorf("a job that asks for another address: %v", err)
	}

	// What it tried is on record.
	type act struct{ action, object string }
	wanted := []act{
		{"workload.open", key},
		{"workload.open", filepath.Join(s.Data, "falaj.db")},
		{"workload.open", filepath.Join(s.Data, "falaj.db-wal")},
		{"workload.open", file},
		{"workload.open", spec},
		{"workload.open", "/proc/1/environ"},
		{"workload.open", fmt.Sprintf("/proc/%d/environ", s.PID())},
		{"workload.open", fmt.Sprintf("/proc/%d/mem", s.PID())},
		{"workload.open", fmt.Sprintf("/proc/%d/environ", other)},
		{"workload.connect", closed.Addr().String()},
		{"workload.connect", open.Addr().String()}, // not by the proxy
		{"workload.connect", server.Host},
		{"workload.connect", "192.0.2.1:443"},
		{"workload.connect", "[2001:db8::1]:443"},
		{"workload.connect", "169.254.169.254:80"},
		{"workload.connect", "192.0.2.9:53"},
		{"workload.connect", "unix:" + socket.Addr().String()},
		{"workload.connect", "attack.invalid:443"}, // by the proxy
		{"workload.connect", "169.254.169.254:80"},
		{"audit.read", "audit"},
		{"audit.export", "audit"},
		{"token.create", "service mine"},
		{"job.submit", "project " + project},
		{"job.submit", "job wide"},
		{"job.read", "project secret"},
		{"job.cancel", "project " + project},
		{"dataset.import", "project " + project}, // by who may apply no manifest
	}
	eventually(t, func() string {
		have := map[act]bool{}
		for _, e := range refusals(t, c, nil) {
			if e.Action == "workload.open" || e.Action == "workload.connect" {
				if e.Project != project || !strings.Contains(e.Reason, "the sandbox of ") || e.Actor == "" {
					t.Fatalf("an entry without its circumstances: %+v", e)
				}
			}
			have[act{e.Action, e.Object}] = true
		}
		for _, a := range wanted {
			if !have[a] {
				return fmt.Sprintf("not in the audit log: %v\n%v", a, have)
			}
		}
		return ""
	})
	listed, code := s.Command(t.Context(), "audit", "list", "--outcome", "refused", "-o", "json")
	if code != 0 || !strings.Contains(listed, key) {
		t.Errorf("falaj audit list: exit code %d\n%s", code, listed)
	}
	verify(t, s)
}
