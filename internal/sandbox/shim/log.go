package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Files beside the log while a program says more than its limit: what it said
// last, in two halves of which the older one goes.
const (
	olderFile = "log.older"
	newerFile = "log.newer"
)

// output is the log of a program, at most limit bytes of it: the first half is
// the log as it comes, the last of the rest is kept aside and joined to it at the
// end. Files are made when there is something for them.
type output struct {
	dir         string
	head, piece int64    // room in the log, and in each half of what is kept aside
	f           *os.File // what is written to now; nil before, and when there is no more room on disk
	size        int64    // of it
	aside       bool     // f is the newer half
	broken      bool     // the disk is full
	dropped     int64
}

const (
	leastLog = 4 << 10 // below this there is no room for the words between head and tail
	words    = 512     // that the lines of ours may take
)

func newLog(dir string, limit int64) *output {
	if limit <= 0 {
		limit = defaultLogLimit
	}
	limit = max(limit, leastLog)
	return &output{dir: dir, head: limit/2 - words, piece: limit / 4}
}

// Write never fails and never is short: a full disk costs lines of the log,
// not the program.
func (o *output) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 && !o.broken {
		room := o.head - o.size
		if o.aside {
			room = o.piece - o.size
		}
		if o.f == nil || room <= 0 {
			o.broken = o.next() != nil
			continue
		}
		written, err := o.f.Write(b[:min(int64(len(b)), room)])
		o.size += int64(written)
		b = b[written:]
		o.broken = err != nil
	}
	o.dropped += int64(len(b))
	return n, nil
}

// next opens the file that takes what comes.
func (o *output) next() error {
	name := LogFile
	if o.f != nil {
		if !o.aside {
			_, _ = fmt.Fprintf(o.f, "\n[falaj: the output exceeds %s; from here on only its end is kept, and shown when the program has ended]\n", resource.Bytes(o.head))
		}
		if err := o.f.Close(); err != nil {
			return err
		}
		o.f, name = nil, newerFile
		if o.aside {
			if old, err := os.Stat(filepath.Join(o.dir, olderFile)); err == nil {
				o.dropped += old.Size()
			}
			if err := os.Rename(filepath.Join(o.dir, newerFile), filepath.Join(o.dir, olderFile)); err != nil {
				return err
			}
		}
		o.aside = true
	}
	o.size = 0
	f, err := os.OpenFile(filepath.Join(o.dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	o.f = f
	return err
}

// Close joins what was kept aside to the log.
func (o *output) Close() error {
	var err error
	if o.f != nil {
		err = o.f.Close()
	}
	if !o.aside && !o.broken {
		return err
	}
	return errors.Join(err, joinLog(o.dir, o.dropped))
}

// JoinLog joins what a killed shim kept aside to its log.
func JoinLog(dir string) error { return joinLog(dir, -1) }

func joinLog(dir string, dropped int64) error {
	var parts []*os.File
	defer func() {
		for _, f := range parts {
			_ = f.Close()
		}
	}()
	for _, name := range []string{olderFile, newerFile} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		parts = append(parts, f)
	}
	if len(parts) == 0 && dropped <= 0 {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(dir, LogFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	switch {
	case dropped > 0:
		_, _ = fmt.Fprintf(log, "[falaj: %d bytes are missing here: the log is at its limit, or the disk is full]\n", dropped)
	case dropped < 0:
		_, _ = fmt.Fprint(log, "[falaj: some of the output may be missing here]\n")
	}
	for _, f := range parts {
		_, cerr := io.Copy(log, f)
		if cerr == nil { // else it is kept for who looks at the directory
			cerr = os.Remove(f.Name())
		}
		err = errors.Join(err, cerr)
	}
	return errors.Join(err, log.Close())
}
