package id_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

func TestNames(t *testing.T) {
	tests := []struct {
		name         string
		plain, mixed bool
	}{
		{"a", true, true},
		{"delay-2_x", true, true},
		{strings.Repeat("a", 63), true, true},
		{"ResNet50", false, true},
		{"resnet50.v2", false, true},
		{"A.B-c_9", false, true},
		{"", false, false},
		{strings.Repeat("a", 64), false, false},
		{strings.Repeat("A", 64), false, false},
		{".hidden", false, false},
		{"end.", false, false},
		{"a..b", false, false},
		{"..", false, false},
		{"a/b", false, false},
		{"a:b", false, false},
		{"a@1", false, false},
		{"a b", false, false},
		{"a!b", false, false},
		{"größe", false, false},
		{"a\n", false, false},
	}
	for _, tt := range tests {
		for _, c := range []struct {
			what  string
			check func(what, s string) error
			want  bool
		}{{"CheckName", id.CheckName, tt.plain}, {"CheckMixedName", id.CheckMixedName, tt.mixed}} {
			err := c.check("model name", tt.name)
			if (err == nil) != c.want || err != nil && !fault.Is(err, fault.Invalid) {
				t.Errorf("%s(%q): %v", c.what, tt.name, err)
			}
		}
	}
	if _, hint := fault.Brief(id.CheckName("dataset name", "ResNet50.v2")); !strings.HasSuffix(hint, ", such as resnet50-v2.") {
		t.Errorf("the hint names nothing: %s", hint)
	}
}

// TestNearestName: whatever the text, the name that is made of it is one, or there is none.
func TestNearestName(t *testing.T) {
	for text, want := range map[string]string{
		"delay": "delay", "ResNet50.v2": "resnet50-v2", "My model (new)": "my-model-new", "größe": "gr-e", "...": "", "_x_": "x",
		strings.Repeat("Ab", 40): strings.Repeat("ab", 31) + "a",
	} {
		if got := id.Name(text); got != want {
			t.Errorf("the name nearest to %q is %q, want %q", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		if got := id.Name(text); got != "" && id.CheckName("name", got) != nil {
			t.Fatalf("%q gives %q", text, got)
		}
	})
}

var mixedName = rapid.StringMatching(`[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`).Filter(func(s string) bool { return id.CheckMixedName("name", s) == nil })

// TestFileNames: the file name says the name, has no capitals, and no two names have one
// file name on a disk that does not tell capitals from small letters.
func TestFileNames(t *testing.T) {
	for name, want := range map[string]string{"delay": "delay", "ResNet50": "!res!net50", "resnet50.v2": "resnet50.v2", "AB": "!a!b"} {
		if got := id.FileName(name); got != want {
			t.Errorf("the file of %s is %s, want %s", name, got, want)
		}
	}
	for _, file := range []string{"Delay", "!", "a!", "!1", "!!a"} {
		if name, ok := id.FromFileName(file); ok {
			t.Errorf("%q is the file of %q", file, name)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := mixedName.Draw(t, "a"), mixedName.Draw(t, "b")
		if got, ok := id.FromFileName(id.FileName(a)); !ok || got != a {
			t.Fatalf("%q came back as %q, %v", a, got, ok)
		}
		if a != b && strings.EqualFold(id.FileName(a), id.FileName(b)) {
			t.Fatalf("%q and %q have one file", a, b)
		}
	})
}

// TestDerivedNames: they are names, and those of two names are two.
func TestDerivedNames(t *testing.T) {
	if got := id.Derived("delay", "-window"); got != "delay-window" {
		t.Errorf("derived of delay: %s", got)
	}
	if got := id.Derived("ResNet50.v2", "-window"); !strings.HasPrefix(got, "resnet50-v2-") || !strings.HasSuffix(got, "-window") {
		t.Errorf("derived of ResNet50.v2: %s", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := mixedName.Draw(t, "a"), mixedName.Draw(t, "b")
		x, y := id.Derived(a, "-window"), id.Derived(b, "-window")
		if err := id.CheckName("name", x); err != nil {
			t.Fatal(err)
		}
		if a != b && x == y {
			t.Fatalf("%q and %q both derive %q", a, b, x)
		}
	})
}

// TestCutVersion: a grant or a scope of "team" covers its versions, and not the model "team@delay".
func TestCutVersion(t *testing.T) {
	for name, want := range map[string]string{
		"weather@3": "weather", "weather": "weather", "team@delay": "team@delay", "team@delay@12": "team@delay", "@": "@", "a@": "a@", "a@3x": "a@3x", "a@٣": "a@٣", "@1": "", "": "",
	} {
		base, versioned := id.CutVersion(name)
		if base != want || versioned != (base != name) {
			t.Errorf("%q: %q %t, want %q", name, base, versioned, want)
		}
	}
}

// TestModelNames: what MLflow takes is taken, and says what is not.
func TestModelNames(t *testing.T) {
	for _, name := range []string{"delay", "my model", "c++", "نموذج التأخر", "délai (v2)", "a%20b", "R&D #1?", "team@delay", "_x", `it's "so"`, strings.Repeat("é", id.MaxModelName)} {
		if err := id.CheckModelName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", " ", "a/b", "a:b", ".", "..", "..x", "a\x00", "a\nb", "\xff", "delay@3", strings.Repeat("é", id.MaxModelName+1)} {
		if err := id.CheckModelName(name); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q passed: %v", name, err)
		}
	}
}
