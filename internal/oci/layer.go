package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	maxName  = 4096
)

// unpacker puts layers over each other into a root. A layer is hostile: its
// paths are resolved by the kernel inside the root (RESOLVE_IN_ROOT), whatever
// links earlier entries made, and only the last element is ever made or removed.
type unpacker struct {
	root  int // descriptor of the root directory
	bytes int64
	files int
	left  int // entries that were left out: devices and pipes

	maxBytes int64
	maxFiles int
	layer    map[string]bool // paths that this layer made
}

func newUnpacker(dir string, most resource.Bytes, files int) (*unpacker, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &unpacker{root: fd, maxBytes: int64(most), maxFiles: files}, nil
}

func (u *unpacker) close() { _ = unix.Close(u.root) }

// apply unpacks one layer. Errors: fault.Invalid for what no layer may hold,
// fault.TooLarge over the limits, fault.Exhausted when the disk is full.
func (u *unpacker) apply(layer io.Reader) error {
	u.layer = map[string]bool{}
	r := tar.NewReader(layer)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fault.New(fault.Invalid, "the layer is no tar stream: %w", err)
		}
		if err := u.entry(h, r); err != nil {
			return describe(err, h.Name)
		}
	}
}

// describe names the entry; a full disk is not the layer's fault.
func describe(err error, name string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return diskFull(err)
	}
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	if fault.KindOf(err) == fault.Internal {
		return fault.New(fault.Invalid, "entry %q of the layer: %w", name, err)
	}
	return fault.Wrap(err, "entry %q of the layer", name)
}

func diskFull(err error) error {
	return fault.New(fault.Exhausted, "the disk is full: %w", err).
		WithHint("Free space in the data directory, for example with `falaj env prune`; layers that were pulled whole are not pulled again.")
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := u.count(); err != nil {
		return err
	}
	name, err := cleanName(h.Name)
	if err != nil || name == "" {
		return err
	}
	dir, base := path.Split(name)
	parent, err := u.open(path.Clean("/" + dir))
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		if base == opaque {
			return u.empty(parent, path.Clean("/"+dir))
		}
		if hidden == "" || hidden == "." || hidden == ".." {
			return fault.New(fault.Invalid, "a whiteout of nothing")
		}
		return u.hide(parent, hidden)
	}
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		u.left++
		return u.hide(parent, base) // what was there is replaced, by nothing
	}
	if err := u.clear(parent, base, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	u.layer["/"+name] = true
	switch h.Typeflag {
	case tar.TypeDir:
		err = unix.Mkdirat(parent, base, 0o755)
		if errors.Is(err, unix.EEXIST) {
			err = nil
		}
		if err == nil {
			err = unix.Fchmodat(parent, base, permissions(h)|0o700, 0)
		}
		return err // its times change with what comes into it
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse: //nolint:staticcheck // Old tars have RegA.
		err = u.write(parent, base, h, content)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxName || strings.ContainsRune(h.Linkname, 0) {
			return fault.New(fault.Invalid, "a link to nowhere")
		}
		err = unix.Symlinkat(h.Linkname, parent, base)
	case tar.TypeLink:
		return u.link(parent, base, h.Linkname)
	default:
		return fault.New(fault.Invalid, "type %q is nothing that an image may hold", h.Typeflag)
	}
	if err != nil {
		return err
	}
	// Python compares the time of a source file with that in its compiled form.
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(parent, base, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

// count takes one file or directory off the limit.
func (u *unpacker) count() error {
	if u.files++; u.files > u.maxFiles {
		return fault.New(fault.TooLarge, "the image has more than %d files", u.maxFiles)
	}
	return nil
}

// cleanName is the path of an entry without a leading slash; "" is the root.
func cleanName(name string) (string, error) {
	if len(name) >= maxName || strings.ContainsRune(name, 0) {
		return "", fault.New(fault.Invalid, "the name is too long, or holds a zero byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fault.New(fault.Invalid, "the name leads upwards")
		}
		if len(part) > 255 {
			return "", fault.New(fault.Invalid, "a part of the name is too long")
		}
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

// permissions without set-id and sticky bits.
func permissions(h *tar.Header) uint32 {
	return uint32(h.Mode) & 0o777 //nolint:gosec // Nine bits.
}

// open opens a directory inside the root, and makes what is not there of it;
// what a link to nowhere means is made too.
func (u *unpacker) open(dir string) (int, error) {
	links := 40
	return u.openLinks(dir, &links)
}

func (u *unpacker) openLinks(dir string, links *int) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(u.root, dir, how)
	if !errors.Is(err, unix.ENOENT) || dir == "/" {
		return fd, err
	}
	parent, err := u.openLinks(path.Dir(dir), links)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	base := path.Base(dir)
	to := make([]byte, maxName)
	if n, err := unix.Readlinkat(parent, base, to); err == nil {
		if *links--; *links < 0 {
			return -1, unix.ELOOP
		}
		next := string(to[:n])
		if !path.IsAbs(next) {
			next = path.Join(path.Dir(dir), next)
		}
		return u.openLinks(path.Clean(next), links)
	}
	if err := u.count(); err != nil { // one name may ask for two thousand directories
		return -1, err
	}
	if err := unix.Mkdirat(parent, base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return unix.Openat2(parent, base, &unix.OpenHow{Flags: how.Flags | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_IN_ROOT})
}

// clear removes what a new entry replaces: everything but a directory by a
// directory, whose content stays.
func (u *unpacker) clear(parent int, base string, dir bool) error {
	var st unix.Stat_t
	err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(parent, base, 0)
	}
	if dir {
		return nil
	}
	return u.hide(parent, base)
}

// hide removes an entry with all below it. RemoveAll does not follow links.
func (u *unpacker) hide(parent int, base string) error {
	return archive.Remove("/proc/self/fd/" + strconv.Itoa(parent) + "/" + base)
}

// empty removes what lower layers put into a directory.
func (u *unpacker) empty(fd int, dir string) error {
	entries, err := os.ReadDir("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if u.layer[path.Join(dir, e.Name())] {
			continue
		}
		if err := u.hide(fd, e.Name()); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) write(parent int, base string, h *tar.Header, content io.Reader) error {
	if h.Size < 0 || h.Size > u.maxBytes-u.bytes {
		return fault.New(fault.TooLarge, "the unpacked image has more than %s", resource.Bytes(u.maxBytes).Words())
	}
	fd, err := unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	n, err := io.Copy(f, io.LimitReader(content, h.Size))
	u.bytes += n
	if err == nil && n != h.Size {
		err = fmt.Errorf("%d bytes of %d: %w", n, h.Size, io.ErrUnexpectedEOF)
	}
	if err == nil {
		err = unix.Fchmod(fd, permissions(h))
	}
	return errors.Join(err, f.Close())
}

// link makes a second name of a file that an earlier entry made.
func (u *unpacker) link(parent int, base, to string) error {
	name, err := cleanName(to)
	if err != nil {
		return err
	}
	if name == "" {
		return fault.New(fault.Invalid, "a hard link to the root")
	}
	dir, target := path.Split(name)
	from, err := u.open(path.Clean("/" + dir))
	if err != nil {
		return err
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstatat(from, target, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return fault.New(fault.Invalid, "a hard link to what is no file")
	}
	return unix.Linkat(from, target, parent, base, 0)
}
