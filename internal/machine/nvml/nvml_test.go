package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
)

func bus(k int) (p nvml.PciInfo) {
	copy(p.BusId[:], fmt.Sprintf("00000000:%02X:00.0", k+10))
	return p
}

// simulated is a machine with three GPUs: two on a switch, the second of them
// cut into two slices, and an older one alone.
func simulated() *mock.Interface {
	device := func(k int) *mock.Device {
		return &mock.Device{
			GetUUIDFunc: func() (string, nvml.Return) { return fmt.Sprintf("GPU-%d", k), nvml.SUCCESS },
			GetNameFunc: func() (string, nvml.Return) { return "NVIDIA H100 80GB HBM3", nvml.SUCCESS },
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
				return nvml.Memory{Total: 80 << 30, Used: 8 << 30}, nvml.SUCCESS
			},
			GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
			GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
				return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
			},
			GetComputeModeFunc: func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS },
			GetPciInfoFunc:     func() (nvml.PciInfo, nvml.Return) { return bus(k), nvml.SUCCESS },
			GetNvLinkStateFunc: func(link int) (nvml.EnableState, nvml.Return) {
				if link >= 2 {
					return 0, nvml.ERROR_INVALID_ARGUMENT
				}
				return nvml.FEATURE_ENABLED, nvml.SUCCESS
			},
			GetNvLinkRemoteDeviceTypeFunc: func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
				return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
			},
			GetMinorNumberFunc:      func() (int, nvml.Return) { return k, nvml.SUCCESS },
			GetMigModeFunc:          func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_DISABLE, 0, nvml.SUCCESS },
			GetUtilizationRatesFunc: func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 50}, nvml.SUCCESS },
			GetPowerUsageFunc:       func() (uint32, nvml.Return) { return 350_500, nvml.SUCCESS },
			GetTemperatureFunc:      func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, nvml.SUCCESS },
		}
	}
	all := []*mock.Device{device(0), device(1), device(2)}
	all[1].GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
	all[1].GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	all[1].GetMigDeviceHandleByIndexFunc = func(k int) (nvml.Device, nvml.Return) {
		if k > 1 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc:              func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d", k), nvml.SUCCESS },
			GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", nvml.SUCCESS },
			GetMemoryInfoFunc:        func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 10 << 30}, nvml.SUCCESS },
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return 7 + k, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	all[2].GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.SUCCESS }
	all[2].GetNameFunc = func() (string, nvml.Return) { return "Tesla V100", nvml.SUCCESS }
	all[2].GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 7, 0, nvml.SUCCESS }
	all[2].GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	}
	all[2].GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return bus(0), nvml.SUCCESS }
	return &mock.Interface{
		InitFunc:           func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:       func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(all) + 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(k int) (nvml.Device, nvml.Return) {
			if k == len(all) {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return all[k], nvml.SUCCESS
		},
		SystemGetDriverVersionFunc:        func() (string, nvml.Return) { return "550.54.15", nvml.SUCCESS },
		SystemGetCudaDriverVersion_v2Func: func() (int, nvml.Return) { return 12040, nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
		},
	}
}

func TestList(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"proc/driver/nvidia/capabilities/gpu1/mig/gi7/access":     "DeviceFileMinor: 66\nDeviceFileMode: 292\n",
		"proc/driver/nvidia/capabilities/gpu1/mig/gi7/ci0/access": "DeviceFileMinor: 67\n",
		"sys/bus/pci/devices/0000:0a:00.0/numa_node":              "1\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i, closer, why := open(simulated(), root)
	if why != "" {
		t.Fatal(why)
	}
	files := func(minor string, more ...string) []string {
		return append([]string{"/dev/nvidia" + minor, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}, more...)
	}
	slice := func(k int) machine.Accelerator {
		return machine.Accelerator{
			Resource: "nvidia.com/mig-1g.10gb.me", UUID: fmt.Sprintf("MIG-%d", k), Index: 1, Name: "NVIDIA H100 80GB HBM3", Memory: 10 * resource.GiB,
			Compute: "9.0", ECC: "on", Profile: "1g.10gb+me", Bus: "00000000:0b:00.0", NUMA: -1, Files: files("1"),
		}
	}
	first := slice(0)
	first.Files = files("1", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67")
	want := []machine.Accelerator{
		{
			Resource: "nvidia.com/gpu", UUID: "GPU-0", Name: "NVIDIA H100 80GB HBM3", Memory: 80 * resource.GiB, Compute: "9.0", ECC: "on",
			Bus: "00000000:0a:00.0", NUMA: 1, Links: 2, Switch: true, Files: files("0"),
		},
		first, slice(1),
		{
			Resource: "nvidia.com/gpu", UUID: "GPU-2", Index: 2, Name: "Tesla V100", Memory: 80 * resource.GiB, Compute: "7.0", ECC: "on",
			Bus: "00000000:0c:00.0", NUMA: -1, Links: 2, Peers: []string{"GPU-0"}, Exclusive: true, Files: files("2"),
		},
	}
	var f machine.Facts
	if err := f.WithAccelerators(i); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, f.Accelerators); diff != "" {
		t.Error(diff)
	}
	if a := f.Amount().Accelerators; a["nvidia.com/gpu"] != 2 || a["nvidia.com/mig-1g.10gb.me"] != 2 {
		t.Errorf("%v", a)
	}
	l := f.Labels()
	if l[machine.LabelDriver] != "550.54.15" || l[machine.LabelCUDA] != "12.4" || l[machine.LabelCompute] != "7.0" || l[machine.LabelGPUs] != "4" || l[machine.LabelGPUMemory] != "10GiB" {
		t.Errorf("%v", l)
	}
	if s, ok := i.Sample("GPU-0"); !ok || !reflect.DeepEqual(s, machine.Sample{Utilisation: new(0.5), Memory: 8 * resource.GiB, Watts: 350.5, Celsius: 61}) {
		t.Errorf("%+v, %v", s, ok)
	}
	if _, ok := i.Sample("GPU-9"); ok {
		t.Error("a sample of what is not there")
	}
	if err := closer(); err != nil {
		t.Error(err)
	}
}

// TestHere asks the machine that the test runs on, with or without a GPU.
func TestHere(t *testing.T) {
	i, closer, why := Open()
	defer func() {
		if err := closer(); err != nil {
			t.Error(err)
		}
	}()
	all, err := i.List()
	if err != nil {
		t.Fatal(err)
	}
	if why != "" && len(all) > 0 {
		t.Errorf("%s, and yet %d", why, len(all))
	}
	for _, a := range all {
		if _, ok := i.Sample(a.UUID); !ok && a.Profile == "" {
			t.Errorf("%+v gives no sample", a)
		}
	}
}
