package isolation_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/ray/raytest"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/test/live"
)

// TestHostileOnRay: Ray keeps nobody apart, and it is said; the server still lets
// an attempt speak for itself only, one agent for each member even with what is
// stolen from the first, and Ray's pages and logs have no secret.
func TestHostileOnRay(t *testing.T) {
	c := raytest.New(t, raytest.Node{Name: "r1", CPUs: 4})
	s := live.New(t, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "engines: {actors: {kind: ray, address: %s, token_file: %s}}\n", c.Address, c.TokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	p, q := s.Project(t, "p"), s.Project(t, "q")
	p.Apply(`{api_version: falaj/v1, kind: Pool, name: actors, spec: {engine: actors, mode: delegated}}`)

	secret := "SECRET_" + id.New("x")
	onRay := func(env map[string]string) map[string]any {
		return map[string]any{"pools": []string{"actors"}, "env": env}
	}
	victim := sleeper(p, "victim", "", onRay(map[string]string{"MARK": secret}))
	local := sleeper(p, "local", "", nil)

	// Of another project, as the same user: it takes all that the victim's agent
	// has, and starts a second one with it.
	other := sleeper(q, "other", `found=no
		for d in /proc/[0-9]*; do
			[ "$(tr '\0' ' ' <"$d/cmdline" 2>/dev/null | cut -d' ' -f2)" = agent ] || continue
			tr '\0' '\n' <"$d/environ" | grep -q "FALAJ_AGENT_URL=.*$VICTIM" || continue
			found=yes
			env -i $(tr '\0' '\n' <"$d/environ") FALAJ_AGENT_DIR="$FALAJ_SCRATCH_DIR/second" "$d/exe" agent 2>&1
			echo "the second agent ended with $?"
		done
		echo "found $found"`, onRay(map[string]string{"VICTIM": victim.attempt}))
	out := q.Run(0, "job", "logs", other.job)
	if !strings.Contains(out, "found yes") || !strings.Contains(out, "cannot run twice") || strings.Contains(out, "ended with 0") || strings.Contains(out, victim.token) {
		t.Errorf("a second agent with the first one's token:\n%s", out)
	}
	if log := p.Run(0, "job", "logs", victim.job); strings.Count(log, "told ") != 1 {
		t.Errorf("the victim's log:\n%s", log)
	}
	guarded(p, victim, other, local)

	// Ray's pages, its diaries and ps do not tell. Its packages do, to whom may
	// submit jobs: that is in docs/guides/engines-ray.md.
	secrets := []string{victim.token, other.token, secret}
	ask := &http.Client{Timeout: live.Wait}
	get := func(path, token string) (int, []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Address+path, http.NoBody)
		p.Must(err)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := ask.Do(r)
		p.Must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		p.Must(err)
		return resp.StatusCode, b
	}
	for _, path := range []string{
		"/api/jobs/", "/api/jobs/" + victim.attempt, "/api/jobs/" + victim.attempt + "/logs", "/api/v0/tasks?detail=1", "/api/v0/actors?detail=1",
		"/api/v0/workers?detail=1", "/api/v0/placement_groups?detail=1", "/api/v0/runtime_envs?detail=1", "/nodes?view=summary",
	} {
		if status, _ := get(path, ""); status != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", path, status)
		}
		status, b := get(path, raytest.Token)
		if status != http.StatusOK || path == "/api/jobs/" && !bytes.Contains(b, []byte(victim.attempt)) {
			t.Errorf("%s: %d %.300s", path, status, b)
		}
		for _, secret := range secrets {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s tells %.8s…", path, secret)
			}
		}
	}
	diaries := 0
	logs, err := filepath.EvalSymlinks(filepath.Join(c.Dir, "session_latest", "logs"))
	p.Must(err)
	p.Must(filepath.WalkDir(logs, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		diaries++
		b, err := os.ReadFile(path)
		for _, secret := range secrets {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s tells %.8s…", path, secret)
			}
		}
		return err
	}))
	if diaries < 10 {
		t.Errorf("Ray has %d logs", diaries)
	}
	hidden(t, secrets...)

	honest(p, "actors", "none")
	over(p, victim)
}
