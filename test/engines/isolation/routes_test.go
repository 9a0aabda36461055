package isolation_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/test/live"
)

// routes are those of agents, with bodies that an agent could send.
var routes = []struct{ method, path, body string }{
	{"POST", "join", `{"version":` + strconv.Itoa(protocol.Version) + `,"index":0,"start":"an agent's start","node":"n1","address":"127.0.0.1","port":1}`},
	{"POST", "beat", `{"phase":"running"}`},
	{"POST", "log?offset=0", "lies"},
	{"POST", "profile", `{"id":"prf_x","answer":{}}`},
	{"POST", "end", `{"reason":"exited"}`},
	{"GET", "mounts/0", ""},
	{"POST", "mounts/0/manifest", `{"files":[]}`},
	{"PUT", "mounts/0/tree?name=x&manifest=y", ""},
}

// ask sends a request with a token, the path as it is.
func ask(p *live.Project, token, method, path, body string) (status int, answer string) {
	p.T.Helper()
	if strings.Contains(path, "/worker/") && !strings.Contains(path, "/join") {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		path += sep + "index=0&start=an+agent%27s+start"
	}
	r, err := http.NewRequestWithContext(p.T.Context(), method, p.URL+path, strings.NewReader(body))
	p.Must(err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", map[bool]string{true: "application/json", false: "application/octet-stream"}[strings.HasPrefix(body, "{")])
	resp, err := http.DefaultTransport.RoundTrip(r) // no redirect is followed
	p.Must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	p.Must(err)
	return resp.StatusCode, string(b)
}

// running is a job whose attempt has told its token.
type running struct{ job, attempt, token string }

// sleeper starts a job that tells its token in a file, and stays.
func sleeper(p *live.Project, name, script string, more map[string]any) running {
	p.T.Helper()
	spec := map[string]any{"command": []string{"/bin/sh", "-c", script + `
		echo "told $FALAJ_ATTEMPT $FALAJ_TOKEN ."; exec sleep 3600`}}
	maps.Copy(spec, more)
	r := running{job: submit(p, name, spec)}
	p.Eventually("job "+name+" does not run", func() (bool, error) {
		out, _ := p.Command(p.T.Context(), "job", "logs", r.job, "-p", p.Name)
		at := strings.Index(out, "told ")
		if at < 0 {
			why, _ := p.Command(p.T.Context(), "job", "why", r.job, "-p", p.Name)
			return false, fmt.Errorf("%s%s", out, why)
		}
		n, _ := fmt.Sscanf(out[at:], "told %s %s .", &r.attempt, &r.token)
		return n == 2, nil
	})
	return r
}

// guarded: nobody but the attempt speaks for its workers, and it not for one that
// has joined. other is of project q, local a workload of the local engine.
func guarded(p *live.Project, victim, other, local running) {
	p.T.Helper()
	base := "/api/v1/projects/" + p.Name + "/workloads/"
	at := base + victim.attempt + "/worker/"
	for _, r := range routes {
		for who, token := range map[string]string{"another project": other.token, "another attempt": local.token, "an administrator": p.Token, "nobody": "x"} {
			status, answer := ask(p, token, r.method, at+r.path, r.body)
			if status != http.StatusForbidden && status != http.StatusUnauthorized && status != http.StatusNotFound {
				p.T.Errorf("%s by the token of %s: %d %s", r.path, who, status, answer)
			}
		}
		// By a path that names it and leads elsewhere, or names it in another project.
		for _, path := range []string{
			"/api/v1/projects/q/workloads/" + other.attempt + "/worker/../../" + victim.attempt + "/worker/" + r.path,
			"/api/v1/projects/q/workloads/" + other.attempt + "/worker/..%2f..%2f" + victim.attempt + "%2fworker%2f" + r.path,
			"/api/v1/projects/q/workloads/" + victim.attempt + "/worker/" + r.path,
			base + other.attempt + "/worker/" + r.path,
		} {
			if status, answer := ask(p, other.token, r.method, path, r.body); status < 300 {
				p.T.Errorf("%s %s: %d %s", r.method, path, status, answer)
			}
		}
		// The attempt itself is let in, and is not the member that has joined.
		if status, answer := ask(p, victim.token, r.method, at+r.path, r.body); status != http.StatusConflict || !strings.Contains(answer, "cannot run twice") {
			p.T.Errorf("%s by the attempt itself: %d %s", r.path, status, answer)
		}
		// On the local engine nobody is an agent.
		if status, answer := ask(p, local.token, r.method, base+local.attempt+"/worker/"+r.path, r.body); status < 400 || status >= 500 {
			p.T.Errorf("%s of a local workload: %d %s", r.path, status, answer)
		}
	}
	for _, version := range []int{0, protocol.Version + 1} {
		body := fmt.Sprintf(`{"version":%d,"index":0,"start":"an agent's start"}`, version)
		if status, answer := ask(p, victim.token, "POST", at+"join", body); status != http.StatusNotImplemented || !strings.Contains(answer, "Install the falaj-worker of this server's release on the nodes") {
			p.T.Errorf("protocol %d: %d %s", version, status, answer)
		}
	}
}

// hidden: no command line of this machine has a secret.
func hidden(t *testing.T, secrets ...string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(lines) == 0 {
		t.Fatalf("there is no /proc: %v", err)
	}
	for _, file := range lines {
		line, _ := os.ReadFile(file)
		for _, secret := range secrets {
			if strings.Contains(string(line), secret) {
				t.Errorf("%s tells a secret: %.300q", file, line)
			}
		}
	}
}

// honest: what demands more than the pool promises is refused, and neither can the
// pool lie nor its description leave it out.
func honest(p *live.Project, pool, isolation string) {
	p.T.Helper()
	err := p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "fenced", "spec": map[string]any{
		"command": []string{"/bin/true"}, "pools": []string{pool}, "isolation": "sandbox",
	}}, nil)
	if want := "pool " + pool + " provides isolation " + isolation + ", weaker than the required sandbox"; err == nil || !strings.Contains(err.Error(), want) {
		p.T.Errorf("a job that demands a sandbox: %v, not %q", err, want)
	}
	var o client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodGet, "/api/v1/pools/"+pool, nil, &o))
	_, err = p.Try(p.C, fmt.Sprintf(`{api_version: falaj/v1, kind: Pool, name: liar, spec: {engine: %s, mode: delegated, isolation: sandbox}}`, o.Text("engine")))
	if err == nil || !strings.Contains(fmt.Sprintf("%v %+v", err, err), "isolates by "+isolation) {
		p.T.Errorf("a pool that promises a sandbox: %v", err)
	}
	if said := p.Run(0, "pool", "describe", pool); !strings.Contains(said, "isolates by "+isolation+": ") {
		p.T.Errorf("describe does not tell how far it isolates:\n%s", said)
	}
}

// over: the token ends with the attempt.
func over(p *live.Project, victim running) {
	p.T.Helper()
	p.Run(0, "job", "cancel", victim.job)
	p.Eventually("it does not end", func() (bool, error) {
		var o client.Object
		err := p.C.Do(p.T.Context(), http.MethodGet, p.Path("jobs/"+victim.job), nil, &o)
		return o.Text("state") == "cancelled", err
	})
	for _, r := range routes {
		path := "/api/v1/projects/" + p.Name + "/workloads/" + victim.attempt + "/worker/" + r.path
		if status, answer := ask(p, victim.token, r.method, path, r.body); status != http.StatusUnauthorized {
			p.T.Errorf("%s after the end: %d %s", r.path, status, answer)
		}
	}
}

// TestHostileOnSlurm: the token of an attempt opens the worker routes of that
// attempt alone, until it ends; Unix users keep projects apart on a node, no
// secret is shown by Slurm or ps, and what demands a sandbox is refused.
func TestHostileOnSlurm(t *testing.T) {
	c := slurmtest.New(t, slurmtest.Options{})
	s := live.New(t, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "engines: {hpc: {kind: slurm, conf: %s, users: {p: daemon, q: nobody}, worker: %s}}\n", c.Conf, c.Worker(t, s.Bin.Worker)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	p, q := s.Project(t, "p"), s.Project(t, "q")
	p.Apply(`{api_version: falaj/v1, kind: Pool, name: hpc, spec: {engine: hpc, mode: delegated, options: {partition: batch}}}`)

	// The victim, with a secret in its environment and in its scratch directory.
	secret := "SECRET_" + id.New("x")
	onSlurm := func(env map[string]string) map[string]any {
		return map[string]any{"pools": []string{"hpc"}, "env": env}
	}
	victim := sleeper(p, "victim", `echo "$MARK" >"$FALAJ_SCRATCH_DIR/secret"; chmod 666 "$FALAJ_SCRATCH_DIR/secret"; echo "on $SLURMD_NODENAME at $FALAJ_SCRATCH_DIR,"`, onSlurm(map[string]string{"MARK": secret}))
	logs := p.Run(0, "job", "logs", victim.job)
	_, scratch, _ := strings.Cut(logs, " at ")
	scratch, _, _ = strings.Cut(scratch, ",")
	if b, err := os.ReadFile(filepath.Join(scratch, "secret")); err != nil || strings.TrimSpace(string(b)) != secret {
		t.Fatalf("the victim is not as this test expects it: %q %v in %s", b, err, logs)
	}
	local := sleeper(p, "local", "", nil)

	// Of another project, as another Unix user.
	other := sleeper(q, "other", `id -un
		cat "$SCRATCH/secret" && echo "FAIL: read the file"
		ls "$SCRATCH" && echo "FAIL: listed the directory"
		grep -l 'MARK=SE[C]RET' /proc/[0-9]*/environ 2>/dev/null && echo "FAIL: found it in an environment"
		grep -l 'FALAJ_AGENT_TOKE[N]' /proc/[0-9]*/environ 2>/dev/null | grep -v "/self/" | while read -r f; do [ "$(stat -c %U "$f")" = nobody ] || echo "FAIL: $f"; done
		for f in /var/spool/slurm*/*/slurm_script "$SPOOL"/*/*/slurm_script "$SPOOL"/*/job*/slurm_script; do cat "$f" 2>/dev/null && echo "FAIL: read $f"; done`,
		onSlurm(map[string]string{"SCRATCH": scratch, "SPOOL": c.Dir}))
	if out := q.Run(0, "job", "logs", other.job); strings.Contains(out, "FAIL") || strings.Contains(out, secret) || !strings.Contains(out, "nobody") {
		t.Errorf("another user's job:\n%s", out)
	}

	guarded(p, victim, other, local)

	// Neither Slurm nor ps tells it.
	for _, command := range [][]string{{"squeue", "--all", "--format=%all"}, {"scontrol", "show", "job", "--details"}, {"scontrol", "show", "step"}} {
		out, err := c.Command(t.Context(), command[0], command[1:]...)
		if err != nil || !strings.Contains(out, victim.attempt) && command[2] != "step" {
			t.Fatalf("%v: %v %s", command, err, out)
		}
		for _, hidden := range []string{victim.token, other.token, secret} {
			if strings.Contains(out, hidden) {
				t.Errorf("%v tells %.8s…", command, hidden)
			}
		}
	}
	hidden(t, victim.token, other.token, secret)

	honest(p, "hpc", "process")

	// The token ends with the attempt.
	over(p, victim)
	if b, err := os.ReadFile(filepath.Join(scratch, "secret")); !os.IsNotExist(err) {
		t.Errorf("what the attempt had stays on the node: %q %v", b, err)
	}
}
