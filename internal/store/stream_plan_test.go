package store

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestReadStreamSeeks: what reads the newest entry does not pass by all of those
// before it.
func TestReadStreamSeeks(t *testing.T) {
	db, err := Open(t.Context(), Config{URL: "sqlite://" + filepath.Join(t.TempDir(), "x.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var plan []struct {
		ID, Parent, Notused int
		Detail              string
	}
	err = db.engine.reader().NewRaw(`EXPLAIN QUERY PLAN SELECT tx, seq, body FROM store_stream
		WHERE stream = ? AND `+db.engine.past()+` AND `+db.engine.below()+` ORDER BY tx, seq LIMIT 1`, "event", 0, 9).Scan(t.Context(), &plan)
	if err != nil || len(plan) != 1 || !strings.Contains(plan[0].Detail, "store_stream_read (stream=? AND tx=? AND seq>?)") {
		t.Errorf("%+v, %v", plan, err)
	}
}
