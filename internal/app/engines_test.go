package app

import (
	"log/slog"
	"net"
	"testing"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// TestEngineURL: without a URL of its own, an engine's nodes are sent to the
// address that the server listens on.
func TestEngineURL(t *testing.T) {
	a := &App{cfg: config.Config{HTTP: "127.0.0.1:0", Data: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	at, ca, err := a.reach("hpc", config.Engine{})
	if err != nil || ca() != "" {
		t.Fatal(at, ca(), err)
	}
	l, err := a.listenHTTP()
	if err != nil {
		t.Fatal(err)
	}
	if at != "http://"+l.Addr().String() || l.Addr().(*net.TCPAddr).Port == 0 {
		t.Errorf("%s, listening on %s", at, l.Addr())
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := a.reach("hpc", config.Engine{URL: "https://x:1", CA: "/nowhere"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a certificate that is not there: %v", err)
	}
}

// TestOpenSlurm: an engine that does not answer is there all the same.
func TestOpenSlurm(t *testing.T) {
	a := &App{cfg: config.Config{HTTP: "127.0.0.1:0", Data: t.TempDir(), Engines: map[string]config.Engine{"hpc": {Kind: "slurm", Bin: "/nowhere"}}}, log: slog.New(slog.DiscardHandler)}
	a.cfg.Worker.Path = "/usr/bin/falaj-worker"
	engines, err := a.openEngines()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	e := engines["hpc"]
	if !e.Remote || e.Kind != "slurm" || e.Isolation != scheduler.Process || e.Check == nil {
		t.Errorf("%+v", e)
	}
	if err := e.Check(map[string]string{"partitoin": "x"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("an option that does not exist: %v", err)
	}
}
