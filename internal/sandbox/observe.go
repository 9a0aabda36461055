package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// observer answers the system calls that the program's seccomp filter hands
// over: it inspects the path or address, reports what the policy does not
// allow, and always lets the call continue.
//
// Continuing is safe because the observer never enforces the policy: namespaces,
// Landlock and the empty network do. A program that changes the argument after
// it was read (the race which makes USER_NOTIF unfit for enforcement) fools the
// report, not the sandbox.
type observer struct {
	fd       int // the listener; owned
	root     string
	inner    bool // the root is that of the program's process, not of the one we started
	guard    []string
	allowed  []string // mounts: below these nothing is reported
	writable []string // where the program can make symbolic links
	report   func(Denial)
	memory   [unix.PathMax]byte
}

// notification and response are struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

const ioctlNotifSetFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS

func newObserver(fd, initPID int, p Policy, report func(Denial)) *observer {
	o := &observer{
		fd: fd, root: "/proc/" + strconv.Itoa(initPID) + "/root", inner: p.Image != nil, guard: p.Guard, report: report,
		writable: []string{"/tmp", "/dev/shm"},
	}
	for _, m := range p.Mounts {
		o.allowed = append(o.allowed, m.Path)
		if m.Writable {
			o.writable = append(o.writable, m.Path)
		}
	}
	return o
}

// run answers until no process uses the filter any more.
func (o *observer) run() {
	// A thread of its own: the program waits for each answer.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer unix.Close(o.fd)
	// The answer wakes the asking thread on this core: one switch less. Linux 6.6.
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(o.fd), ioctlNotifSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	poll := []unix.PollFd{{Fd: int32(o.fd), Events: unix.POLLIN}} //nolint:gosec // A descriptor.
	for {
		if _, err := unix.Poll(poll, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return // POLLHUP: every process with this filter has ended
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(o.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 { //nolint:gosec // The kernel's structure.
			continue // the caller was killed in between
		}
		d, denied := o.inspect(&n)
		r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(o.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r))) //nolint:gosec // The kernel's structure.
		if denied {                                                                                                       // after the answer: a slow receiver does not hold the program up
			d.Time, d.PID = time.Now(), int(n.pid)
			o.report(d)
		}
	}
}

// inspect reports whether one system call is denied, and what it would have reached.
func (o *observer) inspect(n *notification) (Denial, bool) {
	pid := int(n.pid)
	if o.inner {
		o.root = "/proc/" + strconv.Itoa(pid) + "/root"
	}
	switch call(n.nr) {
	case callOpen:
		return o.open(pid, unix.AT_FDCWD, n.args[0])
	case callOpenat:
		return o.open(pid, int(int32(n.args[0])), n.args[1]) //nolint:gosec // The kernel's int.
	case callConnect:
		return o.connect(pid, n.args[1], n.args[2])
	case callSendto:
		return o.connect(pid, n.args[4], n.args[5])
	}
	return Denial{}, false
}

func (o *observer) open(pid, dirfd int, addr uint64) (Denial, bool) {
	name, ok := o.cstring(pid, addr)
	if !ok || name == "" {
		return Denial{}, false
	}
	if !path.IsAbs(name) {
		link := "/proc/" + strconv.Itoa(pid) + "/cwd"
		if dirfd != unix.AT_FDCWD {
			link = "/proc/" + strconv.Itoa(pid) + "/fd/" + strconv.Itoa(dirfd)
		}
		dir, err := os.Readlink(link)
		if err != nil {
			return Denial{}, false
		}
		name = dir + "/" + name
	}
	target, denied := o.forbidden(pid, name)
	return Denial{Kind: "open", Target: target}, denied
}

// privateRE matches what is private to a process in /proc. It is made when the
// first path in /proc is checked: few programs open one, and each start would pay for it.
var privateRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^/proc/(\d+)/(?:task/\d+/)?(?:environ|mem|maps|smaps|root|cwd|exe|fd|fdinfo|auxv|syscall|stack|pagemap)(?:/|$)`)
})

// forbidden reports whether the absolute path leads to what is guarded, and
// where it leads.
func (o *observer) forbidden(pid int, name string) (string, bool) {
	// Most paths have no dots and lie where the program cannot make links.
	plain := filepath.Clean(name) == name && !within(name, "/proc") &&
		!slices.ContainsFunc(o.writable, func(dir string) bool { return within(name, dir) })
	if !plain {
		name = o.resolve(pid, name)
	}
	if within(name, "/proc") {
		if m := privateRE().FindStringSubmatch(name); m != nil {
			return name, o.foreign(m[1])
		}
	}
	if !slices.ContainsFunc(o.guard, func(dir string) bool { return within(name, dir) }) ||
		slices.ContainsFunc(o.allowed, func(dir string) bool { return within(name, dir) }) {
		return name, false
	}
	// Tools look for their configuration in all parents of a directory. That is
	// no attempt at anything of ours: what is guarded is there outside, and not
	// inside.
	return name, exists(name) && !exists(o.root+name)
}

func exists(name string) bool {
	var st unix.Stat_t
	return unix.Lstat(name, &st) == nil
}

// foreign reports whether a process number of /proc inside is none of the
// program's: the sandbox's own first process, or no process there at all.
func (o *observer) foreign(pid string) bool {
	if pid == "1" {
		return true
	}
	return !exists(o.root + "/proc/" + pid)
}

// resolve follows the links in a path as the program sees them. What does not
// exist is taken as written, and so is what is private to a process that is
// not the program's.
func (o *observer) resolve(pid int, name string) string {
	const maxLinks = 40
	links := 0
	done := "/"
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		to, ok := o.readlink(pid, next)
		if !ok || links == maxLinks {
			done = next
			continue
		}
		links++
		rest = append(strings.Split(to, "/"), rest...)
		if path.IsAbs(to) {
			done = "/"
		}
	}
	return done
}

// readlink reads one link in the program's root. Links of /proc/self are read
// through /proc/PID, because /proc/self is the process that reads it.
func (o *observer) readlink(pid int, name string) (string, bool) {
	if rest, ok := strings.CutPrefix(name, "/proc/"); ok {
		who, what, _ := strings.Cut(rest, "/")
		dir := o.root + "/proc/" + who
		if who == "self" || who == "thread-self" {
			dir = "/proc/" + strconv.Itoa(pid)
		} else if _, err := strconv.Atoi(who); err != nil || o.foreign(who) {
			return "", false
		}
		if what == "root" {
			return "/", true // all of the program's processes have the same
		}
		if what != "cwd" && !strings.HasPrefix(what, "fd/") {
			return "", false
		}
		to, err := os.Readlink(dir + "/" + what)
		return to, err == nil && path.IsAbs(to) // "pipe:[7]" leads nowhere
	}
	to, err := os.Readlink(o.root + name)
	return to, err == nil
}

func (o *observer) connect(pid int, addr, size uint64) (Denial, bool) {
	b, ok := o.read(pid, addr, min(size, 128))
	if !ok {
		return Denial{}, false
	}
	a, ok := parseSockaddr(b)
	if !ok {
		return Denial{}, false
	}
	d := Denial{Kind: "connect", Target: a.String()}
	switch {
	case a.inet.IsValid():
		ip := a.inet.Addr().Unmap()
		if !ip.IsLoopback() && !ip.IsUnspecified() {
			return d, true
		}
		// The sandbox's loopback reaches only the program itself, which may try a
		// port before it listens there. The attempt aims at the host if a process
		// listens on the port outside, and none inside.
		port := a.inet.Port()
		return d, listening("/proc/self/net", port) && !listening("/proc/"+strconv.Itoa(pid)+"/net", port)
	case a.abstract:
		return d, hostHasAbstract(a.unix)
	}
	name := a.unix
	if !path.IsAbs(name) {
		dir, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
		if err != nil {
			return d, false
		}
		name = dir + "/" + name
	}
	target, denied := o.forbidden(pid, name)
	d.Target = "unix:" + target
	if denied || target == "/var/run/nscd/socket" || target == "/run/nscd/socket" { // the C library tries this one on its own
		return d, denied
	}
	var st unix.Stat_t
	outside := unix.Lstat(target, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
	return d, outside && !exists(o.root+target)
}

// sockaddr is the address of a connect.
type sockaddr struct {
	inet     netip.AddrPort
	unix     string
	abstract bool
}

// String is for people.
func (a sockaddr) String() string {
	switch {
	case a.inet.IsValid():
		return net.JoinHostPort(a.inet.Addr().Unmap().String(), strconv.Itoa(int(a.inet.Port())))
	case a.abstract:
		return "unix:@" + a.unix
	}
	return "unix:" + a.unix
}

// parseSockaddr reads a struct sockaddr; families that cannot leave the sandbox
// are not ok.
func parseSockaddr(b []byte) (sockaddr, bool) {
	if len(b) < 2 {
		return sockaddr{}, false
	}
	switch family := binary.NativeEndian.Uint16(b); family {
	case unix.AF_INET:
		if len(b) < 8 {
			return sockaddr{}, false
		}
		return sockaddr{inet: netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))}, true
	case unix.AF_INET6:
		if len(b) < 24 {
			return sockaddr{}, false
		}
		return sockaddr{inet: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), binary.BigEndian.Uint16(b[2:]))}, true
	case unix.AF_UNIX:
		name := b[2:]
		if len(name) == 0 {
			return sockaddr{}, false
		}
		if name[0] == 0 {
			return sockaddr{unix: strings.ToValidUTF8(string(name[1:]), "?"), abstract: true}, true
		}
		name, _, _ = bytes.Cut(name, []byte{0})
		return sockaddr{unix: strings.ToValidUTF8(string(name), "?")}, true
	}
	return sockaddr{}, false
}

// listening reports whether a TCP socket listens on the port, by the tables of
// a network namespace.
func listening(tables string, port uint16) bool {
	const listen = "0A"
	for _, name := range []string{"/tcp", "/tcp6"} {
		b, err := os.ReadFile(tables + name)
		if err != nil {
			continue
		}
		suffix := fmt.Sprintf(":%04X", port)
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st …
			if f := strings.Fields(line); len(f) > 3 && f[3] == listen && strings.HasSuffix(f[1], suffix) {
				return true
			}
		}
	}
	return false
}

// hostHasAbstract reports whether a process outside listens at the name.
func hostHasAbstract(name string) bool {
	b, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 8 && f[7] == "@"+name {
			return true
		}
	}
	return false
}

// cstring reads a path from the program's memory.
func (o *observer) cstring(pid int, addr uint64) (string, bool) {
	for have := 0; have < len(o.memory); {
		// Up to the end of a page: the next one may not be mapped.
		n := min(len(o.memory)-have, int(4096-(addr+uint64(have))%4096))
		got, err := o.peek(pid, addr+uint64(have), o.memory[have:have+n])
		if err != nil || got == 0 {
			return "", false
		}
		if i := bytes.IndexByte(o.memory[have:have+got], 0); i >= 0 {
			return strings.ToValidUTF8(string(o.memory[:have+i]), "?"), true
		}
		have += got
	}
	return "", false
}

func (o *observer) read(pid int, addr, size uint64) ([]byte, bool) {
	if size == 0 || addr == 0 {
		return nil, false
	}
	b := make([]byte, size)
	n, err := o.peek(pid, addr, b)
	return b[:max(n, 0)], err == nil && n == len(b)
}

func (o *observer) peek(pid int, addr uint64, into []byte) (int, error) {
	local := []unix.Iovec{{Base: &into[0]}}
	local[0].SetLen(len(into))
	return unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(into)}}, 0)
}
