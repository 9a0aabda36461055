// Package powercut records what SQLite writes and syncs, and builds the files
// that a power failure could have left behind.
//
// It stands between SQLite and the operating system as a VFS. Every write,
// truncation and sync of a database or WAL file under the recorded directory is
// logged in order. At any point of the log the disk holds, of each file, what its
// last sync had written, and of the later writes an arbitrary part: none, all, or
// a random choice of 512-byte sectors (a drive may reorder and tear writes).
// The shared memory file is not on disk and is rebuilt.
//
// It assumes what every database assumes: fsync does not lie, and a name exists
// after the first sync of its file (SQLite syncs the directory then).
package powercut

/*
#include <stdlib.h>
#include "powercut.h"
*/
import "C"

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"unsafe"

	_ "github.com/mattn/go-sqlite3" // brings the SQLite that is recorded
)

// Op is one step in the log.
type Op struct {
	Kind   Kind
	File   string // base name
	Offset int64  // of a Write; the new size of a Truncate
	Data   []byte // of a Write
}

// Kind of step.
type Kind uint8

// The kinds.
const (
	Write Kind = iota
	Truncate
	Sync
	Delete
)

// sector is the unit that a drive writes whole or not at all.
const sector = 512

// Record records the files in dir that SQLite opens from now on, until the
// returned function is called. One recording at a time.
func Record(dir string) (stop func(), err error) {
	c := C.CString(filepath.Clean(dir) + "/")
	defer C.free(unsafe.Pointer(c))
	if rc := C.powercut_start(c); rc != 0 {
		return nil, fmt.Errorf("powercut: SQLite result %d", rc)
	}
	return func() { C.powercut_stop() }, nil
}

// Len is how many steps the log has. What was acknowledged before a call must
// survive a power failure at any point from there on.
func Len() int { return int(C.powercut_len()) }

// Log is a copy of the steps so far.
func Log() []Op {
	ops := make([]Op, Len())
	for i := range ops {
		var op C.powercut_op
		C.powercut_at(C.int(i), &op) //nolint:gocritic // dupSubExpr: in the code that cgo generates
		ops[i] = Op{Kind: Kind(op.kind), File: filepath.Base(C.GoString(op.file)), Offset: int64(op.offset)}
		if op.size > 0 {
			ops[i].Data = C.GoBytes(op.data, op.size)
		}
	}
	return ops
}

// Survival says which sectors that were written but not synced are on the disk.
type Survival func() bool

// The extremes, and chance.
var (
	Nothing    Survival = func() bool { return false }
	Everything Survival = func() bool { return true }
)

// Chance lets each sector survive or not by itself.
func Chance(r *rand.Rand) Survival { return func() bool { return r.IntN(2) == 0 } }

// Crash writes into dir what the disk could hold when the power fails after the
// given steps.
func Crash(ops []Op, survives Survival, dir string) error {
	disk := map[string][]byte{} // synced
	later := map[string][]Op{}
	for _, op := range ops {
		switch op.Kind {
		case Write, Truncate:
			later[op.File] = append(later[op.File], op)
		case Sync:
			content := disk[op.File]
			for _, l := range later[op.File] {
				content = apply(content, l, Everything)
			}
			disk[op.File] = content
			if content == nil {
				disk[op.File] = []byte{}
			}
			delete(later, op.File)
		case Delete:
			delete(disk, op.File)
			delete(later, op.File)
		}
	}
	for file, ops := range later {
		content, synced := disk[file]
		for _, op := range ops {
			content = apply(content, op, survives)
		}
		if synced || len(content) > 0 {
			disk[file] = content
		}
	}
	for file, content := range disk {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func apply(content []byte, op Op, survives Survival) []byte {
	if op.Kind == Truncate {
		if survives() && int64(len(content)) > op.Offset {
			content = content[:op.Offset:op.Offset]
		}
		return content
	}
	for done := 0; done < len(op.Data); {
		at := op.Offset + int64(done)
		n := min(len(op.Data)-done, sector-int(at%sector))
		if survives() {
			if end := at + int64(n); int64(len(content)) < end {
				content = append(content, make([]byte, end-int64(len(content)))...)
			}
			copy(content[at:], op.Data[done:done+n])
		}
		done += n
	}
	return content
}
