package protocol

import (
	"bytes"
	"strings"
	"testing"
)

func TestNumbered(t *testing.T) {
	long := strings.Repeat("x", MaxLine)
	for name, c := range map[string]struct {
		b     string
		last  bool
		text  string
		taken int
	}{
		"lines":                    {"a\nb\n", false, "[3] a\n[3] b\n", 4},
		"no end yet":               {"a\nb", false, "[3] a\n", 2},
		"no end ever":              {"a\nb", true, "[3] a\n[3] b\n", 3},
		"Windows":                  {"a\r\nb\r\n", false, "[3] a\r\n[3] b\r\n", 6},
		"empty line":               {"\n", false, "[3] \n", 1},
		"a bar":                    {"\r 1%\r 2%\r 3%", false, "[3]  1%\n[3]  2%\n", 9},
		"a bar that goes back":     {" 1%\r 2%\r", false, "[3]  1%\n", 4},
		"a bar at its end":         {"\r 1%\r100%\n", false, "[3]  1%\n[3] 100%\n", 10},
		"a bar that ends no line":  {"\r 1%\r100%\r", true, "[3]  1%\n[3] 100%\n", 10},
		"erased":                   {" 1%\r   \rdone\n", false, "[3]  1%\n[3]    \n[3] done\n", 13},
		"a long line":              {long + "y\n", false, "[3] " + long + "\n[3] y\n", MaxLine + 2},
		"long, and no end yet":     {long, false, "[3] " + long + "\n", MaxLine},
		"many carriage returns":    {strings.Repeat("\r", MaxLine+1) + "a\n", false, "[3] a\n", MaxLine + 3},
		"nothing":                  {"", true, "", 0},
		"a traceback behind a bar": {"\r 1%Traceback (most recent call last):\n", false, "[3]  1%Traceback (most recent call last):\n", 39},
	} {
		text, taken := Numbered(nil, 3, []byte(c.b), c.last)
		if string(text) != c.text || taken != c.taken {
			t.Errorf("%s: %.80q, %d; want %.80q, %d", name, text, taken, c.text, c.taken)
		}
	}
}

// FuzzNumbered: in whatever pieces output comes, the log has the same text, and nothing
// is lost but carriage returns.
func FuzzNumbered(f *testing.F) {
	f.Add([]byte("a\r\nb\r 1%\r\r 2%\n\n"), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, piece uint16) {
		whole, taken := Numbered(nil, 0, b, true)
		if taken != len(b) {
			t.Fatalf("%d of %d bytes", taken, len(b))
		}
		var pieces []byte
		for from, to := 0, 0; from < len(b) || to < len(b); {
			to = min(to+max(int(piece), 1), len(b))
			var n int
			pieces, n = Numbered(pieces, 0, b[from:to], to == len(b))
			from += n
		}
		if len(b) < MaxLine && !bytes.Equal(pieces, whole) {
			t.Fatalf("%q in pieces of %d is %q, not %q", b, piece, pieces, whole)
		}
	})
}
