package profiler

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestCompact(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":          "",
		"a;b (x) 3": "a;b (x) 3\n",
		"process 7:\"/usr/bin/python3 train.py --token=x\";thread (7): MainThread;a (t.py:1) 3\nb 1\n":                "process 7:\"python3 train.py\";thread (7): MainThread;a (t.py:1) 3\nb 1\n",
		"process 1:\"python -c import os\n\nprint(\"a;b\")\n\";process 2:\"/x/python\";thread (2): y;a 3\nthread z 1": "process 1:\"python -c\";process 2:\"python\";thread (2): y;a 3\nthread z 1\n",
		"process x:\"a\";thread (1) 4\nprocess 1:\"open\n":                                                            "process x:\"a\";thread (1) 4\nprocess 1:\"open\n",
	} {
		if got := compact(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzCompact(f *testing.F) {
	f.Add("process 1:\"python -c \n\";process 2:\"p\";thread (2): y;a 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		once := compact(text)
		if len(once) > len(text)+1 {
			t.Errorf("%q became longer: %q", text, once)
		}
		if again := compact(once); len(again) > len(once)+1 {
			t.Errorf("%q became longer: %q", once, again)
		}
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := Request{ID: "prf_1", Tool: PySpy, Seconds: 1}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	vtune := good
	vtune.Tool = "vtune"
	if err := vtune.Check(); !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "FALAJ_OUTPUT_DIR") {
		t.Error(err)
	}
	for name, change := range map[string]func(*Request){
		"no tool":       func(r *Request) { r.Tool = "" },
		"another tool":  func(r *Request) { r.Tool = "gdb" },
		"no time":       func(r *Request) { r.Seconds = 0 },
		"too long":      func(r *Request) { r.Seconds = MaxSeconds + 1 },
		"no ID":         func(r *Request) { r.ID = "" },
		"a path for ID": func(r *Request) { r.ID = "../x" },
		"no worker":     func(r *Request) { r.Worker = -1 },
	} {
		r := good
		change(&r)
		if err := r.Check(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAnswer: what comes from inside cannot claim more than is possible.
func TestAnswer(t *testing.T) {
	t.Parallel()
	if r, err := Answered(Result{Files: []File{{AllStacks, []byte("x")}}, Version: "1\x1b[2J"}, nil).Unpack(); err != nil || len(r.Files) != 1 || r.Version != "1 [2J" {
		t.Errorf("%+v %v", r, err)
	}
	_, err := Answered(Result{}, fault.New(fault.Unsupported, "no\x00\npy-spy").WithHint("%s", strings.Repeat("x", 1<<20))).Unpack()
	if !fault.Is(err, fault.Unsupported) || strings.ContainsAny(err.Error(), "\x00\n") || len(fault.HintOf(err)) > maxWords {
		t.Error(err)
	}
	if _, err := Answered(Result{}, errors.New("disk")).Unpack(); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
	for _, kind := range []fault.Kind{fault.PermissionDenied, fault.Internal, fault.NotFound} { // words about us, which it cannot know
		if _, err := (Answer{Kind: kind.String(), Detail: "x"}).Unpack(); !fault.Is(err, fault.Conflict) {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "..", ".x", "a/b", "a\x00", strings.Repeat("a", 64)} {
		if _, err := (Answer{Result: &Result{Files: []File{{Name: name}}}}).Unpack(); err == nil {
			t.Errorf("took a file named %q", name)
		}
	}
	if _, err := (Answer{Result: &Result{Files: []File{{AllStacks, make([]byte, MaxResult+1)}}}}).Unpack(); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
}

func TestMainAnswersAlways(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "{", `{"tool": "py-spy"}`, strings.Repeat("x", 1<<20)} {
		var out bytes.Buffer
		var a Answer
		if code := Main(strings.NewReader(in), &out); code != 0 || json.Unmarshal(out.Bytes(), &a) != nil || a.Detail == "" || a.Result != nil {
			t.Errorf("%.20q: %d %s", in, code, out.String())
		}
	}
}
