// Command monitoring measures the monitoring of Falaj beside its peers and writes
// what bench/results/monitoring.json holds. Run it from the root of the repository.
//
// # Map
//
//   - main.go: flags, the order of the measurements, the file that comes out.
//   - windows.go: windows evaluated per second, beside windows.py (Evidently and
//     scipy in a uv environment, peers.txt).
//
// Rounds of ours and of the peer alternate and medians are reported.
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
	"runtime"
	"slices"
	"strconv"
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
	dir    string // temporary
	rounds int
	span   time.Duration // of ours in a round
	quick  bool
	log    io.Writer
	result result
}

// result and row have the form that bench/README.md tells.
type result struct {
	Machine machine `json:"machine"`
	Commit  string  `json:"commit"`
	Rounds  int     `json:"rounds"`
	Rows    []row   `json:"rows"`
}

type machine struct {
	Cores      int    `json:"cores"`
	Go         string `json:"go"`
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

type row struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Better string   `json:"better"` // higher or lower
	Ours   *float64 `json:"ours"`
	Theirs *float64 `json:"theirs"`
	Peer   string   `json:"peer"`
	Note   string   `json:"note"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("monitoring", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "root of the repository")
	out := flags.String("out", "", "file to write (default: none, the result goes to the output)")
	rounds := flags.Int("rounds", 5, "rounds of each measurement")
	quick := flags.Bool("quick", false, "one short round, to see that it works; the numbers mean nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := &bench{rounds: max(*rounds, 1), span: time.Second, quick: *quick, log: stderr}
	if b.quick {
		b.rounds, b.span = 1, time.Millisecond
	}
	if b.root, err = filepath.Abs(*root); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.result = result{Machine: machine{Cores: runtime.NumCPU(), Go: runtime.Version(), LoadBefore: load()}, Commit: b.commit(ctx), Rounds: b.rounds}
	if err := b.windows(ctx); err != nil {
		return fmt.Errorf("windows: %w", err)
	}
	b.result.Machine.LoadAfter = load()
	body, err := json.MarshalIndent(b.result, "", "  ")
	if err != nil {
		return err
	}
	if *out == "" {
		_, err = fmt.Fprintln(stdout, string(body))
		return err
	}
	return os.WriteFile(*out, append(body, '\n'), 0o600)
}

func (b *bench) commit(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD")
	cmd.Dir = b.root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// median in four digits, which is more than the noise; it sorts the values.
func median(values []float64) *float64 {
	slices.Sort(values)
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(values[len(values)/2], 'g', 4, 64), 64)
	if err != nil {
		return nil
	}
	return &rounded
}
