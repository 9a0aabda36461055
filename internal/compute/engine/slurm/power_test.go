package slurm

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/provisioner"
)

// TestPowerStates: what Slurm says of nodes that are switched on and off, and whose
// they are.
func TestPowerStates(t *testing.T) {
	for state, want := range map[string]provisioner.State{
		"IDLE+POWERED_DOWN": provisioner.Off, "IDLE+CLOUD+POWERED_DOWN": provisioner.Off, "IDLE+POWERING_DOWN": provisioner.Leaving,
		"MIXED+POWER_DOWN": provisioner.Leaving, "IDLE+POWERING_UP": provisioner.Coming, "ALLOCATED+POWERING_UP*": provisioner.Coming,
		"IDLE": provisioner.Ready, "MIXED": provisioner.Ready, "DOWN*": provisioner.Failed, "IDLE+DRAIN": provisioner.Failed, "DOWN+POWERED_DOWN": provisioner.Off,
	} {
		if got := power(state); got != want {
			t.Errorf("%s is %s, want %s", state, got, want)
		}
	}
	nodes := parsePower("NodeName=n1 State=MIXED Comment=falaj/x/night Partitions=a\nNodeName=n2 State=IDLE Partitions=a,b\nNodeName=n3 State=DOWN Comment=falaj/x/night Reason=no boot Partitions=b\n", "b", "falaj/x/night")
	if len(nodes) != 2 || nodes[0].ours || nodes[0].Busy || !nodes[1].ours || nodes[1].Why != "Slurm reports down: no boot" {
		t.Errorf("%+v", nodes)
	}
	if all := parsePower("NodeName=n1 State=MIXED Comment=falaj/x/night Partitions=a\n", "", "falaj/x/night"); len(all) != 1 || !all[0].Busy || !all[0].ours {
		t.Errorf("%+v", all)
	}
}
