package enginetest_test

import (
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
)

func TestFake(t *testing.T) {
	t.Parallel()
	var machines sync.Map
	open := func(_ *testing.T, dir string) engine.Driver {
		f := enginetest.NewFake()
		enginetest.Conform(f)
		m, _ := machines.LoadOrStore(dir, f)
		return m.(*enginetest.Fake).Restarted()
	}
	enginetest.Run(t, enginetest.Options{
		New: open,
		Lose: func(_ *testing.T, dir string, h engine.Handle) {
			m, _ := machines.Load(dir)
			m.(*enginetest.Fake).Lose(h)
		},
		Isolation: "none",
	})
}
