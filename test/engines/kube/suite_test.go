package kube_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote/remotetest"
)

// drivers makes drivers on a cluster: one server for each directory, which
// outlives the drivers that are opened on it.
type drivers struct {
	c          *kubetest.Cluster
	kubeconfig string
	namespace  string
	image      string
	worker     string

	mu      sync.Mutex
	servers map[string]*remotetest.Server
}

func newDrivers(t *testing.T, c *kubetest.Cluster, namespace string) *drivers {
	t.Helper()
	kubeconfig := c.Falaj()
	if namespace != kubetest.Namespace {
		kubeconfig = c.FalajIn(namespace)
	}
	return &drivers{
		c: c, namespace: namespace, kubeconfig: kubeconfig, image: c.Import("busybox"), worker: c.Worker(buildWorker(t)),
		servers: map[string]*remotetest.Server{},
	}
}

// buildWorker builds falaj-worker alone, which takes a second.
func buildWorker(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "falaj-worker")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", file, "github.com/falaj-ml/falaj/cmd/falaj-worker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// open opens the driver of a directory, with the installation of its own.
func (d *drivers) open(t *testing.T, dir string) *remote.Driver {
	t.Helper()
	d.mu.Lock()
	server := d.servers[dir]
	if server == nil {
		server = remotetest.Serve(t, kubetest.Address+":0")
		d.servers[dir] = server
	}
	d.mu.Unlock()
	launcher, err := kube.New(kube.Config{
		Kubeconfig: d.kubeconfig, Namespace: d.namespace, WorkerImage: d.worker,
		Installation: fmt.Sprintf("%.16x", sha256.Sum256([]byte(dir))),
	})
	if err != nil {
		t.Fatal(err)
	}
	driver, err := remote.New(remote.Config{
		Name: "kube", Dir: dir, Launcher: launcher, URL: server.URL, Isolation: "container", Poll: 250 * time.Millisecond, Settle: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Use(driver)
	return driver
}

// lose kills the container of a workload without a word.
func (d *drivers) lose(t *testing.T, h engine.Handle) {
	t.Helper()
	c, ids := d.c.With(t), ""
	c.Until("the container of "+string(h), func() bool {
		ids = c.Kubectl("--namespace", d.namespace, "get", "pods", "--selector", "falaj.dev/launch="+string(h), "-o", "jsonpath={.items[*].status.containerStatuses[*].containerID}")
		return ids != ""
	})
	for container := range strings.FieldsSeq(ids) {
		cmd := exec.CommandContext(t.Context(), "ctr", "--address", filepath.Join(d.c.Dir, "containerd.sock"), "--namespace", "k8s.io",
			"tasks", "kill", "--signal", "SIGKILL", "--all", strings.TrimPrefix(container, "containerd://"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// TestConformance runs the suite of all engines on pods that really run. They
// share the test's directory, since the suite meets its programs at named pipes.
func TestConformance(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Pods: true})
	d := newDrivers(t, c, "shared")
	enginetest.Run(t, enginetest.Options{
		New:       func(t *testing.T, dir string) engine.Driver { t.Helper(); return d.open(t, dir) },
		Lose:      func(t *testing.T, _ string, h engine.Handle) { t.Helper(); d.lose(t, h) },
		Isolation: "container",
		Deadline:  5 * time.Minute, Gangs: true,
		Pool: map[string]string{remote.Shared: "true", "image": d.image, "pull": "never"},
	})
}
