package privacy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
)

func line(id privacy.ID) privacy.Line {
	at := time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)
	return privacy.Line{ID: id, Project: "shop", Entity: "customer", Pseudonym: "ab", Reason: "request 1", By: "usr_1", At: at, Deadline: at.AddDate(0, 1, 0)}
}

// Whoever changes, cuts out or adds a line is noticed; what a crash left of a line
// is not a change.
func TestLedger(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "elsewhere", "erasures.jsonl"), []byte("0123456789abcdef0123456789abcdef")
	l, err := privacy.OpenLedger(path, key)
	if err != nil || len(l.Lines()) != 0 {
		t.Fatal(err)
	}
	for _, id := range []privacy.ID{"ers_1", "ers_2", "ers_2", "ers_3"} {
		if _, err := l.Append(line(id)); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(content, key []byte) (int, error) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := privacy.OpenLedger(path, key)
		if err != nil {
			return 0, err
		}
		return len(l.Lines()), nil
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	for name, content := range map[string][]byte{
		"as it is": whole, "with a torn line": append(bytes.Clone(whole), `{"n":4,"id":"ers_4","pro`...),
	} {
		if n, err := try(content, key); err != nil || n != 3 {
			t.Errorf("%s: %d lines, error %v", name, n, err)
		}
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, whole) {
		t.Error("the torn line is still there")
	}
	if n, err := try(bytes.Join(lines[:2], nil), key); err != nil || n != 2 {
		t.Errorf("cut: %d lines, error %v; it takes the database to notice", n, err)
	}
	for name, content := range map[string][]byte{
		"a changed line":      bytes.Replace(whole, []byte("ers_2"), []byte("ers_9"), 1),
		"a line cut out":      bytes.Join([][]byte{lines[0], lines[2]}, nil),
		"the first cut off":   bytes.Join(lines[1:], nil),
		"two exchanged":       bytes.Join([][]byte{lines[1], lines[0], lines[2]}, nil),
		"a line twice":        bytes.Join([][]byte{lines[0], lines[0]}, nil),
		"a field more":        bytes.Replace(whole, []byte(`{"n":1,`), []byte(`{"n":1,"x":2,`), 1),
		"a line of something": append(bytes.Clone(whole), "x\n"...),
	} {
		if _, err := try(content, key); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := try(whole, bytes.Repeat([]byte("x"), 32)); !fault.Is(err, fault.Invalid) {
		t.Errorf("of another installation: %v", err)
	}
}

// Two servers share a file: each knows what the other has written before it writes.
func TestLedgerOfTwo(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "erasures.jsonl"), []byte("0123456789abcdef0123456789abcdef")
	var both [2]*privacy.Ledger
	for i := range both {
		var err error
		if both[i], err = privacy.OpenLedger(path, key); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range []privacy.ID{"ers_1", "ers_2", "ers_3", "ers_1", "ers_4"} {
		if _, err := both[i%2].Append(line(id)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := privacy.OpenLedger(path, key)
	if err != nil || len(l.Lines()) != 4 {
		t.Errorf("%d lines, error %v", len(l.Lines()), err)
	}
}
