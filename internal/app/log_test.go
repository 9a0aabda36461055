package app

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
)

// TestJSONLog: every line of a log that programs read is an object, durations say their unit,
// and the first token is in a file that its owner alone reads.
func TestJSONLog(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	cfg := config.Config{Data: t.TempDir()}
	cfg.Log.Format, cfg.Log.Level = "json", "info"
	a := &App{cfg: cfg, world: World{Out: &out, Log: &out}, log: newLogger(cfg, &out)}
	a.log.InfoContext(t.Context(), "paused", slog.Duration("pause", 1500*time.Millisecond), slog.Group("of", slog.Duration("took", time.Hour)))
	if err := a.hand(t.Context(), "http://127.0.0.1:7070", "flj_adm_secret"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Contains(out.String(), "flj_adm_secret") {
		t.Fatalf("%s", out.String())
	}
	var first struct {
		Pause string
		Of    struct{ Took string }
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil || first.Pause != "1.5s" || first.Of.Took != "1h0m0s" {
		t.Errorf("%s: %v", lines[0], err)
	}
	var second struct{ File string }
	if err := json.Unmarshal([]byte(lines[1]), &second); err != nil || second.File != filepath.Join(cfg.Data, "admin-token") {
		t.Fatalf("%s: %v", lines[1], err)
	}
	info, err := os.Stat(second.File)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if b, err := os.ReadFile(second.File); err != nil || string(b) != "flj_adm_secret\n" {
		t.Errorf("%q, %v", b, err)
	}
}
