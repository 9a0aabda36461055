// Command falaj-worker runs user code for falaj; see internal/worker.
package main

import (
	"os"
	"syscall"

	"github.com/falaj-ml/falaj/internal/worker"
)

func main() {
	syscall.Umask(0o022) // not the server's: what user code makes is for its sandbox to read
	os.Exit(worker.Run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
