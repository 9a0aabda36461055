// Command foundation measures the foundation of Falaj and writes
// bench/results/foundation.json. Run it by `make bench-foundation`, from the
// root of the repository, with bin/falaj and bin/falaj-worker built.
//
// # Map
//
//   - main.go: flags, the order of the measurements, the file that comes out.
//   - row.go: rows, medians, quantiles. machine.go: what the machine is, CPU
//     time, pinning to cores.
//   - server.go: a real server on a temporary directory, and its API.
//   - start.go, job.go, commit.go, infer.go, asof.go: the measurements, each
//     with its baseline in the same rounds. flights.go reads the demo's data.
//   - asof.py: the peer of the as-of join, DuckDB in a uv environment (peers.txt).
//
// Rounds of ours and of the baseline alternate and medians are reported, so that
// a busy minute of the machine meets both.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of the program.
type bench struct {
	root   string // of the repository
	dir    string // temporary, on the disk of the repository
	rounds int
	quick  bool
	log    io.Writer
	result result
}

// result is the form of bench/results/AREA.json.
type result struct {
	Machine machine `json:"machine"`
	Commit  string  `json:"commit"`
	Rounds  int     `json:"rounds"`
	Rows    []row   `json:"rows"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("foundation", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "root of the repository")
	out := flags.String("out", "", "file to write (default bench/results/foundation.json)")
	rounds := flags.Int("rounds", 5, "rounds of each measurement")
	quick := flags.Bool("quick", false, "one short round, to see that it works; the numbers mean nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.Arg(0) == "echo" {
		return serveEcho(stdout)
	}
	b := &bench{rounds: max(*rounds, 1), quick: *quick, log: stderr}
	if b.quick {
		b.rounds = 1
	}
	if b.root, err = filepath.Abs(*root); err != nil {
		return err
	}
	if *out == "" {
		*out = filepath.Join(b.root, "bench", "results", "foundation.json")
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	body, err := json.MarshalIndent(b.result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(*out, append(body, '\n'), 0o600); err != nil {
		return err
	}
	return printTable(stdout, b.result)
}

// measure does everything in order and fills b.result.
func (b *bench) measure(ctx context.Context) (err error) {
	// The disk of the repository, not one that may be in memory.
	if err := os.MkdirAll(filepath.Join(b.root, ".tmp"), 0o750); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(filepath.Join(b.root, ".tmp"), "bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.result = result{Machine: describeMachine(b.root), Commit: b.commit(ctx), Rounds: b.rounds}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"start and memory", b.starts},
		{"commits", b.commits},
		{"inference", b.inference},
		{"jobs and as-of join", b.jobsAndJoin},
	} {
		began := time.Now()
		b.say("%s", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		b.say("%s took %.0f s", step.name, time.Since(began).Seconds())
	}
	b.result.Machine.LoadAfter = loadAverage()
	return nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.log, "  · "+format+"\n", args...) }

func (b *bench) add(r row) { b.result.Rows = append(b.result.Rows, r) }

func (b *bench) commit(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD")
	cmd.Dir = b.root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
