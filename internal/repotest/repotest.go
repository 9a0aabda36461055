// Package repotest finds the repository for tests: what scripts install lies
// below it, in bin, lib and .tmp. A file's own name does not tell, since builds
// leave out where they were made (-trimpath).
package repotest

import (
	"errors"
	"os"
	"path/filepath"
)

// Root is the repository's directory, at or above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the tests do not run below the repository")
		}
	}
	return "", err
}
