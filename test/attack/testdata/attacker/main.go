// Attacker is the program of a hostile training job. It tries what a job must
// not be able to do and prints a line for each attempt: "PASS name: why it did
// not work" or "FAIL name: what it got". What it could write below the server's
// directory it calls "WROTE path": that may be its own /tmp. It is linked statically, so that it
// needs nothing of the machine.
//
// Its targets are in the environment: paths, process numbers and addresses of
// the host outside. Secrets are given in reverse, so that its own environment
// does not hold what it looks for.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// patience bounds each attempt to connect.
const patience = 5 * time.Second

func main() {
	switch mode := os.Args[1]; mode {
	case "all":
		files()
		processes()
		rights()
		network()
		api()
		fmt.Println("=== end")
	case "pod":
		pod()
		fmt.Println("=== end")
	case "fork":
		fork()
	case "memory":
		memory()
	default:
		fmt.Println("FAIL mode:", mode)
		os.Exit(2)
	}
}

// try runs one attempt, which is to fail.
func try(name string, attempt func() (got string, err error)) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Printf("FAIL %s: the attacker itself is wrong: %v\n", name, r)
		}
	}()
	got, err := attempt()
	if err != nil {
		fmt.Printf("PASS %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("FAIL %s: %.200q\n", name, got)
}

func env(name string) string {
	v := os.Getenv(name)
	if v == "" {
		panic("no " + name)
	}
	return v
}

func secret() string {
	b := []byte(env("A_SECRET"))
	slices.Reverse(b)
	return string(b)
}

func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(b), err
}

func list(path string, own ...string) (string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if !slices.Contains(own, e.Name()) {
			return path + " shows " + e.Name(), nil
		}
	}
	return "", fmt.Errorf("%s shows only the job's own %v", path, own)
}

func write(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString("x")
	return "wrote " + path, errors.Join(err, f.Close())
}

// tryWrite is try for a path below the server's directory.
func tryWrite(name, path string) {
	if _, err := write(path); err != nil {
		fmt.Printf("PASS %s: %s\n", name, err)
		return
	}
	fmt.Println("WROTE", path)
}

func files() {
	data, output := env("A_DATA"), env("FALAJ_OUTPUT_DIR")
	key, db := filepath.Join(data, "master.key"), filepath.Join(data, "falaj.db")
	try("read the server's key", func() (string, error) { return read(key) })
	try("read the server's database", func() (string, error) { return read(db) })
	try("read the server's write-ahead log", func() (string, error) { return read(db + "-wal") })
	try("read the key by a relative path", func() (string, error) {
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		rel, err := filepath.Rel(dir, key)
		if err != nil {
			return "", err
		}
		return read(rel)
	})
	try("read the key by /proc/self/root", func() (string, error) { return read("/proc/self/root" + key) })
	try("read the key by a link in the output", func() (string, error) {
		link := filepath.Join(output, "link")
		if err := os.Symlink(key, link); err != nil {
			return "", err
		}
		defer os.Remove(link)
		return read(link)
	})
	try("read the key by a link to its directory", func() (string, error) {
		link := filepath.Join(env("FALAJ_CHECKPOINT_DIR"), "link")
		if err := os.Symlink(data, link); err != nil {
			return "", err
		}
		defer os.Remove(link)
		return read(filepath.Join(link, "master.key"))
	})
	try("link the key into the output", func() (string, error) {
		return "linked", os.Link(key, filepath.Join(output, "hard"))
	})
	// The workers of a gang see the directory of their supervisor.
	top, gang := []string{"training"}, []string(nil)
	if os.Getenv("A_GANG") != "" {
		top, gang = append(top, "workloads"), []string{env("FALAJ_ATTEMPT")}
		try("look around in the supervisor's directory", func() (string, error) {
			return list(filepath.Join(data, "workloads", env("FALAJ_ATTEMPT")), "gang")
		})
	}
	try("look around in the data directory", func() (string, error) { return list(data, top...) })
	try("look around in the attempts", func() (string, error) {
		return list(filepath.Join(data, "training", "attempts"), env("FALAJ_ATTEMPT"))
	})
	try("look around in the checkpoints", func() (string, error) {
		return list(filepath.Join(data, "training", "checkpoints"), env("FALAJ_JOB"))
	})
	try("look around in the workloads", func() (string, error) { return list(filepath.Join(data, "workloads"), gang...) })
	tryWrite("write the server's database", db)
	try("read another job's file", func() (string, error) { return read(env("A_OTHER_FILE")) })
	tryWrite("write into another job's directory", filepath.Join(filepath.Dir(env("A_OTHER_FILE")), "mine"))
	try("read another job's token", func() (string, error) { return read(env("A_OTHER_SPEC")) })
	for _, dir := range []string{data, filepath.Join(data, "training"), filepath.Dir(filepath.Dir(output)), filepath.Dir(output)} {
		tryWrite("make a file in "+dir, filepath.Join(dir, "mine"))
	}
	for _, dir := range []string{
		"/", "/usr", "/usr/bin", "/etc", "/dev", "/run", "/proc/sys/kernel", "/root", "/var", "/var/tmp",
	} {
		try("make a file in "+dir, func() (string, error) { return write(filepath.Join(dir, "mine")) })
	}
	for _, file := range []string{"/etc/passwd", "/usr/bin/env", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/1/oom_score_adj"} {
		try("write "+file, func() (string, error) { return write(file) })
	}
	input := env("FALAJ_DATA_ROWS")
	try("make a file beside the input", func() (string, error) { return write(filepath.Join(input, "mine")) })
	try("change the input", func() (string, error) {
		entries, err := os.ReadDir(input)
		if err != nil || len(entries) == 0 {
			panic(fmt.Sprint("there is no input: ", err))
		}
		return write(filepath.Join(input, entries[0].Name()))
	})
	try("read the shadow file", func() (string, error) { return read("/etc/shadow") })
	try("make a device", func() (string, error) {
		return "made", syscall.Mknod(filepath.Join(output, "vda"), syscall.S_IFBLK|0o600, 254<<8)
	})
	try("make a set-user-id program", func() (string, error) {
		path := filepath.Join(output, "suid")
		if _, err := write(path); err != nil {
			panic(err)
		}
		defer os.Remove(path)
		return "made", syscall.Chmod(path, 0o4755)
	})
}

// process is the number of the one that a variable names, "PID STARTED". In a namespace
// with numbers of its own another may have that number: then it is one that nobody has.
func process(name string) string {
	pid, started, _ := strings.Cut(env(name), " ")
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return pid
	}
	fields := string(stat)[strings.LastIndexByte(string(stat), ')')+1:]
	if strings.Fields(fields)[19] != started {
		return "1000000000"
	}
	return pid
}

func processes() {
	server, other := func() string { return process("A_SERVER") }, func() string { return process("A_OTHER") }
	for _, what := range []string{"environ", "mem", "maps", "root/etc/passwd", "cwd/x", "fd/0", "exe"} {
		try("read "+what+" of the server", func() (string, error) { return read("/proc/" + server() + "/" + what) })
	}
	try("read environ of another job", func() (string, error) { return read("/proc/" + other() + "/environ") })
	try("read environ of the sandbox", func() (string, error) { return read("/proc/1/environ") })
	try("find a secret in any environ", func() (string, error) {
		found, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil || len(found) == 0 {
			panic("there is no /proc")
		}
		for _, path := range found {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), secret()) {
				return path, nil
			}
		}
		return "", errors.New("no process with it is visible")
	})
	for name, of := range map[string]func() string{"the server": server, "another job": other, "the sandbox": func() string { return "1" }} {
		try("kill "+name, func() (string, error) {
			pid := number(of())
			if pid == 1 { // the kernel says nothing when it ignores a signal
				if err := syscall.Kill(1, syscall.SIGKILL); err != nil {
					return "", err
				}
				return "", syscall.Kill(os.Getpid(), 0)
			}
			return "killed", syscall.Kill(pid, syscall.SIGKILL)
		})
		try("trace "+name, func() (string, error) { return "traced", syscall.PtraceAttach(number(of())) })
		try("read the memory of "+name, func() (string, error) {
			b := make([]byte, 8)
			local := syscall.Iovec{Base: &b[0], Len: 8}
			remote := local
			_, _, errno := syscall.Syscall6(310, uintptr(number(of())), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0) // process_vm_readv
			return string(b), nothing(errno)
		})
	}
}

// nothing is nil for 0: the attempt worked.
func nothing(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func number(s string) int {
	n := 0
	if _, err := fmt.Sscan(s, &n); err != nil || n <= 0 { // 0 would be our own group
		panic("no process " + s)
	}
	return n
}

func rights() {
	call := func(name string, nr uintptr, args ...uintptr) {
		try(name, func() (string, error) {
			args = append(args, 0, 0, 0, 0, 0, 0)
			r, _, errno := syscall.Syscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5])
			return fmt.Sprint(r), nothing(errno)
		})
	}
	try("mount", func() (string, error) { return "mounted", syscall.Mount("none", "/tmp", "tmpfs", 0, "") })
	try("unmount", func() (string, error) { return "unmounted", syscall.Unmount("/proc", syscall.MNT_DETACH) })
	try("change the root", func() (string, error) { return "changed", syscall.Chroot("/tmp") })
	try("make a user namespace", func() (string, error) { return "made", syscall.Unshare(syscall.CLONE_NEWUSER) })
	try("join the sandbox's namespaces", func() (string, error) {
		f, err := os.Open("/proc/1/ns/net")
		if err != nil {
			return "", err
		}
		_, _, errno := syscall.Syscall(308, f.Fd(), 0, 0) // setns
		return "joined", nothing(errno)
	})
	call("become root", syscall.SYS_SETUID, 0)
	call("bpf", 321)
	call("keys", 250, 0, ^uintptr(2), 0)
	call("io_uring", 425, 8)
	call("userfaultfd", 323)
	call("load a module", 313, ^uintptr(0))
	call("reboot", syscall.SYS_REBOOT, 0xfee1dead, 672274793, 0)
	try("gain rights by sudo", func() (string, error) {
		out, err := exec.Command("/usr/bin/su", "-c", "id").CombinedOutput()
		return string(out), err
	})
}

func network() {
	dial := func(name, network, address string) {
		try(name, func() (string, error) {
			c, err := net.DialTimeout(network, address, patience)
			if err != nil {
				return "", err
			}
			defer c.Close()
			if network != "udp" {
				return "connected", nil
			}
			_, err = c.Write([]byte("x"))
			return "sent", err
		})
	}
	closed, open := env("A_CLOSED"), env("A_OPEN")
	dial("connect to a service of the host", "tcp", closed)
	dial("connect to the server itself", "tcp", env("A_API"))
	dial("connect to an address that only the proxy may reach", "tcp", open)
	dial("connect outside", "tcp", "192.0.2.1:443")
	dial("connect outside by IPv6", "tcp", "[2001:db8::1]:443")
	dial("ask the metadata service", "tcp", "169.254.169.254:80")
	dial("send a datagram outside", "udp", "192.0.2.9:53")
	dial("connect to a socket of the host", "unix", env("A_SOCKET"))
	dial("connect to a name", "tcp", "attack.invalid:443")
	try("send packets", func() (string, error) {
		fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0x300)
		return fmt.Sprint(fd), err
	})

	proxy := strings.TrimPrefix(env("HTTP_PROXY"), "http://")
	_, port, _ := net.SplitHostPort(closed)
	_, openPort, _ := net.SplitHostPort(open)
	if answer, err := tunnel(proxy, open); err != nil || !strings.Contains(answer, "open") {
		fmt.Printf("FAIL the way that is allowed does not work: %q %v\n", answer, err)
	}
	for _, target := range []string{
		closed, "localhost:" + port, "localhost:" + openPort, "[::ffff:127.0.0.1]:" + port, "[::1]:" + port, "0.0.0.0:" + port, "127.1:" + port,
		"192.0.2.1:443", "attack.invalid:443", "169.254.169.254:80", open + "@" + closed,
	} {
		try("tunnel to "+target, func() (string, error) { return tunnel(proxy, target) })
	}
	for name, request := range map[string]string{
		"an address":            "GET http://" + closed + "/ HTTP/1.1\r\nHost: " + closed + "\r\n\r\n",
		"an address as a user":  "GET http://" + open + "@" + closed + "/ HTTP/1.1\r\nHost: " + open + "\r\n\r\n",
		"a file":                "GET file://" + env("A_DATA") + "/master.key HTTP/1.1\r\nHost: " + open + "\r\n\r\n",
		"a second request":      "POST http://" + open + "/ HTTP/1.1\r\nHost: " + open + "\r\nContent-Length: 0\r\n\r\nGET http://" + closed + "/ HTTP/1.1\r\nHost: " + closed + "\r\n\r\n",
		"another scheme":        "GET ftp://" + closed + "/ HTTP/1.1\r\nHost: " + closed + "\r\n\r\n",
		"the proxy's own place": "GET / HTTP/1.1\r\nHost: " + closed + "\r\n\r\n",
	} {
		try("forward to "+name, func() (string, error) {
			c, err := net.DialTimeout("tcp", proxy, patience)
			if err != nil {
				panic(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Second))
			if _, err := io.WriteString(c, request); err != nil {
				return "", err
			}
			all, _ := io.ReadAll(c) // the proxy may keep it open; who is called counts the calls, too
			if bytes.Contains(all, []byte("closed")) {
				return string(all), nil
			}
			first, _, _ := strings.Cut(string(all), "\r\n")
			return "", fmt.Errorf("the last word is %q", first)
		})
	}
}

// tunnel asks the proxy for a tunnel and reads what comes.
func tunnel(proxy, target string) (string, error) {
	c, err := net.DialTimeout("tcp", proxy, patience)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(4 * patience))
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		return "", err
	}
	r := bufio.NewReader(c)
	answer, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	if !strings.Contains(answer, " 200") {
		return "", errors.New(strings.TrimSpace(answer))
	}
	rest, _ := io.ReadAll(r)
	return string(rest), nil
}

// api uses the attempt's token for what it is not meant for.
func api() {
	fmt.Println("TOKEN", env("FALAJ_TOKEN"))
	base := env("FALAJ_URL")
	p := env("FALAJ_PROJECT")
	for _, r := range []struct{ name, method, path, body string }{
		{"read the audit log", "GET", "/api/v1/audit", ""},
		{"export the audit log", "GET", "/api/v1/audit/export", ""},
		{"make a token", "POST", "/api/v1/tokens", `{"project":"` + p + `","name":"mine","role":"admin","expires_in":"24h"}`},
		{"list the project's tokens", "GET", "/api/v1/tokens?project=" + p, ""},
		{"read another project", "GET", "/api/v1/projects/secret", ""},
		{"read another project's jobs", "GET", "/api/v1/projects/secret/jobs", ""},
		{"submit a job", "POST", "/api/v1/projects/" + p + "/jobs", `{"name":"more","spec":{"command":["/bin/true"]}}`},
		{"submit a job elsewhere", "POST", "/api/v1/projects/secret/jobs", `{"name":"more","spec":{"command":["/bin/true"]}}`},
		{"read another job's log", "GET", "/api/v1/projects/" + p + "/jobs/" + env("A_OTHER_JOB") + "/logs", ""},
		{"cancel another job", "POST", "/api/v1/projects/" + p + "/jobs/" + env("A_OTHER_JOB") + "/cancel", "{}"},
		{"make a project", "POST", "/api/v1/apply", "{api_version: falaj/v1, kind: Project, name: mine}"},
		{"deploy", "POST", "/api/v1/apply", "{api_version: falaj/v1, kind: Deployment, name: mine, project: " + p + ", spec: {model: tiny}}"},
		{"read data of the project", "POST", "/api/v1/projects/" + p + "/query", `{"sql":"SELECT * FROM others"}`},
		{"traverse by an artifact's path", "GET", "/api/2.0/mlflow-artifacts/artifacts/..%2f..%2f..%2fmaster.key", ""},
		{"traverse by a run's path", "GET", "/get-artifact?path=../../../master.key&run_uuid=" + env("MLFLOW_RUN_ID"), ""},
		{"store above the run's artifacts", "PUT", "/api/2.0/mlflow-artifacts/artifacts/" + env("MLFLOW_RUN_ID") + "/..%2f..%2f..%2f..%2fmine", "x"},
	} {
		try(r.name, func() (string, error) {
			req, err := http.NewRequest(r.method, base+r.path, strings.NewReader(r.body))
			if err != nil {
				panic(err)
			}
			if u, err := url.Parse(base + r.path); err != nil {
				panic(err)
			} else {
				req.URL = u
			}
			req.Header.Set("Authorization", "Bearer "+env("FALAJ_TOKEN"))
			if r.body != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			resp, err := (&http.Client{Transport: &http.Transport{}, Timeout: 6 * patience}).Do(req)
			if err != nil {
				panic(err) // the API is what a job is given
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
			if resp.StatusCode >= 400 && resp.StatusCode < 500 {
				return "", fmt.Errorf("%d %s", resp.StatusCode, b)
			}
			return fmt.Sprintf("%d %s", resp.StatusCode, b), nil
		})
	}
}

// fork makes children that make children, until the limits or the time-out end it.
func fork() {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	fmt.Println("forking")
	for {
		cmd := exec.Command(self, "fork")
		cmd.Stdout = nil
		_ = cmd.Start()
	}
}

// memory takes memory until it is ended.
func memory() {
	fmt.Println("taking memory")
	var held [][]byte
	for range 1 << 10 {
		b := make([]byte, 4<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Println("FAIL memory: it got", len(held)*4, "MiB")
}
