// Package nvml lists NVIDIA's accelerators by the driver's own library, which
// is loaded when the program runs: a machine without it has none.
package nvml

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Inventory is the library, initialised. Close it when it is no longer used.
type Inventory struct {
	lib  nvml.Interface
	root string // of /dev and /proc

	mu      sync.Mutex // the handles
	handles map[string]nvml.Device
}

var _ machine.Inventory = (*Inventory)(nil)

// Open loads the library. A machine that has none, or none that works, has
// machine.None; why says which, for people.
func Open() (inventory machine.Inventory, closer func() error, why string) {
	return open(nvml.New(), "/")
}

func open(lib nvml.Interface, root string) (inventory machine.Inventory, closer func() error, why string) {
	nothing := func() error { return nil }
	switch r := lib.Init(); r {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return machine.None{}, nothing, "no NVIDIA driver is installed"
	default:
		return machine.None{}, nothing, "the NVIDIA driver's library does not start: " + nvml.ErrorString(r)
	}
	i := &Inventory{lib: lib, root: root, handles: map[string]nvml.Device{}}
	return i, func() error { return failed(lib.Shutdown(), "closing the NVIDIA driver's library") }, ""
}

func failed(r nvml.Return, doing string) error {
	if r == nvml.SUCCESS {
		return nil
	}
	return fault.New(fault.Unavailable, "%s: NVML says %d", doing, int(r))
}

// List gives every GPU, or the slices of those that are cut.
func (i *Inventory) List() ([]machine.Accelerator, error) {
	n, r := i.lib.DeviceGetCount()
	if err := failed(r, "counting the GPUs"); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.handles)
	var all []machine.Accelerator
	byBus := map[string]string{}
	for k := range n {
		d, r := i.lib.DeviceGetHandleByIndex(k)
		if r != nvml.SUCCESS {
			continue // fallen off the bus: it is not offered
		}
		gpu, ok := i.describe(d, k)
		if !ok {
			continue
		}
		byBus[gpu.Bus] = gpu.UUID
		if mode, _, r := d.GetMigMode(); r == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			all = append(all, i.slices(d, gpu)...)
			continue
		}
		all = append(all, gpu)
	}
	for k := range all {
		for j, bus := range all[k].Peers {
			all[k].Peers[j] = byBus[bus]
		}
		all[k].Peers = slices.DeleteFunc(all[k].Peers, func(uuid string) bool { return uuid == "" })
	}
	return all, nil
}

// describe gives a whole GPU; its peers by their bus. false when it does not
// even say who it is.
func (i *Inventory) describe(d nvml.Device, index int) (machine.Accelerator, bool) {
	a := machine.Accelerator{Resource: machine.ResourceGPU, Index: index, NUMA: -1}
	var r nvml.Return
	if a.UUID, r = d.GetUUID(); r != nvml.SUCCESS {
		return a, false
	}
	i.handles[a.UUID] = d
	a.Name, _ = d.GetName()
	if m, r := d.GetMemoryInfo(); r == nvml.SUCCESS {
		a.Memory = resource.Bytes(m.Total) //nolint:gosec // no GPU has 2^63 bytes
	}
	if major, minor, r := d.GetCudaComputeCapability(); r == nvml.SUCCESS {
		a.Compute = fmt.Sprintf("%d.%d", major, minor)
	}
	if current, _, r := d.GetEccMode(); r == nvml.SUCCESS {
		a.ECC = map[bool]string{true: "on", false: "off"}[current == nvml.FEATURE_ENABLED]
	}
	if mode, r := d.GetComputeMode(); r == nvml.SUCCESS {
		a.Exclusive = mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS
	}
	if pci, r := d.GetPciInfo(); r == nvml.SUCCESS {
		a.Bus = busOf(pci)
	}
	a.NUMA = i.nearTo(a.Bus)
	// A function that an older library lacks must not be called at all.
	remote := i.lib.Extensions().LookupSymbol("nvmlDeviceGetNvLinkRemoteDeviceType") == nil
	a.Switch = remote
	for link := range nvml.NVLINK_MAX_LINKS {
		if on, r := d.GetNvLinkState(link); r != nvml.SUCCESS || on != nvml.FEATURE_ENABLED {
			continue
		}
		a.Links++
		if remote {
			if to, r := d.GetNvLinkRemoteDeviceType(link); r == nvml.SUCCESS && to == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				continue
			}
		}
		a.Switch = false
		if pci, r := d.GetNvLinkRemotePciInfo(link); r == nvml.SUCCESS && !slices.Contains(a.Peers, busOf(pci)) {
			a.Peers = append(a.Peers, busOf(pci))
		}
	}
	a.Switch = a.Switch && a.Links > 0
	if minor, r := d.GetMinorNumber(); r == nvml.SUCCESS {
		a.Files = append([]string{fmt.Sprintf("/dev/nvidia%d", minor)}, common...)
	}
	return a, true
}

// common are the files that every user of a GPU opens; those of the system that
// are not there are left out by whoever gives them.
var common = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

func busOf(p nvml.PciInfo) string {
	b, _, _ := bytes.Cut(p.BusId[:], []byte{0})
	return strings.ToLower(string(b))
}

// slices gives the MIG devices of a GPU.
func (i *Inventory) slices(d nvml.Device, gpu machine.Accelerator) []machine.Accelerator {
	var all []machine.Accelerator
	most, r := d.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		return nil
	}
	for k := range most {
		m, r := d.GetMigDeviceHandleByIndex(k)
		if r != nvml.SUCCESS {
			continue
		}
		a := gpu
		if a.UUID, r = m.GetUUID(); r != nvml.SUCCESS {
			continue
		}
		name, _ := m.GetName()
		_, profile, ok := strings.Cut(name, " MIG ")
		if !ok {
			continue
		}
		a.Resource, a.Profile, a.Links, a.Switch, a.Peers = machine.Slice(profile), profile, 0, false, nil
		if memory, r := m.GetMemoryInfo(); r == nvml.SUCCESS {
			a.Memory = resource.Bytes(memory.Total) //nolint:gosec // as above
		}
		a.Files = slices.Clone(gpu.Files)
		gi, r1 := m.GetGpuInstanceId()
		ci, r2 := m.GetComputeInstanceId()
		if r1 == nvml.SUCCESS && r2 == nvml.SUCCESS && len(gpu.Files) > 0 {
			minor := strings.TrimPrefix(gpu.Files[0], "/dev/nvidia")
			instance := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%s/mig/gi%d", minor, gi)
			for _, access := range []string{instance + "/access", fmt.Sprintf("%s/ci%d/access", instance, ci)} {
				if n := i.capability(access); n != "" {
					a.Files = append(a.Files, "/dev/nvidia-caps/nvidia-cap"+n)
				}
			}
		}
		i.handles[a.UUID] = m
		all = append(all, a)
	}
	return all
}

// nearTo asks the kernel for the NUMA node of a device; -1 is unknown.
func (i *Inventory) nearTo(bus string) int {
	if len(bus) > 12 {
		bus = bus[len(bus)-12:] // NVML writes the domain with eight digits
	}
	n, err := strconv.Atoi(strings.TrimSpace(i.read("sys/bus/pci/devices/" + bus + "/numa_node")))
	if err != nil {
		return -1
	}
	return n
}

// capability reads the line "DeviceFileMinor: 12".
func (i *Inventory) capability(path string) string {
	for l := range strings.Lines(i.read(path)) {
		if n, ok := strings.CutPrefix(l, "DeviceFileMinor:"); ok {
			return strings.TrimSpace(n)
		}
	}
	return ""
}

func (i *Inventory) read(path string) string {
	f, err := os.Open(filepath.Join(i.root, path))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return ""
	}
	return string(b)
}

// Versions are of the driver and of the newest CUDA that it serves.
func (i *Inventory) Versions() (driver, cuda string) {
	driver, _ = i.lib.SystemGetDriverVersion()
	if v, r := i.lib.SystemGetCudaDriverVersion_v2(); r == nvml.SUCCESS {
		cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	return driver, cuda
}

// Sample asks one device.
func (i *Inventory) Sample(uuid string) (machine.Sample, bool) {
	i.mu.Lock()
	d := i.handles[uuid]
	i.mu.Unlock()
	if d == nil {
		return machine.Sample{}, false
	}
	var s machine.Sample
	m, r := d.GetMemoryInfo()
	if r != nvml.SUCCESS {
		return s, false
	}
	s.Memory = resource.Bytes(m.Used) //nolint:gosec // as above
	if u, r := d.GetUtilizationRates(); r == nvml.SUCCESS {
		s.Utilisation = new(float64(u.Gpu) / 100)
	}
	if milliwatts, r := d.GetPowerUsage(); r == nvml.SUCCESS {
		s.Watts = float64(milliwatts) / 1000
	}
	if celsius, r := d.GetTemperature(nvml.TEMPERATURE_GPU); r == nvml.SUCCESS {
		s.Celsius = float64(celsius)
	}
	return s, true
}
