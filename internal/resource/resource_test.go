package resource_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"": 0, "0": 0, "3h": 3 * time.Hour, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "2w": 14 * 24 * time.Hour, "90m": 90 * time.Minute, "1500ms": 1500 * time.Millisecond,
		"1.5h": 90 * time.Minute, "0.1s": 100 * time.Millisecond, "250us": 250 * time.Microsecond, "36500d": 36500 * 24 * time.Hour,
	} {
		if got, err := resource.ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"3", "h", "-1h", "1h-1h", "3 h", "1.5.2h", ".h", "NaNh", "1e3s", "99999w", "36500d1ns", "9999999999999999999h", "3hx", "1y"} {
		if got, err := resource.ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"", "0", "3h", "1d12h", "99999w"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := resource.ParseDuration(s)
		if err != nil {
			return
		}
		if d < 0 || d > 101*365*24*time.Hour {
			t.Errorf("ParseDuration(%q) = %v", s, d)
		}
	})
}

func TestBandwidth(t *testing.T) {
	for in, want := range map[string]resource.Bandwidth{
		"0": 0, "20GB/s": 20e9, "20.5GB/s": 20.5e9, "32.7GB/s": 32.7e9, "8.2GB/s": 8.2e9, "64GiB/s": 64 << 30, "1000000000": 1e9, "2e10": 2e10, "300GB": 300e9, "64TiB/s": resource.AnyBandwidth, "7B/s": 7,
	} {
		got, err := resource.ParseBandwidth(in)
		if err != nil || got != want {
			t.Errorf("ParseBandwidth(%q) = %v %v, want %v", in, got, err, want)
		}
		if back, err := resource.ParseBandwidth(got.String()); err != nil || back != got {
			t.Errorf("%q is written %q, which is %v %v", in, got, back, err)
		}
	}
	for _, in := range []string{"", "fast", "-1GB/s", "NaN", "20GB/h", "65TiB/s", "1e300"} {
		if got, err := resource.ParseBandwidth(in); err == nil {
			t.Errorf("ParseBandwidth(%q) = %v, want an error", in, got)
		}
	}
	var a resource.Amount
	if err := json.Unmarshal([]byte(`{"memory_bandwidth": "20GB/s"}`), &a); err != nil || a.MemoryBandwidth != 20e9 {
		t.Errorf("%+v, %v", a, err)
	}
	if b, err := json.Marshal(a); err != nil || string(b) != `{"memory_bandwidth":"20GB/s"}` {
		t.Errorf("%s, %v", b, err)
	}
	if a.IsZero() || a.Equal(resource.Amount{}) {
		t.Error("it is nothing")
	}
}

func TestNearest(t *testing.T) {
	have := []string{"amd.com/gpu", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"}
	for name, want := range map[string]string{"nvidia.com/gpuu": "nvidia.com/gpu", "nvdia.com/gpu": "nvidia.com/gpu", "amd.com/gpus": "amd.com/gpu", "tpu": "", "nvidia.com/gpu": "", "": ""} {
		if got := resource.Nearest(name, have); got != want {
			t.Errorf("%q is near %q, want %q", name, got, want)
		}
	}
}

func TestBytesInWords(t *testing.T) {
	t.Parallel()
	for b, want := range map[resource.Bytes]string{
		0: "0 bytes", 1023: "1023 bytes", resource.KiB: "1 KiB", 1500: "1.5 KiB", 3 * resource.MiB: "3 MiB",
		resource.GiB + resource.GiB/4: "1.2 GiB", 5 * resource.TiB: "5 TiB", -2 * resource.MiB: "-2 MiB", -3: "-3 bytes",
	} {
		if got := b.Words(); got != want {
			t.Errorf("%d: %q, want %q", int64(b), got, want)
		}
	}
}
