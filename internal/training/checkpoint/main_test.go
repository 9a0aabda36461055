package checkpoint_test

import (
	"flag"
	"testing"
)

// TestMain makes fewer rounds of properties that each open a database, unless
// the command line says otherwise.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "40")
	m.Run() // its code is the process's
}
