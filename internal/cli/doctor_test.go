package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

const twoProbes = `[1] probe: {"worker":1,"node":"n2","sum":true,"api":{"round_trip_ns":100000,"skew_ns":9000000000},"disk":{"write":1e6,"free":1000000000}}
[0] something else
[0] probe: {"worker":0,"node":"n1","sum":false,"peers":[{"worker":1,"round_trip_ns":9000000,"send":1e6,"receive":1e9}],"wrong":["no way"]}
[0] probe: {"worker":
`

func TestProbed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{}
	a.Stdout = &out
	var wrong findings
	all := probesOf(twoProbes)
	a.sayProbed(all, &wrong)
	said := strings.Join(wrong, "\n")
	for _, words := range []string{
		"the clock of n2 is 9s ahead", "scratch directory of n2 writes", "scratch directory of n2 has", "round-trip time between workers is 9ms",
		"GLOO_SOCKET_IFNAME", "n1: no way", "n1: the workers did not sum",
	} {
		if !strings.Contains(said, words) {
			t.Errorf("nothing says %q:\n%s", words, said)
		}
	}
	if len(all) != 2 || len(wrong) != 7 || !strings.Contains(out.String(), "worker 1 on n2") {
		t.Errorf("%+v\n%s\n%s", all, said, out.String())
	}
	wrong = nil
	a.sayProbed(nil, &wrong)
	if len(wrong) != 1 || !strings.Contains(wrong[0], "0 of 2 workers") {
		t.Errorf("%v", wrong)
	}
}

// TestDeclared: what a pool says of a node and the node is not.
func TestDeclared(t *testing.T) {
	t.Parallel()
	node := probed{Threads: 2, Memory: 4 << 30, Facts: map[string]string{"arch": "x86_64", "cpu.cores": "2", "glibc": "2.36"}}
	gpus := node
	gpus.GPUs = 2
	for name, c := range map[string]struct {
		says         string // the pool
		is           probed
		accelerators bool
		want         []string
	}{
		"as it is":       {`{"cpu":"2","memory":"4GiB","labels":{"arch":"x86_64","cpu.cores":"2","rack":"7"}}`, node, true, nil},
		"less than it":   {`{"cpu":"500m","memory":"1536MiB"}`, node, true, nil},
		"another name":   {`{"labels":{"arch":"amd64"}}`, node, true, nil},
		"a job's own":    {`{"labels":{"glibc":"2.17"}}`, node, true, nil},
		"architecture":   {`{"labels":{"arch":"aarch64"}}`, node, true, []string{"declares arch aarch64 for node n1, but the node has x86_64: correct"}},
		"cpu and memory": {`{"cpu":"4","memory":"8GiB"}`, node, true, []string{"4 cpu for node n1, but the node has 2:", "8GiB memory for node n1, but the node has 4GiB:"}},
		"no driver":      {`{"accelerators":{"nvidia.com/gpu":1}}`, node, true, []string{"1 nvidia.com/gpu for node n1, but the node has no GPU"}},
		"a cluster's":    {`{"accelerators":{"nvidia.com/gpu":1}}`, node, false, nil},
		"too few":        {`{"accelerators":{"nvidia.com/gpu":4}}`, gpus, true, []string{"4 nvidia.com/gpu for node n1, but the node has 2:"}},
		"slices":         {`{"accelerators":{"nvidia.com/mig-1g.10gb":7,"nvidia.com/gpu.shared":8,"amd.com/gpu":9}}`, gpus, true, nil},
		"an old worker":  {`{"cpu":"4","accelerators":{"nvidia.com/gpu":4}}`, probed{}, true, nil},
	} {
		n := declared{Name: "n1"}
		if err := json.Unmarshal([]byte(c.says), &n); err != nil {
			t.Fatal(err)
		}
		var wrong findings
		n.compare(c.is, c.accelerators, &wrong)
		if len(wrong) != len(c.want) {
			t.Errorf("%s: %q", name, wrong)
			continue
		}
		for i, words := range c.want {
			if !strings.Contains(wrong[i], words) {
				t.Errorf("%s: %q does not say %q", name, wrong[i], words)
			}
		}
	}
}

func FuzzProbed(f *testing.F) {
	f.Add(twoProbes)
	f.Fuzz(func(t *testing.T, log string) {
		var out bytes.Buffer
		a := &app{}
		a.Stdout = &out
		var wrong findings
		a.sayProbed(probesOf(log), &wrong)
		if strings.ContainsRune(out.String(), 0x1b) {
			t.Error("what a node tells drives the terminal")
		}
	})
}
