// Package upgrade starts the real server on a database that an older version wrote, and on
// one of a newer version.
package upgrade

import (
	"context"
	"database/sql"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// asker is a client of its own: what is asked may not be there.
var asker = &http.Client{Timeout: live.Wait}

// execute changes a database whose server is stopped.
func execute(t *testing.T, data string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(data, "falaj.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestUpgrade(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "shop")
	p.Must(s.Stop())
	doctor := func() string {
		said, _ := s.Command(t.Context(), "doctor", "--data", s.Data)
		return said
	}
	if said := doctor(); strings.Contains(said, "upgrade") {
		t.Errorf("an upgrade waits, and none is there:\n%s", said)
	}

	// As a build left it that had another key there and not yet the step that mends it.
	execute(t, s.Data,
		`DELETE FROM store_version_gateway WHERE version_id = 2`,
		`DROP TABLE gateway_position`,
		`CREATE TABLE gateway_position (project TEXT NOT NULL, gateway TEXT NOT NULL, deployment TEXT NOT NULL, instance TEXT NOT NULL, position TEXT NOT NULL, next TEXT NOT NULL, ours TEXT NOT NULL, PRIMARY KEY (project, gateway, deployment))`,
		`INSERT INTO gateway_position VALUES ('shop', 'edge', 'd', 'one', 'a', 'b', 'c')`)
	if said := doctor(); !strings.Contains(said, "waits for an upgrade: gateway 1 to 2") {
		t.Errorf("doctor does not say that an upgrade waits:\n%s", said)
	}
	if said, code := s.Command(t.Context(), "recover-admin", "--data", s.Data); code != 5 || !strings.Contains(said, "waits for an upgrade (gateway 1 to 2)") {
		t.Errorf("recover-admin upgraded, or said something else: %d\n%s", code, said)
	}
	waits(t, s)
	p.Again()
	var log client.Object // one entry of the upgrade that was killed
	p.Must(p.C.Do(t.Context(), http.MethodGet, "/api/v1/audit?action=store.upgrade", nil, &log))
	if said := log.Text("items"); strings.Count(said, "action:store.upgrade") != 2 || !strings.Contains(said, "gateway 1 to 2") {
		t.Errorf("on record is %s", said)
	}
	p.Must(s.Stop())
	execute(t, s.Data, `INSERT INTO gateway_position VALUES ('shop', 'edge', 'd', 'two', 'a', 'b', 'c')`) // the new key takes it

	// What a newer version wrote.
	backup := filepath.Join(t.TempDir(), "backup")
	execute(t, s.Data, `INSERT INTO store_version_gateway (version_id, is_applied) VALUES (42, 1)`)
	if said, code := s.Command(t.Context(), "backup", backup, "--data", s.Data); code != 0 {
		t.Fatalf("%d\n%s", code, said)
	}
	const want = "gateway is version 42, but this program supports version 2"
	empty := filepath.Join(t.TempDir(), "empty")
	for _, command := range [][]string{
		{"up", "--data", s.Data, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0"},
		{"recover-admin", "--data", s.Data},
		{"restore", backup, "--data", empty},
	} {
		if said, code := s.Command(t.Context(), command...); code != 5 || !strings.Contains(said, want) {
			t.Errorf("%s: %d\n%s", command[0], code, said)
		}
	}
	if left, err := filepath.Glob(filepath.Join(empty, "*")); err != nil || len(left) > 1 { // its lock
		t.Errorf("the refused restore left %v (%v)", left, err)
	}
	if said := doctor(); !strings.Contains(said, want) {
		t.Errorf("doctor:\n%s", said)
	}
	execute(t, s.Data, `DELETE FROM store_version_gateway WHERE version_id = 42`)
	p.Again()
}

// waits holds an upgrade back by a lock of the database, and looks at what the server says
// meanwhile. It kills the server within the upgrade.
func waits(t *testing.T, s *live.Server) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(s.Data, "falaj.db")+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback() }()
	address, _ := live.Address(t)
	server := exec.CommandContext(t.Context(), s.Bin.Falaj, "up", "--data", s.Data, "--http", address, "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0")
	server.Env = s.Environ()
	ask := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := asker.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return 0, err.Error()
		}
		return answer.StatusCode, string(body)
	}
	const want = "the server is starting: upgrading the database, 0 of 1 steps done\n"
	live.Peer{Cmd: server, Ready: func(context.Context) bool {
		_, said := ask("/readyz")
		return said == want
	}}.Start(t)
	if code, said := ask("/readyz"); code != http.StatusServiceUnavailable || said != want {
		t.Errorf("/readyz: %d %s", code, said)
	}
	if code, said := ask("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, said)
	}
	if code, said := ask("/api/v1/projects"); code != http.StatusServiceUnavailable || !strings.Contains(said, `"kind":"unavailable"`) {
		t.Errorf("a request: %d %s", code, said)
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for { // until its lock is free
		if code, said := ask("/healthz"); code == 0 {
			t.Log(said)
			return
		}
	}
}
