package audit

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A checkpoint file that has grown keeps one line an hour, the newest, and what
// is evidence.
func TestCheckpointFileIsThinned(t *testing.T) {
	secret, _, err := note.GenerateKey(rand.Reader, "falaj/audit/log_x")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	c := NewCheckpointFile(filepath.Join(t.TempDir(), "checkpoints"))
	start := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	add := func(size int64, minute int, supersedes *tlog.Tree) {
		t.Helper()
		b, err := Checkpoint{Origin: "falaj/audit/log_x", Size: size, Root: tlog.RecordHash(nil), Time: start.Add(time.Duration(minute) * time.Minute), Supersedes: supersedes}.sign(signer)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	add(1, 1, nil)
	add(2, 2, nil)
	add(3, 59, nil) // the last of its hour
	add(4, 61, nil)
	add(9, 62, nil) // before a shorter one: rolled back
	add(5, 63, &tlog.Tree{N: 9, Hash: tlog.RecordHash(nil)})
	add(6, 64, nil)
	if err := c.Append(t.Context(), []byte("not ours")); err != nil {
		t.Fatal(err)
	}
	add(7, 65, nil)
	c.thins = 1
	add(8, 66, nil)

	f, err := os.Open(c.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := ReadCheckpoints(f)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range all {
		size := "?"
		if parts := strings.Split(string(b), "\n"); len(parts) > 1 {
			size = parts[1]
		}
		got = append(got, size)
	}
	if want := []string{"3", "9", "5", "6", "?", "8"}; !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
	last, err := c.Last(t.Context())
	if err != nil || !strings.Contains(string(last), "\n8\n") {
		t.Errorf("the last is %q, %v", last, err)
	}
	// It does not thin again until it has grown again.
	if info, err := f.Stat(); err != nil || c.thins <= info.Size() {
		t.Errorf("thins again at %d, %v", c.thins, err)
	}
	for i := range int64(3) {
		add(10+i, 67, nil)
	}
	b, err := os.ReadFile(c.path)
	if err != nil || strings.Count(string(b), "\n") != len(got)+3 {
		t.Errorf("%s lines, %v", strconv.Itoa(strings.Count(string(b), "\n")), err)
	}
}
