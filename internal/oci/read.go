package oci

import (
	"errors"
	"io"
	"os"
)

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
