package cluster_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/usecase/cluster"
)

func TestJoin(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{URL: storetest.Postgres(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	var log bytes.Buffer
	join := func(name string, local ...string) (*cluster.Member, error) {
		log.Reset()
		return cluster.Join(t.Context(), cluster.Config{DB: db, Name: name, LocalObjects: slices.Contains(local, "objects"), LocalFeatures: slices.Contains(local, "online features"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	}
	must := func(name string, local ...string) *cluster.Member {
		t.Helper()
		m, err := join(name, local...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return m
	}
	refused := func(says, name string, local ...string) {
		t.Helper()
		if _, err := join(name, local...); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), says) || !strings.Contains(fault.HintOf(err), "blob.s3") {
			t.Errorf("%s: %v (%s), not %q", name, err, fault.HintOf(err), says)
		}
	}
	must("a", "objects", "online features")
	refused("a uses this database, and this server keeps objects in its own data directory", "b", "objects")
	refused("and this server keeps objects and online features in its own", "b", "objects", "online features")
	refused("a uses this database, and that server keeps objects or online features in its own", "b")
	a := must("a", "objects") // killed, and started again: nothing to wait for
	if log.Len() > 0 {
		t.Errorf("alone: %s", log.String())
	}
	// Who was refused is no member: a can leave and b join.
	if err := a.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := must("b")
	c := must("c")
	if !strings.Contains(log.String(), "servers=[b]") {
		t.Errorf("beside b: %s", log.String())
	}
	refused("b uses this database, and this server keeps online features", "a", "online features")
	// With other settings b is the same server, whatever its predecessor's lease says.
	if err := c.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	b2 := must("b", "objects")

	loop := b2.Loop()
	if err := loop.Run(t.Context()); err != nil {
		t.Errorf("renewing: %v", err)
	}
	if _, err := db.Retake(t.Context(), "server/shared/d", "d", 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := loop.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "d uses this database") {
		t.Errorf("beside d: %v", err)
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOneProcess: a database in a file needs no comparison.
func TestOneProcess(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + t.TempDir() + "/falaj.db"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if m, err := cluster.Join(t.Context(), cluster.Config{DB: db, Name: "a", LocalObjects: true, Log: slog.Default()}); m != nil || err != nil {
		t.Errorf("member %v, error %v", m, err)
	}
}
