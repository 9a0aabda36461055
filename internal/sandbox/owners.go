package sandbox

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/userns"
)

// owners are user namespaces in which user 0 is another one, by that user: mounts
// show through them what is ours as the child's. To make one takes a process, so
// they are kept for the next child of that user; nothing runs in them.
var owners struct {
	sync.Mutex
	of map[int]*os.File
}

// maxOwners bounds the descriptors that are kept.
const maxOwners = 64

// ownersOf is a descriptor of such a namespace; the caller closes it.
func ownersOf(worker string, uid int) (*os.File, error) {
	owners.Lock()
	defer owners.Unlock()
	f := owners.of[uid]
	if f == nil {
		var err error
		if f, err = userns.Hold(worker, uid); err != nil {
			return nil, err
		}
		if owners.of == nil || len(owners.of) == maxOwners {
			for _, old := range owners.of {
				_ = old.Close()
			}
			owners.of = map[int]*os.File{}
		}
		owners.of[uid] = f
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
