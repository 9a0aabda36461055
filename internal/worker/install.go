package worker

import (
	"io"
	"os"
	"path/filepath"
)

// install copies this program to a path, by way of its neighbour, so that what is
// at the path is always whole: the first container of a pod puts the worker where
// the second, of any image, starts it.
func install(to string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	out, err := os.OpenFile(filepath.Join(filepath.Dir(to), ".falaj-worker.new"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755) //nolint:gosec // Others execute it.
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, self); err == nil {
		err = out.Close()
	}
	if err != nil {
		return err
	}
	return os.Rename(out.Name(), to)
}
