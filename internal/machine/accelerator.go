package machine

import (
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/resource"
)

// The resource names of accelerators, as Kubernetes has them.
const (
	ResourceGPU    = "nvidia.com/gpu"
	ResourceShared = "nvidia.com/gpu.shared" // one share of a GPU that serves several
	resourceMIG    = "nvidia.com/mig-"       // then the profile: 1g.10gb
)

// Accelerator is a device that a workload can have for itself: a GPU, or a
// slice of one.
type Accelerator struct {
	Resource string         `json:"resource"` // the name that requests have
	UUID     string         `json:"uuid"`     // "GPU-…", "MIG-…"
	Index    int            `json:"index"`    // of the GPU, as its vendor counts
	Name     string         `json:"name"`
	Memory   resource.Bytes `json:"memory"`
	Compute  string         `json:"compute,omitempty"` // capability: "9.0"
	ECC      string         `json:"ecc,omitempty"`     // on, off; empty where there is none
	Profile  string         `json:"profile,omitempty"` // of a slice
	Bus      string         `json:"bus,omitempty"`     // PCI address
	NUMA     int            `json:"numa"`              // that it is near to; -1 is unknown
	// Links are NVLinks that are up; Switch says that they lead to a switch,
	// by which it reaches all others at full speed.
	Links  int      `json:"nvlinks,omitempty"`
	Switch bool     `json:"nvswitch,omitempty"`
	Peers  []string `json:"peers,omitempty"` // UUIDs that links lead to without a switch
	// Exclusive says that it serves one process at a time: with MPS its server.
	Exclusive bool     `json:"exclusive,omitempty"`
	Files     []string `json:"-"` // device files that its user needs
}

// Inventory lists accelerators and samples what they do. Safe for concurrent
// use. A machine without any has an empty list, which is no error.
type Inventory interface {
	// List gives them in the order of their index.
	List() ([]Accelerator, error)
	// Versions are of the driver and of the newest CUDA that it serves.
	Versions() (driver, cuda string)
	// Sample is what one of them does now; false when it cannot be said.
	Sample(uuid string) (Sample, bool)
}

// Sample is what an accelerator does at a moment.
type Sample struct {
	Utilisation *float64 // 0 to 1; nil is not known
	Memory      resource.Bytes
	Watts       float64
	Celsius     float64
}

// Slice names the resource of a MIG profile: "1g.10gb" is
// "nvidia.com/mig-1g.10gb".
func Slice(profile string) string { return resourceMIG + strings.ReplaceAll(profile, "+", ".") }

// WithAccelerators fills in what the inventory lists.
func (f *Facts) WithAccelerators(i Inventory) error {
	all, err := i.List()
	if err != nil {
		return err
	}
	f.Accelerators = all
	f.Driver, f.CUDA = i.Versions()
	return nil
}

// Amount is the machine's threads, memory, its bandwidth once measured, and
// accelerators.
func (f *Facts) Amount() resource.Amount {
	a := resource.Amount{CPU: resource.Cores(int64(f.CPU.Threads)), Memory: f.Memory}
	a.MemoryBandwidth = resource.Bandwidth(f.Bandwidth/1e8) * 1e8 // so that it reads well
	for _, x := range f.Accelerators {
		if a.Accelerators == nil {
			a.Accelerators = map[string]int64{}
		}
		a.Accelerators[x.Resource]++
	}
	return a
}

// label adds what the accelerators of a node have in common.
func label(l map[string]string, all []Accelerator) {
	if len(all) == 0 {
		return
	}
	first := all[0]
	l[LabelGPU], l[LabelCompute], l[LabelECC] = first.Name, first.Compute, first.ECC
	least, links := first.Memory, first.Links
	switched := true
	for _, x := range all {
		least, links, switched = min(least, x.Memory), min(links, x.Links), switched && x.Switch
		if older(x.Compute, l[LabelCompute]) {
			l[LabelCompute] = x.Compute
		}
	}
	l[LabelGPUs], l[LabelGPUMemory] = strconv.Itoa(len(all)), least.String()
	if links > 0 {
		l[LabelNVLink] = strconv.Itoa(links)
	}
	if links > 0 && switched {
		l[LabelNVLink] = "nvswitch"
	}
}

// older compares "8.9" with "9.0" by number.
func older(a, b string) bool {
	x, errA := strconv.ParseFloat(a, 64)
	y, errB := strconv.ParseFloat(b, 64)
	return errA == nil && (errB != nil || x < y)
}

// None is the inventory of a machine without accelerators.
type None struct{}

// List gives none.
func (None) List() ([]Accelerator, error) { return nil, nil }

// Versions are unknown.
func (None) Versions() (driver, cuda string) { return "", "" }

// Sample knows none.
func (None) Sample(string) (Sample, bool) { return Sample{}, false }
