package local

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/egress"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// Sockets in a workload's net directory. The sandbox dials them for each
// connection, so they may go and come back with the server.
const (
	apiSocket   = "api"
	proxySocket = "proxy"
)

// serve opens the sockets that the workload's network asks for, and keeps its
// image.
func (d *Driver) serve(w *workload) error {
	if w.extras.Image != "" && d.c.Images != nil {
		w.keep(d.c.Images.Hold(w.extras.Image))
	}
	n := w.extras.Network
	if n.API {
		l, err := listen(filepath.Join(w.dir, netDir), apiSocket)
		if err != nil {
			return fault.Wrap(err, "opening the API to %s", w.id)
		}
		l = d.c.Connections.ListenJob(workloadListener{l, w.id}, w.extras.Project, w.id)
		go func() { _ = d.api.Serve(l) }()
		w.keep(func() { _ = l.Close() })
	}
	if len(n.Allow) == 0 {
		return nil
	}
	allow, err := egress.ParseAllow(n.Allow)
	if err != nil {
		return err
	}
	l, err := listen(filepath.Join(w.dir, netDir), proxySocket)
	if err != nil {
		return fault.Wrap(err, "opening the proxy of %s", w.id)
	}
	p := egress.New(egress.Config{Allow: allow, OnRefused: d.refused(w), Connections: d.c.Connections, Log: d.c.Log})
	go func() { _ = p.Serve(d.c.Connections.ListenJob(l, w.extras.Project, w.id)) }()
	w.keep(func() { _ = p.Close() })
	return nil
}

// workloadListener accepts connections of one workload: its socket is in a directory that
// only this workload's sandbox sees.
type workloadListener struct {
	net.Listener
	id string
}

// Accept implements net.Listener.
func (l workloadListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return ofWorkload{c, l.id}, nil
}

// ofWorkload is a connection that a workload opened.
type ofWorkload struct {
	net.Conn
	id string
}

func (w *workload) keep(closer func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served = append(w.served, closer)
}

// refused records what the proxy refuses beside what the shim records.
func (d *Driver) refused(w *workload) func(target string) {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(target string) {
		const most = 256
		mu.Lock()
		defer mu.Unlock()
		if seen[target] || len(seen) == most {
			return
		}
		seen[target] = true
		f, err := os.OpenFile(filepath.Join(w.dir, shim.DenialsFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err == nil {
			defer f.Close()
			err = shim.AppendDenial(f, sandbox.Denial{Time: time.Now(), Kind: "connect", Target: target})
		}
		if err != nil {
			d.c.Log.Error("a refused connection cannot be recorded", slog.String("id", w.id), slog.String("target", target), slog.Any("err", err))
		}
	}
}

// listen opens a unix socket for all users below a directory that only we can
// reach.
func listen(dir, name string) (net.Listener, error) {
	path := filepath.Join(dir, name)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	// Through a descriptor, because the path may be longer than the 107 bytes
	// that fit into an address.
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", "/proc/self/fd/"+strconv.Itoa(fd)+"/"+name)
	if err != nil {
		return nil, err
	}
	// The descriptor's number will mean something else when the listener closes.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // The sandbox is another user.
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
