// It is started several times for each job, and has little to do each time: to
// look for a limit on its own cores costs more than it can save.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

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
