package cli

import (
	"bytes"
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
		"the clock of n2 is 9s ahead", "scratch directory of n2 writes", "scratch directory of n2 has", "takes 9ms there and back",
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
