package soak

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/test/live"
)

// TestKilledServerLeavesNoGroups: the groups of a statement that runs when the server is
// killed are gone once it has started again. A job that runs goes on in its own.
func TestKilledServerLeavesNoGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a real server")
	}
	s := live.New(t, "")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &world{s: s, admin: s.Client(t)}
	s.Project(t, project) // without a deployment, whose model has a group of its own
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_ = w.admin.Do(ctx, http.MethodPost, base+"/query", map[string]any{"sql": "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000000) b"}, nil)
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(w.marked(t)) == 0 {
		select {
		case <-asked:
			t.Skip("this kernel gives no control groups to the server, or the statement ended")
		case <-ctx.Done():
			t.Skip("this kernel gives no control groups to the server")
		case <-tick.C:
		}
	}
	before := w.marked(t)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range before {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("the group %s is still there", dir)
		}
	}
	if left := w.marked(t); len(left) != 0 {
		t.Errorf("after the start there are %v", left)
	}
}

// marked are the groups of the server's own children.
func (w *world) marked(t *testing.T) (all []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(w.s.Data, "cgroups.json"))
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ ID string }
	if err := json.Unmarshal(b, &made); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(made.ID + "\x00" + w.s.Data))
	for _, base := range sandbox.CgroupBases() {
		dirs, _ := filepath.Glob(filepath.Join(base, "falaj-"+hex.EncodeToString(sum[:8])+"-*"))
		all = append(all, dirs...)
	}
	return all
}
