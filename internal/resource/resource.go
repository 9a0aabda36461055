// Package resource has the amounts that work asks for and pools have: CPU
// time, memory, its bandwidth and accelerators, as named types that cannot be mixed up. It also
// reads the durations of manifests.
package resource

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// CPU is processor time in thousandths of a core.
type CPU int64

// Cores is n whole cores.
func Cores(n int64) CPU { return CPU(n * 1000) }

// Cores is the number of cores.
func (c CPU) Cores() float64 { return float64(c) / 1000 }

// String is "2" for whole cores and "500m" otherwise.
func (c CPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c/1000), 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

// ParseCPU reads "2", "0.5" or "500m".
func ParseCPU(s string) (CPU, error) {
	if m, ok := strings.CutSuffix(s, "m"); ok {
		n, err := strconv.ParseInt(m, 10, 64)
		if err != nil || n < 0 {
			return 0, fault.New(fault.Invalid, "cpu %q is not an amount such as 2, 0.5 or 500m", s)
		}
		return CPU(n), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f < 1e9) {
		return 0, fault.New(fault.Invalid, "cpu %q is not an amount such as 2, 0.5 or 500m", s)
	}
	return CPU(f*1000 + 0.5), nil
}

// MarshalJSON writes the String form.
func (c CPU) MarshalJSON() ([]byte, error) { return json.Marshal(c.String()) }

// UnmarshalJSON reads a number of cores or the String form.
func (c *CPU) UnmarshalJSON(b []byte) (err error) {
	*c, err = ParseCPU(strings.Trim(string(b), `"`))
	return err
}

// Bytes is an amount of memory or disk.
type Bytes int64

// Binary multiples.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

var byteUnits = []struct {
	suffix string
	size   Bytes
}{
	{"TiB", TiB},
	{"GiB", GiB},
	{"MiB", MiB},
	{"KiB", KiB},
	{"Ti", TiB},
	{"Gi", GiB},
	{"Mi", MiB},
	{"Ki", KiB},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"B", 1},
	{"", 1},
}

// String is exact in the largest binary unit that divides the amount: "4GiB".
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Words is the amount for people: "17 bytes", "1.4 GiB".
func (b Bytes) Words() string {
	if b > -KiB && b < KiB {
		return strconv.FormatInt(int64(b), 10) + " bytes"
	}
	for _, u := range byteUnits[:4] {
		if b >= u.size || b <= -u.size {
			return strings.TrimSuffix(strconv.FormatFloat(float64(b)/float64(u.size), 'f', 1, 64), ".0") + " " + u.suffix
		}
	}
	return ""
}

// ParseBytes reads "4GiB", "4Gi", "500MB" or a plain number of bytes.
func ParseBytes(s string) (Bytes, error) {
	for _, u := range byteUnits {
		num, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
		if err != nil || !(f >= 0 && f*float64(u.size) < 1<<62) {
			break
		}
		return Bytes(math.Round(f * float64(u.size))), nil
	}
	return 0, fault.New(fault.Invalid, "size %q is not an amount such as 4GiB, 500MB or 1024", s)
}

// MarshalJSON writes the String form.
func (b Bytes) MarshalJSON() ([]byte, error) { return json.Marshal(b.String()) }

// UnmarshalJSON reads a number of bytes or the String form.
func (b *Bytes) UnmarshalJSON(j []byte) (err error) {
	*b, err = ParseBytes(strings.Trim(string(j), `"`))
	return err
}

// AcceleratorHint says what to write where a count of accelerators is wrong, such
// as half of one; it is empty for any other field.
func AcceleratorHint(field string) string {
	if !strings.Contains(field, "accelerators.") {
		return ""
	}
	return "Accelerators are allocated whole. For a part of one, request a hardware slice, such as nvidia.com/mig-1g.10gb: 1, or nvidia.com/gpu.shared: 1 in a pool that shares its GPUs. `falaj pool describe` lists the available resources."
}

// Amount is what a workload asks for, or a node has. Accelerators are counted
// by resource name ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"). The zero
// Amount is nothing; values are not changed in place, so Amounts may be shared.
type Amount struct {
	CPU    CPU   `json:"cpu,omitzero" doc:"Cores, such as 2, 0.5 or 500m"`
	Memory Bytes `json:"memory,omitzero" doc:"Memory, such as 4GiB"`
	// MemoryBandwidth is what work is said to use of it: no engine holds it to that.
	MemoryBandwidth Bandwidth        `json:"memory_bandwidth,omitzero" doc:"Bytes a second from and to memory, such as 20GB/s; counted, not enforced"`
	Accelerators    map[string]int64 `json:"accelerators,omitempty" doc:"Count of each accelerator by resource name"`
}

// Plus is a + b.
func (a Amount) Plus(b Amount) Amount { return a.combine(b, 1) }

// Minus is a − b; parts may become negative.
func (a Amount) Minus(b Amount) Amount { return a.combine(b, -1) }

func (a Amount) combine(b Amount, sign int64) Amount {
	sum := Amount{CPU: a.CPU + CPU(sign)*b.CPU, Memory: a.Memory + Bytes(sign)*b.Memory, MemoryBandwidth: a.MemoryBandwidth + Bandwidth(sign)*b.MemoryBandwidth}
	if len(a.Accelerators)+len(b.Accelerators) > 0 {
		sum.Accelerators = maps.Clone(a.Accelerators)
		if sum.Accelerators == nil {
			sum.Accelerators = make(map[string]int64, len(b.Accelerators))
		}
		for name, n := range b.Accelerators {
			sum.Accelerators[name] += sign * n
		}
	}
	return sum
}

// Equal reports that both have the same parts; one that is named and zero is not
// one that is absent.
func (a Amount) Equal(b Amount) bool {
	return a.CPU == b.CPU && a.Memory == b.Memory && a.MemoryBandwidth == b.MemoryBandwidth && maps.Equal(a.Accelerators, b.Accelerators)
}

// IsZero reports that it names nothing.
func (a Amount) IsZero() bool {
	return a.CPU == 0 && a.Memory == 0 && a.MemoryBandwidth == 0 && len(a.Accelerators) == 0
}

// Lacks names each part in which free is smaller than a, in words
// ("4 cpu wanted, 2 free"); empty when a fits.
func (a Amount) Lacks(free Amount) []string {
	var lacks []string
	if a.CPU > max(free.CPU, 0) {
		lacks = append(lacks, fmt.Sprintf("%s cpu wanted, %s free", a.CPU, max(free.CPU, 0)))
	}
	if a.Memory > max(free.Memory, 0) {
		lacks = append(lacks, fmt.Sprintf("%s memory wanted, %s free", a.Memory, max(free.Memory, 0)))
	}
	if a.MemoryBandwidth > max(free.MemoryBandwidth, 0) {
		lacks = append(lacks, fmt.Sprintf("%s memory bandwidth wanted, %s free", a.MemoryBandwidth, max(free.MemoryBandwidth, 0)))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Accelerators)) {
		if want, have := a.Accelerators[name], max(free.Accelerators[name], 0); want > have {
			lacks = append(lacks, fmt.Sprintf("%d %s wanted, %d free", want, name, have))
		}
	}
	return lacks
}

// Fits reports whether a is at most free in every part; nothing always fits.
func (a Amount) Fits(free Amount) bool {
	for name, n := range a.Accelerators {
		if n > max(free.Accelerators[name], 0) {
			return false
		}
	}
	return a.CPU <= max(free.CPU, 0) && a.Memory <= max(free.Memory, 0) && a.MemoryBandwidth <= max(free.MemoryBandwidth, 0)
}

// Times is n of a.
func (a Amount) Times(n int) Amount {
	if n == 1 {
		return a
	}
	out := Amount{CPU: CPU(n) * a.CPU, Memory: Bytes(n) * a.Memory, MemoryBandwidth: Bandwidth(n) * a.MemoryBandwidth}
	if len(a.Accelerators) > 0 {
		out.Accelerators = make(map[string]int64, len(a.Accelerators))
		for name, each := range a.Accelerators {
			out.Accelerators[name] = int64(n) * each
		}
	}
	return out
}

// Count is how many times a fits into free, at most most.
func (a Amount) Count(free Amount, most int) int {
	if !a.Fits(free) {
		return 0
	}
	n := int64(most)
	if a.CPU > 0 {
		n = min(n, int64(free.CPU/a.CPU))
	}
	if a.Memory > 0 {
		n = min(n, int64(free.Memory/a.Memory))
	}
	if a.MemoryBandwidth > 0 {
		n = min(n, int64(free.MemoryBandwidth/a.MemoryBandwidth))
	}
	for name, each := range a.Accelerators {
		if each > 0 {
			n = min(n, free.Accelerators[name]/each)
		}
	}
	return int(n)
}

// String is "2 cpu, 4GiB memory, 1 nvidia.com/gpu"; "nothing" for the zero Amount.
func (a Amount) String() string {
	var parts []string
	if a.CPU != 0 {
		parts = append(parts, a.CPU.String()+" cpu")
	}
	if a.Memory != 0 {
		parts = append(parts, a.Memory.String()+" memory")
	}
	if a.MemoryBandwidth != 0 {
		parts = append(parts, a.MemoryBandwidth.String()+" memory bandwidth")
	}
	for _, name := range slices.Sorted(maps.Keys(a.Accelerators)) {
		if n := a.Accelerators[name]; n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// Validate refuses negative amounts.
func (a Amount) Validate() error {
	if a.CPU < 0 || a.Memory < 0 || a.MemoryBandwidth < 0 {
		return fault.New(fault.Invalid, "resources must not be negative")
	}
	for name, n := range a.Accelerators {
		if n < 0 {
			return fault.New(fault.Invalid, "accelerator %q: count %d is negative", name, n)
		}
	}
	return nil
}

// Limit is how much may be used. A part that is not named has no limit; one that is named and
// 0 allows nothing. The zero Limit limits nothing.
type Limit struct {
	CPU             *CPU             `json:"cpu,omitempty" doc:"Cores, such as 2, 0.5 or 500m; 0 allows none"`
	Memory          *Bytes           `json:"memory,omitempty" doc:"Memory, such as 4GiB; 0 allows none"`
	MemoryBandwidth *Bandwidth       `json:"memory_bandwidth,omitempty" doc:"Bytes a second from and to memory, such as 20GB/s; counted, not enforced; 0 allows none"`
	Accelerators    map[string]int64 `json:"accelerators,omitempty" doc:"Count of each accelerator by resource name; 0 allows none"`
}

// LimitOf limits the parts of an amount that are more than 0, and all accelerators that it names.
func LimitOf(a Amount) Limit {
	l := Limit{Accelerators: a.Accelerators}
	if a.CPU != 0 {
		l.CPU = &a.CPU
	}
	if a.Memory != 0 {
		l.Memory = &a.Memory
	}
	if a.MemoryBandwidth != 0 {
		l.MemoryBandwidth = &a.MemoryBandwidth
	}
	return l
}

// Amount is what it allows; 0 of what it does not name.
func (l Limit) Amount() Amount {
	a := Amount{Accelerators: l.Accelerators}
	if l.CPU != nil {
		a.CPU = *l.CPU
	}
	if l.Memory != nil {
		a.Memory = *l.Memory
	}
	if l.MemoryBandwidth != nil {
		a.MemoryBandwidth = *l.MemoryBandwidth
	}
	return a
}

// And names what either names. What it allows of that is of no meaning.
func (l Limit) And(o Limit) Limit {
	both := Limit{CPU: cmp.Or(l.CPU, o.CPU), Memory: cmp.Or(l.Memory, o.Memory), MemoryBandwidth: cmp.Or(l.MemoryBandwidth, o.MemoryBandwidth), Accelerators: map[string]int64{}}
	maps.Copy(both.Accelerators, l.Accelerators)
	maps.Copy(both.Accelerators, o.Accelerators)
	return both
}

// IsZero reports that it names nothing.
func (l Limit) IsZero() bool {
	return l.CPU == nil && l.Memory == nil && l.MemoryBandwidth == nil && len(l.Accelerators) == 0
}

// Equal reports that both name the same parts and allow the same of them.
func (l Limit) Equal(o Limit) bool {
	return (l.CPU == nil) == (o.CPU == nil) && (l.Memory == nil) == (o.Memory == nil) && (l.MemoryBandwidth == nil) == (o.MemoryBandwidth == nil) && l.Amount().Equal(o.Amount())
}

// Validate refuses parts of less than 0. Error: fault.Invalid.
func (l Limit) Validate() error { return l.Amount().Validate() }

// String names each part, also those of which nothing is allowed: "0 cpu, 2 nvidia.com/gpu".
func (l Limit) String() string {
	var parts []string
	if l.CPU != nil {
		parts = append(parts, l.CPU.String()+" cpu")
	}
	if l.Memory != nil {
		parts = append(parts, l.Memory.String()+" memory")
	}
	if l.MemoryBandwidth != nil {
		parts = append(parts, l.MemoryBandwidth.String()+" memory bandwidth")
	}
	for _, name := range slices.Sorted(maps.Keys(l.Accelerators)) {
		parts = append(parts, fmt.Sprintf("%d %s", l.Accelerators[name], name))
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}
