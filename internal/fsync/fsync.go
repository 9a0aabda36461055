// Package fsync makes the names in a directory durable. A file that was created, renamed or
// removed is so after a power loss only once its directory was synced, beside the file.
package fsync

import (
	"errors"
	"os"
)

// Dir syncs a directory: the names that it has now survive a power loss.
func Dir(path string) error {
	dir, err := os.Open(path)
	return sync(dir, err)
}

// In syncs a directory below a root.
func In(root *os.Root, name string) error {
	dir, err := root.Open(name)
	return sync(dir, err)
}

func sync(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
