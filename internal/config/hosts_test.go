package config

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestEnvironmentHosts: what is not host:port is refused at the start, with the setting's name.
func TestEnvironmentHosts(t *testing.T) {
	t.Parallel()
	check := func(addr string) error {
		c := Config{HTTP: "127.0.0.1:1", GRPC: "127.0.0.1:2", Flight: "127.0.0.1:3"}
		c.Environments.Hosts = []string{"index.example:443", addr}
		return c.Validate()
	}
	for _, addr := range []string{"", "index.example", ":443", "index.example:"} {
		if err := check(addr); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "environments.hosts[1]: ") {
			t.Errorf("%q: %v", addr, err)
		}
	}
	if err := check("files.example:443"); err != nil && strings.Contains(err.Error(), "environments.hosts") {
		t.Error(err)
	}
}
