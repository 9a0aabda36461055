package kube_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// world is a launcher with the rights of deploy/kubernetes/rbac.yaml. Its pods
// run a program of their image in place of the agent.
type world struct {
	*testing.T
	c     *kubetest.Cluster
	l     *kube.Launcher
	image string
}

// TestLauncher is one cluster for all: a real node for pods that run, and nodes
// that KWOK plays for what this machine has not.
func TestLauncher(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Pods: true, KWOK: true})
	l, err := kube.New(kube.Config{Kubeconfig: c.Falaj(), Namespace: kubetest.Namespace, Installation: "test", Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	image := c.Import("busybox")
	for _, s := range []struct {
		name string
		test func(w *world)
	}{
		{"a gang from start to end", (*world).gang},
		{"images that do not come", (*world).images},
		{"no node is big enough", (*world).unschedulable},
		{"suspended, as by Kueue", (*world).suspended},
		{"a quota", (*world).quota},
		{"GPU, TPU and FPGA on simulated nodes", (*world).accelerators},
		{"preempted", (*world).preempted},
		{"a simulated node is lost", (*world).nodeLost},
		{"the API server is away", (*world).away},
		{"another installation", (*world).others},
	} {
		t.Run(s.name, func(t *testing.T) { s.test(&world{t, c.With(t), l, image}) })
	}
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// launch of workers that run a program of the image.
func (w *world) launch(workers int, program string, options map[string]string) remote.Launch {
	o := map[string]string{"worker_path": "/usr/bin/" + program, "pull": "never"}
	maps.Copy(o, options)
	return remote.Launch{
		ID: id.New("att"), Workers: workers,
		Spec:  engine.Spec{Project: "test", Image: w.image, Options: o, Grace: time.Second},
		Agent: map[string]string{protocol.EnvURL: "http://" + kubetest.Address + ":7070/", protocol.EnvToken: "a secret"},
	}
}

// start starts a launch that is forgotten at the end of the test.
func (w *world) start(l remote.Launch) string {
	w.Helper()
	w.check(w.l.Start(w.Context(), l))
	w.Cleanup(func() {
		w.c.Kubectl("delete", "job,networkpolicy,secret,service", "--namespace", kubetest.Namespace, "--selector", "falaj.dev/launch="+l.ID)
	})
	return l.ID
}

func (w *world) observe(launch string) remote.Observed {
	w.Helper()
	all, err := w.l.Observe(w.Context(), []string{launch})
	w.check(err)
	return all[launch]
}

// until waits for an observation.
func (w *world) until(launch, what string, is func(o remote.Observed) bool) (o remote.Observed) {
	w.Helper()
	w.c.Until(what, func() bool {
		o = w.observe(launch)
		return is(o)
	})
	return o
}

func (w *world) ended(launch string) remote.Observed {
	w.Helper()
	return w.until(launch, "the end", func(o remote.Observed) bool {
		return o.State == engine.Ended || o.State == engine.Lost && o.Reason != ""
	})
}

func (w *world) running(launch string) remote.Observed {
	w.Helper()
	return w.until(launch, "running", func(o remote.Observed) bool { return o.State == engine.Running && len(o.Words) == 0 })
}

// says waits until the words of a pending launch have some.
func (w *world) says(launch, some string) {
	w.Helper()
	w.until(launch, some, func(o remote.Observed) bool {
		return o.State == engine.Pending && strings.Contains(strings.Join(o.Words, "\n"), some)
	})
}

func name(launch string) string { return strings.ToLower(strings.ReplaceAll(launch, "_", "-")) }

func (w *world) kubectl(args ...string) string {
	w.Helper()
	return w.c.Kubectl(append([]string{"--namespace", kubetest.Namespace}, args...)...)
}

func (w *world) gang() {
	l := w.launch(2, "true", nil)
	launch := w.start(l)
	w.check(w.l.Start(w.Context(), l)) // once more makes nothing
	if o := w.ended(launch); o.Reason != engine.Exited || o.Started.IsZero() || o.Ended.Before(o.Started) || !slices.Equal(o.Nodes, []string{kubetest.Node, kubetest.Node}) {
		w.Errorf("%+v", o)
	}
	if pods := strings.Fields(w.kubectl("get", "pods", "--selector", "falaj.dev/launch="+launch, "-o", "name")); len(pods) != 2 {
		w.Errorf("the gang of two had the pods %q", pods)
	}

	// The fence is asserted as an object: the test's network does not enforce it.
	var policy struct {
		Spec struct {
			PolicyTypes []string
			PodSelector struct{ MatchLabels map[string]string }
			Ingress     []json.RawMessage
			Egress      []json.RawMessage
		}
	}
	w.check(json.Unmarshal([]byte(w.kubectl("get", "networkpolicy", name(launch), "-o", "json")), &policy))
	if p := policy.Spec; !slices.Equal(p.PolicyTypes, []string{"Ingress", "Egress"}) || p.PodSelector.MatchLabels["falaj.dev/launch"] != launch ||
		len(p.Ingress) != 1 || len(p.Egress) != 2 || !strings.Contains(string(p.Egress[1]), `"10.99.0.1/32"`) {
		w.Errorf("policy %+v", p)
	}
	if secret := w.kubectl("get", "secret", name(launch), "-o", "jsonpath={.data.FALAJ_AGENT_TOKEN} {.metadata.ownerReferences[0].kind}"); secret != "YSBzZWNyZXQ= Job" {
		w.Errorf("secret %q", secret)
	}

	if list, err := w.l.List(w.Context()); err != nil || !slices.Contains(list, launch) {
		w.Errorf("list %q %v", list, err)
	}
	for range 2 {
		w.check(w.l.Forget(w.Context(), launch))
	}
	if list, err := w.l.List(w.Context()); err != nil || slices.Contains(list, launch) {
		w.Errorf("list %q %v", list, err)
	}
	w.until(launch, "nothing of it", func(o remote.Observed) bool { return o.State == engine.Lost })

	// A failed worker takes the gang with it, and nothing is tried again.
	launch = w.start(w.launch(2, "false", nil))
	if o := w.ended(launch); o.Reason != engine.Exited || !strings.Contains(o.Message, "exit code 1") {
		w.Errorf("%+v", o)
	}

	// Stop ends what runs; the fence stays until it is forgotten.
	l = w.launch(1, "yes", nil)
	l.Spec.Resources = resource.Amount{CPU: 100, Memory: 64 * resource.MiB}
	launch = w.start(l)
	w.running(launch)
	w.check(w.l.Stop(w.Context(), launch, 0))
	w.kubectl("get", "networkpolicy", name(launch))
	w.until(launch, "nothing of it", func(o remote.Observed) bool { return o.State == engine.Lost })
	w.check(w.l.Stop(w.Context(), launch, 0))
}

func (w *world) images() {
	for image, said := range map[string]string{
		"localhost/falaj/absent@sha256:" + strings.Repeat("0", 64): "ErrImageNeverPull",
		"no such:name": "InvalidImageName",
	} {
		l := w.launch(1, "true", nil)
		l.Spec.Image = image
		if o := w.ended(w.start(l)); o.Reason != engine.NotStarted || !strings.Contains(o.Message, said) || !strings.Contains(o.Message, image) {
			w.Errorf("%+v", o)
		}
	}
	// One that is to be pulled is given patience: a second, here.
	l := w.launch(1, "true", map[string]string{"pull": "missing"})
	l.Spec.Image = "127.0.0.1:1/absent:1"
	if o := w.ended(w.start(l)); o.Reason != engine.NotStarted || !strings.Contains(o.Message, "127.0.0.1:1/absent:1") {
		w.Errorf("%+v", o)
	}
	// No such program in the image.
	if o := w.ended(w.start(w.launch(1, "absent", nil))); o.Reason != engine.NotStarted || !strings.Contains(o.Message, "absent") {
		w.Errorf("%+v", o)
	}
}

func (w *world) unschedulable() {
	l := w.launch(1, "true", nil)
	l.Spec.Resources = resource.Amount{CPU: resource.Cores(1000)}
	launch := w.start(l)
	w.says(launch, "Insufficient cpu")
	l = w.launch(1, "true", map[string]string{"zone": "nowhere"})
	w.says(w.start(l), "Kubernetes found no suitable node")
	l = w.launch(1, "true", nil)
	l.Spec.Resources = resource.Amount{Accelerators: map[string]int64{"example.com/none": 1}}
	w.says(w.start(l), "Insufficient example.com/none")
}

func (w *world) suspended() {
	launch := w.start(w.launch(1, "true", map[string]string{"queue": "lq"}))
	w.says(launch, "Kueue's queue lq")
	if q := w.kubectl("get", "job", name(launch), "-o", `jsonpath={.metadata.labels.kueue\.x-k8s\.io/queue-name}`); q != "lq" {
		w.Errorf("queue %q", q)
	}
	w.kubectl("patch", "job", name(launch), "--type=merge", "-p", `{"spec":{"suspend":false}}`) // as Kueue does
	if o := w.ended(launch); o.Reason != engine.Exited {
		w.Errorf("%+v", o)
	}
}

func (w *world) quota() {
	w.c.Apply("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: none, namespace: falaj}\nspec: {hard: {pods: \"0\"}}\n")
	defer w.kubectl("delete", "resourcequota", "none")
	w.says(w.start(w.launch(1, "true", nil)), "exceeded quota")
}

func (w *world) accelerators() {
	simulated := map[string]string{"type": "simulated"}
	for _, n := range []struct{ name, zone, resource, product string }{
		{"gpu-0", "a", "nvidia.com/gpu", "H100"},
		{"gpu-1", "a", "nvidia.com/gpu", "H100"},
		{"gpu-2", "b", "nvidia.com/gpu", "A100"},
		{"tpu-0", "a", "google.com/tpu", ""},
		{"fpga-0", "b", "xilinx.com/fpga-xilinx_u250", ""},
	} {
		labels := map[string]string{"topology.kubernetes.io/zone": n.zone}
		maps.Copy(labels, simulated)
		if n.product != "" {
			labels["nvidia.com/gpu.product"] = n.product
		}
		w.c.Simulate(n.name, labels, map[string]string{"cpu": "64", "memory": "512Gi", n.resource: "8"})
		w.Cleanup(func() { w.c.Kubectl("delete", "node", n.name) })
	}
	want := func(workers int, accelerator string, n int64, options map[string]string) remote.Launch {
		o := map[string]string{"node_selector": "type=simulated"}
		maps.Copy(o, options)
		l := w.launch(workers, "true", o)
		l.Spec.Resources = resource.Amount{CPU: resource.Cores(4), Memory: 16 * resource.GiB, Accelerators: map[string]int64{accelerator: n}}
		return l
	}
	for _, c := range []struct {
		launch remote.Launch
		nodes  []string // sorted
	}{
		{want(2, "google.com/tpu", 4, nil), []string{"tpu-0", "tpu-0"}},
		{want(1, "xilinx.com/fpga-xilinx_u250", 1, nil), []string{"fpga-0"}},
		{want(1, "nvidia.com/gpu", 8, map[string]string{"gpu_product": "A100"}), []string{"gpu-2"}},
		{want(2, "nvidia.com/gpu", 8, map[string]string{"colocate": "topology.kubernetes.io/zone", "zone": "a"}), []string{"gpu-0", "gpu-1"}},
	} {
		o := w.running(w.start(c.launch))
		if slices.Sort(o.Nodes); !slices.Equal(o.Nodes, c.nodes) {
			w.Errorf("%v: on %q", c.launch.Spec.Resources, o.Nodes)
		}
	}
	w.says(w.start(want(1, "nvidia.com/gpu", 1, nil)), "Insufficient nvidia.com/gpu")
	picked := want(1, "google.com/tpu", 0, nil)
	picked.Spec.Nodes = []string{"tpu-0"}
	if o := w.running(w.start(picked)); !slices.Equal(o.Nodes, []string{"tpu-0"}) {
		w.Errorf("Falaj picked tpu-0, and it is on %q", o.Nodes)
	}

	// What others hold is theirs; what we hold is ours to count.
	w.c.Apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: outsider, namespace: default}
spec:
  nodeName: tpu-0
  containers: [{name: c, image: %q, resources: {requests: {cpu: "10"}}}]
`, w.image))
	defer w.c.Kubectl("delete", "pod", "outsider", "--grace-period=0", "--force")
	w.c.Kubectl("taint", "node", "fpga-0", "lab=mine:NoSchedule")
	w.c.Kubectl("cordon", "gpu-2")
	nodes, err := w.l.Inventory(w.Context(), map[string]string{"node_selector": "type=simulated"})
	w.check(err)
	if len(nodes) != 5 {
		w.Fatalf("%+v", nodes)
	}
	by := map[string]engine.Node{}
	for _, n := range nodes {
		by[n.Name] = n
	}
	if n := by["gpu-0"]; n.Down != "" || n.Busy != "" || n.Amount.CPU != resource.Cores(64) || n.Amount.Memory != 512*resource.GiB ||
		n.Amount.Accelerators["nvidia.com/gpu"] != 8 || n.Labels["gpu.model"] != "H100" || n.Labels["zone"] != "a" {
		w.Errorf("%+v", n)
	}
	if n := by["tpu-0"]; n.Amount.CPU != resource.Cores(54) || !strings.Contains(n.Busy, "1 pods of other users hold 10 cpu") {
		w.Errorf("%+v", n)
	}
	if !strings.Contains(by["fpga-0"].Down, "lab=mine") || !strings.Contains(by["gpu-2"].Down, "cordoned") {
		w.Errorf("%+v\n%+v", by["fpga-0"], by["gpu-2"])
	}
	if nodes, err = w.l.Inventory(w.Context(), map[string]string{"zone": "b", "tolerations": "lab=mine:NoSchedule"}); err != nil || len(nodes) != 2 || nodes[0].Down != "" {
		w.Errorf("%+v %v", nodes, err)
	}
}

func (w *world) preempted() {
	w.c.Simulate("small", map[string]string{"type": "small"}, map[string]string{"cpu": "4", "memory": "8Gi"})
	defer w.c.Kubectl("delete", "node", "small")
	w.c.Apply("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: urgent}\nvalue: 1000\n")
	l := w.launch(1, "true", map[string]string{"node_selector": "type=small"})
	l.Spec.Resources = resource.Amount{CPU: resource.Cores(3)}
	launch := w.start(l)
	w.running(launch)
	urgent := w.launch(1, "true", map[string]string{"node_selector": "type=small", "priority_class": "urgent"})
	urgent.Spec.Resources = l.Spec.Resources
	next := w.start(urgent)
	if o := w.ended(launch); o.Reason != engine.Preempted || !strings.Contains(o.Message, "small") {
		w.Errorf("%+v", o)
	}
	// As a kubelet does for a pod that it has ended, and KWOK does not.
	pod := w.kubectl("get", "pods", "--selector", "falaj.dev/launch="+launch, "-o", "name")
	w.kubectl("patch", strings.TrimSpace(pod), "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Failed"}}`)
	w.running(next)
}

func (w *world) nodeLost() {
	w.c.Simulate("weak", map[string]string{"type": "weak"}, map[string]string{"cpu": "4", "memory": "8Gi"})
	defer w.c.Kubectl("delete", "node", "weak")
	launch := w.start(w.launch(1, "true", map[string]string{"node_selector": "type=weak", "unreachable_after": "1s"}))
	w.running(launch)
	w.c.Silence() // nobody speaks for the node any more
	defer w.c.Speak()
	if o := w.ended(launch); o.Reason != engine.NodeFailed || !strings.Contains(o.Message, "weak") {
		w.Errorf("%+v", o)
	}
	nodes, err := w.l.Inventory(w.Context(), map[string]string{"node_selector": "type=weak"})
	if err != nil || len(nodes) != 1 || !strings.Contains(nodes[0].Down, "not ready") {
		w.Errorf("%+v %v", nodes, err)
	}
}

func (w *world) away() {
	launch := w.start(w.launch(1, "true", nil))
	w.c.KillServer()
	_, err := w.l.Observe(w.Context(), []string{launch})
	for what, err := range map[string]error{
		"observe": err, "start": w.l.Start(w.Context(), w.launch(1, "true", nil)), "stop": w.l.Stop(w.Context(), launch, 0), "forget": w.l.Forget(w.Context(), launch),
	} {
		if !fault.Is(err, fault.Unavailable) {
			w.Errorf("%s: %v", what, err)
		}
	}
	w.c.StartServer()
	if o := w.ended(launch); o.Reason != engine.Exited {
		w.Errorf("%+v", o)
	}
}

func (w *world) others() {
	launch := w.start(w.launch(1, "true", nil))
	other, err := kube.New(kube.Config{Kubeconfig: w.c.Kubeconfig, Namespace: kubetest.Namespace, Installation: "other"})
	w.check(err)
	if list, err := other.List(w.Context()); err != nil || len(list) > 0 {
		w.Errorf("another installation's: %q %v", list, err)
	}
	l := w.launch(1, "true", nil)
	l.ID = launch
	if err := other.Start(w.Context(), l); !fault.Is(err, fault.Conflict) {
		w.Errorf("a Job of another installation: %v", err)
	}
	// Without rights the error says what to do.
	token := strings.TrimSpace(w.c.Kubectl("create", "token", "default", "--namespace", "default"))
	nobody, err := kube.New(kube.Config{Kubeconfig: w.c.As(token), Namespace: kubetest.Namespace, Installation: "nobody"})
	w.check(err)
	if err := nobody.Start(w.Context(), w.launch(1, "true", nil)); !fault.Is(err, fault.PermissionDenied) || !strings.Contains(fault.HintOf(err), "rbac.yaml") {
		w.Errorf("%v", err)
	}
}
