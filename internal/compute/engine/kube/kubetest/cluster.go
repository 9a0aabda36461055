package kubetest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/repotest"
)

// Wait is the longest that anything is waited for: generous, since tests run
// beside others on a small machine.
const Wait = 2 * time.Minute

const (
	serverURL  = "https://127.0.0.1:6443"
	etcdURL    = "http://127.0.0.1:2379"
	adminToken = "kubetest-admin"
)

// Options of a cluster.
type Options struct {
	Pods bool // a node that runs pods: containerd and a kubelet
	KWOK bool // what plays the nodes that Simulate makes
}

// Cluster is a Kubernetes that runs. There is one at a time in a process.
type Cluster struct {
	Dir        string
	Kubeconfig string // the administrator's

	tb        testing.TB
	bin       string
	root      string // of the repository
	processes map[string]*process
}

// process is one that the test started, and waits for.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// one at a time: their ports are the same.
var one sync.Mutex

// Start starts a cluster that stops when the test ends.
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	Need(tb)
	one.Lock()
	root, err := repotest.Root()
	if err != nil {
		tb.Fatal(err)
	}
	// Sockets have short names, so the directory does.
	dir, err := os.MkdirTemp("", "kube") //nolint:usetesting // See above; and it is unmounted before it is removed.
	if err != nil {
		tb.Fatal(err)
	}
	c := &Cluster{Dir: dir, Kubeconfig: filepath.Join(dir, "admin.yaml"), tb: tb, bin: filepath.Join(root, ".tmp/kube/bin"), root: root, processes: map[string]*process{}}
	tb.Cleanup(func() {
		c.stop()
		one.Unlock()
	})
	c.must(os.MkdirAll(c.path("log"), 0o750))
	for _, argv := range [][]string{{"genrsa", "-out", c.path("sa.key"), "2048"}, {"rsa", "-in", c.path("sa.key"), "-pubout", "-out", c.path("sa.pub")}} {
		c.run("openssl", argv...)
	}
	c.write("tokens.csv", adminToken+",admin,admin,system:masters\n")
	c.must(os.WriteFile(c.Kubeconfig, []byte(kubeconfig(adminToken)), 0o600))

	c.start("etcd", filepath.Join(c.bin, "etcd"), "--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380")
	c.StartServer()
	c.start("controllers", filepath.Join(c.bin, "kube-controller-manager"), "--kubeconfig", c.Kubeconfig, "--service-account-private-key-file", c.path("sa.key"),
		"--use-service-account-credentials=true", "--leader-elect=false", "--bind-address=127.0.0.1", "--node-monitor-grace-period=8s", "--node-monitor-period=2s",
		"--root-ca-file", c.path("certs/apiserver.crt"))
	c.start("scheduler", filepath.Join(c.bin, "kube-scheduler"), "--kubeconfig", c.Kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1")
	if o.KWOK {
		c.Speak()
	}
	c.Until("the service account default", func() bool {
		_, err := c.try("get", "serviceaccount", "default")
		return err == nil
	})
	if o.Pods {
		c.startNode()
	}
	return c
}

// With is the cluster for a subtest: what fails there fails the subtest.
func (c *Cluster) With(tb testing.TB) *Cluster {
	tb.Helper()
	with := *c
	with.tb = tb
	return &with
}

// StartServer starts the API server, and returns when it is ready.
func (c *Cluster) StartServer() {
	c.tb.Helper()
	c.start("apiserver", filepath.Join(c.bin, "kube-apiserver"), "--etcd-servers", etcdURL, "--bind-address=127.0.0.1", "--advertise-address="+Address, "--secure-port=6443",
		"--cert-dir", c.path("certs"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file", c.path("sa.pub"),
		"--service-account-signing-key-file", c.path("sa.key"), "--service-cluster-ip-range=10.96.0.0/16", "--token-auth-file", c.path("tokens.csv"),
		"--authorization-mode=Node,RBAC", "--allow-privileged=true", "--endpoint-reconciler-type=none", "--enable-admission-plugins=NodeRestriction,PodSecurity")
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // Its certificate is its own.
	defer client.CloseIdleConnections()
	c.Until("the API server", func() bool {
		req, err := http.NewRequestWithContext(c.tb.Context(), http.MethodGet, serverURL+"/readyz", http.NoBody)
		c.must(err)
		req.Header.Set("Authorization", "Bearer "+adminToken)
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK
	})
}

// KillServer ends the API server with SIGKILL.
func (c *Cluster) KillServer() { c.kill("apiserver") }

// Kubectl runs kubectl as the administrator and returns what it printed.
func (c *Cluster) Kubectl(args ...string) string {
	c.tb.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.tb.Fatal(err)
	}
	return out
}

// Apply applies manifests.
func (c *Cluster) Apply(manifests string) {
	c.tb.Helper()
	c.write("apply.yaml", manifests)
	c.Kubectl("apply", "--server-side", "-f", c.path("apply.yaml"))
}

// Falaj applies deploy/kubernetes/rbac.yaml, and returns a kubeconfig of the
// service account that it makes: tests may no more than a real Falaj.
func (c *Cluster) Falaj() string {
	c.tb.Helper()
	return c.account(Namespace, strings.NewReplacer())
}

// FalajIn is Falaj in another namespace, which takes pods that mount directories
// of their node.
func (c *Cluster) FalajIn(namespace string) string {
	c.tb.Helper()
	return c.account(namespace, strings.NewReplacer("namespace: falaj", "namespace: "+namespace, "enforce: restricted", "enforce: privileged",
		"  name: falaj\n  labels", "  name: "+namespace+"\n  labels", "falaj-inventory", "falaj-inventory-"+namespace))
}

func (c *Cluster) account(namespace string, change *strings.Replacer) string {
	c.tb.Helper()
	b, err := os.ReadFile(filepath.Join(c.root, "deploy/kubernetes/rbac.yaml"))
	c.must(err)
	c.Apply(change.Replace(string(b)))
	return c.As(strings.TrimSpace(c.Kubectl("create", "token", "falaj", "--namespace", namespace, "--duration", "2h")))
}

// As writes a kubeconfig with a token.
func (c *Cluster) As(token string) string {
	c.tb.Helper()
	f, err := os.CreateTemp(c.Dir, "*.yaml")
	c.must(err)
	_, err = f.WriteString(kubeconfig(token))
	c.must(errors.Join(err, f.Close()))
	return f.Name()
}

// Namespace is the one of deploy/kubernetes/rbac.yaml.
const Namespace = "falaj"

// Simulate makes a node that KWOK plays. Resources are as in "nvidia.com/gpu": "8".
func (c *Cluster) Simulate(name string, labels, resources map[string]string) {
	c.tb.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Node\nmetadata:\n  name: %s\n  annotations: {kwok.x-k8s.io/node: fake}\n  labels:\n    kubernetes.io/hostname: %[1]s\n", name)
	for k, v := range labels {
		fmt.Fprintf(&b, "    %s: %q\n", k, v)
	}
	b.WriteString("status:\n")
	for _, of := range []string{"allocatable", "capacity"} {
		fmt.Fprintf(&b, "  %s:\n    pods: \"110\"\n", of)
		for k, v := range resources {
			fmt.Fprintf(&b, "    %s: %q\n", k, v)
		}
	}
	c.write("node.yaml", b.String())
	c.Kubectl("create", "-f", c.path("node.yaml"))
	c.Until("node "+name, func() bool { return c.ready(name) })
}

// Speak starts KWOK, which says for simulated nodes that they are ready, and for
// their pods that they run until they are deleted.
func (c *Cluster) Speak() {
	c.tb.Helper()
	c.start("kwok", filepath.Join(c.bin, "kwok"), "--kubeconfig", c.Kubeconfig, "--config", filepath.Join(c.root, ".tmp/kube/stages.yaml"),
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake")
}

// Silence ends KWOK: soon its nodes count as lost.
func (c *Cluster) Silence() { c.kill("kwok") }

// ready says whether a node takes pods.
func (c *Cluster) ready(node string) bool {
	out, err := c.try("get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.spec.taints}`)
	return err == nil && strings.TrimSpace(out) == "True"
}

// Until waits for something to hold.
func (c *Cluster) Until(what string, holds func() bool) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(c.tb.Context(), Wait)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.tb.Fatalf("%s was waited for in vain\n%s", what, c.logs())
		}
	}
}

func kubeconfig(token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, serverURL, token)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

func (c *Cluster) must(err error) {
	c.tb.Helper()
	if err != nil {
		c.tb.Fatal(err)
	}
}

func (c *Cluster) write(name, text string) {
	c.tb.Helper()
	c.must(os.WriteFile(c.path(name), []byte(text), 0o600)) //nolint:gosec // The names are of this package.
}

// run runs a program to its end.
func (c *Cluster) run(program string, args ...string) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.tb.Context()), Wait)
	defer cancel()
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		c.tb.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
}

func (c *Cluster) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.tb.Context()), Wait)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig, "--request-timeout=30s"}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %q: %w: %s", args, err, said.String())
	}
	return out.String(), nil
}

// start starts a program that runs on; its output is in Dir/log.
func (c *Cluster) start(name, program string, args ...string) {
	c.tb.Helper()
	log, err := os.OpenFile(c.path("log/"+name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	c.must(err)
	defer log.Close()
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{})} //nolint:noctx // It runs until it is killed.
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, c.Dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.must(p.cmd.Start())
	c.processes[name] = p
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
}

// kill ends a program with SIGKILL and waits until it is gone.
func (c *Cluster) kill(name string) {
	if p := c.processes[name]; p != nil {
		_ = p.cmd.Process.Kill()
		<-p.done
		delete(c.processes, name)
	}
}

func (c *Cluster) stop() {
	if c.tb.Failed() {
		c.tb.Log(c.logs())
	}
	c.stopNode()
	for _, name := range []string{"kwok", "scheduler", "controllers", "apiserver", "etcd"} {
		c.kill(name)
	}
	if err := errors.Join(c.unplug(), c.unmount(), os.RemoveAll(c.Dir)); err != nil {
		c.tb.Error(err)
	}
}

// logs are the ends of all logs.
func (c *Cluster) logs() string {
	var b strings.Builder
	files, _ := filepath.Glob(c.path("log/*"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "── %s\n%s\n", filepath.Base(f), text[max(0, len(text)-1500):])
	}
	return b.String()
}
