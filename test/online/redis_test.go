package online

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestRedis: while Redis is away reads answer 503, and go on when it is back. When it
// comes back without what it had, the running server says that the view is not online,
// and not that nothing is known of anybody.
func TestRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("redis-server is not installed")
		}
		t.Skip("redis-server is not installed; run: make engines")
	}
	dir, err := os.MkdirTemp("", "redis") //nolint:usetesting // A socket's path must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, kept := filepath.Join(dir, "s"), filepath.Join(dir, "kept")
	var redis *exec.Cmd
	kill := func() {
		if redis != nil {
			_ = redis.Process.Kill()
			_ = redis.Wait()
		}
		redis = nil
	}
	t.Cleanup(kill)
	begin := func() {
		t.Helper()
		if err := os.MkdirAll(kept, 0o700); err != nil {
			t.Fatal(err)
		}
		redis = exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--dir", kept, "--save", "", "--appendonly", "yes", "--appendfsync", "always")
		if err := redis.Start(); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	s := live.New(t, "")
	s.Env = append(s.Env, "FALAJ_ONLINE_URL=unix://"+socket)
	wait := &live.Project{T: t}
	wait.Eventually("Redis does not answer", func() (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, err
	})
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(`
{api_version: falaj/v1, kind: Dataset, name: rides, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Entity, name: zone, project: PROJECT, spec: {}}
`)
	p.Import("rides", "zone,at,fare\na,2026-01-01T00:00:00Z,1.5\nb,2026-01-01T00:00:00Z,2.5\n")
	p.Apply(`{api_version: falaj/v1, kind: FeatureView, name: rides, project: PROJECT, spec: {source: {dataset: rides}, entities: [zone], timestamp: at, features: [{name: fare, type: float64}]}}`)
	p.Materialise("rides")
	read := func() (string, int) {
		var a struct{ Columns []struct{ Values []any } }
		err := p.C.Do(t.Context(), http.MethodPost, p.Path("features/online"), map[string]any{"features": []string{"rides:fare"}, "entities": []map[string]any{{"zone": "a"}, {"zone": "b"}}}, &a)
		if problem, ok := errors.AsType[*client.Error](err); ok {
			return problem.Detail, problem.Status
		}
		p.Must(err)
		return fmt.Sprint(a.Columns[0].Values), http.StatusOK
	}
	const whole = "[1.5 2.5]"
	if got, code := read(); got != whole || code != http.StatusOK {
		t.Fatalf("%d %s", code, got)
	}
	kill()
	if got, code := read(); code != http.StatusServiceUnavailable || !strings.Contains(got, "Redis") {
		t.Errorf("without Redis: %d %s", code, got)
	}
	begin()
	p.Eventually("reads do not go on", func() (bool, error) {
		got, code := read()
		return got == whole, fmt.Errorf("%d %s", code, got)
	})
	kill()
	p.Must(os.RemoveAll(kept))
	begin()
	p.Eventually("an empty Redis is not noticed", func() (bool, error) {
		got, code := read()
		return code == http.StatusConflict && strings.Contains(got, "not online"), fmt.Errorf("%d %s", code, got)
	})
	p.Materialise("rides")
	if got, code := read(); got != whole || code != http.StatusOK {
		t.Errorf("materialised again: %d %s", code, got)
	}

	// Whatever is acknowledged while Redis is emptied is there afterwards.
	var writer client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "writer", "role": "engineer"}, &writer))
	c := s.ClientWith(t, writer.Text("secret"))
	const notice = "materialise these views again"
	before := strings.Count(s.LogTail(1<<20), notice)
	if out, err := exec.Command("redis-cli", "-s", socket, "flushall").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var acknowledged []string
	push := func() error {
		zone := fmt.Sprint("z", len(acknowledged))
		err := p.Foreign(c, http.MethodPost, "/push", map[string]any{
			"push_source_name": "rides", "df": map[string]any{"zone": []string{zone}, "at": []string{"2026-01-02T00:00:00Z"}, "fare": []float64{1.5}}, "to": "online",
		}, nil)
		if err == nil {
			acknowledged = append(acknowledged, zone)
		}
		return err
	}
	_ = push() // it may be noticed before
	if got, code := read(); code == http.StatusOK && strings.Count(s.LogTail(1<<20), notice) == before {
		t.Errorf("an emptied Redis answers %s", got)
	}
	p.Eventually("it is not noticed", func() (bool, error) { return strings.Count(s.LogTail(1<<20), notice) > before, nil })
	p.Eventually("pushes do not go on", func() (bool, error) {
		err := push()
		return err == nil, err
	})
	for _, zone := range acknowledged {
		var a struct{ Columns []struct{ Values []any } }
		p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("features/online"), map[string]any{"features": []string{"rides:fare"}, "entities": []map[string]any{{"zone": zone}}}, &a))
		if got := fmt.Sprint(a.Columns[0].Values); got != "[1.5]" {
			t.Errorf("%s was acknowledged, and is %s", zone, got)
		}
	}

	// A backup does not have what Redis has. What is restored of it is another installation:
	// it takes Redis only when it is told to, and nothing there for its own.
	p.Materialise("rides")
	p.Must(s.Stop())
	copied := filepath.Join(t.TempDir(), "backup")
	if said, code := s.Command(t.Context(), "backup", copied, "--data", s.Data); code != 0 {
		t.Fatalf("%d\n%s", code, said)
	}
	p.Again()
	p.Import("rides", "zone,at,fare\na,2026-01-03T00:00:00Z,3.5\n")
	p.Materialise("rides")
	to := live.New(t, "")
	to.Env, to.Token = s.Env, s.Token
	if said, code := to.Command(t.Context(), "restore", copied, "--data", to.Data); code != 0 {
		t.Fatalf("%d\n%s", code, said)
	}
	if err := to.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "belong to another installation") {
		t.Errorf("beside the one that was backed up: %v", err)
	}
	p.Must(s.Stop())
	if out, err := exec.Command("redis-cli", "-s", socket, "del", "falaj:owner").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	to.Up(t)
	p = &live.Project{Server: to, T: t, C: to.Client(t), Name: p.Name}
	if got, code := read(); code != http.StatusConflict || !strings.Contains(got, "not online") {
		t.Errorf("restored: %d %s", code, got)
	}
	p.Materialise("rides")
	p.Must(to.Stop())
	p.Again()
	if got, code := read(); got != whole || code != http.StatusOK {
		t.Errorf("after another start: %d %s", code, got)
	}
}
