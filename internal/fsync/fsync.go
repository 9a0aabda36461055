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
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
