package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/machine"
	ours "github.com/falaj-ml/falaj/internal/resource"
)

type (
	nodeView struct {
		Metadata meta.ObjectMeta `json:"metadata"`
		Spec     struct {
			Unschedulable bool `json:"unschedulable"`
			Taints        []struct {
				Key    string `json:"key"`
				Value  string `json:"value"`
				Effect string `json:"effect"`
			} `json:"taints"`
		} `json:"spec"`
		Status struct {
			Allocatable map[string]string `json:"allocatable"`
			Conditions  []condition       `json:"conditions"`
			Info        struct {
				Kernel  string `json:"kernelVersion"`
				OS      string `json:"osImage"`
				Runtime string `json:"containerRuntimeVersion"`
				Kubelet string `json:"kubeletVersion"`
			} `json:"nodeInfo"`
		} `json:"status"`
	}
	holderView struct {
		Metadata meta.ObjectMeta `json:"metadata"`
		Spec     struct {
			NodeName   string     `json:"nodeName"`
			Init       []requests `json:"initContainers"`
			Containers []requests `json:"containers"`
		} `json:"spec"`
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	requests struct {
		Resources struct {
			Requests map[string]string `json:"requests"`
		} `json:"resources"`
	}
)

// nodeLabels are the labels that tell what a node is, under our names: those of
// NVIDIA's feature discovery as agents would report the same.
var nodeLabels = map[string]string{
	"topology.kubernetes.io/zone":          "zone",
	"topology.kubernetes.io/region":        "region",
	"node.kubernetes.io/instance-type":     "instance_type",
	"cloud.google.com/gke-tpu-accelerator": "tpu",
	"nvidia.com/gpu.product":               machine.LabelGPU,
	"nvidia.com/gpu.count":                 machine.LabelGPUs,
	"nvidia.com/cuda.driver-version.full":  machine.LabelDriver,
	"nvidia.com/cuda.runtime-version.full": machine.LabelCUDA,
}

// architectures as the kernel calls them.
var architectures = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// Inventory gives the nodes that pods of a pool with these options may be on:
// what each can give us, beside what pods of others hold there.
func (l *Launcher) Inventory(ctx context.Context, pool map[string]string) ([]engine.Node, error) {
	o, err := parseOptions(pool)
	if err != nil {
		return nil, err
	}
	var selector []string
	for _, k := range slices.Sorted(maps.Keys(o.selector)) {
		selector = append(selector, k+"="+o.selector[k])
	}
	nodeList, err := l.list(ctx, nodes, "", meta.ListOptions{LabelSelector: strings.Join(selector, ",")})
	if err != nil {
		return nil, translate(err, "listing nodes")
	}
	podList, err := l.list(ctx, pods, "", meta.ListOptions{FieldSelector: "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return nil, translate(err, "listing pods of all namespaces")
	}
	held, holders := map[string]ours.Amount{}, map[string]int{}
	for i := range podList {
		p, err := view[holderView](&podList[i])
		if err != nil {
			return nil, translate(err, "reading pod %s", podList[i].GetName())
		}
		if p.Metadata.Labels[installationLabel] == l.c.Installation {
			continue
		}
		held[p.Spec.NodeName] = held[p.Spec.NodeName].Plus(p.amount())
		holders[p.Spec.NodeName]++
	}
	out := make([]engine.Node, 0, len(nodeList))
	for i := range nodeList {
		n, err := view[nodeView](&nodeList[i])
		if err != nil {
			return nil, translate(err, "reading node %s", nodeList[i].GetName())
		}
		name := n.Metadata.Name
		one := engine.Node{Name: name, Amount: positive(amount(n.Status.Allocatable).Minus(held[name])), Labels: n.labels(), Down: n.down(o)}
		if holders[name] > 0 {
			one.Busy = fmt.Sprintf("%d pods of other users hold %s", holders[name], words(held[name]))
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b engine.Node) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// amount is what a pod requests: the sum of its containers, or what one of those
// that run before them needs, whichever is more.
func (p holderView) amount() ours.Amount {
	var sum ours.Amount
	for _, c := range p.Spec.Containers {
		sum = sum.Plus(amount(c.Resources.Requests))
	}
	for _, c := range p.Spec.Init {
		a := amount(c.Resources.Requests)
		sum.CPU, sum.Memory = max(sum.CPU, a.CPU), max(sum.Memory, a.Memory)
	}
	return sum
}

// amount reads a list of resources; those with a domain are accelerators.
func amount(list map[string]string) ours.Amount {
	var a ours.Amount
	for name, text := range list {
		q, err := resource.ParseQuantity(text)
		switch {
		case err != nil:
		case name == "cpu":
			a.CPU = ours.CPU(q.MilliValue())
		case name == "memory":
			a.Memory = ours.Bytes(q.Value())
		case strings.Contains(name, "/") && !strings.HasPrefix(name, "attachable-volumes"):
			if a.Accelerators == nil {
				a.Accelerators = map[string]int64{}
			}
			a.Accelerators[name] = q.Value()
		}
	}
	return a
}

func positive(a ours.Amount) ours.Amount {
	a.CPU, a.Memory = max(a.CPU, 0), max(a.Memory, 0)
	for name, n := range a.Accelerators {
		a.Accelerators[name] = max(n, 0)
	}
	return a
}

func words(a ours.Amount) string {
	parts := []string{a.CPU.String() + " cpu", a.Memory.String() + " memory"}
	for _, name := range slices.Sorted(maps.Keys(a.Accelerators)) {
		if n := a.Accelerators[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	return strings.Join(parts, ", ")
}

func (n nodeView) labels() map[string]string {
	theirs, info := n.Metadata.Labels, n.Status.Info
	labels := map[string]string{
		machine.LabelKernel: info.Kernel, "os": info.OS, "runtime": info.Runtime, "kubelet": info.Kubelet,
		machine.LabelArchitecture: cmp.Or(architectures[theirs["kubernetes.io/arch"]], theirs["kubernetes.io/arch"]),
	}
	for their, our := range nodeLabels {
		labels[our] = theirs[their]
	}
	if major, minor := theirs["nvidia.com/gpu.compute.major"], theirs["nvidia.com/gpu.compute.minor"]; major != "" && minor != "" {
		labels[machine.LabelCompute] = major + "." + minor
	}
	if mib, err := strconv.ParseInt(theirs["nvidia.com/gpu.memory"], 10, 40); err == nil {
		labels[machine.LabelGPUMemory] = (ours.Bytes(mib) * ours.MiB).String()
	}
	maps.DeleteFunc(labels, func(_, v string) bool { return v == "" })
	return labels
}

// down says why the node takes no pods of ours; empty when it does.
func (n nodeView) down(o options) string {
	if c := find(n.Status.Conditions, "Ready"); c.Status != "True" {
		return joined("it is not ready", c.Message)
	}
	if n.Spec.Unschedulable {
		return "it is cordoned"
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != "NoSchedule" && t.Effect != "NoExecute" {
			continue
		}
		if !slices.ContainsFunc(o.tolerations, func(ok toleration) bool {
			return ok.key == t.Key && (ok.value == "" || ok.value == t.Value) && (ok.effect == "" || ok.effect == t.Effect)
		}) {
			return fmt.Sprintf("its taint %s=%s:%s is not tolerated by the pool", t.Key, t.Value, t.Effect)
		}
	}
	return ""
}

var _ engine.Inventory = (*Launcher)(nil)
