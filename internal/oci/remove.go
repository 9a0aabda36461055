package oci

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// removeTree removes a tree whose directories may forbid it to their owner.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(p, 0o700) //nolint:gosec // A directory that goes away.
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// readFile reads a file of a bounded size.
func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = errors.New("the file is too large")
	}
	return b, err
}
