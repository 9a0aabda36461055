package config

import (
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// Zone is where this server's machine is: home, which is the zone of the installation, or
// gateway.zone of a gateway, which may stand elsewhere. It is the one place that says it:
// all that this process and its children do is done in this zone.
func (c Config) Zone() residency.Zone {
	if c.Follows() {
		return residency.Zone(c.Gateway.Zone)
	}
	return residency.Home
}
