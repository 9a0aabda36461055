// Package isolation_test has hostile jobs try, on each engine, to reach what is
// not theirs: the program of test/attack in a gang, in a container and in a pod,
// and the token of an attempt at the worker routes of others.
package isolation_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/oci/ocitest"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/test/live"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }

// submit submits a job with little resources.
func submit(p *live.Project, name string, spec map[string]any) string {
	p.T.Helper()
	if spec["resources"] == nil {
		spec["resources"] = map[string]any{"cpu": "0.2", "memory": "128MiB"}
	}
	spec["grace"] = "1s"
	var o client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": name, "spec": spec}, &o))
	return o.Text("id")
}

// ended waits until a job has ended well, and gives its log.
func ended(p *live.Project, job string) string {
	p.T.Helper()
	var o client.Object
	p.Eventually("job "+job+" does not end", func() (bool, error) {
		err := p.C.Do(p.T.Context(), http.MethodGet, p.Path("jobs/"+job+"?wait=20s"), nil, &o)
		return !slices.Contains([]string{"queued", "running"}, o.Text("state")), err
	})
	if o.Text("state") != "succeeded" {
		p.T.Errorf("job %s: %s", job, p.Run(0, "job", "describe", job))
	}
	return p.Run(0, "job", "logs", job)
}

// service answers each connection with a word, and counts them.
func service(t *testing.T, network, address, word string) (net.Listener, *atomic.Int64) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	calls := &atomic.Int64{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			_, _ = io.WriteString(c, word)
			_ = c.Close()
		}
	}()
	return l, calls
}

// TestHostileGangAndContainer: what a single job cannot do, the workers of a gang
// and a container cannot do either.
func TestHostileGangAndContainer(t *testing.T) {
	sandboxtest.Runc(t)
	open, _ := service(t, "tcp", "127.0.0.1:0", "open")
	closed, calls := service(t, "tcp", "127.0.0.1:0", "closed")
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // A socket's path must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, socketCalls := service(t, "unix", filepath.Join(dir, "socket"), "closed")
	registry, secret := ocitest.New(t), "SECRET_"+id.New("x")

	s := live.New(t, "")
	s.Mark, s.Env = secret, []string{"FALAJ_JOBS_NETWORK=" + open.Addr().String(), "SERVER_ONLY=" + secret}
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "images: {registries: [%[1]q], insecure: [%[1]q]}\n", registry.Host), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	p := s.Project(t, "attack")
	ref := registry.Push(t, "base", ocitest.Image(t, nil, ocitest.Busybox(t)))
	p.Apply(fmt.Sprintf("{api_version: falaj/v1, kind: Environment, project: attack, name: base, spec: {image: %q}}\n---\n", ref) +
		"{api_version: falaj/v1, kind: Project, name: secret}\n---\n{api_version: falaj/v1, kind: Dataset, name: rows, project: attack, spec: {}}")
	if _, err := p.C.Import(t.Context(), "attack", "rows", "rows.csv", strings.NewReader("a,b\n1,x\n2,y\n")); err != nil {
		t.Fatal(err)
	}

	victim := submit(p, "victim", map[string]any{
		"command": []string{"/bin/sh", "-c", `echo "$MARK" > "$FALAJ_SCRATCH_DIR/secret"; echo "at $FALAJ_SCRATCH_DIR $FALAJ_ATTEMPT ."; exec sleep 3600`},
		"env":     map[string]string{"MARK": secret},
	})
	var scratch, attempt string
	p.Eventually("the victim does not run", func() (bool, error) {
		out, _ := p.Command(t.Context(), "job", "logs", victim, "-p", "attack")
		n, _ := fmt.Sscanf(out, "at %s %s .", &scratch, &attempt)
		return n == 2, nil
	})
	other := 0
	p.Eventually("the victim has said where it is and does not sleep", func() (bool, error) { // the shell comes first
		for _, x := range s.Processes() {
			if strings.HasPrefix(x.Line, "sleep ") {
				other = x.PID
			}
		}
		return other != 0, nil
	})
	program := source(p, "attacker", s.Bin.Program(t, "./test/attack/testdata/attacker"))
	reversed := []byte(secret)
	slices.Reverse(reversed)
	server, err := url.Parse(s.URL)
	p.Must(err)
	hostile := func(name string, workers int, more map[string]any) string {
		gang := ""
		if workers > 1 {
			gang = "yes"
		}
		spec := map[string]any{
			"command": []string{"./attacker", "all"}, "source": program, "network": []string{open.Addr().String()}, "workers": workers,
			"data": map[string]string{"rows": "rows"}, "timeout": "5m", "max_attempts": 1,
			"env": map[string]string{
				"A_DATA": s.Data, "A_SECRET": string(reversed), "A_OTHER_FILE": filepath.Join(scratch, "secret"), "A_OTHER_JOB": victim,
				"A_OTHER_SPEC": filepath.Join(s.Data, "workloads", attempt, "spec.json"), "A_OTHER": live.Identity(t, other), "A_SERVER": live.Identity(t, s.PID()),
				"A_CLOSED": closed.Addr().String(), "A_OPEN": open.Addr().String(), "A_GANG": gang, "A_API": server.Host, "A_SOCKET": socket.Addr().String(),
			},
		}
		maps.Copy(spec, more)
		return submit(p, name, spec)
	}
	for _, c := range []struct {
		name, job string
		workers   int
	}{
		{"gang", hostile("gang", 2, nil), 2},
		{"container", hostile("container", 1, map[string]any{"environment": "base"}), 1},
		{"gang in a container", hostile("both", 2, map[string]any{"environment": "base"}), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			judge(t, ended(p, c.job), secret, c.workers, 90)
		})
	}
	if n := calls.Load() + socketCalls.Load(); n > 0 {
		t.Errorf("%d connections came to where nobody may connect", n)
	}
	var running client.Object
	if err := p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+victim), nil, &running); err != nil || running.Text("state") != "running" {
		t.Errorf("the other job: %v %v", running, err)
	}
}

// judge reads what the attackers of a job say.
func judge(t *testing.T, out, secret string, workers, least int) {
	t.Helper()
	if strings.Contains(out, secret) {
		t.Error("the attacker knows the secret")
	}
	tries, ends := 0, 0
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if workers > 1 && strings.HasPrefix(line, "[") {
			_, line, _ = strings.Cut(line, "] ")
		}
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "PASS":
			tries++
		case "TOKEN":
		case "WROTE": // where it has a place of its own; is it here, too?
			tries++
			if b, err := os.ReadFile(rest); !errors.Is(err, os.ErrNotExist) && !strings.HasPrefix(string(b), "SQLite format 3\x00") {
				t.Errorf("it wrote %s: %v", rest, err)
			}
		case "===":
			ends++
		default:
			t.Error(line)
		}
	}
	if tries < least*workers || ends != workers {
		t.Errorf("%d attempts were made, %d workers came to their end", tries, ends)
	}
}

// source uploads a program and gives its digest.
func source(p *live.Project, name string, content []byte) string {
	p.T.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	p.Must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}))
	_, err := w.Write(content)
	p.Must(errors.Join(err, w.Close(), gz.Close()))
	var o client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("sources"), &b, &o))
	return o.Text("digest")
}
