package objects

import (
	"fmt"
	"testing"
)

// Files that come and go do not make the position grow for ever.
func TestPositionsAreBounded(t *testing.T) {
	read := Listing{}
	for day := range 40 {
		now := Listing{}
		for n := range 1000 {
			now[fmt.Sprintf("%03d/%04d.csv", day, n)] = "1"
		}
		read = read.with(now)
		if day > 0 && read[fmt.Sprintf("%03d/0000.csv", day-1)] == "" {
			t.Fatalf("day %d: yesterday is forgotten", day)
		}
	}
	if len(read) != MaxFiles+1000 {
		t.Errorf("%d names", len(read))
	}
}

func TestMatch(t *testing.T) {
	for name, want := range map[string]bool{"": false, "sub/": false, ".a": false, "a.csv": true, "sub/a.csv": false} {
		if got := Match("", name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	if Match("*/*", "sub/") || Match("*/*", "/") || !Match("*/*", "sub/a") {
		t.Error("directories are no files")
	}
}
