package kube_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
)

// cluster is one in a namespace of the restricted standard, where agents mirror
// what their workers see.
type cluster struct {
	*testing.T
	c *kubetest.Cluster
	d *drivers
	r *remote.Driver
}

// TestAgents runs workers on pods whose node sees nothing of the server's disk.
func TestAgents(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Pods: true})
	d := newDrivers(t, c, kubetest.Namespace)
	r := d.open(t, t.TempDir())
	t.Cleanup(func() { _ = r.Close() })
	for _, s := range []struct {
		name string
		test func(c *cluster)
	}{
		{"a gang is mirrored there and back", (*cluster).mirrored},
		{"out of memory", (*cluster).memory},
		{"an image that is absent", (*cluster).absent},
		{"the API server is killed", (*cluster).server},
		{"the kubelet is killed", (*cluster).kubelet},
		{"the node is lost", (*cluster).node},
	} {
		t.Run(s.name, func(t *testing.T) { s.test(&cluster{t, c.With(t), d, r}) })
	}
}

func (c *cluster) check(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) spec(script string) engine.Spec {
	c.Helper()
	dir := c.TempDir()
	return engine.Spec{
		ID: id.New("att"), Project: "test", Command: []string{"/bin/sh", "-c", script}, Dir: dir, Isolation: "container", Image: c.d.image,
		Env: map[string]string{"PATH": "/usr/bin:/bin", "HERE": dir}, Mounts: []engine.Mount{{Path: dir, Writable: true, Role: engine.Output}},
		Options: map[string]string{"pull": "never", "unreachable_after": "1s"},
	}
}

func (c *cluster) start(spec engine.Spec) engine.Handle {
	c.Helper()
	h, err := c.r.Start(c.Context(), spec)
	c.check(err)
	c.Cleanup(func() {
		ctx := context.WithoutCancel(c.Context())
		c.check(c.r.Stop(ctx, h, 0))
		c.check(c.r.Forget(ctx, h))
	})
	return h
}

func (c *cluster) running(h engine.Handle) {
	c.Helper()
	c.c.Until("the workers", func() bool {
		st, err := c.r.Status(c.Context(), h)
		c.check(err)
		if st.State == engine.Ended || st.State == engine.Lost {
			c.Fatalf("%+v\n%s", st, c.log(h))
		}
		return st.State == engine.Running && strings.Contains(c.log(h), "ready")
	})
}

func (c *cluster) wait(h engine.Handle) engine.Status {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), kubetest.Wait)
	defer cancel()
	st, err := c.r.Wait(ctx, h)
	c.check(err)
	return st
}

func (c *cluster) log(h engine.Handle) string {
	c.Helper()
	r, err := c.r.Logs(c.Context(), h, 0, false)
	c.check(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	c.check(err)
	return string(b)
}

func (c *cluster) mirrored() {
	in := c.TempDir()
	c.check(os.WriteFile(filepath.Join(in, "data"), []byte("wörld"), 0o600))
	spec := c.spec(`echo "hello $(cat $IN/data)"; [ "$FALAJ_WORKER_INDEX" != 0 ] || cp $IN/data out; id -u; touch /x 2>&1`)
	spec.Env["IN"] = in
	spec.Mounts = append(spec.Mounts, engine.Mount{Path: in})
	spec.Workers, spec.Launch.Framework, spec.Launch.Command = 2, "plain", spec.Command
	h := c.start(spec)
	st := c.wait(h)
	if st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 1 { // of touch: the root is read-only
		c.Errorf("%+v", st)
	}
	lines := strings.Split(c.log(h), "\n")
	for _, want := range []string{"[0] hello wörld", "[1] hello wörld", "[0] 65532"} {
		if !slices.Contains(lines, want) {
			c.Errorf("%q is not in the log:\n%s", want, strings.Join(lines, "\n"))
		}
	}
	if b, err := os.ReadFile(filepath.Join(spec.Dir, "out")); err != nil || string(b) != "wörld" {
		c.Errorf("what came back: %q %v", b, err)
	}
	members, err := c.r.Members(c.Context(), h)
	if err != nil || len(members) != 2 || members[0].Node != kubetest.Node {
		c.Errorf("%+v %v", members, err)
	}
}

func (c *cluster) memory() {
	spec := c.spec("head -c 500000000 /dev/zero | tail")
	spec.Resources = resource.Amount{Memory: 64 * resource.MiB}
	if st := c.wait(c.start(spec)); st.State != engine.Ended || st.Reason != engine.OutOfMemory {
		c.Errorf("%+v", st)
	}
}

func (c *cluster) absent() {
	spec := c.spec("true")
	spec.Image = "localhost/falaj/absent@sha256:" + strings.Repeat("0", 64)
	if st := c.wait(c.start(spec)); st.State != engine.Ended || st.Reason != engine.NotStarted || !strings.Contains(st.Message, "ErrImageNeverPull") {
		c.Errorf("%+v", st)
	}
}

// server: what runs needs no API server, and its end is not missed.
func (c *cluster) server() { c.outlives(3*time.Second, c.c.KillServer, c.c.StartServer) }

// kubelet: the cluster gives the node up, but its agents still speak.
func (c *cluster) kubelet() { c.outlives(20*time.Second, c.c.KillKubelet, c.c.StartKubelet) }

// outlives has a job end, after some time, while something is away.
func (c *cluster) outlives(d time.Duration, kill, start func()) {
	h := c.start(c.spec(fmt.Sprintf("echo ready; sleep %d; exit 3", d/time.Second)))
	c.running(h)
	kill()
	st := c.wait(h)
	start()
	if st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 3 {
		c.Errorf("%+v", st)
	}
}

func (c *cluster) node() {
	h := c.start(c.spec("echo ready; sleep 1000"))
	c.running(h)
	c.c.FailNode()
	if st := c.wait(h); st.Reason != engine.NodeFailed || !strings.Contains(st.Message, kubetest.Node) {
		c.Errorf("%+v", st)
	}
	c.c.StartNode()
	if st := c.wait(c.start(c.spec("exit 5"))); st.ExitCode != 5 {
		c.Errorf("after the node came back: %+v", st)
	}
}
