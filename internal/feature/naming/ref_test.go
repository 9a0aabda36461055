package naming

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseFeature(t *testing.T) {
	for in, want := range map[string]FeatureRef{
		"weather":             {"weather", ""},
		"weather:*":           {"weather", ""},
		"weather:temp":        {"weather", "temp"},
		"weather@2:humid":     {"weather@2", "humid"},
		"weather@prod:a b":    {"weather@prod", "a b"},
		"weather@latest:temp": {"weather@latest", "temp"},
	} {
		if got, err := ParseFeature(in); err != nil || got != want {
			t.Errorf("ParseFeature(%q) = %v %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ":", "weather:", ":temp", "weather@:temp", "weather@0:temp", "weather@01:temp", "weather@-1:temp", "weather@1@2:temp", "a/b:temp", "..:temp"} {
		if got, err := ParseFeature(in); err == nil {
			t.Errorf("ParseFeature(%q) = %v, want an error", in, got)
		}
	}
}

// What is accepted as a ref holds nothing that means anything in a path, a URL
// or SQL, and an exact ref reads back as itself.
func FuzzRef(f *testing.F) {
	for _, s := range []string{"weather", "weather@3", "weather@prod", "a@1@2", "@", "weather@00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s)
		if err != nil {
			return
		}
		if strings.Trim(r.Name+r.Alias, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Errorf("%q gives %+v", s, r)
		}
		if back := fmt.Sprintf("%s@%d", r.Name, r.Version); r.Version != 0 && back != s {
			t.Errorf("%q reads back as %s", s, back)
		}
	})
}
