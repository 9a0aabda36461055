// Package ray_test runs jobs on a real Ray: the conformance suite, gangs, and
// what happens when a node or the head goes.
package ray_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/ray"
	"github.com/falaj-ml/falaj/internal/compute/engine/ray/raytest"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote/remotetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

func TestMain(m *testing.M) { os.Exit(raytest.Main(m)) }

// patience bounds what is waited for: a job on Ray takes seconds to start, and
// more on a busy machine.
const patience = 4 * time.Minute

func launcher(t *testing.T, c *raytest.Cluster, installation string) *ray.Launcher {
	t.Helper()
	l, err := ray.New(ray.Config{Address: c.Address, TokenFile: c.TokenFile, Ship: sandboxtest.Worker(t), Installation: installation})
	check(t, err)
	return l
}

// driver serves agents and runs workloads on the cluster.
func driver(t *testing.T, c *raytest.Cluster) *remote.Driver {
	t.Helper()
	s := remotetest.Serve(t, "")
	d, err := remote.New(remote.Config{Name: "ray", Dir: t.TempDir(), Launcher: launcher(t, c, t.Name()), URL: s.URL, Poll: 200 * time.Millisecond, Lease: 20 * time.Second})
	check(t, err)
	t.Cleanup(func() { _ = d.Close() })
	s.Use(d)
	return d
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func spec(id string, script string) engine.Spec {
	return engine.Spec{
		ID: id, Project: "test", Command: []string{"/bin/sh", "-c", script}, Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Resources: resource.Amount{CPU: resource.Cores(1)}, Isolation: "none", Grace: 30 * time.Second,
	}
}

func logs(t *testing.T, d engine.Driver, h engine.Handle) string {
	t.Helper()
	r, err := d.Logs(t.Context(), h, 0, false)
	check(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(t, err)
	return string(b)
}

func wait(t *testing.T, d engine.Driver, h engine.Handle) engine.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	st, err := d.Wait(ctx, h)
	if err != nil {
		now, _ := d.Status(t.Context(), h)
		t.Fatalf("%v; now %+v", err, now)
	}
	return st
}

var (
	node1 = raytest.Node{Name: "n1", CPUs: 4, Labels: map[string]string{"zone": "a"}}
	node2 = raytest.Node{Name: "n2", CPUs: 4, Resources: map[string]float64{"fpga": 2}}
)

// TestRay is one cluster for all, since it takes long to start; what breaks it
// comes last.
func TestRay(t *testing.T) {
	c := raytest.New(t, node1, node2)
	for _, s := range []struct {
		name string
		test func(t *testing.T, c *raytest.Cluster)
	}{
		{"launcher", launches},
		{"conformance", conforms},
		{"falaj", falaj},
		{"a node is lost", losesNode},
		{"the head is lost", losesHead},
	} {
		t.Run(s.name, func(t *testing.T) { s.test(t, c) })
	}
}

func launches(t *testing.T, c *raytest.Cluster) {
	t.Helper()
	t.Run("who may ask", func(t *testing.T) {
		l, err := ray.New(ray.Config{Address: c.Address, Worker: "/no/worker"})
		check(t, err)
		if _, err := l.List(t.Context()); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("without a token: %v", err)
		}
	})

	t.Run("inventory", func(t *testing.T) {
		nodes, err := launcher(t, c, t.Name()).Inventory(t.Context(), nil)
		check(t, err)
		if len(nodes) != 2 || nodes[0].Name != "n1" || nodes[0].Amount.CPU != resource.Cores(4) || nodes[0].Amount.Memory < resource.GiB ||
			nodes[0].Labels["zone"] != "a" || nodes[1].Amount.Accelerators["fpga"] != 2 || nodes[0].Busy != "" {
			t.Errorf("%+v", nodes)
		}
		if nodes, err = launcher(t, c, t.Name()).Inventory(t.Context(), map[string]string{"labels": "zone=a"}); err != nil || len(nodes) != 1 {
			t.Errorf("%+v %v", nodes, err)
		}
	})

	t.Run("a gang", func(t *testing.T) {
		d := driver(t, c)
		work, out := t.TempDir(), t.TempDir()
		check(t, os.WriteFile(filepath.Join(work, "input"), []byte("in\n"), 0o600))
		s := spec("att_gang", fmt.Sprintf("cat %s/input; echo rank $RANK of $WORLD_SIZE; echo $RANK >%s/r$RANK; test -n \"$MASTER_ADDR\"", work, out))
		s.Workers, s.Launch = 2, launch.Spec{Framework: launch.Plain}
		s.Options = map[string]string{"strategy": "STRICT_SPREAD"}
		s.Mounts = []engine.Mount{{Path: work}, {Path: out, Writable: true, Role: engine.Output}}
		h, err := d.Start(t.Context(), s)
		check(t, err)
		st := wait(t, d, h)
		log := logs(t, d, h)
		if st.State != engine.Ended || st.ExitCode != 0 || !strings.Contains(log, "[0] rank 0 of 2") || !strings.Contains(log, "[1] in\n") {
			t.Errorf("%+v %s", st, log)
		}
		members, err := d.Members(t.Context(), h)
		check(t, err)
		if names := []string{members[0].Node, members[1].Node}; !slices.Contains(names, "n1") || !slices.Contains(names, "n2") {
			t.Errorf("%+v", members)
		}
		if b, err := os.ReadFile(filepath.Join(out, "r0")); err != nil || string(b) != "0\n" {
			t.Errorf("%q %v", b, err)
		}
		check(t, d.Forget(t.Context(), h))
	})

	t.Run("on the node that Falaj chose", func(t *testing.T) {
		d := driver(t, c)
		for _, node := range []string{"n1", "n2"} {
			s := spec("att_on_"+node, "true")
			s.Nodes = []string{node}
			h, err := d.Start(t.Context(), s)
			check(t, err)
			if st := wait(t, d, h); st.ExitCode != 0 || st.State != engine.Ended {
				t.Errorf("%+v", st)
			}
			if m, err := d.Members(t.Context(), h); err != nil || m[0].Node != node {
				t.Errorf("%+v %v", m, err)
			}
		}
		s := spec("att_on_none", "true")
		s.Nodes = []string{"n9"}
		h, err := d.Start(t.Context(), s)
		check(t, err)
		if st := wait(t, d, h); st.Reason != engine.NodeFailed || !strings.Contains(st.Message, "n9") {
			t.Errorf("%+v", st)
		}
	})

	t.Run("no room", func(t *testing.T) {
		d := driver(t, c)
		s := spec("att_wide", "true")
		s.Resources.CPU = resource.Cores(50)
		h, err := d.Start(t.Context(), s)
		check(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for ; ; <-tick.C {
			words, err := d.Explain(ctx, h)
			check(t, err)
			if strings.Contains(strings.Join(words, " "), "no node of this Ray cluster can ever fit 1 × (50 CPU)") {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("words %q", words)
			}
		}
		check(t, d.Stop(t.Context(), h, time.Second))
		if st := wait(t, d, h); st.Reason != engine.Stopped {
			t.Errorf("%+v", st)
		}
	})

	t.Run("stopped by somebody else", func(t *testing.T) {
		d := driver(t, c)
		s, out := spec("att_outsider", ""), t.TempDir()
		gate := filepath.Join(t.TempDir(), "gate")
		check(t, mkfifo(gate))
		s.Command[2] = "trap 'echo saved >" + out + "/saved; exit 75' TERM; echo x >" + gate + "; sleep 100000 & wait"
		s.Mounts = []engine.Mount{{Path: out, Writable: true, Role: engine.Output}, {Path: filepath.Dir(gate), Writable: true}}
		s.Options = map[string]string{remote.Shared: "true"}
		h, err := d.Start(t.Context(), s)
		check(t, err)
		if _, err := os.ReadFile(gate); err != nil { // it runs
			t.Fatal(err)
		}
		check(t, launcher(t, c, t.Name()).Stop(t.Context(), s.ID, 0))
		st := wait(t, d, h)
		if st.State != engine.Ended || st.ExitCode != 75 {
			t.Errorf("%+v", st)
		}
		if b, err := os.ReadFile(filepath.Join(out, "saved")); err != nil || string(b) != "saved\n" {
			t.Errorf("%q %v", b, err)
		}
	})

	t.Run("refused", func(t *testing.T) {
		d := driver(t, c)
		s := spec("att_image", "true")
		s.Image = "registry.invalid/x@sha256:" + strings.Repeat("0", 64)
		if _, err := d.Start(t.Context(), s); !fault.Is(err, fault.Unsupported) {
			t.Errorf("an image: %v", err)
		}
		s = spec("att_python", "true")
		s.Options = map[string]string{"python": "/no/such/python"}
		h, err := d.Start(t.Context(), s)
		check(t, err)
		if st := wait(t, d, h); st.Reason != engine.NotStarted || !strings.Contains(st.Message, "python") {
			t.Errorf("%+v", st)
		}
	})
}

// conforms runs the suite of all engines with directories that nodes and server
// share.
func conforms(t *testing.T, c *raytest.Cluster) {
	t.Helper()
	var servers sync.Map
	enginetest.Run(t, enginetest.Options{
		New: func(t *testing.T, dir string) engine.Driver {
			t.Helper()
			s, ok := servers.Load(dir)
			if !ok {
				s, _ = servers.LoadOrStore(dir, remotetest.Serve(t, ""))
			}
			server := s.(*remotetest.Server)
			d, err := remote.New(remote.Config{Name: "ray", Dir: dir, Launcher: launcher(t, c, dir), URL: server.URL, Poll: 500 * time.Millisecond})
			check(t, err)
			server.Use(d)
			return d
		},
		Lose: func(t *testing.T, _ string, h engine.Handle) {
			t.Helper()
			killAgents(t, string(h))
		},
		Isolation: "none", Pool: map[string]string{remote.Shared: "true"}, Deadline: patience, AtOnce: 4, Gangs: true,
	})
}

// losesNode: the workload of a node that fails ends with the node's name, and
// nothing of it starts again.
func losesNode(t *testing.T, c *raytest.Cluster) {
	t.Helper()
	c.Add(t, node2) // falaj had it fail
	d := driver(t, c)
	gates := t.TempDir() // one each: two that write at once to one are heard once
	for _, rank := range []string{"0", "1"} {
		check(t, mkfifo(filepath.Join(gates, rank)))
	}
	s := spec("att_lost", "echo x >"+gates+"/$RANK; sleep 100000")
	s.Workers, s.Launch, s.Options = 2, launch.Spec{Framework: launch.Plain}, map[string]string{"strategy": "STRICT_SPREAD", remote.Shared: "true"}
	s.Mounts = []engine.Mount{{Path: gates, Writable: true}}
	h, err := d.Start(t.Context(), s)
	check(t, err)
	for _, rank := range []string{"0", "1"} {
		if _, err := os.ReadFile(filepath.Join(gates, rank)); err != nil {
			t.Fatal(err)
		}
	}
	c.Fail(t, "n2")
	st := wait(t, d, h)
	if st.Reason != engine.NodeFailed && st.State != engine.Lost || !strings.Contains(st.Message, "n2") {
		t.Errorf("%+v", st)
	}
	t.Logf("%s: %s", st.Reason, st.Message)

	// The node is back: work goes on.
	c.Add(t, node2)
	s.ID, s.Command[2] = "att_again", "echo $RANK"
	if h, err = d.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if st := wait(t, d, h); st.ExitCode != 0 || st.State != engine.Ended {
		t.Errorf("%+v", st)
	}
}

// losesHead: without a head Ray is unavailable, and what ran there has ended.
func losesHead(t *testing.T, c *raytest.Cluster) {
	t.Helper()
	d := driver(t, c)
	gate := filepath.Join(t.TempDir(), "gate")
	check(t, mkfifo(gate))
	s := spec("att_headless", "trap 'exit 75' TERM; echo x >"+gate+"; sleep 100000 & wait")
	s.Grace = time.Second // silence of lease and grace counts as lost
	s.Options = map[string]string{remote.Shared: "true"}
	s.Mounts = []engine.Mount{{Path: filepath.Dir(gate), Writable: true}}
	h, err := d.Start(t.Context(), s)
	check(t, err)
	if _, err := os.ReadFile(gate); err != nil {
		t.Fatal(err)
	}
	c.Fail(t, "head")
	if _, err := d.Start(t.Context(), spec("att_nobody", "true")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
	// The node leaves a head that is gone; its agent saves and reports.
	st := wait(t, d, h)
	if st.State == engine.Running || st.State == engine.Pending {
		t.Errorf("%+v", st)
	}
	t.Logf("%s %s %d: %s", st.State, st.Reason, st.ExitCode, st.Message)
}
