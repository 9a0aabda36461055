package app

import (
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/machine"
)

// zone is where this server's machine is: home, which is the zone of the installation, or
// gateway.zone of a gateway, which may stand elsewhere. It is the one place that says it:
// all that this process and its children do is done in this zone.
func (c Config) zone() residency.Zone {
	if c.follows() {
		return residency.Zone(c.Gateway.Zone)
	}
	return residency.Home
}

// machineName is what records call this server's machine.
func machineName() string { return machine.Name("/") }
