package config

import (
	"slices"
	"strings"
	"testing"
)

// TestShow: a configuration is shown without the passwords in it.
func TestShow(t *testing.T) {
	for url, want := range map[string]string{
		"":                                    "",
		"sqlite:///srv/falaj.db":              "sqlite:///srv/falaj.db",
		"postgres://falaj@db/falaj":           "postgres://falaj@db/falaj",
		"postgres://falaj:geheim@db/falaj":    "postgres://falaj:xxxxx@db/falaj",
		"postgres://db/falaj?password=geheim": "postgres://db/falaj?password=xxxxx",
		"postgres://falaj:geheim%zz@db/falaj": "(no URL)",
		"/srv/data":                           "/srv/data",
	} {
		var c Config // also one that is refused is shown in errors
		c.Store.URL = url
		if got := (field{value: url}).text(); got != want || strings.Contains(c.Show(), "geheim") {
			t.Errorf("%s is shown as %s", url, got)
		}
	}
}

// TestIsolation: what is no isolation is no setting.
func TestIsolation(t *testing.T) {
	for level, ok := range map[string]bool{"sandbox": true, "process": true, "none": false, "container": false, "dedicated node": false, "": false, "wishful": false} {
		if _, err := Load("", nil, map[string]any{"isolation": level}); (err == nil) != ok {
			t.Errorf("isolation %q: %v", level, err)
		}
	}
}

// TestLists: the variable of a list has commas between its values.
func TestLists(t *testing.T) {
	for _, f := range fields(Config{}) {
		if _, list := f.value.([]string); !list {
			continue
		}
		want := []string{"10.0.0.1", "10.0.0.2"}
		if f.key == "environments.indexes" {
			want = []string{"a=https://10.0.0.1/simple", "b=https://10.0.0.2/simple"}
		}
		if f.key == "environments.hosts" {
			want = []string{"10.0.0.1:443", "10.0.0.2:443"}
		}
		c, err := Load("", []string{f.variable() + "=" + strings.Join(want, ",")}, nil)
		if err != nil {
			t.Errorf("%s: %v", f.variable(), err)
		}
		for _, got := range fields(c) {
			if got.key == f.key && !slices.Equal(got.value.([]string), want) {
				t.Errorf("%s of %q is %q", f.variable(), want, got.value)
			}
		}
	}
}
