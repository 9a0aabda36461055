// Package worker is the falaj-worker program: one small static binary that is
// the shim around a local job, the inside of every sandbox, and the agent on
// another machine's node.
//
// Its modes are the first argument; people use only "version" and, to look at
// a job by hand, "shim DIR".
package worker

import (
	"fmt"
	"io"
	"os"

	"github.com/falaj-ml/falaj/internal/sandbox/inside"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/agent"
	"github.com/falaj-ml/falaj/internal/worker/gang"
	"github.com/falaj-ml/falaj/internal/worker/probe"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/tree"
)

// Protocol is what server and worker agree on; a server takes its own version
// and the one before.
const Protocol = protocol.Version

// Run runs the mode in args (without the program's name) and returns the exit
// code. environ is the process environment. It must be called from main's
// goroutine before any other was started.
func Run(args, environ []string, stdout, stderr io.Writer) int {
	mode := ""
	if len(args) > 0 {
		mode = args[0]
	}
	switch mode {
	case "init":
		return inside.Init()
	case "exec":
		return inside.Exec(environ)
	case "hold":
		return inside.Hold()
	case "contain":
		return inside.Contain()
	case "enter":
		if len(args) == 2 {
			return inside.Enter(args[1], stderr)
		}
	case "look":
		return inside.Look(args[1:], stderr)
	case "shim":
		serve := shim.Serve
		if len(args) == 2 {
			serve = func() error { return shim.Run(args[1]) }
		}
		if err := serve(); err != nil {
			fmt.Fprintln(stderr, "falaj-worker shim:", err)
			return 1
		}
		return 0
	case "install":
		if len(args) == 2 {
			if err := install(args[1]); err != nil {
				fmt.Fprintln(stderr, "falaj-worker install:", err)
				return 1
			}
			return 0
		}
	case tree.Mode:
		if err := tree.Main(); err != nil {
			fmt.Fprintln(stderr, "falaj-worker tree:", err)
			return 1
		}
		return 0
	case gang.Mode:
		return gang.Main(args[1:], environ, os.Stdin, stdout, stderr)
	case profiler.Mode:
		defer profiler.Sweep()
		return profiler.Main(os.Stdin, stdout)
	case probe.Mode:
		return probe.Main(environ, stdout)
	case agent.Mode:
		return agent.Run(environ, stderr)
	case "version":
		fmt.Fprintf(stdout, "falaj-worker protocol %d, shim %d\n", Protocol, shim.Version)
		return 0
	}
	fmt.Fprintln(stderr, "usage: falaj-worker shim DIR | version\n\nStarted by falaj, not by users.")
	return 2
}
