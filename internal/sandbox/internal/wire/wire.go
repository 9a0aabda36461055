// Package wire is what the caller of a sandbox and the falaj-worker inside it
// say to each other: a Spec in a sealed memory file (descriptor SpecFD), and
// one JSON Message per packet on a socket pair (descriptor SocketFD). The
// worker takes the end of that socket as the end of its caller, and ends too.
//
// Both sides come from one build, but while a new one is installed below a server
// that runs: fields are added only, and their zero value is what was before.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Descriptors the worker finds open; the caller's own files follow.
const (
	SpecFD   = 3
	SocketFD = 4
	FirstFD  = 5
)

// The worker's modes, its first argument.
const (
	ModeInit = "init" // first process of the sandbox: builds it, reaps, ends it
	ModeExec = "exec" // last step before the user's program
	ModeHold = "hold" // owns a user namespace until it is killed
	// ModeContain prepares a container's root and becomes the OCI runtime, which
	// starts ModeInit inside.
	ModeContain = "contain"
	// ModeEnter and ModeLook lead into a running sandbox: its argument is an Entry
	// in JSON, and what follows ModeLook is the mode that is run inside.
	ModeEnter = "enter"
	ModeLook  = "look"
)

// The user inside the namespaces.
const (
	UserName = "falaj"
	UserID   = 1000
)

// NotStarted is what ModeEnter says of a sandbox whose program does not run yet.
const NotStarted = "the program has not started"

// Nsenter is where util-linux's program is, or "". The caller's PATH has no say.
func Nsenter() string {
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if info, err := os.Stat(dir + "/nsenter"); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return dir + "/nsenter"
		}
	}
	return ""
}

// MaxMessage bounds a packet.
const MaxMessage = 16 << 10

// Spec is a sandbox as the worker builds it. All sizes are bytes.
type Spec struct {
	Argv     []string          `json:"argv"`
	Env      map[string]string `json:"env"`
	Dir      string            `json:"dir"`
	Confine  bool              `json:"confine"`  // Landlock, seccomp, no new privileges
	Separate bool              `json:"separate"` // own namespaces and root
	HostUID  int               `json:"host_uid"` // the child's user outside; 0 keeps the caller's
	Owners   int               `json:"owners"`   // descriptor of a user namespace in which user 0 is HostUID, for Mapped; 0 is none: the worker makes one
	Mounts   []Mount           `json:"mounts"`
	Devices  []string          `json:"devices"`
	Forwards []Forward         `json:"forwards"`
	Names    []string          `json:"names"`   // hosts whose look-up is no denial
	Cgroups  []string          `json:"cgroups"` // cgroup.procs files to join
	CPUs     []int             `json:"cpus"`
	Nodes    []int             `json:"nodes"`   // of memory; empty is all
	Observe  bool              `json:"observe"` // pass on a seccomp listener
	Tmp      int64             `json:"tmp"`     // size of /tmp and of /dev/shm
	Files    int               `json:"files"`   // how many of the caller's files follow

	OpenFiles int64 `json:"open_files"`
	Processes int64 `json:"processes"`
	FileSize  int64 `json:"file_size"`
	Data      int64 `json:"data"`           // RLIMIT_DATA, where no cgroup bounds memory
	Nice      int   `json:"nice,omitempty"` // added to the caller's niceness

	// Image makes it a container: an OCI runtime makes the namespaces and the
	// root, and HostRoot is what root of the container is outside.
	Image    *Image `json:"image,omitempty"`
	HostRoot int    `json:"host_root,omitempty"`
}

// Image is what a container runs on.
type Image struct {
	Root    string `json:"root"`    // the unpacked image; never written
	Runtime string `json:"runtime"` // runc
	// OneStream says that standard output and error are the same: the runtime
	// copies the two apart, and their order would be lost.
	OneStream bool `json:"one_stream"`
}

// Mount is a host path that is visible inside under the same name.
type Mount struct {
	Path     string `json:"path"`
	Writable bool   `json:"writable"`
	Mapped   bool   `json:"mapped"` // the server's files appear as the child's (id-mapped mount)
}

// Forward is a loopback port inside whose connections go to a unix socket.
type Forward struct {
	Port   int      `json:"port"` // 0 picks a free one
	Socket string   `json:"socket"`
	Env    []string `json:"env"` // variables that are set to http://127.0.0.1:PORT
}

// Entry says which sandbox is entered, and for what.
type Entry struct {
	Init    int      `json:"init"`  // its first process
	Start   uint64   `json:"start"` // of that, in clock ticks since boot
	Cgroups []string `json:"cgroups"`
	Args    []string `json:"args"` // of falaj-worker inside
}

// Message is what the worker tells; one of the fields is set.
type Message struct {
	Listener bool   `json:"listener,omitempty"` // a seccomp listener comes with the packet
	Init     int    `json:"init,omitempty"`     // the init is ready to start the program
	Started  bool   `json:"started,omitempty"`  // the program's process exists
	Lookup   string `json:"lookup,omitempty"`   // a host name was asked for
	Fault    *Fault `json:"fault,omitempty"`    // the program was not started
	Exit     *Exit  `json:"exit,omitempty"`
}

// Fault says why the program was not started.
type Fault struct {
	Step        string `json:"step"`
	Err         string `json:"err"`
	Unsupported bool   `json:"unsupported,omitempty"` // the kernel forbids it
}

// Exit is how the program ended.
type Exit struct {
	Code   int           `json:"code"`
	Signal int           `json:"signal"`
	CPU    time.Duration `json:"cpu"`     // user and system, of the program and all its children
	MaxRSS int64         `json:"max_rss"` // of the largest process
	Killed bool          `json:"killed"`  // by the end of the caller or by its order
}

// ReadSpec reads the Spec that the caller left in descriptor SpecFD.
func ReadSpec() (*Spec, error) {
	f := os.NewFile(SpecFD, "spec")
	if f == nil {
		return nil, errors.New("no spec: this mode is for falaj's own use")
	}
	// ReadAt does not move the offset: init and exec share the descriptor.
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	return DecodeSpec(b)
}

// DecodeSpec reads a Spec and checks what the worker relies on.
func DecodeSpec(b []byte) (*Spec, error) {
	var s Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("decoding the spec: %w", err)
	}
	if len(s.Argv) == 0 || s.Files < 0 || s.Files > 64 || s.HostUID < 0 || s.HostRoot < 0 {
		return nil, errors.New("the spec has no command or a negative number")
	}
	return &s, nil
}
