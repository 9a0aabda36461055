package config

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// TestZone: a server is in the zone of its installation, and a gateway where it is
// configured to stand. What a server that follows nobody says of a gateway counts for nothing.
func TestZone(t *testing.T) {
	for name, c := range map[string]struct {
		upstream, zone string
		want           residency.Zone
	}{
		"server":                       {"", "home", residency.Home},
		"gateway elsewhere":            {"https://falaj.example", "AE", "AE"},
		"gateway at home":              {"https://falaj.example", "home", residency.Home},
		"server with a gateway's zone": {"", "AE", residency.Home},
	} {
		var cfg Config
		cfg.Gateway.Upstream, cfg.Gateway.Zone = c.upstream, c.zone
		if got := cfg.Zone(); got != c.want {
			t.Errorf("%s is in %s, not in %s", name, got, c.want)
		}
	}
}
