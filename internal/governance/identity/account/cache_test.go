package account

import (
	"sync"
	"testing"
	"time"
)

// TestRememberNeverUndoesForget: looking whether a revocation came between and
// filling the cache are one step, whatever the two goroutines do.
func TestRememberNeverUndoesForget(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var d digest
	e := &entry{token: "tok_1", expires: time.Now().Add(time.Hour)}
	for range 20_000 {
		generation := s.generation()
		var both sync.WaitGroup
		both.Go(func() { s.remember(d, e, generation) })
		both.Go(func() { s.forget([]Token{{ID: e.token}}) })
		both.Wait()
		if s.known.Contains(d) {
			t.Fatal("a revoked token is in the cache")
		}
	}
}
