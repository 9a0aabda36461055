// Package sandbox runs a program as another process that is not us: without
// our environment, files, network, rights or unbounded resources.
//
// Parts:
//   - sandbox.go: Level, Policy and what they promise.
//   - command.go: Command and Cmd, an exec.Cmd whose child is confined.
//   - owners.go: what shows the owners of mounts as the child.
//   - container.go: the same in the root of an OCI image, by runc.
//   - enter.go: a look into what runs.
//   - probe.go: what this kernel permits, in words.
//   - cgroup.go: memory, CPU and process limits by cgroup v1 or v2.
//   - observe.go: reports what the program tried to reach and may not.
//   - inside/: runs in the child, in the falaj-worker binary.
//   - shim/: keeps a program running and recorded while the server restarts.
//   - egress/: the HTTP proxy that is the only way out of the network.
//
// How a child starts. The caller starts `falaj-worker init` with a description
// in a memory file. At level sandbox, init is the first process of new user,
// mount, pid, ipc, uts and network namespaces: it builds a root directory of
// only what the Policy lists, brings up loopback, then starts `falaj-worker
// exec` in one more user namespace that has no rights over the others, gives up
// its own rights, and stays to reap and to forward. exec sets limits, Landlock
// and seccomp, and becomes the program. When init or its caller dies, the
// kernel kills everything inside.
//
// Guarantees at level Sandbox: only the listed mounts and a minimal read-only
// system are visible; processes outside are neither visible nor reachable; no
// packet leaves but through the listed forwards; the child has no capability,
// can gain none, and is another user when the caller is root.
//
// The caller owes: mounts that hold no secret, and a call of Wait.
package sandbox

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Level is how well a program is kept apart, from least to most.
type Level uint8

// The levels. Container is reached with an Image; Node by other engines than
// this package.
const (
	None      Level = iota // a child with its own environment, nothing more
	Process                // also: limits, no new privileges, a seccomp filter, Landlock where the kernel has it
	Sandbox                // also: own namespaces and an own root directory
	Container              // as Sandbox, by an OCI runtime or a pod, in the root of an image
	Node                   // a machine of its own
)

var levelNames = []string{"none", "process", "sandbox", "container", "node"}

// String is the name used in manifests.
func (l Level) String() string {
	if int(l) < len(levelNames) {
		return levelNames[l]
	}
	return "none"
}

// ParseLevel is the inverse of String; fault.Invalid for another name.
func ParseLevel(s string) (Level, error) {
	if i := slices.Index(levelNames, s); i >= 0 {
		return Level(i), nil //nolint:gosec // An index into five names.
	}
	return None, fault.New(fault.Invalid, "%q is not an isolation level", s).
		WithHint("Use one of %s.", strings.Join(levelNames, ", "))
}

// MarshalText writes the name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a name.
func (l *Level) UnmarshalText(b []byte) (err error) {
	*l, err = ParseLevel(string(b))
	return err
}

// Mount makes a host path visible inside under the same name.
type Mount struct {
	Path     string `json:"path"`
	Writable bool   `json:"writable,omitempty"`
}

// Limits bound a program. Zero means the default in brackets.
type Limits struct {
	CPU       resource.CPU   `json:"cpu,omitempty"`        // time per time, by cgroup [no limit]
	CPUs      []int          `json:"cpus,omitempty"`       // cores it may run on [all]
	Nodes     []int          `json:"nodes,omitempty"`      // NUMA nodes of the memory that it may use [all]
	Memory    resource.Bytes `json:"memory,omitempty"`     // by cgroup, else RLIMIT_DATA per process [no limit]
	Processes int            `json:"processes,omitempty"`  // and threads [4096]
	OpenFiles int            `json:"open_files,omitempty"` // per process [65536]
	FileSize  resource.Bytes `json:"file_size,omitempty"`  // of one file [no limit]
	Tmp       resource.Bytes `json:"tmp,omitempty"`        // of /tmp and of /dev/shm, in memory [half of Memory, 1 GiB without]
	Wall      time.Duration  `json:"wall,omitempty"`       // then it is killed [no limit]
	// Yields says that the program does bulk work: what answers single requests gets
	// the processors before it (5 nicer than the caller, and a third of a group's weight).
	Yields bool `json:"yields,omitempty"`
}

// Forward is a loopback port inside whose connections go to a unix socket
// outside. The socket is dialled per connection, so a server that restarts and
// listens again at the same path is found again.
type Forward struct {
	Port   int      `json:"port"` // inside; at level Process a free port is taken instead
	Socket string   `json:"socket"`
	Env    []string `json:"env,omitempty"` // variables that are set to http://127.0.0.1:PORT
}

// Network is all that the program may reach. Nothing else answers at level
// Sandbox; lower levels do not separate the network.
type Network struct {
	Forwards []Forward `json:"forwards,omitempty"`
	Names    []string  `json:"names,omitempty"` // hosts reachable by a forwarded proxy: asking for their address is no denial
}

// Policy says what a program gets.
type Policy struct {
	Level Level  `json:"level"`
	Name  string `json:"name,omitempty"` // names the cgroup; letters, digits, '_' and '-'; empty picks one
	// Owner is the installation whose server starts the program, as lower-case
	// hexadecimal digits: what a killed server leaves of it, SweepCgroups removes.
	// Programs that outlive their server have none.
	Owner   string            `json:"owner,omitempty"`
	Dir     string            `json:"dir,omitempty"`    // working directory, inside a mount; empty is /tmp
	Env     map[string]string `json:"env,omitempty"`    // complete
	Mounts  []Mount           `json:"mounts,omitempty"` // besides the read-only system (/usr, /lib, …)
	Devices []string          `json:"devices,omitempty"`
	Limits  Limits            `json:"limits"`
	Network Network           `json:"network"`

	// UID is the child's user and group outside when the caller is root: files
	// it makes in id-mapped mounts belong to the caller, elsewhere to UID.
	// 0 is DefaultUID.
	UID int `json:"uid,omitempty"`

	// Image is what the program sees instead of the host's system; it goes with
	// level Container, and only with that.
	Image *Image `json:"image,omitempty"`

	// Guard lists paths. An attempt to open one of them, or a path below, is reported,
	// unless a mount permits it.
	Guard []string `json:"guard,omitempty"`
}

// Image is an unpacked OCI image.
type Image struct {
	Root    string `json:"root"`    // its root directory; never written
	Runtime string `json:"runtime"` // path of runc
}

// DefaultUID is the user of children of a root caller that asks for no other.
// It and the numbers after it are in a range that systemd documents as unused.
const (
	DefaultUID  = 1_900_000_000
	maxUID      = DefaultUID + 1<<20
	defaultTmp  = resource.GiB
	minTmp      = 16 * resource.MiB
	maxMounts   = 256
	maxForwards = 8
	maxName     = 100
	nameChars   = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
)

// Denial is an attempt to reach what the policy does not give.
type Denial struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`   // "open", "connect"
	Target string    `json:"target"` // path, address or host name
	PID    int       `json:"pid"`    // outside; 0 when not known
}

// reserved are made by the sandbox itself; mounts may be below some of them.
var reserved = []string{"/proc", "/dev", "/sys", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/tmp", "/run"}

// Validate refuses a policy that no level can keep; fault.Invalid.
func (p *Policy) Validate() error {
	switch {
	case p.Level == Container && p.Image != nil:
		if !filepath.IsAbs(p.Image.Root) || !filepath.IsAbs(p.Image.Runtime) {
			return fault.New(fault.Invalid, "the image and the runtime of a container need absolute paths")
		}
	case p.Image != nil:
		return fault.New(fault.Invalid, "isolation %s cannot be combined with an image, which needs container", p.Level)
	case p.Level > Sandbox:
		return fault.New(fault.Unsupported, "a local process cannot have isolation %s", p.Level).
			WithHint("Use a pool whose engine has that isolation, or ask for sandbox.")
	}
	if strings.Trim(p.Owner, "0123456789abcdef") != "" || len(p.Owner) > 32 {
		return fault.New(fault.Invalid, "owner %.40q is not at most 32 lower-case hexadecimal digits", p.Owner)
	}
	if len(p.Mounts) > maxMounts || len(p.Network.Forwards) > maxForwards {
		return fault.New(fault.TooLarge, "at most %d mounts and %d forwards are allowed", maxMounts, maxForwards)
	}
	for _, m := range p.Mounts {
		switch {
		case !filepath.IsAbs(m.Path) || filepath.Clean(m.Path) != m.Path || strings.ContainsRune(m.Path, 0):
			return fault.New(fault.Invalid, "mount %q is not a clean absolute path", m.Path)
		case m.Path == "/" || slices.Contains(reserved, m.Path):
			return fault.New(fault.Invalid, "mount %q would replace a part of the system", m.Path)
		case within(m.Path, "/proc") || within(m.Path, "/sys") || within(m.Path, "/dev") && !within(m.Path, "/dev/shm"):
			return fault.New(fault.Invalid, "mount %q is in a file system of the kernel", m.Path)
		}
	}
	for _, d := range p.Devices {
		if filepath.Clean(d) != d || !within(d, "/dev") {
			return fault.New(fault.Invalid, "device %q is not a path in /dev", d)
		}
	}
	for k, v := range p.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fault.New(fault.Invalid, "environment variable %q has an invalid name or value", k)
		}
	}
	if p.Dir != "" && (!filepath.IsAbs(p.Dir) || filepath.Clean(p.Dir) != p.Dir) {
		return fault.New(fault.Invalid, "working directory %q is not a clean absolute path", p.Dir)
	}
	if p.UID < 0 || p.UID > 0 && (p.UID < DefaultUID || p.UID >= maxUID) {
		return fault.New(fault.Invalid, "user %d is not one of those reserved for sandboxes", p.UID)
	}
	if len(p.Name) > maxName || strings.Trim(p.Name, nameChars) != "" {
		return fault.New(fault.Invalid, "sandbox name %q can contain only letters, digits, '_' and '-'", p.Name)
	}
	l := p.Limits
	if l.CPU < 0 || l.Memory < 0 || l.Processes < 0 || l.OpenFiles < 0 || l.FileSize < 0 || l.Tmp < 0 || l.Wall < 0 {
		return fault.New(fault.Invalid, "limits must not be negative")
	}
	return nil
}

// within reports whether path is dir or below it; both clean and absolute.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}
