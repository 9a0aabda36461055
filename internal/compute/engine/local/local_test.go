package local_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			enginetest.Run(t, enginetest.Options{
				New: func(t *testing.T, dir string) engine.Driver {
					t.Helper()
					d, err := local.New(local.Config{Dir: dir, Worker: worker, Level: level})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = d.Close() })
					return d
				},
				Lose: func(t *testing.T, dir string, h engine.Handle) {
					t.Helper()
					st, err := shim.Read[shim.Status](filepath.Join(dir, string(h)), shim.StatusFile)
					if err != nil {
						t.Fatal(err)
					}
					if err := st.Shim.Signal(syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				},
				Isolation: level.String(), Gangs: true, Record: shim.SpecFile,
			})
		})
	}
}

// TestUnprivileged runs the same without root.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	sandboxtest.Unprivileged(t, "^(TestConformance|TestDenials|TestAPI|TestResources)$")
}
