package remote_test

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote/remotetest"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// TestConformance runs the suite with directories that nodes and server share.
func TestConformance(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	type node struct {
		server *remotetest.Server
		p      *remotetest.Processes
	}
	var nodes sync.Map
	enginetest.Run(t, enginetest.Options{
		New: func(t *testing.T, dir string) engine.Driver {
			t.Helper()
			n, ok := nodes.Load(dir)
			if !ok {
				n, _ = nodes.LoadOrStore(dir, node{remotetest.Serve(t, ""), &remotetest.Processes{Dir: filepath.Join(t.TempDir(), "nodes"), Worker: worker, Env: []string{"TMPDIR=" + t.TempDir()}}})
			}
			x := n.(node)
			d, err := remote.New(remote.Config{
				Name: "processes", Dir: dir, Launcher: x.p, URL: x.server.URL, Poll: 50 * time.Millisecond, Settle: 500 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			x.server.Use(d)
			return d
		},
		Lose: func(t *testing.T, dir string, h engine.Handle) {
			t.Helper()
			n, _ := nodes.Load(dir)
			n.(node).p.Kill(t, string(h))
		},
		Isolation: "none", Gangs: true, Record: "work.json", Pool: map[string]string{remote.Shared: "true"},
	})
}
