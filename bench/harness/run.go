// Package harness is what the measurements under bench have in common.
//
// # Map
//
//   - run.go: a run of a program that measures one area: flags, steps, the file and
//     the table that come out.
//   - row.go: rows, medians, quantiles. table.go: rows for people.
//   - machine.go: what the machine is, CPU time, pinning to cores.
//   - server.go: a real server on a temporary directory, confined to a core.
//   - peer.go: a peer in a locked Python environment.
//   - csv.go: the flights' files.
package harness

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

// Run is one run of a program.
type Run struct {
	Root   string // of the repository
	Dir    string // temporary, on the disk of the repository
	Rounds int
	Quick  bool // one short round, whose numbers mean nothing
	Log    io.Writer
	Result Result
}

// Result is the form of bench/results/AREA.json.
type Result struct {
	Machine Machine `json:"machine"`
	Commit  string  `json:"commit"`
	Rounds  int     `json:"rounds"`
	Rows    []Row   `json:"rows"`
}

// Step is one measurement, which adds its rows.
type Step struct {
	Name string
	Do   func(context.Context) error
}

// Main is the main function of an area; it does not return.
func Main(area string, steps func(r *Run) []Step) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := Measure(ctx, area, os.Args[1:], os.Stdout, os.Stderr, steps)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Measure does the steps in order, writes the result, and prints it. A quick run
// writes only where it is told to.
func Measure(ctx context.Context, area string, args []string, stdout, stderr io.Writer, steps func(r *Run) []Step) (err error) {
	flags := flag.NewFlagSet(area, flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "root of the repository")
	out := flags.String("out", "", "file to write (default bench/results/"+area+".json, with its table in bench/README.md)")
	rounds := flags.Int("rounds", 5, "rounds of each measurement")
	quick := flags.Bool("quick", false, "one short round, to see that it works; the numbers mean nothing")
	only := flags.String("only", "", "do only the steps whose name has this; the result is printed and written nowhere")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r := &Run{Rounds: max(*rounds, 1), Quick: *quick, Log: stderr}
	if r.Quick {
		r.Rounds = 1
	}
	if r.Root, err = filepath.Abs(*root); err != nil {
		return err
	}
	// The disk of the repository, not one that may be in memory.
	if err := os.MkdirAll(filepath.Join(r.Root, ".tmp"), 0o750); err != nil {
		return err
	}
	if r.Dir, err = os.MkdirTemp(filepath.Join(r.Root, ".tmp"), "bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.Dir)) }()
	r.Result = Result{Machine: DescribeMachine(r.Root), Commit: r.commit(ctx), Rounds: r.Rounds}
	for _, step := range steps(r) {
		if !strings.Contains(step.Name, *only) {
			continue
		}
		began := time.Now()
		r.Say("%s", step.Name)
		if err := step.Do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
		r.Say("%s took %.0f s", step.Name, time.Since(began).Seconds())
	}
	r.Result.Machine.LoadAfter = loadAverage()
	if err := r.write(area, *out, *only == ""); err != nil {
		return err
	}
	return Print(stdout, r.Result)
}

// write writes the result to a file; to that of the area, with its table, when
// none is named and all was measured.
func (r *Run) write(area, out string, whole bool) error {
	if out == "" && (r.Quick || !whole) {
		return nil
	}
	body, err := json.MarshalIndent(r.Result, "", "  ")
	if err != nil {
		return err
	}
	if out != "" {
		return os.WriteFile(out, append(body, '\n'), 0o600)
	}
	out = filepath.Join(r.Root, "bench", "results", area+".json")
	if err := os.MkdirAll(filepath.Dir(out), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(out, append(body, '\n'), 0o600); err != nil {
		return err
	}
	return putTable(filepath.Join(r.Root, "bench", "README.md"), area, r.Result)
}

// Say tells how far the run is.
func (r *Run) Say(format string, args ...any) { fmt.Fprintf(r.Log, "  · "+format+"\n", args...) }

// Add adds a row.
func (r *Run) Add(row Row) { r.Result.Rows = append(r.Result.Rows, row) }

func (r *Run) commit(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD")
	cmd.Dir = r.Root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
