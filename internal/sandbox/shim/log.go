package shim

import (
	"fmt"
	"os"

	"github.com/falaj-ml/falaj/internal/resource"
)

// output is the log file of a program; after the limit it takes and drops, so
// that the program is not held up.
type output struct {
	f     *os.File
	limit int64
	size  int64
	full  bool
}

func newLog(path string, limit int64) (*output, error) {
	if limit <= 0 {
		limit = defaultLogLimit
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &output{f: f, limit: limit}, nil
}

// Write never fails and never is short: a full disk costs lines of the log,
// not the program.
func (o *output) Write(b []byte) (int, error) {
	n := len(b)
	if o.full {
		return n, nil
	}
	if rest := o.limit - o.size; int64(len(b)) > rest {
		b = b[:rest]
		o.full = true
	}
	written, err := o.f.Write(b)
	o.size += int64(written)
	if err != nil {
		o.full = true
	}
	if o.full {
		_, _ = fmt.Fprintf(o.f, "\n[falaj: the log ends here, at its limit of %s or because the disk is full]\n", resource.Bytes(o.limit))
	}
	return n, nil
}

// Close closes the file.
func (o *output) Close() error { return o.f.Close() }
