package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// notes is a file of the data directory: what was done to the installation while its
// server was stopped.
const notes = "offline.jsonl"

// Note is an act that the next start makes an entry of the audit log of.
type Note struct {
	Act    string         `json:"act"` // "backup.make"
	Object string         `json:"object"`
	At     time.Time      `json:"at"`
	Detail map[string]any `json:"detail,omitempty"`
}

// AddNote keeps a note, durably, after those that are whole.
func AddNote(data string, n Note) error {
	line, err := json.Marshal(n)
	if err != nil {
		return err
	}
	at := filepath.Join(data, notes)
	was, err := os.ReadFile(at)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return describe(err, "read the recovery notes")
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return describe(err, "record the operation")
	}
	end := int64(len(whole(was)))
	if err = f.Truncate(end); err == nil {
		_, err = f.WriteAt(append(line, '\n'), end)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return describe(err, "record the operation")
	}
	return syncAll(data)
}

// Notes gives the notes, and what removes them once they are on record.
func Notes(data string) (all []Note, done func() error, err error) {
	at := filepath.Join(data, notes)
	b, err := os.ReadFile(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, func() error { return nil }, nil
	}
	if err != nil {
		return nil, nil, describe(err, "read the operations recorded while the server was stopped")
	}
	for line := range bytes.Lines(b) {
		var n Note
		if json.Unmarshal(line, &n) != nil {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // its writing was cut short, and nobody was told that it is done
			}
			return nil, nil, fault.New(fault.Invalid, "%s is damaged", at).WithHint("It records operations performed while the server was stopped. Inspect it, then remove it.")
		}
		all = append(all, n)
	}
	return all, func() error {
		if err := os.Remove(at); err != nil {
			return err
		}
		return syncAll(data)
	}, nil
}
