package client

import (
	"fmt"
	"strings"
	"testing"
)

// TestTooMuch: what is refused says which limit, and where most of it is.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	many := func(dir string, n int) (packed []Packed) {
		for i := range n {
			packed = append(packed, Packed{Name: fmt.Sprintf("%s%d.png", dir, i), Size: 1})
		}
		return packed
	}
	for name, c := range map[string]struct {
		packed []Packed
		want   []string
	}{
		"images":       {append(many("data/images/", 19_000), many("src/", 1_001)...), []string{"more than 20000 files", "most are in code/data/images;", "the line /data/images/ into code/.falajignore"}},
		"spread":       {append(many("a/", 10_001), many("b/", 10_001)...), []string{"more than 20000 files", "list in code/.falajignore"}},
		"at the top":   {many("", 20_001), []string{"more than 20000 files", "list in code/.falajignore"}},
		"one big file": {append(many("src/", 100), Packed{Name: "weights/base.bin", Size: 2 << 30}), []string{"more than 1073741824 bytes", "most are in code/weights;"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := tooMuch("code", c.packed).Error()
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s\nhas no %q", got, want)
				}
			}
		})
	}
}
