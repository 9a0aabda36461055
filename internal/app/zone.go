package app

import (
	"github.com/falaj-ml/falaj/internal/machine"
)

// machineName is what records call this server's machine.
func machineName() string { return machine.Name("/") }
