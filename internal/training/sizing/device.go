package sizing

import (
	"fmt"
	"strings"

	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Whole is how many accelerators a worker has for itself. What is seen of a GPU
// that is shared is everybody's, and of a slice little is seen.
func Whole(a resource.Amount) (n int) {
	for name, count := range a.Accelerators {
		if name != machine.ResourceShared && !strings.Contains(name, "mig-") {
			n += int(count)
		}
	}
	return n
}

// DeviceOf names what does the work of one who asks for so much of a node: the
// model of its accelerator or processor, as the node's labels have it. What has no
// such label is called after its pool, which has nodes that are alike.
func DeviceOf(pool string, labels map[string]string, ask resource.Amount) string {
	for name, count := range ask.Accelerators {
		if count == 0 {
			continue
		}
		model, short := labels[machine.LabelGPU], strings.TrimPrefix(name, "nvidia.com/")
		switch {
		case name != machine.ResourceGPU && name != "gpu" && model != "":
			return model + " " + short // a slice, a share
		case model != "":
			return model
		case name != machine.ResourceGPU && name != "gpu":
			return short
		}
		return fmt.Sprintf("%s of pool %s", name, pool)
	}
	if model := labels[machine.LabelCPU]; model != "" {
		return model
	}
	return "processor of pool " + pool
}

// MemoryOf is the memory of a device in bytes: by the labels of its node, else by its name; 0 is
// unknown.
func MemoryOf(device string, labels map[string]string) float64 {
	if b, err := resource.ParseBytes(labels[machine.LabelGPUMemory]); err == nil && b > 0 && float64(b) <= MaxRate {
		return float64(b)
	}
	return PublishedMemory(device)
}
