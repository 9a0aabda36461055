package inside

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// socketsInside is where the directory of the i-th forward's socket appears in
// a container.
func socketsInside(i int) string { return "/.falaj-net/" + strconv.Itoa(i) }

// Contain prepares the root of a container and becomes the OCI runtime, whose
// container starts with Init. It runs as first process of a pid namespace in a
// mount namespace of its own, so that whoever kills it kills the container, and
// nothing it mounts is seen or left outside. It returns only when it fails.
func Contain() int {
	runtime.LockOSThread() // affinity is the thread's that execs
	spec, err := wire.ReadSpec()
	if err != nil {
		return exitFault
	}
	step, err := contain(spec)
	forbidden := isForbidden(err)
	tell(wire.Message{Fault: &wire.Fault{Step: step, Err: err.Error(), Unsupported: forbidden}})
	return exitFault
}

func contain(spec *wire.Spec) (step string, err error) {
	syscall.Umask(0o022)
	if spec.Image == nil {
		return "reading the spec", fmt.Errorf("mode %s needs an image", wire.ModeContain)
	}
	if err := closeOnExecFrom(wire.FirstFD + spec.Files); err != nil {
		return "closing descriptors", err
	}
	if step, err := joinLimits(spec); err != nil {
		return step, err
	}
	base, step, err := buildImageRoot(spec)
	if err != nil {
		return step, err
	}
	// The limits are ours, joined above. The runtime wants to see some cgroup
	// hierarchy, and has no use for it: it gets one in which it can make nothing,
	// and so leaves nothing behind when it is killed.
	if err := unix.Mount("none", "/sys/fs/cgroup", "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "mounting a cgroup hierarchy", err
	}
	if err := unix.Mount("", "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "making the cgroup hierarchy read-only", err
	}
	config, err := json.Marshal(runtimeConfig(spec, base+"/root"))
	if err != nil {
		return "describing the container", err
	}
	if err := os.WriteFile(base+"/config.json", config, 0o600); err != nil {
		return "describing the container", err
	}
	argv := []string{
		spec.Image.Runtime, "--rootless=true", "--root", base + "/state", "run", "--no-new-keyring",
		"--preserve-fds", strconv.Itoa(wire.FirstFD + spec.Files - wire.SpecFD), "--bundle", base, wire.UserName,
	}
	return "starting " + spec.Image.Runtime, syscall.Exec(spec.Image.Runtime, argv, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"})
}

// buildImageRoot mounts the image with what the spec lists at base/root. The
// image is the lower, read-only layer; what mounts need in it is made in memory.
// Paths are resolved inside the new root, whatever links the image has.
func buildImageRoot(spec *wire.Spec) (base, step string, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", "separating mounts", err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "", "mounting /proc", err
	}
	b := &builder{}
	if err := b.copy(spec.Image.Root, "/low", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return "", "collecting mounts", err
	}
	low := b.trees[0]
	b.trees = nil
	if err := b.collectImage(spec); err != nil {
		return "", "collecting mounts", err
	}
	for _, b.base = range []string{"/tmp", "/run", "/mnt", "/var"} {
		if err = unix.Mount("falaj", b.base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m,nr_inodes=65536"); err == nil {
			break
		}
	}
	if err != nil {
		return "", "mounting a new root", err
	}
	if b.root, err = unix.Open(b.base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return "", "opening the new root", err
	}
	if err := b.attach(low); err != nil {
		return "", "mounting the image", err
	}
	for _, dir := range []string{"/up", "/work", "/root", "/files", "/state"} {
		if err := os.Mkdir(b.base+dir, 0o755); err != nil { //nolint:gosec // The container's root must pass; its content is the image's.
			return "", "building the new root", err
		}
	}
	layers := fmt.Sprintf("lowerdir=%[1]s/low,upperdir=%[1]s/up,workdir=%[1]s/work", b.base)
	if err := unix.Mount("overlay", b.base+"/root", "overlay", unix.MS_NOSUID|unix.MS_NODEV, layers); err != nil {
		return "", "mounting the image", err
	}
	_ = unix.Close(b.root)
	if b.root, err = unix.Open(b.base+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return "", "opening the new root", err
	}
	defer unix.Close(b.root)
	if err := b.fillImage(spec); err != nil {
		return "", "building the new root", err
	}
	if err := b.mapOwners(spec); err != nil {
		return "", "mapping the owners of mounts", err
	}
	for _, t := range b.trees {
		if err := b.attach(t); err != nil {
			return "", "mounting " + t.path, err
		}
	}
	return b.base, "", nil
}

// collectImage copies the mounts while their paths can still be seen.
func (b *builder) collectImage(spec *wire.Spec) error {
	const still = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	for _, p := range []string{"/sys/devices/system/cpu", "/sys/devices/system/node"} {
		if _, err := os.Lstat(p); err != nil {
			continue
		}
		if err := b.copy(p, p, still); err != nil {
			return err
		}
	}
	b.collectWorker()
	for i, f := range spec.Forwards {
		if err := b.copy(path.Dir(f.Socket), socketsInside(i), still|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	return b.collectGiven(spec)
}

// fillImage makes what is not a copy of a mount, and what the image says of
// names and users that we say better.
func (b *builder) fillImage(spec *wire.Spec) error {
	size := strconv.FormatInt(spec.Tmp, 10)
	for _, m := range []struct {
		path, kind, options string
		flags               uintptr
	}{
		{"/tmp", "tmpfs", "mode=1777,size=" + size, unix.MS_NOSUID | unix.MS_NODEV},
		{"/dev", "tmpfs", "mode=0755,size=64k", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"/dev/shm", "tmpfs", "mode=1777,size=" + size, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		at, err := b.target(m.path, true)
		if err != nil {
			return fmt.Errorf("making %s: %w", m.path, err)
		}
		err = unix.Mount(m.kind, "/proc/self/fd/"+strconv.Itoa(at), m.kind, m.flags, m.options)
		_ = unix.Close(at)
		if err != nil {
			return fmt.Errorf("mounting %s: %w", m.path, err)
		}
	}
	if err := b.linkDevices(); err != nil {
		return err
	}
	if proc, err := b.target("/proc", true); err != nil {
		return err
	} else if err := unix.Close(proc); err != nil {
		return err
	}
	files := map[string]string{}
	for _, p := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} {
		files[p] = made[p]
	}
	// The image's own users stay; ours is added where nobody has its number.
	files["/etc/passwd"] = b.withEntry("/etc/passwd", wire.UserName+":x:1000:1000::/tmp:/bin/sh\n")
	files["/etc/group"] = b.withEntry("/etc/group", wire.UserName+":x:1000:\n")
	first := b.trees
	b.trees = nil
	for p, content := range files {
		from := b.base + "/files/" + path.Base(p)
		if err := os.WriteFile(from, []byte(content), 0o644); err != nil { //nolint:gosec // For all to read.
			return err
		}
		if err := b.copy(from, p, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
			return err
		}
	}
	b.trees = append(b.trees, first...) // mapOwners takes the given mounts for the last ones
	return nil
}

// linkDevices makes the links that /dev has everywhere.
func (b *builder) linkDevices() error {
	dev, err := b.target("/dev", true)
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	for name, to := range deviceLinks {
		if err := unix.Symlinkat(to, dev, name); err != nil {
			return err
		}
	}
	return nil
}

// withEntry is a file of the image with a line added, unless the number 1000 is
// somebody's there already.
func (b *builder) withEntry(p, line string) string {
	const most = 1 << 20
	content := ""
	if fd, err := unix.Openat2(b.root, p, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT}); err == nil {
		f := os.NewFile(uintptr(fd), p)
		defer f.Close()
		if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
			if all, err := io.ReadAll(io.LimitReader(f, most)); err == nil {
				content = string(all)
			}
		}
	}
	for entry := range strings.Lines(content) {
		if f := strings.Split(entry, ":"); len(f) > 2 && strings.TrimSpace(f[2]) == strconv.Itoa(wire.UserID) {
			return content
		}
	}
	if content != "" && !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	return content + line
}

// The parts of the OCI runtime specification's config.json that we set.
type (
	ociConfig struct {
		Version  string     `json:"ociVersion"`
		Process  ociProcess `json:"process"`
		Root     ociRoot    `json:"root"`
		Hostname string     `json:"hostname"`
		Mounts   []ociMount `json:"mounts"`
		Linux    ociLinux   `json:"linux"`
	}
	ociProcess struct {
		User            ociUser             `json:"user"`
		Args            []string            `json:"args"`
		Env             []string            `json:"env"`
		Cwd             string              `json:"cwd"`
		Capabilities    map[string][]string `json:"capabilities"`
		NoNewPrivileges bool                `json:"noNewPrivileges"`
	}
	ociUser struct {
		UID int `json:"uid"`
		GID int `json:"gid"`
	}
	ociRoot struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	ociMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options"`
	}
	ociLinux struct {
		UIDs       []ociID           `json:"uidMappings"`
		GIDs       []ociID           `json:"gidMappings"`
		Namespaces []ociNamespace    `json:"namespaces"`
		Sysctl     map[string]string `json:"sysctl"`
		Masked     []string          `json:"maskedPaths"`
		Readonly   []string          `json:"readonlyPaths"`
	}
	ociID struct {
		Container int `json:"containerID"`
		Host      int `json:"hostID"`
		Size      int `json:"size"`
	}
	ociNamespace struct {
		Type string `json:"type"`
	}
)

// runtimeConfig is the container as the OCI runtime sees it. The system call
// filter is not here: Exec sets it, as in every sandbox, because it also hands
// the observer what the program opens.
func runtimeConfig(spec *wire.Spec, root string) ociConfig {
	users := []ociID{{Container: 0, Host: spec.HostRoot, Size: 1}, {Container: wire.UserID, Host: spec.HostUID, Size: 1}}
	c := ociConfig{
		Version: "1.0.2", Hostname: wire.UserName, Root: ociRoot{Path: root, Readonly: true},
		Process: ociProcess{
			User: ociUser{UID: wire.UserID, GID: wire.UserID}, Args: []string{workerInside, wire.ModeInit}, Env: []string{}, Cwd: "/",
			Capabilities: map[string][]string{}, NoNewPrivileges: true,
		},
		Mounts: []ociMount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			// It is there already; named, so that the runtime makes none of its own.
			{Destination: "/dev", Type: "bind", Source: root + "/dev", Options: []string{"rbind"}},
		},
		Linux: ociLinux{
			UIDs: users, GIDs: users,
			Sysctl: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}, // Init answers on port 53
			Masked: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/interrupts",
			},
			Readonly: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	for _, kind := range []string{"user", "pid", "mount", "ipc", "uts", "network"} {
		c.Linux.Namespaces = append(c.Linux.Namespaces, ociNamespace{kind})
	}
	return c
}
