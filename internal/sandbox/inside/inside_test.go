package inside

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/seccomp"
	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// run interprets the filter for one call, as the kernel does.
func run(t *testing.T, code []unix.SockFilter, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data[seccomp.OffNr:], nr)
	binary.LittleEndian.PutUint32(data[seccomp.OffArch:], arch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[seccomp.OffArgs+8*i:], a)
	}
	var acc uint32
	for pc := 0; pc < len(code); pc++ {
		in := code[pc]
		branch := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = binary.LittleEndian.Uint32(data[in.K:])
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			branch(acc == in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			branch(acc >= in.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			branch(acc&in.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %d is %#x", pc, in.Code)
		}
	}
	t.Fatal("the filter runs over its end")
	return 0
}

func TestFilter(t *testing.T) {
	t.Parallel()
	const other = 0x40000003 // AUDIT_ARCH_I386
	for _, observe := range []bool{false, true} {
		code := filter(observe)
		seen := uint32(allow)
		if observe {
			seen = notify
		}
		for _, c := range []struct {
			name string
			arch uint32
			nr   uint32
			args []uint64
			want uint32
		}{
			{"read", seccomp.AuditArch, unix.SYS_READ, nil, allow},
			{"another architecture", other, unix.SYS_READ, nil, enosys},
			{"mount", seccomp.AuditArch, unix.SYS_MOUNT, nil, eperm},
			{"the last refused", seccomp.AuditArch, refused[len(refused)-1], nil, eperm},
			{"clone3", seccomp.AuditArch, unix.SYS_CLONE3, nil, enosys},
			{"openat2", seccomp.AuditArch, unix.SYS_OPENAT2, nil, enosys},
			{"fork", seccomp.AuditArch, unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, allow},
			{"thread", seccomp.AuditArch, unix.SYS_CLONE, []uint64{0x3d0f00}, allow},
			{"clone into a user namespace", seccomp.AuditArch, unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | 17}, eperm},
			{"unshare files", seccomp.AuditArch, unix.SYS_UNSHARE, []uint64{unix.CLONE_FILES}, allow},
			{"unshare the network", seccomp.AuditArch, unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWNET}, eperm},
			{"unshare with high bits set", seccomp.AuditArch, unix.SYS_UNSHARE, []uint64{1<<40 | unix.CLONE_NEWNS}, eperm},
			{"chmod", seccomp.AuditArch, unix.SYS_FCHMODAT, []uint64{0, 0, 0o755}, allow},
			{"chmod u+s", seccomp.AuditArch, unix.SYS_FCHMODAT, []uint64{0, 0, 0o4755}, eperm},
			{"fchmod g+s", seccomp.AuditArch, unix.SYS_FCHMOD, []uint64{0, 0o2755}, eperm},
			{"open", seccomp.AuditArch, unix.SYS_OPENAT, []uint64{0, 0, unix.O_RDONLY, 0o7777}, seen}, // the mode is garbage
			{"create", seccomp.AuditArch, unix.SYS_OPENAT, []uint64{0, 0, unix.O_CREAT, 0o644}, seen},
			{"create u+s", seccomp.AuditArch, unix.SYS_OPENAT, []uint64{0, 0, unix.O_CREAT, 0o4755}, eperm},
			{"nameless u+s", seccomp.AuditArch, unix.SYS_OPENAT, []uint64{0, 0, unix.O_TMPFILE, 0o4755}, eperm},
			{"tcp", seccomp.AuditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET}, allow},
			{"unix", seccomp.AuditArch, unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, allow},
			{"netlink", seccomp.AuditArch, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, allow},
			{"vsock", seccomp.AuditArch, unix.SYS_SOCKET, []uint64{unix.AF_VSOCK}, family},
			{"packet", seccomp.AuditArch, unix.SYS_SOCKET, []uint64{unix.AF_PACKET}, family},
			{"ioctl", seccomp.AuditArch, unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, allow},
			{"typing", seccomp.AuditArch, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm},
			{"linux console", seccomp.AuditArch, unix.SYS_IOCTL, []uint64{0, unix.TIOCLINUX}, eperm},
			{"a call of a later kernel", seccomp.AuditArch, 600, nil, enosys},
			{"listmount", seccomp.AuditArch, unix.SYS_LISTMOUNT, nil, enosys},
			{"secret memory", seccomp.AuditArch, unix.SYS_MEMFD_SECRET, nil, enosys},
			{"personality of Linux", seccomp.AuditArch, unix.SYS_PERSONALITY, []uint64{0xffffffff}, allow},
			{"another personality", seccomp.AuditArch, unix.SYS_PERSONALITY, []uint64{0x0400000}, eperm},
			{"connect", seccomp.AuditArch, unix.SYS_CONNECT, nil, seen},
			{"send", seccomp.AuditArch, unix.SYS_SENDTO, []uint64{0, 0, 0, 0, 0, 0}, allow},
			{"send to an address", seccomp.AuditArch, unix.SYS_SENDTO, []uint64{0, 0, 0, 0, 1, 16}, seen},
		} {
			if got := run(t, code, c.arch, c.nr, c.args...); got != c.want {
				t.Errorf("%s (observe %v): %#x, want %#x", c.name, observe, got, c.want)
			}
		}
		for _, nr := range refused {
			if got := run(t, code, seccomp.AuditArch, nr); got != eperm {
				t.Errorf("call %d: %#x", nr, got)
			}
		}
	}
}

// TestFilterWalk asks about every number that a system call can have, and holds what is
// permitted against testdata/filter_ARCH.txt, which -rewrite writes.
func TestFilterWalk(t *testing.T) {
	t.Parallel()
	code := filter(false)
	var b strings.Builder
	for nr := range uint32(1 << 13) {
		var words string
		switch action := run(t, code, seccomp.AuditArch, nr); {
		case action == enosys:
			continue
		case action == eperm && slices.Equal(decisions(false)[nr], block{ret(eperm)}):
			words = "refused"
		case slices.Equal(decisions(false)[nr], block{ret(allow)}):
			words = "allowed"
		default:
			words = "by its arguments"
		}
		fmt.Fprintf(&b, "%d\t%s\n", nr, words)
	}
	for _, nr := range []uint32{1 << 13, 0x40000000, 0x40000000 | unix.SYS_READ, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		if got := run(t, code, seccomp.AuditArch, nr); got != enosys {
			t.Errorf("call %#x: %#x", nr, got)
		}
	}
	file := filepath.Join("testdata", "filter_"+runtime.GOARCH+".txt")
	if *rewrite {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, []byte(b.String()), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the filter permits other calls than %s says; if that is wanted, run with -rewrite:\n%s", file, b.String())
	}
}

var rewrite = flag.Bool("rewrite", false, "write what the filter permits to testdata")

// TestFilterCost holds the number of instructions that a call takes: a search among ranges, no
// list.
func TestFilterCost(t *testing.T) {
	t.Parallel()
	if n := len(filter(true)); n > 1000 {
		t.Errorf("the filter has %d instructions", n)
	}
	for _, nr := range slices.Concat(allowed, allowedHere) {
		if n := steps(filter(true), nr); n > 40 {
			t.Errorf("call %d takes %d instructions", nr, n)
		}
	}
}

// steps counts the instructions until a call is permitted.
func steps(code []unix.SockFilter, nr uint32) (n int) {
	acc := uint32(0)
	for pc := 0; ; pc++ {
		n++
		in := code[pc]
		yes := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = map[uint32]uint32{seccomp.OffNr: nr, seccomp.OffArch: seccomp.AuditArch}[in.K]
			continue
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
			continue
		case unix.BPF_RET | unix.BPF_K:
			return n
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			yes = acc >= in.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			yes = acc == in.K
		}
		if yes {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
}

func TestRefuseLookup(t *testing.T) {
	t.Parallel()
	q := []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07ExAmple\x03com\x00\x00\x01\x00\x01")
	name, answer, ok := refuseLookup(q)
	if !ok || name != "example.com" || answer[0] != 0x12 || answer[1] != 0x34 || answer[2]&0x80 == 0 || answer[3]&0xf != 3 || len(answer) != len(q) {
		t.Errorf("%q %x %v", name, answer, ok)
	}
}

func FuzzRefuseLookup(f *testing.F) {
	f.Add([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01"))
	f.Add([]byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, q []byte) {
		if name, answer, ok := refuseLookup(q); ok && (name == "" || len(answer) > len(q) || answer[2]&0x80 == 0) {
			t.Errorf("%q %x", name, answer)
		}
	})
}

func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"argv":["true"],"mounts":[{"path":"/a"}],"files":1}`))
	f.Add([]byte(`{"argv":[],"files":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := wire.DecodeSpec(b); err == nil && (len(s.Argv) == 0 || s.Files < 0) {
			t.Errorf("%q gave %+v", b, s)
		}
	})
}
