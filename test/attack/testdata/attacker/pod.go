package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// pod tries what a job in a pod on Kubernetes must not be able to do.
func pod() {
	podFiles()
	podProcesses()
	rights()
	podNetwork()
	second()
	api()
}

func podFiles() {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	for _, path := range []string{
		account + "/token", account + "/ca.crt", env("A_OTHER_FILE"), filepath.Join(env("A_DATA"), "master.key"), filepath.Join("/proc/1/root", env("A_DATA"), "master.key"),
		"/etc/shadow", "/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/vda", "/var/lib/kubelet/config.yaml",
	} {
		try("read "+path, func() (string, error) { return read(path) })
	}
	for _, dir := range []string{"/", "/bin", "/usr", "/etc", "/dev", "/run", "/var", "/root", "/falaj", "/falaj/bin", "/proc/sys/kernel", "/sys", "/sys/fs/cgroup"} {
		try("make a file in "+dir, func() (string, error) { return write(filepath.Join(dir, "mine")) })
	}
	for _, file := range []string{"/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/falaj/bin/falaj-worker", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"} {
		try("write "+file, func() (string, error) { return write(file) })
	}
	for _, socket := range []string{env("A_SOCKET"), "/run/containerd/containerd.sock", "/var/run/docker.sock", "/run/crio/crio.sock"} {
		try("speak to "+socket, func() (string, error) {
			c, err := net.DialTimeout("unix", socket, patience)
			if err != nil {
				return "", err
			}
			return "connected", c.Close()
		})
	}
	try("make a device", func() (string, error) {
		return "made", syscall.Mknod(filepath.Join(env("FALAJ_OUTPUT_DIR"), "vda"), syscall.S_IFBLK|0o600, 254<<8)
	})
}

func podProcesses() {
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(found) == 0 {
		panic("there is no /proc")
	}
	try("see a process that is not of this pod", func() (string, error) {
		for _, path := range found {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			for _, program := range []string{"kubelet", "containerd", "falaj\x00up", "httpd"} {
				if bytes.Contains(line, []byte(program)) {
					return string(line), nil
				}
			}
		}
		return "", fmt.Errorf("%d are visible", len(found))
	})
	try("find a secret in any environ", func() (string, error) {
		for _, path := range found {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), secret()) {
				return path, nil
			}
		}
		return "", errors.New("no process with it is visible")
	})
}

func podNetwork() {
	for address := range strings.SplitSeq(env("A_CLOSED"), ",") {
		try("connect to "+address, func() (string, error) {
			c, err := net.DialTimeout("tcp", address, patience)
			if err != nil {
				return "", err
			}
			return "connected", c.Close()
		})
	}
	try("have a datagram answered", func() (string, error) {
		c, err := net.DialTimeout("udp", env("A_DATAGRAM"), patience)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("x")); err != nil {
			return "", err
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		return string(b[:n]), err
	})
	for name, family := range map[string]int{"packets": syscall.AF_PACKET, "raw ICMP": syscall.AF_INET} {
		try("send "+name, func() (string, error) {
			fd, err := syscall.Socket(family, syscall.SOCK_RAW, syscall.IPPROTO_ICMP)
			return fmt.Sprint(fd), err
		})
	}
	// What is allowed works, or all this proves nothing.
	c, err := net.DialTimeout("tcp", env("A_OPEN"), patience)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
		b := make([]byte, 4)
		if _, err = c.Read(b); err == nil && string(b) != "open" {
			err = fmt.Errorf("it says %q", b)
		}
		_ = c.Close()
	}
	if err != nil {
		fmt.Println("FAIL the way that is allowed does not work:", err)
	}
}

// second starts a second agent with all that the first has.
func second() {
	try("start a second agent of this member", func() (string, error) {
		environ, err := os.ReadFile("/proc/1/environ")
		if err != nil {
			return "", err
		}
		cmd := exec.Command("/falaj/bin/falaj-worker", "agent")
		cmd.Env = append(strings.Split(strings.Trim(string(environ), "\x00"), "\x00"), "FALAJ_AGENT_DIR="+filepath.Join(env("FALAJ_SCRATCH_DIR"), "second"))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "cannot run twice") {
			return fmt.Sprintf("%v %s", err, out), nil
		}
		return "", fmt.Errorf("%w: %s", err, out)
	})
}
