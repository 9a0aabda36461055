package inside

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/userns"
	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// workerInside is the worker's own binary, bound read-only: a program that gets
// hold of it (through /proc/PID/exe) cannot write to the one outside.
const workerInside = "/.falaj-worker"

// system is what every program sees of the host, read-only. Symbolic links
// stay links; what does not exist is left out.
var system = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/crypto-policies",
	"/etc/alternatives", "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/protocols", "/etc/services",
	"/etc/fonts", "/etc/OpenCL", "/etc/magic",
	"/sys/devices/system/cpu", "/sys/devices/system/node",
}

// configured is more of that, by pattern: Debian keeps there what a Java runtime
// in /usr does not start without.
const configured = "/etc/java-*-openjdk"

// made are files of our own making.
var made = map[string]string{
	"/etc/passwd": "root:x:0:0:root:/:/usr/sbin/nologin\n" +
		wire.UserName + ":x:1000:1000::/tmp:/bin/sh\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
	"/etc/group":         "root:x:0:\n" + wire.UserName + ":x:1000:\nnogroup:x:65534:\n",
	"/etc/hosts":         "127.0.0.1 localhost " + wire.UserName + "\n::1 localhost\n",
	"/etc/hostname":      wire.UserName + "\n",
	"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
	// Our own answer on port 53 says at once that a name does not exist, and
	// reports the attempt.
	"/etc/resolv.conf": "nameserver 127.0.0.1\noptions attempts:1 timeout:1 ndots:1\n",
}

var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

var deviceLinks = map[string]string{
	"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
}

// tree is a detached copy of a mount, to be attached at path.
type tree struct {
	fd   int
	path string
	dir  bool
}

// builder makes the new root below base.
type builder struct {
	base  string
	root  int // descriptor of base
	trees []tree
}

// buildRoot replaces the root directory by one that has only what the spec
// lists. On return the old root is not reachable.
func buildRoot(spec *wire.Spec) (step string, err error) {
	// Nothing we mount may show outside, nothing mounted outside may show here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "separating mounts", err
	}
	// Process numbers in /proc are those of the old namespace until now.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "mounting /proc", err
	}
	b := &builder{}
	if err := b.collect(spec); err != nil {
		return "collecting mounts", err
	}
	for _, b.base = range []string{"/tmp", "/run", "/mnt", "/var"} {
		if err = unix.Mount("falaj", b.base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m,nr_inodes=65536"); err == nil {
			break
		}
	}
	if err != nil {
		return "mounting a new root", err
	}
	if b.root, err = unix.Open(b.base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return "opening the new root", err
	}
	if err := b.skeleton(spec); err != nil {
		return "building the new root", err
	}
	if err := b.mapOwners(spec); err != nil {
		return "mapping the owners of mounts", err
	}
	for _, t := range b.trees {
		if err := b.attach(t); err != nil {
			return "mounting " + t.path, err
		}
	}
	if err := unix.MountSetattr(b.root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return "making the new root read-only", err
	}
	if err := unix.Chdir(b.base); err != nil {
		return "entering the new root", err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return "changing the root", err
	}
	// The old root is now mounted over the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return "leaving the old root", err
	}
	_ = unix.Close(b.root)
	return "entering the new root", unix.Chdir("/")
}

// collect copies the mounts while their paths can still be seen.
func (b *builder) collect(spec *wire.Spec) error {
	java, _ := filepath.Glob(configured) // the pattern is well-formed
	for _, p := range slices.Concat(system, java) {
		if fi, err := os.Lstat(p); err != nil || fi.Mode()&fs.ModeSymlink != 0 {
			continue // links are made by skeleton
		}
		if err := b.copy(p, p, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
			return err
		}
	}
	b.collectWorker()
	return b.collectGiven(spec)
}

// collectWorker copies the mount of our own binary, which need not have a name
// any more: a newer one may have taken it since we were started.
func (b *builder) collectWorker() {
	if err := b.copy("/proc/self/exe", workerInside, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		b.trees = append(b.trees, tree{fd: -1, path: workerInside})
	}
}

// collectGiven copies devices and the spec's own mounts, which are the last of
// the trees.
func (b *builder) collectGiven(spec *wire.Spec) error {
	for _, d := range append(devices, spec.Devices...) {
		if err := b.copy(d, d, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	for _, m := range spec.Mounts {
		attr := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if !m.Writable {
			attr |= unix.MOUNT_ATTR_RDONLY
		}
		if err := b.copy(m.Path, m.Path, attr); err != nil {
			return err
		}
	}
	return nil
}

// copy clones the mount at from, to appear at to with more restrictions.
func (b *builder) copy(from, to string, attr uint64) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return &fs.PathError{Op: "copying the mount of", Path: from, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr}); err != nil {
		return &fs.PathError{Op: "restricting the mount of", Path: from, Err: err}
	}
	b.trees = append(b.trees, tree{fd: fd, path: to, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR})
	return nil
}

// skeleton makes what is not a copy of a mount.
func (b *builder) skeleton(spec *wire.Spec) error {
	size := strconv.FormatInt(spec.Tmp, 10)
	for _, m := range []struct {
		path, kind, options string
		flags               uintptr
	}{
		{"/proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"/tmp", "tmpfs", "mode=1777,size=" + size, unix.MS_NOSUID | unix.MS_NODEV},
		{"/dev", "tmpfs", "mode=0755,size=64k", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"/dev/shm", "tmpfs", "mode=1777,size=" + size, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		at := b.base + m.path
		if err := os.MkdirAll(at, 0o755); err != nil { //nolint:gosec // Directories of the root are for all to read.
			return err
		}
		if err := unix.Mount(m.kind, at, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s: %w", m.path, err)
		}
	}
	for _, p := range system {
		to, err := os.Readlink(p)
		if err != nil {
			continue
		}
		if err := os.MkdirAll(b.base+path.Dir(p), 0o755); err != nil { //nolint:gosec // As above.
			return err
		}
		if err := os.Symlink(to, b.base+p); err != nil {
			return err
		}
	}
	for p, content := range made {
		if err := os.MkdirAll(b.base+path.Dir(p), 0o755); err != nil { //nolint:gosec // As above.
			return err
		}
		if err := os.WriteFile(b.base+p, []byte(content), 0o644); err != nil { //nolint:gosec // As above.
			return err
		}
	}
	for name, to := range deviceLinks {
		if err := os.Symlink(to, b.base+"/dev/"+name); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/var/tmp", "/run"} {
		if err := os.MkdirAll(b.base+dir, 0o755); err != nil { //nolint:gosec // As above.
			return err
		}
	}
	return nil
}

// mapOwners shows what belongs to the server in the listed mounts as the
// child's own, so that private files can be given without changing their
// owner, and what the child makes belongs to the server.
func (b *builder) mapOwners(spec *wire.Spec) error {
	first := len(b.trees) - len(spec.Mounts)
	if !slices.ContainsFunc(spec.Mounts, func(m wire.Mount) bool { return m.Mapped }) {
		return nil
	}
	namespace, err := ownersNamespace(spec)
	if err != nil {
		return fmt.Errorf("the user namespace of owners: %w", err)
	}
	defer namespace.Close()
	for i, m := range spec.Mounts {
		if !m.Mapped {
			continue
		}
		t := b.trees[first+i]
		err := unix.MountSetattr(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{
			Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd()),
		})
		if err == nil {
			continue
		}
		if !cannotMap(err) {
			return fmt.Errorf("%s: %w", m.Path, err)
		}
		if m.Writable {
			if err := chownTree(t.fd, spec.HostUID); err != nil {
				return err
			}
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(t.fd, &st); err != nil {
			return err
		}
		if need := uint32(0o4); st.Mode&need == 0 {
			return fmt.Errorf("the file system of %s has no id-mapped mounts (%w) and the path is private: make it readable, or keep it on ext4, xfs or btrfs", m.Path, err)
		}
	}
	return nil
}

// ownersNamespace is the one that the caller gave. A server of before this worker
// gives none: then it is made here, as its own worker did.
func ownersNamespace(spec *wire.Spec) (*os.File, error) {
	if spec.Owners == 0 {
		return userns.Hold("/proc/self/exe", spec.HostUID)
	}
	f := os.NewFile(uintptr(spec.Owners), "owners")
	if f == nil {
		return nil, unix.EBADF
	}
	// The kernel has one answer for a wrong descriptor and for a file system that
	// cannot map; after this it means the latter.
	kind, err := unix.IoctlRetInt(spec.Owners, unix.NS_GET_NSTYPE)
	if err != nil {
		return nil, err
	}
	if kind != unix.CLONE_NEWUSER {
		return nil, fmt.Errorf("descriptor %d is another kind of namespace", spec.Owners)
	}
	return f, nil
}

// cannotMap reports whether mount_setattr(2) says that the mount cannot be mapped:
// EINVAL of file systems that do not know how (overlay, NFS), EPERM of mounts that
// are mapped already or belong to another user namespace, the rest of old kernels.
func cannotMap(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}

// chownTree gives a tree to uid without following links.
func chownTree(fd, uid int) error {
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(p, uid, uid)
	})
}

// attach moves a copy to its place, which is made when it is not there.
func (b *builder) attach(t tree) error {
	to, err := b.target(t.path, t.dir)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if t.fd < 0 {
		return copyWorker(to)
	}
	defer unix.Close(t.fd)
	err = unix.MoveMount(t.fd, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if t.path == workerInside && errors.Is(err, unix.ENOENT) { // as above
		return copyWorker(to)
	}
	return err
}

// copyWorker writes our own binary to a file in the new root: what has no name
// cannot be mounted.
func copyWorker(to int) (err error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(to), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, self)
	return errors.Join(err, f.Chmod(0o555), f.Close())
}

// target opens a mount point in the new root; links in the path cannot lead
// out of it.
func (b *builder) target(p string, dir bool) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(b.root, p, how)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if p == "/" {
		return -1, err
	}
	parent, err := b.target(path.Dir(p), true)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	name := path.Base(p)
	if dir {
		err = unix.Mkdirat(parent, name, 0o755)
	} else {
		err = unix.Mknodat(parent, name, unix.S_IFREG|0o644, 0)
	}
	if err != nil {
		return -1, fmt.Errorf("making the mount point %s: %w", strings.TrimPrefix(p, "/"), err)
	}
	return unix.Openat2(b.root, p, how)
}
