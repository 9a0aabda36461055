package training_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestSandboxed runs attempts as real processes: the first is stopped by
// itself after a checkpoint, the second goes on from it, and what it tries and
// may not is in the journal.
func TestSandboxed(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "master.key")
	if err := os.WriteFile(secret, []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := local.New(local.Config{
		Dir: filepath.Join(t.TempDir(), "engine"), Worker: sandboxtest.Worker(t), Level: sandbox.Sandbox, Guard: []string{filepath.Dir(secret)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	w := newWorld(t, engine.Driver(d))
	j := w.submit(t, training.Spec{
		Data: map[string]string{"train": "weather"},
		Env:  map[string]string{"SECRET": secret},
		Command: []string{"sh", "-ec", `
			if [ ! -d "$FALAJ_CHECKPOINT_DIR/one" ]; then
				mkdir "$FALAJ_CHECKPOINT_DIR/one.tmp"
				echo weights >"$FALAJ_CHECKPOINT_DIR/one.tmp/w"
				mv "$FALAJ_CHECKPOINT_DIR/one.tmp" "$FALAJ_CHECKPOINT_DIR/one"
				exit 75
			fi
			mkdir "$FALAJ_OUTPUT_DIR/model"
			cat "$FALAJ_CHECKPOINT_DIR/one/w" "$FALAJ_DATA_TRAIN"/*.parquet >"$FALAJ_OUTPUT_DIR/model/m"
			! cat "$SECRET"
			! echo x >"$FALAJ_DATA_TRAIN/part-0.parquet"
			echo went on`},
		Register: "delay",
	})
	j = w.ended(t, j.ID)
	if j.State != training.Succeeded || j.Attempts != 2 || j.Failures != 0 {
		t.Fatalf("%+v", j)
	}
	if got := w.runs.files["m"]; got != "weights\nrows of dataset weather@1" {
		t.Errorf("the model is %q", got)
	}
	if log := w.runs.artifacts[j.Run+"/logs/attempt-2.log"]; !strings.HasSuffix(log, "went on\n") {
		t.Errorf("the log is %q", log)
	}
	w.journal.mu.Lock()
	defer w.journal.mu.Unlock()
	found := false
	for _, e := range w.journal.entries {
		found = found || e.Action == "workload.open" && e.Object == secret && e.Outcome == audit.Refused && strings.HasPrefix(e.Actor.ID, "att_")
	}
	if !found {
		t.Errorf("the journal does not have the attempt: %+v", w.journal.entries)
	}
}

// BenchmarkNoOp is a job that does nothing, from its submission to its end.
func BenchmarkNoOp(b *testing.B) {
	d, err := local.New(local.Config{Dir: filepath.Join(b.TempDir(), "engine"), Worker: sandboxtest.Worker(b), Level: sandbox.Sandbox})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	w := newWorld(b, engine.Driver(d))
	for b.Loop() {
		j := w.submit(b, training.Spec{})
		if j = w.ended(b, j.ID); j.State != training.Succeeded {
			b.Fatalf("%+v", j)
		}
	}
}
