package filewatch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFileIsReadAgain: a new file counts at once, and one that cannot be used never.
func TestFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	reads, broken := 0, errors.New("it is empty")
	read := func() (string, error) {
		reads++
		b, err := os.ReadFile(path)
		if err == nil && len(b) == 0 {
			err = broken
		}
		return strings.TrimSpace(string(b)), err
	}
	if _, err := Open(read, path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a file that is not there was opened: %v", err)
	}
	put("one")
	f, err := Open(read, path)
	if err != nil {
		t.Fatal(err)
	}
	reads = 0
	for range 3 {
		if got := f.Value(); got != "one" || reads != 0 {
			t.Fatalf("%q after %d reads", got, reads)
		}
	}
	put("second")
	if !f.Changed() || f.Value() != "second" || f.Changed() || reads != 1 {
		t.Fatalf("%q after %d reads", f.Value(), reads)
	}
	put("")
	if again, err := f.Refresh(false); again || !errors.Is(err, broken) || f.Value() != "second" {
		t.Errorf("an empty file: again %v, %v, %q", again, err, f.Value())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if again, err := f.Refresh(false); again || !errors.Is(err, os.ErrNotExist) || f.Value() != "second" {
		t.Errorf("no file: again %v, %v, %q", again, err, f.Value())
	}
	put("third")
	if again, err := f.Refresh(false); !again || err != nil || f.Value() != "third" {
		t.Errorf("a file that is there again: again %v, %v, %q", again, err, f.Value())
	}
	if again, err := f.Refresh(true); !again || err != nil {
		t.Errorf("a file that is to be read again: %v, %v", again, err)
	}
}

// TestFailuresAreNotRepeated: files that cannot be used are not read at every question, and
// are at once when they change or it is forced.
func TestFailuresAreNotRepeated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	reads := 0
	f, err := Open(func() (string, error) {
		reads++
		b, err := os.ReadFile(path)
		if err == nil && string(b) == "broken" {
			err = errors.New("broken")
		}
		return string(b), err
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.tried = time.Now().Add(time.Hour) // the pause lasts as long as the test
	for range 3 {
		if got := f.Value(); got != "good" {
			t.Errorf("the value is %q", got)
		}
		f.tried = time.Now().Add(time.Hour)
	}
	if reads != 2 {
		t.Errorf("read %d times, once at the start and once of the broken file", reads)
	}
	if _, err := f.Refresh(false); err == nil {
		t.Error("the failure is forgotten")
	}
	if _, err := f.Refresh(true); err == nil || reads != 3 {
		t.Errorf("forced: %v, %d reads", err, reads)
	}
	f.tried = time.Now().Add(time.Hour)
	if err := os.WriteFile(path, []byte("good again"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := f.Value(); got != "good again" {
		t.Errorf("then it is %q", got)
	}
}
