package settled

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestUnfinished(t *testing.T) {
	for name, want := range map[string]bool{
		"step-1": false, "last.ckpt": false, "epoch=1-step=250.ckpt": false, "tmp": false, "partial": false, "template-1": false,
		".hidden": true, "step-1.tmp": true, "a.partial": true, "a.part": true, "a.incomplete": true, "tmp-checkpoint-100": true,
		"7.orbax-checkpoint-tmp-1700000000": true,
	} {
		if Unfinished(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func look(t *testing.T, dir, name string) State {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	st, err := Look(root, name)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestLook: what is seen of a directory that a program writes.
func TestLook(t *testing.T) {
	dir := t.TempDir()
	at := func(p string) string { return filepath.Join(dir, p) }
	must(t, os.Mkdir(at("a"), 0o700), os.WriteFile(at("a/model"), []byte("half"), 0o600))
	first := look(t, dir, "a")
	if first.Renamed || first.Temporary != "" || first.Files["model"] != 4 || first.Changed.IsZero() {
		t.Errorf("in place: %+v", first)
	}
	must(t, os.WriteFile(at("a/model"), []byte("whole!"), 0o600))
	if again := look(t, dir, "a"); again.Signature == first.Signature {
		t.Error("a file that grew is not seen")
	}
	must(t, os.WriteFile(at("a/opt.pt.tmp"), nil, 0o600))
	if st := look(t, dir, "a"); st.Temporary != "opt.pt.tmp" {
		t.Errorf("a temporary name inside: %+v", st)
	}
	must(t, os.Remove(at("a/opt.pt.tmp")), os.WriteFile(at("a/.metadata"), []byte("x"), 0o600))
	if st := look(t, dir, "a"); st.Temporary != "" {
		t.Errorf("a leading dot inside: %+v", st)
	}
	if st := look(t, dir, "a/model"); st.Files[""] != 6 {
		t.Errorf("a file: %+v", st)
	}
}

// TestRules: when a checkpoint is complete, while its program runs and after its end.
func TestRules(t *testing.T) {
	t0 := time.Unix(1e9, 0)
	state := func(change func(*State)) State {
		s := State{Changed: t0, Files: map[string]int64{"config.json": 1, "trainer_state.json": 9}}
		if change != nil {
			change(&s)
		}
		return s
	}
	plain, usual := state(nil), Rules{Settle: 5 * time.Second}
	renamed := state(func(s *State) { s.Renamed = true })
	temporary := state(func(s *State) { s.Temporary, s.Renamed = "x.tmp", true })
	begun := state(func(s *State) { s.Files = map[string]int64{"config.json": 1, "trainer_state.json": 0} })
	ready := Rules{Settle: 5 * time.Second, Ready: "trainer_*.json"}
	for name, c := range map[string]struct {
		rules         Rules
		state         State
		after         time.Duration // unchanged for so long
		inOrder       bool
		running, left bool
	}{
		"just written":                  {usual, plain, time.Second, false, false, false},
		"at rest":                       {usual, plain, 5 * time.Second, false, true, true},
		"just written, ended in order":  {usual, plain, 0, true, false, true},
		"renamed":                       {usual, renamed, 0, false, true, true},
		"with a temporary file":         {usual, temporary, time.Hour, true, false, false},
		"no settle time":                {Rules{Settle: -1}, plain, 0, false, true, true},
		"ready, just now":               {ready, plain, 0, false, false, false},
		"ready, at rest":                {ready, plain, time.Second, false, true, true},
		"ready file is empty":           {ready, begun, time.Hour, false, false, false},
		"ready file is empty, in order": {ready, begun, 0, true, false, true},
		"renamed without a ready file":  {ready, state(func(s *State) { s.Renamed, s.Files = true, nil }), time.Hour, false, false, false},
	} {
		now := t0.Add(c.after)
		if got := c.rules.Complete(c.state, t0, now); got != c.running {
			t.Errorf("%s, while it runs: %v", name, got)
		}
		if got := c.rules.Left(c.state, End{At: now, InOrder: c.inOrder}); got != c.left {
			t.Errorf("%s, after its end: %v", name, got)
		}
	}
	for pattern, ok := range map[string]bool{"": true, "*/done": true, "[": false, "/etc/passwd": false, "../x": false} {
		if err := (Rules{Ready: pattern}).Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

// TestCompleteStays: what is complete stays so while nothing changes.
func TestCompleteStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rules{Settle: time.Duration(rapid.Int64Range(1, 100).Draw(t, "settle")) * time.Second}
		var seen Seen
		now, st := time.Unix(1e9, 0), State{}
		var complete bool
		for range rapid.IntRange(1, 40).Draw(t, "looks") {
			if rapid.Bool().Draw(t, "changes") {
				st.Signature += "x"
				complete = false
			}
			got := r.Complete(st, seen.Since("a", st, now), now)
			if complete && !got {
				t.Fatal("it was complete, and nothing changed")
			}
			complete = got
			now = now.Add(time.Duration(rapid.Int64Range(0, 60).Draw(t, "passes")) * time.Second)
		}
	})
}

func TestCovers(t *testing.T) {
	for name, c := range map[string]struct {
		complete, rest []string
		want           bool
	}{
		"nothing is written":    {[]string{"a"}, nil, true},
		"one more round":        {[]string{"model_1.ubj", "model_2.ubj"}, []string{"model_3.ubj"}, true},
		"a part that is needed": {[]string{"model.pt"}, []string{"optimizer.pt"}, false},
		"nothing is complete":   {nil, []string{"model.pt"}, false},
	} {
		if got := Covers(c.complete, c.rest); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
