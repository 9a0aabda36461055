package kubetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Node is the name of the node that runs pods.
const Node = "node-0"

// startNode starts containerd and the kubelet and waits until the node takes pods.
func (c *Cluster) startNode() {
	c.tb.Helper()
	c.must(os.MkdirAll(c.path("cni"), 0o750))
	c.write("cni/10-ptp.conflist", fmt.Sprintf(`{"cniVersion":"0.4.0","name":"kubetest","plugins":[{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`, c.path("ipam")))
	pause := c.reference("busybox")
	c.write("containerd.toml", fmt.Sprintf(containerd, c.path("containerd"), c.path("state"), c.path("containerd.sock"), pause, c.path("cni"), c.path("opt")))
	for _, dir := range hierarchies() {
		c.must(os.MkdirAll(filepath.Join(dir, c.cgroup()), 0o750))
	}
	c.write("kubelet.yaml", fmt.Sprintf(kubelet, "/"+c.cgroup(), c.path("containerd.sock"), c.path("podlogs")))
	c.StartNode()
}

// StartNode starts the node's programs, again after FailNode.
func (c *Cluster) StartNode() {
	c.tb.Helper()
	c.start("containerd", "containerd", "--config", c.path("containerd.toml"))
	c.Until("containerd", func() bool {
		return exec.CommandContext(c.tb.Context(), "ctr", "--address", c.path("containerd.sock"), "version").Run() == nil
	})
	c.Import("busybox")
	c.StartKubelet()
}

// StartKubelet starts the kubelet, again after KillKubelet.
func (c *Cluster) StartKubelet() {
	c.tb.Helper()
	c.start("kubelet", filepath.Join(c.bin, "kubelet"), "--kubeconfig", c.Kubeconfig, "--config", c.path("kubelet.yaml"), "--root-dir", c.path("kubelet"),
		"--cert-dir", c.path("kubelet-certs"), "--hostname-override", Node, "--node-ip", Address)
	c.Until("the node", func() bool { return c.ready(Node) })
}

// KillKubelet ends the kubelet alone: pods run on, and nobody hears of them.
func (c *Cluster) KillKubelet() { c.kill("kubelet") }

// FailNode ends everything of the node at once, as when it loses its power.
func (c *Cluster) FailNode() {
	c.tb.Helper()
	c.kill("kubelet")
	c.kill("containerd")
	c.must(c.killPods())
}

// Import hands an image of .tmp/images to the node and returns its reference.
func (c *Cluster) Import(name string) string {
	c.tb.Helper()
	return c.ImportFrom(filepath.Join(c.root, ".tmp/images", name))
}

// ImportFrom hands an OCI layout of scripts/engines/images.py to the node.
func (c *Cluster) ImportFrom(layout string) string {
	c.tb.Helper()
	tar := exec.CommandContext(c.tb.Context(), "tar", "-C", layout, "-c", "oci-layout", "index.json", "blobs")
	in := exec.CommandContext(c.tb.Context(), "ctr", "--address", c.path("containerd.sock"), "--namespace", "k8s.io", "images", "import", "-")
	pipe, err := tar.StdoutPipe()
	c.must(err)
	var said bytes.Buffer
	in.Stdin, in.Stdout, in.Stderr = pipe, &said, &said
	c.must(tar.Start())
	if err := errors.Join(in.Run(), tar.Wait()); err != nil {
		c.tb.Fatalf("importing %s: %v\n%s", layout, err, said.String())
	}
	b, err := os.ReadFile(filepath.Join(layout, "reference"))
	c.must(err)
	return strings.TrimSpace(string(b))
}

// Worker makes an image of a falaj-worker, hands it to the node and returns its
// reference.
func (c *Cluster) Worker(program string) string {
	c.tb.Helper()
	c.run("python3", filepath.Join(c.root, "scripts/engines/images.py"), c.path("images"), "worker", program)
	return c.ImportFrom(c.path("images/worker"))
}

// reference is how an image of .tmp/images is called.
func (c *Cluster) reference(name string) string {
	b, err := os.ReadFile(filepath.Join(c.root, ".tmp/images", name, "reference"))
	c.must(err)
	return strings.TrimSpace(string(b))
}

// cgroup of the node's pods, in each hierarchy.
func (c *Cluster) cgroup() string {
	return os.Getenv(ownedBy) //nolint:forbidigo // From Main.
}

func (c *Cluster) stopNode() {
	c.kill("kubelet")
	if err := c.killPods(); err != nil {
		c.tb.Error(err)
	}
	c.kill("containerd")
}

// killPods kills what runs in the node's cgroups, and the shims, until nothing
// does.
func (c *Cluster) killPods() error {
	for {
		left, err := c.podProcesses()
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// podProcesses are the processes of pods and their shims that have not ended.
func (c *Cluster) podProcesses() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if len(line) == 0 { // ended, and not reaped
			continue
		}
		group, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		shim := strings.Contains(string(line), "containerd-shim") && strings.Contains(string(line), c.Dir)
		if shim || strings.Contains(string(group), "/"+c.cgroup()+"/") {
			all = append(all, pid)
		}
	}
	return all, nil
}

// PodPIDs are the processes of pods whose command line has all words.
func (c *Cluster) PodPIDs(words ...string) []int {
	c.tb.Helper()
	all, err := c.podProcesses()
	c.must(err)
	return slices.DeleteFunc(all, func(pid int) bool {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		return slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(string(line), w) })
	})
}

// unplug removes the interfaces of pods that were killed: the next cluster gives
// their addresses anew, and answers must not go to the old ones.
func (c *Cluster) unplug() error {
	links, err := net.Interfaces()
	for _, l := range links {
		if !strings.HasPrefix(l.Name, "veth") {
			continue
		}
		out, e := exec.Command("ip", "link", "delete", l.Name).CombinedOutput() //nolint:noctx // It ends at once.
		if e != nil && !strings.Contains(string(out), "Cannot find device") {
			err = errors.Join(err, fmt.Errorf("removing %s: %w: %s", l.Name, e, out))
		}
	}
	return err
}

// unmount unmounts what is mounted below Dir.
func (c *Cluster) unmount() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	var mounted []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], c.Dir+"/") {
			mounted = append(mounted, fields[4])
		}
	}
	slices.Reverse(mounted)
	err = lines.Err()
	for _, m := range mounted {
		if e := unix.Unmount(m, unix.MNT_DETACH); e != nil && !errors.Is(e, unix.EINVAL) && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("unmounting %s: %w", m, e))
		}
	}
	return err
}

// Debian's containerd 1.6 with cgroups of either version.
const containerd = `version = 2
root = %q
state = %q
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = %q
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
[plugins."io.containerd.internal.v1.opt"]
  path = %q
`

const kubelet = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
cgroupRoot: %q
failSwapOn: false
address: 127.0.0.1
port: 10250
healthzPort: 0
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://%s
podLogsDir: %s
nodeStatusUpdateFrequency: 3s
imageGCHighThresholdPercent: 100
imageMinimumGCAge: 24h
evictionHard: {memory.available: "100Mi"}
makeIPTablesUtilChains: false
maxPods: 60
registryPullQPS: 0
serializeImagePulls: false
`
