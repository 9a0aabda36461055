// Package harness is what the measurements under bench have in common.
//
// # Map
//
//   - run.go: a run of a program that measures one area: flags, steps, the file and
//     the table that come out.
//   - row.go: rows, medians, quantiles. table.go: rows for people.
//   - machine.go: what the machine is, CPU time, pinning to cores.
//   - server.go: a real server on a temporary directory, confined to a core.
//   - peer.go: a peer in a locked Python environment. onnx.go: a model that costs nothing.
//   - csv.go: the flights' files.
package harness

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Run is one run of a program.
type Run struct {
	Root   string // of the repository
	Dir    string // temporary, on the disk of the repository
	Rounds int
	Quick  bool     // one short round, whose numbers mean nothing
	Parts  []string // of steps that have parts: only those whose name has one of these; empty is all
	Log    io.Writer
	Result Result

	step string // whose rows are added
}

// Result is the form of bench/results/AREA.json.
type Result struct {
	Machine Machine `json:"machine"`
	Commit  string  `json:"commit"`
	Rounds  int     `json:"rounds"`
	// Kept are the steps of other runs, where not all was measured at once.
	Kept []Kept `json:"kept,omitempty"`
	Rows []Row  `json:"rows"`
}

// Kept is a step whose rows another run measured.
type Kept struct {
	Step       string `json:"step"`
	Commit     string `json:"commit"`
	Rounds     int    `json:"rounds"`
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
	// Machine is what it ran on, if that is not the result's.
	Machine *Machine `json:"machine,omitempty"`
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
	keep := flags.Bool("keep", false, "with -only: put the rows of these steps into the file, beside what other runs measured of the others")
	parts := flags.String("parts", "", "of a step that has parts, such as the attacks of safety, do only those whose name has one of these, separated by commas; the result is printed and written nowhere")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *parts != "" && *keep {
		return errors.New("with -parts a step is not measured whole: leave out -keep")
	}
	r := &Run{Rounds: max(*rounds, 1), Quick: *quick, Log: stderr}
	if *parts != "" {
		r.Parts = strings.Split(*parts, ",")
	}
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
	all := steps(r)
	var before *Result
	if *keep {
		if before, err = r.before(area, *out); err != nil {
			return err
		}
	}
	done := map[string]bool{}
	for _, step := range all {
		if !strings.Contains(step.Name, *only) {
			continue
		}
		began := time.Now()
		r.step, done[step.Name] = step.Name, true
		r.Say("%s", step.Name)
		if err := step.Do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
		r.Say("%s took %.0f s", step.Name, time.Since(began).Seconds())
	}
	r.Result.Machine.LoadAfter = loadAverage()
	if before != nil {
		r.Result = joined(all, done, *before, r.Result)
	}
	if err := r.write(area, *out, *only == "" && *parts == "" || *keep); err != nil {
		return err
	}
	return Print(stdout, r.Result)
}

// file is where a result goes.
func (r *Run) file(area, out string) string {
	if out != "" {
		return out
	}
	return filepath.Join(r.Root, "bench", "results", area+".json")
}

// before is what the file has of earlier runs; nothing where there is none.
func (r *Run) before(area, out string) (*Result, error) {
	path := r.file(area, out)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Result{}, nil
	}
	if err != nil {
		return nil, err
	}
	var res Result
	if err := json.Unmarshal(text, &res); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, row := range res.Rows {
		if row.Step == "" {
			return nil, fmt.Errorf("%s does not say which step measured %q: measure all its steps, without -only and -keep", path, row.Name)
		}
	}
	return &res, nil
}

// joined is a result with the rows of an earlier one for the steps that were not done now.
func joined(steps []Step, done map[string]bool, before, now Result) Result {
	out := now
	out.Rows, out.Kept = nil, nil
	for _, step := range steps {
		from := before
		if done[step.Name] {
			from = now
		}
		rows := rowsOf(step.Name, from.Rows)
		out.Rows = append(out.Rows, rows...)
		if done[step.Name] || len(rows) == 0 {
			continue
		}
		kept := Kept{Step: step.Name, Commit: before.Commit, Rounds: before.Rounds, LoadBefore: before.Machine.LoadBefore, LoadAfter: before.Machine.LoadAfter, Machine: &before.Machine}
		if i := slices.IndexFunc(before.Kept, func(k Kept) bool { return k.Step == step.Name }); i >= 0 {
			if kept = before.Kept[i]; kept.Machine == nil {
				kept.Machine = &before.Machine
			}
		}
		if kept.Machine.like(now.Machine) {
			kept.Machine = nil
		}
		out.Kept = append(out.Kept, kept)
	}
	return out
}

func rowsOf(step string, rows []Row) []Row {
	var out []Row
	for _, row := range rows {
		if row.Step == step {
			out = append(out, row)
		}
	}
	return out
}

// write writes the result to a file; to that of the area, with its table, when
// none is named and all of it is known. A quick run writes only where it is told to.
func (r *Run) write(area, out string, all bool) error {
	if out == "" && (r.Quick || !all) {
		return nil
	}
	body, err := json.MarshalIndent(r.Result, "", "  ")
	if err != nil {
		return err
	}
	path := r.file(area, out)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(path, append(body, '\n'), 0o600); err != nil || out != "" {
		return err
	}
	return putTable(filepath.Join(r.Root, "bench", "README.md"), area, r.Result)
}

// Does reports whether a part of a step is to be measured.
func (r *Run) Does(part string) bool {
	return len(r.Parts) == 0 || slices.ContainsFunc(r.Parts, func(p string) bool { return strings.Contains(part, p) })
}

// Say tells how far the run is.
func (r *Run) Say(format string, args ...any) { fmt.Fprintf(r.Log, "  · "+format+"\n", args...) }

// Add adds a row.
func (r *Run) Add(row Row) {
	row.Step = r.step
	r.Result.Rows = append(r.Result.Rows, row)
}

func (r *Run) commit(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD")
	cmd.Dir = r.Root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
