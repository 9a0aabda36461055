// Package kubetest runs a real Kubernetes for tests: etcd, API server, controllers
// and scheduler, and, where a test wants pods that run, containerd and a kubelet;
// KWOK plays nodes that this machine has not.
//
//   - namespaces.go: Main, which a test package's TestMain calls.
//   - cluster.go: Cluster, and what can be done to it.
//   - node.go: the kubelet and its pods.
//
// Everything runs in network, mount and process namespaces of the test's own:
// ports are free, and when the test ends nothing of it is left. Pods reach what
// listens on Address there. A test needs root and what scripts/engines/kube.sh
// installs.
package kubetest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/repotest"
)

// Address is this machine as pods see it, inside the namespaces.
const Address = "10.99.0.1"

// cgroups of all clusters that this process starts, in each hierarchy.
func cgroups() string { return "falaj-kube-" + strconv.Itoa(os.Getpid()) }

// ownedBy is handed to the process inside, which cannot know the number that the
// machine knows it by.
const ownedBy = "FALAJ_KUBETEST_CGROUP"

// Inside says whether this process is where Main put it.
func Inside() bool { return os.Getpid() == 1 }

// Main runs the tests of a package in the namespaces and returns the exit code.
// Where namespaces are not permitted it runs them outside, where Start skips.
func Main(m *testing.M) int {
	if Inside() {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "kubetest:", err)
			return 1
		}
		return m.Run()
	}
	if apart() != "" {
		return m.Run()
	}
	// The child dies with this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		return 1
	}
	cmd := exec.Command("unshare", append([]string{"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", self}, os.Args[1:]...)...) //nolint:noctx,gosec // It lives as long as this process, and is given its arguments.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), ownedBy+"="+cgroups())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	for _, dir := range hierarchies() {
		_ = removeTree(filepath.Join(dir, cgroups()))
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		return 1
	}
	return 0
}

// prepare makes the address that pods reach, and keeps what containerd and CNI
// write to fixed places from the machine.
func prepare() error {
	for _, argv := range [][]string{{"ip", "link", "set", "lo", "up"}, {"ip", "address", "add", Address + "/32", "dev", "lo"}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil { //nolint:noctx // It ends at once.
			return fmt.Errorf("%v: %w: %s", argv, err, out)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return err
	}
	for _, dir := range []string{"/run/containerd", "/run/netns", "/var/lib/cni", "/var/log/containers", "/var/lib/kubelet"} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // As their packages make them.
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", dir, err)
		}
	}
	return nil
}

// Missing says what a cluster lacks here; empty is nothing.
func Missing() string {
	if why := apart(); why != "" {
		return why
	}
	root, err := repotest.Root()
	if err != nil {
		return err.Error()
	}
	for _, f := range []string{
		".tmp/kube/bin/etcd", ".tmp/kube/bin/kube-apiserver", ".tmp/kube/bin/kube-controller-manager", ".tmp/kube/bin/kube-scheduler",
		".tmp/kube/bin/kubelet", ".tmp/kube/bin/kubectl", ".tmp/kube/bin/kwok", ".tmp/kube/stages.yaml", ".tmp/images/stamp",
	} {
		if _, err := os.Stat(filepath.Join(root, f)); err != nil {
			return f + " is missing: run scripts/engines/kube.sh"
		}
	}
	for _, program := range []string{"containerd", "runc", "ctr", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is missing: run scripts/engines/kube.sh"
		}
	}
	return ""
}

// apart says what the namespaces lack here; empty is nothing.
func apart() string {
	if os.Geteuid() != 0 {
		return "namespaces for tests need root; run as root"
	}
	for _, program := range []string{"unshare", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is missing: make engines"
		}
	}
	return ""
}

// Need skips the test where there can be no cluster; where it is asked for, that
// is a failure.
func Need(tb testing.TB) { tb.Helper(); need(tb, Missing()) }

// NeedNamespaces is Need of a test that starts no cluster.
func NeedNamespaces(tb testing.TB) { tb.Helper(); need(tb, apart()) }

func need(tb testing.TB, why string) {
	tb.Helper()
	if why == "" && !Inside() {
		why = "TestMain of this package does not call kubetest.Main"
	}
	if why == "" {
		return
	}
	if os.Getenv("CI") == "true" { //nolint:forbidigo // Of the tests, not of Falaj.
		tb.Fatal(why)
	}
	tb.Skip(why)
}

// FreeAddress is Address with a port that was free when it was asked.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", Address+":0") //nolint:noctx // It ends at once.
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// hierarchies are the directories that hold cgroups: one, or with version 1 one
// for each controller.
func hierarchies() []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for i, d := range dirs {
		dirs[i] = filepath.Dir(d)
	}
	return dirs
}

// removeTree removes a cgroup and those below it, in which nothing may run.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}
