// Command cluster runs a Slurm of virtual nodes on this machine until it is
// told to end (SIGINT, SIGTERM) or its standard input ends. It prints the path
// of its configuration when it is ready. See scripts/engines/slurm.sh.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
)

func main() {
	dir := flag.String("dir", "", "directory of the cluster; a temporary one when empty")
	nodes := flag.Int("nodes", 4, "virtual nodes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, slurmtest.Options{Dir: *dir, Nodes: *nodes})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o slurmtest.Options) error {
	if why := slurmtest.Absent(); why != "" {
		return fmt.Errorf("%s", why)
	}
	c, err := slurmtest.Start(ctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "SLURM_CONF="+c.Conf)
	<-ctx.Done()
	return c.Close()
}
