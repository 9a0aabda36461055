package scan_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/registry/scan"
)

func look(t *testing.T, name string, body []byte, l scan.Limits) scan.Report {
	t.Helper()
	r, err := scan.Files(t.Context(), []scan.File{file(name, body)}, l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func file(name string, body []byte) scan.File {
	return scan.File{Path: name, Size: int64(len(body)), Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(onlyReader{bytes.NewReader(body)}), nil
	}}
}

type onlyReader struct{ io.Reader } // as a blob is: it cannot seek

// TestSamples: each file that Python wrote is what the first part of its name says.
func TestSamples(t *testing.T) {
	for _, with := range []struct{ venv, what string }{{"", ""}, {"mlflow-full", "sklearn"}, {"sdk-torch", "torch"}} {
		t.Run(with.what, func(t *testing.T) {
			python := "python3"
			if with.venv != "" {
				var err error
				if python, err = filepath.Abs("../../../.tmp/venv/" + with.venv + "/bin/python"); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(python); err != nil {
					if os.Getenv("CI") == "true" { //nolint:forbidigo // a test asks where it runs
						t.Fatal("make engines")
					}
					t.Skip("not installed: make engines")
				}
			}
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if out, err := exec.CommandContext(ctx, python, "testdata/samples.py", dir, with.what).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			names, err := os.ReadDir(dir)
			if err != nil || len(names) < 50 {
				t.Fatal(len(names), err)
			}
			for _, n := range names {
				body, err := os.ReadFile(filepath.Join(dir, n.Name()))
				if err != nil {
					t.Fatal(err)
				}
				r := look(t, n.Name(), body, scan.Default)
				if want, _, _ := strings.Cut(n.Name(), "-"); string(r.Level) != want {
					t.Errorf("%s is %s: %+v", n.Name(), r.Level, r.Contents)
				}
				if (r.Level == scan.Danger) != (r.Why(scan.Code) != "") || r.Why(scan.Danger) != "" {
					t.Errorf("%s: %q", n.Name(), r.Why(scan.Code))
				}
			}
		})
	}
}

// TestReport: where it is, what it imports and why it matters are said.
func TestReport(t *testing.T) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, body := range map[string]string{"m/data.pkl": "\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85Rc__builtin__\nset\n.", "m/version": "3"} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r := look(t, "model.pt", b.Bytes(), scan.Default)
	if len(r.Contents) != 1 {
		t.Fatalf("%+v", r)
	}
	c := r.Contents[0]
	if c.Path != "model.pt!m/data.pkl" || c.Format != "pickle" || *c.Protocol != 2 || strings.Join(c.Imports, " ") != "os.system __builtin__.set" || c.Reasons[0] != "imports os.system" {
		t.Errorf("%+v", c)
	}
	if why := r.Why(scan.Code); why != "model.pt!m/data.pkl: imports os.system" {
		t.Error(why)
	}
}

// TestLimits: what goes over a limit is dangerous, and costs no more than the limit.
func TestLimits(t *testing.T) {
	small := scan.Default
	small.Steps, small.Stack, small.Strings, small.Members, small.Depth, small.Free, small.InMemory = 1000, 100, 1000, 3, 2, 1000, 5000
	deflated := func(body []byte, names ...string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, n := range names {
			w, err := z.Create(n)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(body); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	nested := []byte("x")
	for range 4 {
		nested = deflated(nested, "a")
	}
	for name, test := range map[string]struct {
		body []byte
		want string
	}{
		"steps":   {[]byte("\x80\x04" + strings.Repeat("N0", 1000) + "."), "limit"},
		"stack":   {[]byte("\x80\x04" + strings.Repeat("N", 1000) + "."), "limit"},
		"memo":    {[]byte("\x80\x04Nr\xff\xff\xff\xff."), "limit"},
		"strings": {[]byte("\x80\x04" + strings.Repeat("\x8c\x05hello0", 90) + "."), "limit"},
		"members": {deflated([]byte("x"), "a", "b", "c", "d"), "more than 3 members"},
		"depth":   {nested, "2 deep"},
		"bomb":    {deflated(make([]byte, 1<<20), "a"), "expands"},
	} {
		r := look(t, name, test.body, small)
		if why := r.Why(scan.Code); !strings.Contains(why, test.want) {
			t.Errorf("%s: %q, %+v", name, why, r)
		}
	}
	long := "\x80\x04" + strings.Repeat("B\x00\x00\x01\x00"+strings.Repeat("x", 1<<16)+"0", 100) + "cos\nsystem\n."
	if r := look(t, "long", []byte(long), small); r.Level != scan.Danger || !strings.Contains(r.Why(scan.Code), "os.system") {
		t.Errorf("%+v", r)
	}
}

// TestErrors: that a file cannot be read, or that time is up, is an error and no finding.
func TestErrors(t *testing.T) {
	broken := errors.New("the disk is on fire")
	for _, start := range []string{"\x80\x04", "PK\x03\x04", "\x1f\x8b"} {
		f := scan.File{Path: "x", Size: 1 << 20, Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(strings.NewReader(start), failing{broken})), nil
		}}
		if _, err := scan.Files(t.Context(), []scan.File{f}, scan.Default); !errors.Is(err, broken) {
			t.Errorf("%q: %v", start, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := scan.Files(ctx, []scan.File{file("x", []byte("\x80\x04N."))}, scan.Default); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// FuzzScan: whatever a file has in it, it is looked at within the limits, twice with the
// same result, and an import of os.system that a pickle calls is found.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.", "(S'true'\nios\nsystem\n.", "PK\x05\x06" + strings.Repeat("\x00", 18), "\x93NUMPY\x01\x00\x10\x00{'descr': '|O'}\n",
		"\x1f\x8b\x08", "x\x9c", "BZh9", "\x28\xb5\x2f\xfd", "\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01u.", "{\"class_name\": \"Lambda\"}",
	} {
		f.Add([]byte(s))
	}
	l := scan.Default
	l.Steps, l.Stack, l.Strings, l.InMemory, l.Free, l.Expanded = 100_000, 10_000, 1<<20, 1<<20, 1<<20, 16<<20
	look := func(t *testing.T, name string, body []byte, l scan.Limits) scan.Report {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := scan.Files(ctx, []scan.File{file(name, body)}, l)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		first := look(t, "x", body, l)
		if again := look(t, "x", body, l); again.Level != first.Level || len(again.Contents) != len(first.Contents) {
			t.Errorf("%+v, then %+v", first, again)
		}
		if r := look(t, "x", append([]byte("\x80\x02cos\nsystem\n(U\x04truetR0"), body...), l); r.Level != scan.Danger {
			t.Errorf("%+v", r)
		}
	})
}
