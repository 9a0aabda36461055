package sizing

import "strings"

// peak is what a vendor publishes of an accelerator: dense operations and bytes a
// second, and bytes of memory.
type peak struct {
	model                  string
	fp32, tf32, fp16, bf16 float64 // 10¹² operations a second; 0 is not there
	bandwidth              float64 // 10⁹ bytes a second
	memory                 float64 // GiB
}

// peaks are of NVIDIA's data sheets of each product (without sparsity): T4 (2019),
// V100 (2020), A10 (2022), A100 (2022), L4 (2023), L40S (2023), H100 (2023), H200
// (2024). The first whose words are all in a name is it.
var peaks = []peak{
	{"h200", 67, 494, 989, 989, 4800, 141},
	{"h100 pcie", 51, 378, 756, 756, 2000, 80},
	{"h100", 67, 494, 989, 989, 3350, 80},
	{"a100 pcie 40gb", 19.5, 156, 312, 312, 1555, 40},
	{"a100 sxm4 40gb", 19.5, 156, 312, 312, 1555, 40},
	{"a100 pcie", 19.5, 156, 312, 312, 1935, 80},
	{"a100", 19.5, 156, 312, 312, 2039, 80},
	{"l40s", 91.6, 183, 362, 362, 864, 48},
	{"l4", 30.3, 60, 121, 121, 300, 24},
	{"a10", 31.2, 62.5, 125, 125, 600, 24},
	{"v100 32gb", 15.7, 0, 125, 0, 900, 32},
	{"v100", 15.7, 0, 125, 0, 900, 16},
	{"t4", 8.1, 0, 65, 0, 320, 16},
}

// words are those of a device's name: "NVIDIA A100-SXM4-80GB" has four.
func words(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == ' ' || r == '-' || r == '_' || r == '/' || r == '.' })
}

// published finds a device by its name.
func published(device string) (peak, bool) {
	have := map[string]bool{}
	for _, w := range words(device) {
		have[w] = true
	}
	if have["mig"] || have["nvl"] {
		return peak{}, false // a slice, and a board of two, are other devices
	}
search:
	for _, p := range peaks {
		for w := range strings.FieldsSeq(p.model) {
			if !have[w] {
				continue search
			}
		}
		return p, true
	}
	return peak{}, false
}

// PublishedMemory is the memory of a device by its name, in bytes; 0 is unknown.
func PublishedMemory(device string) float64 {
	p, _ := published(device)
	return p.memory * (1 << 30)
}

func (p peak) operations(precision string) float64 {
	switch precision {
	case "fp32":
		return p.fp32
	case "tf32":
		return p.tf32
	case "fp16":
		return p.fp16
	case "bf16":
		return p.bf16
	}
	return 0
}

// bound is the most time that the work can take on another accelerator, if each
// kernel is limited by operations or by bandwidth (the roofline: Williams,
// Waterman and Patterson, CACM 52, 2009) and comes as near to its limit there, and
// if all else stays as it is. With u the share of the time in which a kernel ran
// and k the ratios of the peaks,
//
//	T ≤ 1 − u + u · max(1, k(operations), k(bandwidth))
//
// NVML counts time in which any kernel ran, so u does not say how far the device
// was used, and this is a bound and no estimate. It needs the precision: without
// it the operations that count are unknown. A device without that precision, or
// without published peaks, gets no bound.
func (q Question) bound(p Place) (Option, bool) {
	now, ok := published(q.Now.Device)
	there, also := published(p.Device)
	if !ok || !also || p.Workers != q.Now.Workers || p.Device == q.Now.Device || q.Busy == 0 {
		return Option{}, false
	}
	a, b := now.operations(q.Precision), there.operations(q.Precision)
	if a == 0 || b == 0 {
		return Option{}, false
	}
	t := 1 - q.Busy + q.Busy*max(1, a/b, now.bandwidth/there.bandwidth)
	return Option{Place: p, Known: Bound, Time: Ratio{Is: t, High: t}}, true
}
