// Command falaj-worker runs user code for falaj; see internal/worker.
package main

import (
	"os"

	"github.com/falaj-ml/falaj/internal/worker"
)

func main() { os.Exit(worker.Run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }
