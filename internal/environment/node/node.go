// Package node reads what a node's labels say about it: those that Falaj gives, else those that
// engines, Kubernetes, its node feature discovery and NVIDIA's GPU feature discovery give. It is
// pure.
package node

import (
	"cmp"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/machine"
)

// Facts are what a node has told of itself; empty is unknown.
type Facts struct {
	Architecture      string // the kernel's name: "x86_64"
	Glibc             string
	Driver            string // NVIDIA's
	ComputeCapability string
	Pythons           []string
	Vector            []string // instruction sets, lower case
	GPUs              int64    // NVIDIA's
}

// Architecture is the kernel's name for what Go and Kubernetes may call
// otherwise.
func Architecture(name string) string {
	return cmp.Or(map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[name], name)
}

// FactsOf reads a node's labels.
func FactsOf(n compute.Node) Facts {
	l := n.Labels
	f := Facts{
		Architecture:      Architecture(cmp.Or(l[machine.LabelArchitecture], l["architecture"], l["kubernetes.io/arch"])),
		Glibc:             l[machine.LabelGlibc],
		Driver:            cmp.Or(l[machine.LabelDriver], l["driver"], l["nvidia.com/cuda.driver-version.full"]),
		ComputeCapability: cmp.Or(l[machine.LabelCompute], l["compute_capability"], l["compute_capability_major"]),
	}
	if major := l["nvidia.com/cuda.driver.major"]; f.Driver == "" && major != "" {
		f.Driver = major + "." + cmp.Or(l["nvidia.com/cuda.driver.minor"], "0")
	}
	if major := l["nvidia.com/gpu.compute.major"]; f.ComputeCapability == "" && major != "" {
		f.ComputeCapability = major + "." + cmp.Or(l["nvidia.com/gpu.compute.minor"], "0")
	}
	f.Pythons = strings.FieldsFunc(l[machine.LabelPython], func(r rune) bool { return r == ',' || r == ' ' })
	if v := l[machine.LabelVector]; v != "" {
		f.Vector = strings.Split(v, ",")
	}
	const discovered = "feature.node.kubernetes.io/cpu-cpuid."
	for name := range l {
		if set, ok := strings.CutPrefix(name, discovered); ok {
			f.Vector = append(f.Vector, strings.ToLower(set))
		}
	}
	for name, count := range n.Accelerators {
		if strings.HasPrefix(name, "nvidia.com/") {
			f.GPUs += count
		}
	}
	return f
}
