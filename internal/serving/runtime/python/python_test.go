package python_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/serving/runtime/python"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// interpreter is a Python with packages; tests that find none are left out.
func interpreter(tb testing.TB, packages ...string) string {
	tb.Helper()
	const path = "/usr/bin/python3"
	if err := exec.CommandContext(tb.Context(), path, "-I", "-c", "import "+strings.Join(append(packages, "numpy"), ", ")).Run(); err != nil {
		say := tb.Skipf
		if os.Getenv("CI") == "true" { //nolint:forbidigo // The rule of every engine's tests.
			say = tb.Fatalf
		}
		say("no %s with numpy and %v; run `make engines`: %v", path, packages, err)
	}
	return path
}

// launcher starts workers without a sandbox, and keeps what it started.
type launcher struct {
	mu      sync.Mutex
	started []*exec.Cmd
}

func (l *launcher) Launch(ctx context.Context, o runtime.Options) (child.Process, error) {
	argv := python.Command(*o.Python)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{}
	// A sandbox ends with all that is in it.
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	for k, v := range python.Variables(*o.Python, o.Threads) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started = append(l.started, cmd)
	return plain{cmd}, nil
}

type plain struct{ *exec.Cmd }

func (p plain) Command() *exec.Cmd { return p.Cmd }

// kill ends the process that was started as number i.
func (l *launcher) kill(t *testing.T, i int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.started[i].Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// bed is a runtime in a directory of its own.
type bed struct {
	*python.Runtime
	launcher    launcher
	interpreter string
	dir         string
}

func newBed(t *testing.T, packages ...string) *bed {
	t.Helper()
	b := &bed{interpreter: interpreter(t, packages...), dir: t.TempDir()}
	processes := child.New(&b.launcher, nil)
	t.Cleanup(processes.Close)
	var err error
	if b.Runtime, err = python.New(processes, b.dir); err != nil {
		t.Fatal(err)
	}
	return b
}

// options are those of a model of these files.
func (b *bed) options(files fs.FS) runtime.Options {
	return runtime.Options{Python: &runtime.Python{
		Environment: "test@sha256:1", Interpreter: b.interpreter,
		Write: func(_ context.Context, dir string) error { return os.CopyFS(dir, files) },
	}}
}

func filesOf(t *testing.T, files map[string]string) fs.FS {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return os.DirFS(dir)
}

func (b *bed) load(t *testing.T, files map[string]string, set ...func(*runtime.Options)) runtime.Session {
	t.Helper()
	o := b.options(filesOf(t, files))
	for _, f := range set {
		f(&o)
	}
	s, err := b.Load(t.Context(), nil, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// suite loads the text of a predict.py as the conformance suite loads a model.
type suite struct {
	*bed
	t *testing.T
}

func (s suite) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	o.Python = s.options(filesOf(s.t, map[string]string{"predict.py": string(model)})).Python
	return s.bed.Load(ctx, nil, o)
}

func TestConformance(t *testing.T) {
	port := func(name, datatype, shape string) string {
		return fmt.Sprintf(`{"name": %q, "datatype": %q, "shape": %s}`, name, datatype, shape)
	}
	signature := func(inputs, outputs string) string {
		return "\ndef signature(model):\n    return {\"inputs\": [" + inputs + "], \"outputs\": [" + outputs + "]}\n"
	}
	const begin = "import numpy as np\ndef load(path):\n    return 1\n"
	runtimetest.Run(t, suite{newBed(t), t}, runtimetest.Models{
		Logistic: []byte(begin + fmt.Sprintf(`def predict(model, inputs):
    p = 1 / (1 + np.exp(-(inputs["X"] @ np.array([%v, %v]) + %v)))
    return {"probabilities": np.stack([1 - p, p], axis=1), "label": (p > 0.5).astype(np.int64)}
`, runtimetest.W[0], runtimetest.W[1], runtimetest.B) + signature(port("X", "FP32", "[-1, 2]"), port("label", "INT64", "[-1]")+", "+port("probabilities", "FP32", "[-1, 2]"))),
		Echo: []byte(begin + "def predict(model, inputs):\n    return {\"e\": inputs[\"s\"]}\n" + signature(port("s", "BYTES", "[-1]"), port("e", "BYTES", "[-1]"))),
		Total: []byte(begin + "def predict(model, inputs):\n    return {\"total\": inputs[\"x\"].sum() * inputs[\"scale\"], \"twice\": 2 * inputs[\"x\"]}\n" +
			signature(port("x", "FP32", "[-1]")+", "+port("scale", "FP32", "[]"), port("total", "FP32", "[]")+", "+port("twice", "FP32", "[-1]"))),
	})
}

const echo = `
def load(path):
    return path
def predict(model, inputs):
    return inputs
`

// TestDatatypes: tensors of each datatype and all sorts of shapes come back as they
// went, bit by bit.
func TestDatatypes(t *testing.T) {
	var ports []string
	for _, d := range runtime.Datatypes {
		ports = append(ports, fmt.Sprintf(`{"name": %q, "datatype": %q, "shape": null}`, d, d))
	}
	all := strings.Join(ports, ", ")
	s := newBed(t).load(t, map[string]string{"predict.py": echo, "falaj.json": `{"inputs": [` + all + `], "outputs": [` + all + `]}`})
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var in []runtime.Tensor
		var names []string
		for _, d := range runtime.Datatypes {
			shape := make([]int64, r.IntN(4))
			n := 1
			for i := range shape {
				shape[i] = r.Int64N(4)
				n *= int(shape[i])
			}
			in, names = append(in, runtime.Tensor{Name: string(d), Datatype: d, Shape: shape, Data: drawn(r, d, n)}), append(names, string(d))
		}
		out, err := s.Infer(t.Context(), in, names)
		if err != nil {
			t.Fatal(fault.Told(err))
		}
		if !reflect.DeepEqual(out, in) {
			t.Fatalf("%+v\ncame back as\n%+v", in, out)
		}
	}
}

// drawn are random elements; no NaN, which equals nothing.
func drawn(r *rand.Rand, d runtime.Datatype, n int) any {
	data := runtime.Zeros(d, n)
	v := reflect.ValueOf(data)
	for i := range n {
		switch x := v.Index(i); x.Kind() {
		case reflect.Bool:
			x.SetBool(r.IntN(2) == 1)
		case reflect.String:
			b := make([]byte, r.IntN(5))
			for j := range b {
				b[j] = byte(r.IntN(256))
			}
			x.SetString(string(b))
		case reflect.Float32, reflect.Float64:
			x.SetFloat(r.NormFloat64())
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			u := r.Uint64()
			if d == runtime.FP16 || d == runtime.BF16 {
				u &= 0x3fff // finite
			}
			x.SetUint(u & (1<<(8*x.Type().Size()) - 1))
		default:
			x.SetInt(int64(r.Uint64()) >> (64 - 8*x.Type().Size()))
		}
	}
	return data
}

func one(name string, v float32) []runtime.Tensor {
	return []runtime.Tensor{{Name: name, Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{v}}}
}

const oneIn = `{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}], "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}]}`

// TestAnswers: what a function gives that it did not promise is an error of that request
// alone, and of what it says only who asked hears values.
func TestAnswers(t *testing.T) {
	s := newBed(t).load(t, map[string]string{"falaj.json": oneIn, "predict.py": `
import sys
import numpy as np
def load(path):
    print("loading", path)
def predict(model, inputs):
    print("garbage" * 100)
    sys.stderr.write("garbage\n" * 10000)
    x = inputs["x"]
    return [
        lambda: {"y": x}, lambda: {"y": x.astype(np.float64)}, lambda: {"y": [7]}, lambda: {"y": [1j]}, lambda: {"y": x.reshape(1, 1)}, lambda: {"y": ["seven"]},
        lambda: {}, lambda: x, lambda: {"y": np.zeros(1 << 28, np.float32)}, lambda: None.nothing, lambda: int("4711 is no number"), lambda: {"y": x, "z": 1},
    ][int(x[0])]()
`})
	for i, want := range []struct {
		kind fault.Kind
		says string
	}{
		{},
		{},
		{},
		{fault.Unsupported, "complex"},
		{fault.Unsupported, "shape [1, 1] and not [-1]"},
		{fault.Unsupported, "y"},
		{fault.Unsupported, "no output y"},
		{fault.Unsupported, "ndarray and no dict"},
		{fault.TooLarge, ""},
		{fault.Invalid, "predict.py:12: AttributeError"},
		{fault.Invalid, "4711"},
		{},
	} {
		out, err := s.Infer(t.Context(), one("x", float32(i)), []string{"y"})
		if want.kind == 0 && want.says == "" {
			if err != nil || len(out) != 1 || len(out[0].Data.([]float32)) != 1 {
				t.Errorf("%d: %+v, %v", i, out, err)
			}
			continue
		}
		if !fault.Is(err, want.kind) || !strings.Contains(fault.Told(err), want.says) {
			t.Errorf("%d: kind %s, %v (%s)", i, fault.KindOf(err), err, fault.DataOf(err))
		}
		if strings.Contains(err.Error(), "4711") {
			t.Errorf("%d: a value is in the error that is kept: %v", i, err)
		}
	}
}

// TestRefused: what does not load says why, leaves no file and no process.
func TestRefused(t *testing.T) {
	b := newBed(t)
	for name, c := range map[string]struct {
		files map[string]string
		kind  fault.Kind
		says  string
	}{
		"nothing":         {map[string]string{"model.bin": "x"}, fault.Invalid, "there is no predict.py"},
		"no function":     {map[string]string{"predict.py": "def load(path): pass"}, fault.Invalid, "no function predict"},
		"no package":      {map[string]string{"predict.py": "import no_such_package"}, fault.Invalid, "no_such_package"},
		"raises":          {map[string]string{"predict.py": "def predict(m, i): pass\ndef load(path):\n    raise KeyError('weights')"}, fault.Invalid, "predict.py:3: KeyError: 'weights'"},
		"says nothing":    {map[string]string{"predict.py": echo}, fault.Invalid, "nothing says what the model takes"},
		"no json":         {map[string]string{"predict.py": echo, "falaj.json": "{"}, fault.Invalid, "no JSON"},
		"deep json":       {map[string]string{"predict.py": echo, "falaj.json": strings.Repeat("[", 100000)}, fault.Invalid, "no JSON"},
		"no outputs":      {map[string]string{"predict.py": echo, "falaj.json": `{"inputs": []}`}, fault.Invalid, "outputs is no list"},
		"odd datatype":    {map[string]string{"predict.py": echo, "falaj.json": `{"outputs": [{"name": "x", "datatype": "INT4", "shape": [1]}]}`}, fault.Invalid, "x has no datatype of BOOL"},
		"odd shape":       {map[string]string{"predict.py": echo, "falaj.json": `{"outputs": [{"name": "x", "datatype": "INT8", "shape": [1.5]}]}`}, fault.Invalid, "no list of sizes"},
		"twice":           {map[string]string{"predict.py": echo, "falaj.json": `{"outputs": [{"name": "x", "datatype": "INT8"}, {"name": "x", "datatype": "INT8"}]}`}, fault.Invalid, "appears twice"},
		"another flavor":  {map[string]string{"MLmodel": "flavors:\n  xgboost:\n    data: model.xgb\n"}, fault.Invalid, "no flavor sklearn, but xgboost"},
		"no pickle":       {map[string]string{"MLmodel": "flavors:\n  sklearn:\n    pickled_model: model.pkl\n", "model.pkl": "garbage"}, fault.Invalid, "loading the model"},
		"no MLmodel":      {map[string]string{"MLmodel": "\x00\xff: ["}, fault.Invalid, "loading the model"},
		"exits":           {map[string]string{"predict.py": "import os; os._exit(3)"}, fault.Invalid, "crashed its process"},
		"speaks for us":   {map[string]string{"predict.py": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'M' + bytes(range(256)) * 100)\n    except OSError: pass\n"}, fault.Invalid, "crashed its process"},
		"large numbers":   {map[string]string{"predict.py": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'M' + b'\\xff' * 64)\n    except OSError: pass\n"}, fault.Invalid, "crashed its process"},
		"sleeps for ever": {map[string]string{"predict.py": "import time\ntime.sleep(3600)"}, fault.Timeout, "exceeded 500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			o := b.options(filesOf(t, c.files))
			if c.kind == fault.Timeout {
				o.Time = 500 * time.Millisecond
			}
			s, err := b.Load(t.Context(), nil, o)
			if err == nil {
				_ = s.Close()
			}
			if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("kind %s: %v", fault.KindOf(err), err)
			}
			left, _ := os.ReadDir(b.dir)
			if len(left) > 0 || len(b.Environments()) > 0 {
				t.Errorf("left %v, in %v", left, b.Environments())
			}
		})
	}
	o := b.options(nil)
	o.Python.Write = func(context.Context, string) error { return fault.New(fault.Conflict, "changed after it was signed") }
	if _, err := b.Load(t.Context(), nil, o); !fault.Is(err, fault.Conflict) || len(b.launcher.started) > 18 {
		t.Errorf("%v, %d processes", err, len(b.launcher.started))
	}
}

const fragile = `
import os, time
def load(path):
    return None
def predict(model, inputs):
    x = inputs["x"]
    if x[0] == 13:
        os.abort()
    if x[0] == 14:
        time.sleep(3600)
    if x[0] == 15:
        for fd in range(3, 20):
            try: os.write(fd, b"A" + b"\xff" * 64)
            except OSError: pass
    if x[0] == 16:
        if os.fork() == 0:
            return {"y": x}
    if x[0] == 17:
        time.sleep(0.2)
    return {"y": x}
`

func two(o *runtime.Options) { o.Python.Processes = 2 }

// TestProcesses: several share the requests, and one that ends takes its own request
// with it and no other.
func TestProcesses(t *testing.T) {
	b := newBed(t)
	s := b.load(t, map[string]string{"falaj.json": oneIn, "predict.py": fragile}, two)
	if n := s.(runtime.Narrow).Runs(); n != 2 {
		t.Errorf("%d runs", n)
	}
	if got := b.Environments(); !slices.Equal(got, []string{"test@sha256:1"}) {
		t.Errorf("in %v", got)
	}
	b.launcher.kill(t, 0)
	var asking sync.WaitGroup
	var mu sync.Mutex
	lost := 0
	for g := range 8 {
		asking.Go(func() {
			for i := range 50 {
				v := float32(100*(g+1) + i)
				out, err := s.Infer(t.Context(), one("x", v), []string{"y"})
				switch {
				case fault.Is(err, fault.Unavailable):
					mu.Lock()
					lost++
					mu.Unlock()
				case err != nil:
					t.Error(err)
				case out[0].Data.([]float32)[0] != v:
					t.Errorf("%v is answered by %v", v, out[0].Data)
				}
			}
		})
	}
	asking.Wait()
	if lost > 1 { // the one that was with the process that was killed, perhaps
		t.Errorf("%d requests were lost with one process", lost)
	}
	if err := runtime.Unavailable(s); err != nil {
		t.Error(err)
	}
}

// TestAbuse: whatever a function does to its process, its request is answered with an
// error, and the model comes back.
func TestAbuse(t *testing.T) {
	s := newBed(t).load(t, map[string]string{"falaj.json": oneIn, "predict.py": fragile})
	for _, v := range []float32{13, 14, 15, 16} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := s.Infer(ctx, one("x", v), []string{"y"})
		cancel()
		switch {
		case v == 14 && (!fault.Is(err, fault.Timeout) || runtime.Over(err) == nil):
			t.Errorf("%v: %v", v, err)
		case v == 13 || v == 15:
			if !fault.Is(err, fault.Unavailable) || !errors.Is(err, runtime.ErrEnded) {
				t.Errorf("%v: %v", v, err)
			}
		case v == 16 && err != nil && !fault.Is(err, fault.Unavailable): // whichever of the two was first
			t.Errorf("%v: %v", v, err)
		}
		if over := runtime.Over(err); over != nil {
			<-over // it was ended
		}
		recovers(t, s)
	}
}

// recovers asks until there is a process again.
func recovers(t *testing.T, s runtime.Session) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := s.Infer(t.Context(), one("x", 1), []string{"y"})
		if err == nil {
			if got := out[0].Data.([]float32); !slices.Equal(got, []float32{1}) {
				t.Errorf("1 is answered by %v", got)
			}
			return
		}
		if !fault.Is(err, fault.Unavailable) {
			t.Fatalf("while it is started again: %v", err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

// TestFiles: a model's files are there as long as it is loaded.
func TestFiles(t *testing.T) {
	b := newBed(t)
	s := b.load(t, map[string]string{"falaj.json": oneIn, "predict.py": fragile})
	all, err := filepath.Glob(filepath.Join(b.dir, "*", "*"))
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(b.dir); len(left) > 0 || len(b.Environments()) > 0 {
		t.Errorf("left %v, in %v", left, b.Environments())
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "model-of-before", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := python.New(nil, b.dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(b.dir); len(left) > 0 {
		t.Errorf("left of before: %v", left)
	}
}

// TestEstimators: scikit-learn models in MLflow's format answer as they do there.
func TestEstimators(t *testing.T) {
	b := newBed(t, "sklearn")
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), b.interpreter, "-I", "testdata/sklearn_model.py", dir)
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		X, Probabilities, Wordsof, Plane, Trained [][]float64
		Label                                     []int64
		Words                                     []string
		Line, Seasons, Decision                   []float64
	}
	if err := json.Unmarshal(said, &want); err != nil {
		t.Fatal(err)
	}
	n := int64(len(want.X))
	x := runtime.Tensor{Name: "X", Datatype: runtime.FP64, Shape: []int64{n, 4}, Data: slices.Concat(want.X...)}
	var columns []runtime.Tensor
	for i, name := range []string{`the first, very long "name" of a column`, "it's", "n", "نخلة"} {
		column := make([]float64, n)
		for row := range column {
			column[row] = want.X[row][i]
		}
		c := runtime.Tensor{Name: name, Datatype: runtime.FP64, Shape: []int64{n}, Data: column}
		if name == "n" {
			c.Datatype, c.Data = runtime.Int64, []int64{0, 1, 2, 3, 4}
		}
		columns = append(columns, c)
	}
	var shuffled []runtime.Tensor
	for i, name := range []string{"time", "up", "north", "east"} {
		shuffled = append(shuffled, runtime.Tensor{Name: name, Datatype: runtime.FP64, Shape: []int64{n}, Data: columnOf(want.X, 3-i)})
	}
	trained := map[string]any{"label": want.Label, "probabilities": slices.Concat(want.Trained...)}
	for name, c := range map[string]struct {
		inputs  []runtime.Tensor
		outputs map[string]any
	}{
		"tensor":   {[]runtime.Tensor{x}, map[string]any{"label": want.Label, "probabilities": slices.Concat(want.Probabilities...)}},
		"columns":  {columns, map[string]any{"label": want.Label, "probabilities": slices.Concat(want.Probabilities...)}},
		"bare":     {[]runtime.Tensor{x}, map[string]any{"label": want.Words, "probabilities": slices.Concat(want.Wordsof...)}},
		"line":     {[]runtime.Tensor{x}, map[string]any{"variable": want.Line}},
		"dated":    {[]runtime.Tensor{dates("1970-01-01", "2026-02-03 10:30", "2026-09-10T00:00:00.123456789Z", "1677-09-22T00:00:00")}, map[string]any{"variable": want.Seasons}},
		"binary":   {[]runtime.Tensor{{Name: "image", Datatype: runtime.Bytes, Shape: []int64{3}, Data: []string{"\xff\xd8\xff", "", "a"}}}, map[string]any{"variable": []float64{1, 0, 0}}},
		"string":   {[]runtime.Tensor{{Name: "image", Datatype: runtime.Bytes, Shape: []int64{2}, Data: []string{"abc", ""}}}, map[string]any{"variable": []float64{1, 0}}},
		"plane":    {[]runtime.Tensor{x}, map[string]any{"variable": slices.Concat(want.Plane...)}},
		"named":    {[]runtime.Tensor{x}, map[string]any{"east": columnOf(want.Plane, 0), "north": columnOf(want.Plane, 1)}},
		"trained":  {[]runtime.Tensor{x}, trained},
		"shuffled": {shuffled, trained},
		"unnamed":  {[]runtime.Tensor{x}, trained},
		"proba":    {[]runtime.Tensor{x}, map[string]any{"probabilities": slices.Concat(want.Probabilities...)}},
		"decision": {[]runtime.Tensor{x}, map[string]any{"variable": want.Decision}},
		"renamed":  {[]runtime.Tensor{x}, map[string]any{"late": want.Label, "probabilities": slices.Concat(want.Probabilities...)}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := b.Load(t.Context(), nil, b.options(os.DirFS(filepath.Join(dir, name))))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Metadata().Check(c.inputs); err != nil {
				t.Fatal(err)
			}
			known := []string(nil) // names of the columns of X
			if name == "trained" {
				known = []string{"east", "north", "up", "time"}
			}
			if got := s.Metadata().Inputs[0].Columns; !slices.Equal(got, known) {
				t.Errorf("columns %q, want %q", got, known)
			}
			var names []string
			for _, o := range s.Metadata().Outputs {
				names = append(names, o.Name)
			}
			if len(names) != len(c.outputs) {
				t.Fatalf("it gives %v", names)
			}
			out, err := s.Infer(t.Context(), c.inputs, names)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range out {
				if !alike(o.Data, c.outputs[o.Name]) {
					t.Errorf("%s: %v, want %v", o.Name, o.Data, c.outputs[o.Name])
				}
			}
			none := []runtime.Tensor{{Name: "X", Datatype: runtime.FP64, Shape: []int64{0, 4}, Data: []float64{}}}
			if name == "dated" {
				for _, bad := range []string{"", "now", "today", "2026-13-01", "2026-02", "26-01-01", "3000-01-01", "1600-01-01", "2026-02-03T00:00:00+03:00", "2026-02-03T00:00:00.1234567891", "tomorrow"} {
					_, err := s.Infer(t.Context(), []runtime.Tensor{dates("2026-02-03", bad)}, names)
					if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Told(err), "element 1 is no date") || !strings.Contains(fault.Told(err)+fault.HintOf(err), "instead") {
						t.Errorf("%q: %s, %s", bad, fault.Told(err), fault.HintOf(err))
					}
				}
				if _, err := s.Infer(t.Context(), []runtime.Tensor{dates("NaT")}, names); err != nil {
					t.Errorf("a missing date: %v", err)
				}
			} else if kind := s.Metadata().Inputs[0]; kind.Datatype == runtime.Bytes {
				if kind.Binary != (name == "binary") {
					t.Errorf("%+v", kind)
				}
				bytes := []runtime.Tensor{{Name: "image", Datatype: runtime.Bytes, Shape: []int64{2}, Data: []string{"a", "\xff"}}}
				if _, err := s.Infer(t.Context(), bytes, names); (err == nil) != kind.Binary || err != nil && !strings.Contains(fault.Told(err), `input image, element 1 is not UTF-8`) {
					t.Errorf("bytes: %v", err)
				}
			} else if len(c.inputs) == 1 {
				if out, err := s.Infer(t.Context(), none, names); err != nil || out[0].Shape[0] != 0 {
					t.Errorf("no rows: %+v, %v", out, err)
				}
			}
		})
	}
}

// dates is the column of the model that has dates.
func dates(values ...string) runtime.Tensor {
	return runtime.Tensor{Name: "📅 day é", Datatype: runtime.Bytes, Shape: []int64{int64(len(values))}, Data: values}
}

// TestEstimatorsRefused: outputs that the model does not give.
func TestEstimatorsRefused(t *testing.T) {
	b := newBed(t, "sklearn")
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), b.interpreter, "-I", "testdata/sklearn_model.py", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, says := range map[string]string{
		"too many": "2 outputs are declared beside probabilities, and predict gives one of the shape [1]", "too few": "3 outputs are declared", "improbable": "has no predict_proba",
		"no method": "MLmodel names the predict_fn predict_proba, which a LinearRegression has not",
		"escaped":   `the escape \q`,
	} {
		s, err := b.Load(t.Context(), nil, b.options(os.DirFS(filepath.Join(dir, name))))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) || fault.HintOf(err) == "" && name != "escaped" {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}

// columnOf is a column of rows.
func columnOf(rows [][]float64, i int) (column []float64) {
	for _, row := range rows {
		column = append(column, row[i])
	}
	return column
}

// alike compares answers; sums of floats may be taken in another order.
func alike(got, want any) bool {
	g, ok := got.([]float64)
	if !ok {
		return reflect.DeepEqual(got, want)
	}
	w := want.([]float64)
	for i := range g {
		if len(g) != len(w) || math.Abs(g[i]-w[i]) > 1e-12*math.Max(1, math.Abs(w[i])) {
			return false
		}
	}
	return len(g) == len(w)
}

func BenchmarkInfer(b *testing.B) {
	bed := &bed{interpreter: interpreter(b), dir: b.TempDir()}
	processes := child.New(&bed.launcher, nil)
	defer processes.Close()
	var err error
	if bed.Runtime, err = python.New(processes, bed.dir); err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	for name, text := range map[string]string{"falaj.json": strings.ReplaceAll(oneIn, `"y"`, `"x"`), "predict.py": echo} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	s, err := bed.Load(b.Context(), nil, bed.options(os.DirFS(dir)))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for _, n := range []int64{1, 1 << 16} {
		in := []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{n}, Data: make([]float32, n)}}
		b.Run(strconv.FormatInt(n, 10), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Infer(b.Context(), in, []string{"x"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// harness is a Python that hands what it is given to the worker's readers.
type harness struct {
	in  io.Writer
	out io.Reader
}

func newHarness(tb testing.TB) harness {
	tb.Helper()
	cmd := exec.Command(interpreter(tb), "-I", "-B", "testdata/harness.py", "worker.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return harness{in, out}
}

// read has one reader read data; what it says is what went wrong.
func (h harness) read(t *testing.T, which byte, data []byte) string {
	t.Helper()
	message := append(binary.NativeEndian.AppendUint32(nil, uint32(len(data))), which)
	if _, err := h.in.Write(append(message, data...)); err != nil {
		t.Fatal(err)
	}
	var n [4]byte
	if _, err := io.ReadFull(h.out, n[:]); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, binary.NativeEndian.Uint32(n[:]))
	if _, err := io.ReadFull(h.out, said); err != nil {
		t.Fatal(err)
	}
	return string(said)
}

// request is a message as the server writes it: a tensor of a datatype and a shape.
func request(datatype byte, data []byte, shape ...uint64) []byte {
	number := func(b []byte, v uint64) []byte { return binary.NativeEndian.AppendUint64(b, v) }
	b := number([]byte{'I'}, 1)
	b = append(number(number(b, 1), 1), 'y')
	b = append(number(number(b, 1), 1), 'x', datatype)
	b = number(b, uint64(len(shape)))
	for _, d := range shape {
		b = number(b, d)
	}
	return append(b, data...)
}

// FuzzWorker: whatever comes over the channel, and whatever is in an MLmodel, the worker
// reads it or says that it is broken, without room for what did not come.
func FuzzWorker(f *testing.F) {
	f.Add(byte(0), request(11, make([]byte, 8), 2))
	f.Add(byte(0), request(13, append(binary.NativeEndian.AppendUint64(nil, 3), "abc"...), 1))
	f.Add(byte(0), request(0, []byte{2}, 1))
	f.Add(byte(0), request(12, nil, 1<<28))
	f.Add(byte(0), request(8, nil, 1<<63, 1<<63))
	f.Add(byte(0), request(13, bytes.Repeat([]byte{0xff}, 8), 1<<27))
	f.Add(byte(0), []byte{'C', 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add(byte(0), []byte("garbage"))
	f.Add(byte(1), []byte("flavors:\n  sklearn:\n    pickled_model: 'it''s\n      long'\nb: \"a\\\n  \\ b\"\n- x\n"))
	h := newHarness(f)
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		if len(data) > 1<<20 {
			t.Skip("longer than is tried")
		}
		if said := h.read(t, which%2, data); said != "" {
			t.Error(said)
		}
	})
}

// TestDamagedMessages: a valid message with bytes changed, cut off or put in is read or
// refused, too.
func TestDamagedMessages(t *testing.T) {
	h := newHarness(t)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 3000 {
		b := request(byte(r.IntN(14)), make([]byte, r.IntN(64)), uint64(r.IntN(5)), uint64(r.IntN(5)))
		for range 1 + r.IntN(4) {
			at := r.IntN(len(b))
			switch r.IntN(3) {
			case 0:
				b[at] = byte(r.IntN(256))
			case 1:
				b = b[:max(1, at)]
			default:
				b = slices.Insert(b, at, byte(r.IntN(256)))
			}
		}
		if said := h.read(t, 0, b); said != "" {
			t.Fatalf("%d: %x: %s", i, b, said)
		}
	}
}
