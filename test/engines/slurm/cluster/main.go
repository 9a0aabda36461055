// Command cluster runs a Slurm of virtual nodes on this machine until it is
// told to end (SIGINT, SIGTERM). It prints the path of its configuration when it
// is ready, and does what it reads: "fail NODE" kills a node, "restore NODE"
// starts it again; each is answered by "ok" or by what is wrong. See
// scripts/engines/slurm.sh.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
)

func main() {
	dir := flag.String("dir", "", "directory of the cluster; a temporary one when empty")
	nodes := flag.Int("nodes", 4, "virtual nodes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, slurmtest.Options{Dir: *dir, Nodes: *nodes}, os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o slurmtest.Options, in io.Reader, out io.Writer) error {
	if why := slurmtest.Absent(); why != "" {
		return errors.New(why)
	}
	c, err := slurmtest.Start(ctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "SLURM_CONF="+c.Conf)
	go func() {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			fmt.Fprintln(out, answer(ctx, c, lines.Text()))
		}
	}()
	<-ctx.Done()
	return c.Close()
}

func answer(ctx context.Context, c *slurmtest.Cluster, order string) string {
	verb, node, _ := strings.Cut(order, " ")
	if !slices.Contains(c.Nodes, node) {
		return "no such node: " + node
	}
	switch verb {
	case "fail":
		c.Fail(node)
	case "restore":
		if err := c.Restore(ctx, node); err != nil {
			return err.Error()
		}
	default:
		return "no such order: " + verb
	}
	return "ok"
}
