package compute

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/resource"
)

func TestMemTotal(t *testing.T) {
	for in, want := range map[string]resource.Bytes{
		"MemTotal:       24576000 kB\nMemFree: 1 kB\n": 24000 * resource.MiB,
		"MemFree: 1 kB\nMemTotal: 2048 kB\n":           2 * resource.MiB,
		"":                                             0,
		"MemTotal: x kB\n":                             0,
		"MemTotal: -5 kB\n":                            0,
		"MemTotal: 99999999999999999999 kB\n":          0,
	} {
		got, err := memTotal(in)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestMachine(t *testing.T) {
	a, err := Machine()
	if err != nil || a.CPU < 1000 || a.Memory < 64*resource.MiB {
		t.Fatalf("%+v, %v", a, err)
	}
}
