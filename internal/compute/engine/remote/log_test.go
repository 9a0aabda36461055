package remote

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// TestLogSurvives: whatever is sent twice, late or never acknowledged, and
// whenever the server or the machine dies, each member's output is in the log
// once and in order.
func TestLogSurvives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "log") //nolint:usetesting // One each round.
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		n := rapid.IntRange(1, 3).Draw(t, "members")
		said := make([]string, n)
		for i := range said {
			said[i] = rapid.StringMatching(`([a-z]{0,12}\n){0,12}[a-z]{0,5}`).Draw(t, "output")
		}
		l, err := openLog(dir, n, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, n-1).Draw(t, "member")
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0: // the server is killed
				_ = l.close()
				if l, err = openLog(dir, n, 1<<20); err != nil {
					t.Fatal(err)
				}
			case 1: // the machine is: bytes at the end were not written
				_ = l.close()
				for _, f := range []string{logFile, indexFile} {
					info, err := os.Stat(filepath.Join(dir, f))
					if err != nil {
						t.Fatal(err)
					}
					keep := rapid.Int64Range(0, info.Size()).Draw(t, "kept of "+f)
					if err := os.Truncate(filepath.Join(dir, f), keep); err != nil {
						t.Fatal(err)
					}
				}
				if l, err = openLog(dir, n, 1<<20); err != nil {
					t.Fatal(err)
				}
			default:
				from := rapid.IntRange(0, len(said[i])).Draw(t, "from")
				to := rapid.IntRange(from, len(said[i])).Draw(t, "to")
				if _, err := l.append(i, int64(from), []byte(said[i][from:to]), false); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range said { // at last each sends all that is not there
			at := l.offset(i)
			reached, err := l.append(i, at, []byte(said[i][at:]), true)
			if err != nil || reached != int64(len(said[i])) {
				t.Fatalf("reached %d of %d: %v", reached, len(said[i]), err)
			}
		}
		_ = l.close()
		b, err := os.ReadFile(filepath.Join(dir, logFile))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range said {
			got := string(b)
			if n > 1 {
				got = of(i, got)
				if want != "" && !strings.HasSuffix(want, "\n") {
					want += "\n"
				}
			}
			if got != want {
				t.Fatalf("member %d: %q, want %q", i, got, want)
			}
		}
	})
}

// of is what one member said.
func of(member int, log string) string {
	var out strings.Builder
	for line := range strings.Lines(log) {
		if rest, ok := strings.CutPrefix(line, fmt.Sprintf("[%d] ", member)); ok {
			out.WriteString(rest)
		}
	}
	return out.String()
}

// TestLongLines: a line that does not end is cut, and nothing of it is lost.
func TestLongLines(t *testing.T) {
	t.Parallel()
	l, err := openLog(t.TempDir(), 2, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	long := strings.Repeat("x", 3*protocol.MaxLine+10)
	reached, err := l.append(1, 0, []byte(long), false)
	if err != nil || reached != 3*protocol.MaxLine {
		t.Errorf("reached %d: %v", reached, err)
	}
	if reached, err = l.append(1, reached, []byte(long[reached:]+"\nnext\n"), false); err != nil || reached != int64(len(long))+6 {
		t.Errorf("reached %d: %v", reached, err)
	}
}
