package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// unreadable is a workload whose directory cannot be read: of another version, damaged, or
// closed to us. It is unknown while anything of it runs, and counts as lost only after that.
func (d *Driver) unreadable(id string, err error) *workload {
	w := d.newWorkload(id, shim.Spec{}, extras{})
	w.damaged = err
	if _, err := os.Lstat(filepath.Join(w.dir, netDir, apiSocket)); err == nil {
		w.extras.Network.API = true // its program has the API, whatever its record says
	}
	return w
}

// unknown says what is known of a workload whose directory cannot be read, and what to do.
func (w *workload) unknown() string {
	who := "a process of it"
	if p, ok := w.living(); ok {
		who = "process " + strconv.Itoa(p.PID)
	}
	return fmt.Sprintf("its record in %s cannot be read (%v), and %s still runs: its state is unknown, and it is not started again. "+
		"Repair the record and restart the server, or cancel it", w.dir, w.damaged, who)
}

// attachUnreadable waits until nothing of such a workload runs any more.
func (d *Driver) attachUnreadable(w *workload) {
	p, alive := w.living()
	if !alive {
		close(w.done)
		return
	}
	if err := d.serve(w); err != nil {
		d.c.Log.Warn("a workload's sockets cannot be opened again", slog.String("id", w.id), slog.Any("err", err))
	}
	go func() {
		for ; alive; p, alive = w.living() {
			if p.PID == 0 { // a lock tells of a shim that no process can be named for
				select {
				case <-w.detached:
					return
				case <-time.After(time.Second):
				}
				continue
			}
			if !awaitProcess(p, w.detached) {
				return
			}
		}
		w.settle(context.Background(), d.c.Log)
		w.closeSockets()
		close(w.done)
	}()
}

// living is a process of the workload that runs: its shim, the first process of its sandbox,
// one in its control groups, or one that holds a file of its directory open, as a shim does
// as long as it lives. The zero Process and true: the lock is held, and by whom is unknown.
func (w *workload) living() (shim.Process, bool) {
	if st, err := shim.Read[shim.Status](w.dir, shim.StatusFile); err == nil {
		for _, p := range []shim.Process{st.Shim, st.Init} {
			// A shim that serves another directory by now holds no lock of this one.
			if p.Alive() && (st.State != shim.Ended || shim.Held(w.dir)) {
				return p, true
			}
		}
		for _, group := range st.Cgroups {
			b, _ := os.ReadFile(filepath.Join(group, "cgroup.procs")) // without the group there is no process in it
			for line := range strings.FieldsSeq(string(b)) {
				if pid, err := strconv.Atoi(line); err == nil {
					if p, err := shim.ProcessOf(pid); err == nil {
						return p, true
					}
				}
			}
		}
	}
	if p, ok := holder(w.dir); ok {
		return p, true
	}
	return shim.Process{}, shim.Held(w.dir)
}

// holder finds a process other than this one that holds a file below a directory open, also
// one whose name is gone.
func holder(dir string) (shim.Process, bool) {
	if plain, err := filepath.EvalSymlinks(dir); err == nil {
		dir = plain
	}
	tables, err := filepath.Glob("/proc/[0-9]*/fd")
	if err != nil {
		return shim.Process{}, false
	}
	for _, table := range tables {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(table)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		names, err := os.ReadDir(table)
		if err != nil {
			continue // it has ended, or is another user's
		}
		for _, n := range names {
			if to, err := os.Readlink(filepath.Join(table, n.Name())); err == nil && strings.HasPrefix(to, dir+"/") {
				if p, err := shim.ProcessOf(pid); err == nil {
					return p, true
				}
			}
		}
	}
	return shim.Process{}, false
}

// never reports a directory in which nothing was started: no status, and no process.
func (w *workload) never() bool {
	if _, err := os.Lstat(filepath.Join(w.dir, shim.StatusFile)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, alive := w.living()
	return !alive
}
