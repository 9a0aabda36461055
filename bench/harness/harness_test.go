package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// TestTables: bench/README.md shows what the results say.
func TestTables(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../results/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no results", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var res Result
		if err := json.Unmarshal(text, &res); err != nil {
			t.Fatal(file, err)
		}
		area := strings.TrimSuffix(filepath.Base(file), ".json")
		from, to, err := tableIn(string(readme), area)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.TrimSpace(string(readme[from:to])), strings.TrimSpace(Table(res)); got != want {
			t.Errorf("the table of %s is not that of the results:\n%s\nwant\n%s", area, got, want)
		}
	}
}

func TestPutTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "README.md")
	const text = "before\n<!-- table a -->\nold\n<!-- end a -->\nafter\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	res := Result{Rows: []Row{{Name: "n", Unit: "s", Better: Lower, Ours: Value(1.23456), Aim: &Aim{Value: Value(2)}}, {Name: "only in the file", Ours: Value(1), Detail: true}}}
	for range 2 { // the second changes nothing
		if err := putTable(path, "a", res); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(got); !strings.HasPrefix(s, "before\n<!-- table a -->\n\n") || !strings.HasSuffix(s, "| n | 1.235 | - | s | ≤ 2 |\n\n<!-- end a -->\nafter\n") || strings.Contains(s, "old") || strings.Contains(s, "only in the file") {
		t.Errorf("%s", s)
	}
	if err := putTable(path, "b", res); err == nil {
		t.Error("a table without its marks was put somewhere")
	}
}

// TestKeep: a run of one step leaves what others measured, and says whose it is.
func TestKeep(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.json")
	value := 0.0
	steps := func(r *Run) []Step {
		row := func(name string) func(context.Context) error {
			return func(context.Context) error {
				value++
				r.Add(Row{Name: name, Unit: "s", Better: Lower, Ours: Value(value)})
				return nil
			}
		}
		return []Step{{Name: "one", Do: row("a")}, {Name: "two", Do: row("b")}, {Name: "three", Do: row("c")}}
	}
	measure := func(args ...string) (Result, error) {
		t.Helper()
		err := Measure(t.Context(), "x", append([]string{"-root", t.TempDir(), "-out", out}, args...), io.Discard, io.Discard, steps)
		text, _ := os.ReadFile(out)
		var res Result
		if err := json.Unmarshal(text, &res); err != nil {
			t.Fatal(err)
		}
		return res, err
	}
	show := func(res Result) string {
		var b strings.Builder
		for _, r := range res.Rows {
			fmt.Fprintf(&b, "%s/%s=%v ", r.Step, r.Name, *r.Ours)
		}
		for _, k := range res.Kept {
			fmt.Fprintf(&b, "%s:%d ", k.Step, k.Rounds)
		}
		return strings.TrimSpace(b.String())
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "two", "-keep", "-rounds", "7"}, "two/b=1"},
		{[]string{"-only", "one", "-keep", "-rounds", "3"}, "one/a=2 two/b=1 two:7"},
		{[]string{"-only", "three", "-keep", "-rounds", "4"}, "one/a=2 two/b=1 three/c=3 one:3 two:7"},
		{[]string{"-only", "two", "-keep", "-rounds", "9"}, "one/a=2 two/b=4 three/c=3 one:3 three:4"},
		{nil, "one/a=5 two/b=6 three/c=7"},
	} {
		res, err := measure(tt.args...)
		if err != nil || show(res) != tt.want {
			t.Errorf("%v: %s, %v; want %s", tt.args, show(res), err, tt.want)
		}
	}
	// What another machine measured is told apart, in a table of its own.
	rewrite := func(change func(*Result)) {
		t.Helper()
		res, err := measure()
		if err != nil {
			t.Fatal(err)
		}
		change(&res)
		text, _ := json.Marshal(res)
		if err := os.WriteFile(out, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(func(r *Result) { r.Machine.CPU = "another" })
	for _, only := range []string{"one", "two"} {
		if _, err := measure("-only", only, "-keep"); err != nil {
			t.Fatal(err)
		}
	}
	res, err := measure("-only", "two", "-keep")
	if err != nil {
		t.Fatal(err)
	}
	if k := res.Kept; len(k) != 2 || k[0].Machine != nil || k[1].Step != "three" || k[1].Machine == nil || k[1].Machine.CPU != "another" {
		t.Errorf("kept: %+v", k)
	}
	here, there, ok := strings.Cut(Table(res), "(another)")
	if !ok || strings.Count(here, "| a |")+strings.Count(here, "| b |") != 2 || strings.Contains(here, "| c |") || !strings.Contains(there, "| c |") {
		t.Errorf("%s(another)%s", here, there)
	}
	rewrite(func(r *Result) { r.Rows[0].Step = "" })
	if _, err := measure("-only", "one", "-keep"); err == nil {
		t.Error("results that cannot be told apart were joined")
	}
}

func TestRatio(t *testing.T) {
	for _, tt := range []struct {
		r     Row
		ratio float64
		met   bool
	}{
		{Row{Better: Higher, Ours: Value(30), Theirs: Value(10), Aim: &Aim{Ratio: Value(3)}}, 3, true},
		{Row{Better: Lower, Ours: Value(30), Theirs: Value(10), Aim: &Aim{Value: Value(29)}}, 10.0 / 30, false},
		{Row{Better: Lower, Ours: Value(20), Theirs: Value(30), Aim: &Aim{Value: Value(20)}}, 1.5, true},
	} {
		got, ok := tt.r.Ratio()
		met, known := tt.r.AimMet()
		if !ok || !known || got != tt.ratio || met != tt.met {
			t.Errorf("%+v: ratio %v, met %v", tt.r, got, met)
		}
	}
	if _, ok := (Row{Better: Higher, Ours: Value(1)}).Ratio(); ok {
		t.Error("a ratio without a peer")
	}
}

// TestCPUSeconds: the time of this process rises with what it does.
func TestCPUSeconds(t *testing.T) {
	before, err := CPUSeconds(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := 0.0
	for i := range 20_000_000 {
		x += math.Sqrt(float64(i))
	}
	runtime.KeepAlive(x)
	after, err := CPUSeconds(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("%v, then %v: %v", before, after, err)
	}
}

// TestTree: what a process started is counted with it.
func TestTree(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `sh -c "i=0; while [ \$i -lt 50000 ]; do i=\$((i+1)); done; echo started; exec sleep 60" & wait`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	tree := Tree(cmd.Process.Pid)
	defer func() {
		for _, pid := range tree {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Wait()
	}()
	if len(tree) != 2 || tree[0] != cmd.Process.Pid {
		t.Fatalf("the tree of %d is %v", cmd.Process.Pid, tree)
	}
	all, err := TreeCPUSeconds(tree[0])
	alone, _ := CPUSeconds(tree[0])
	if err != nil || all <= alone {
		t.Errorf("%g s of all, %g of the first: %v", all, alone, err)
	}
	if all, child := TreeMemory(tree[0]), TreeMemory(tree[1]); child <= 0 || all <= child {
		t.Errorf("%g MiB of all, %g of the child", all, child)
	}
	if _, err := TreeCPUSeconds(1 << 30); err == nil {
		t.Error("a process that is not there has CPU time")
	}
}
