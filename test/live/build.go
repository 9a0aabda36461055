package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/repotest"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// Bin is where the binaries are.
type Bin struct {
	Root   string // of the repository
	Falaj  string
	Worker string
}

var built struct {
	sync.Once
	bin Bin
	err string
}

// Build builds the binaries, without the race detector, into .tmp/test. Of the test
// packages of one `go test` the first builds; a file lock keeps the others waiting.
func Build(tb testing.TB) Bin {
	tb.Helper()
	built.Do(func() { built.bin, built.err = build() })
	if built.err != "" {
		tb.Fatal(built.err)
	}
	return built.bin
}

func build() (Bin, string) {
	root, err := repotest.Root()
	if err != nil {
		return Bin{}, err.Error()
	}
	dir := filepath.Join(root, ".tmp", "test")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return Bin{}, err.Error()
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Bin{}, err.Error()
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return Bin{}, err.Error()
	}
	// What falaj looks for beside itself.
	if err := os.Symlink(filepath.Join("..", "..", "lib"), filepath.Join(dir, "lib")); err != nil && !os.IsExist(err) {
		return Bin{}, err.Error()
	}
	bin := Bin{Root: root, Falaj: filepath.Join(dir, "falaj"), Worker: filepath.Join(dir, "falaj-worker")}
	by, note := goTest(), filepath.Join(dir, "built-by")
	if was, err := os.ReadFile(note); err == nil && by != "" && string(was) == by {
		return bin, ""
	}
	if err := os.RemoveAll(note); err != nil { // a build that fails leaves none
		return Bin{}, err.Error()
	}
	for _, b := range []struct{ out, pkg, cgo string }{{bin.Falaj, "./cmd/falaj", "1"}, {bin.Worker, "./cmd/falaj-worker", "0"}} {
		cmd := exec.Command("go", "build", "-tags=duckdb_arrow", "-buildvcs=false", "-ldflags=-s -w", "-o", b.out, b.pkg)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED="+b.cgo)
		if out, err := cmd.CombinedOutput(); err != nil {
			return bin, "building " + b.pkg + ": " + err.Error() + "\n" + string(out)
		}
	}
	if err := os.WriteFile(note, []byte(by), 0o600); err != nil {
		return Bin{}, err.Error()
	}
	return bin, ""
}

// goTest identifies the go command that runs this test; it is empty where another program does.
func goTest() string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err != nil || string(name) != "go\n" {
		return ""
	}
	p, err := shim.ProcessOf(os.Getppid())
	if err != nil {
		return ""
	}
	return fmt.Sprint(p.PID, p.Start)
}

// Program builds another program of the repository, static, and gives its bytes.
func (b Bin) Program(tb testing.TB, path string) []byte {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "program")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", file, path)
	cmd.Dir, cmd.Env = b.Root, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("building %s: %v\n%s", path, err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}
