package shim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var missingRE = regexp.MustCompile(`(?s)^(.*?)\n\[falaj: the output exceeds [^\n]*\]\n(?:\[falaj: (\d+) bytes are missing here[^\n]*\]\n)?(.*)$`)

// TestLogKeepsBothEnds writes what is numbered, in pieces of any size.
func TestLogKeepsBothEnds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "") //nolint:usetesting // one for each try
		if err != nil {
			t.Fatal(err)
		}
		limit := rapid.Int64Range(leastLog, 4*leastLog).Draw(t, "limit")
		var all bytes.Buffer
		o := newLog(dir, limit)
		for i, n := range rapid.SliceOfN(rapid.IntRange(1, 9000), 0, 12).Draw(t, "pieces") {
			piece := strings.Repeat(fmt.Sprintf("%d,", i), n)[:n]
			all.WriteString(piece)
			if w, err := o.Write([]byte(piece)); w != n || err != nil {
				t.Fatalf("%d of %d, %v", w, n, err)
			}
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(filepath.Join(dir, LogFile))
		if err != nil && all.Len() > 0 {
			t.Fatal(err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) > 1 {
			t.Fatalf("left behind: %v", entries)
		}
		if int64(all.Len()) <= limit/2-words {
			if string(kept) != all.String() {
				t.Fatalf("%d bytes became %d", all.Len(), len(kept))
			}
			return
		}
		m := missingRE.FindSubmatch(kept)
		if m == nil || int64(len(kept)) > limit {
			t.Fatalf("%d bytes, limit %d: %.100q", len(kept), limit, kept)
		}
		missing, _ := strconv.Atoi(string(m[2]))
		head, tail := m[1], m[3]
		if !bytes.HasPrefix(all.Bytes(), head) || !bytes.HasSuffix(all.Bytes(), tail) || len(head)+missing+len(tail) != all.Len() {
			t.Fatalf("of %d bytes %d, %d missing, %d", all.Len(), len(head), missing, len(tail))
		}
		if missing > 0 && int64(len(tail)) < limit/4 {
			t.Fatalf("the tail has only %d bytes of limit %d", len(tail), limit)
		}
	})
}

// TestJoinLog is after a shim that was killed in the middle.
func TestJoinLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := newLog(dir, leastLog)
	for i := range 1000 {
		_, _ = fmt.Fprintf(o, "line %d\n", i)
	}
	_ = o.f.Close()
	for range 2 { // the second time there is nothing left
		if err := JoinLog(dir); err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(filepath.Join(dir, LogFile))
		if err != nil || !strings.HasPrefix(string(kept), "line 0\n") || !strings.HasSuffix(string(kept), "line 999\n") || strings.Count(string(kept), "missing") != 1 {
			t.Fatalf("%v\n%s", err, kept)
		}
	}
}
