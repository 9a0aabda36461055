package naming_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
)

func TestFind(t *testing.T) {
	for _, test := range []struct {
		known string
		name  string
		want  int // -1 is none, -2 several
	}{
		{"weather:temp hour", "weather:temp", 0},
		{"weather:temp hour", "weather@3:temp", 0},
		{"weather@3:temp hour", "weather:temp", 0},
		{"weather@2:temp weather@3:temp", "weather@3:temp", 1},
		{"weather@2:temp weather@3:temp", "weather:temp", -2},
		{"weather@3:temp", "weather@2:temp", -1},
		{"weather:temp hour", "weather__temp", 0},
		{"weather:temp hour", "temp", 0},
		{"weather:temp hour", "hour", 1},
		{"weather:temp hour", "wind", -1},
		{"weather:temp sea:temp", "temp", -2},
		{"weather:temp sea:temp", "sea__temp", 1},
		{"weather:temp sea:temp temp", "temp", 2}, // a column that is called so
		{"weather:temp", "sea:temp", -1},
		{"weather__temp hour", "weather:temp", 0},
		{"weather__temp hour", "temp", 0},
		{"weather__temp temp", "weather:temp", 0},
		{"temp hour", "weather:temp", 0},
		{"temp hour", "delay@2:temp", 0},
		{"felt__temp x__temp", "temp", -2},
		{"", "temp", -1},
		{"hour", "", -1},
	} {
		at, err := naming.Find(strings.Fields(test.known), test.name)
		if fault.Is(err, fault.Invalid) {
			at = -2
		}
		if at != test.want {
			t.Errorf("%s among %s: %d, %v, want %d", test.name, test.known, at, err, test.want)
		}
	}
}

// What a column is called says less than which feature it is.
func TestFindColumn(t *testing.T) {
	known := []naming.Column{{Name: "temp", Feature: "weather@3:temp"}, {Name: "sea__temp", Feature: "sea@1:temp"}, {Name: "felt", Feature: "delay@2:felt"}, {Name: "hour"}}
	for name, want := range map[string]int{
		"weather:temp": 0, "weather__temp": 0, "temp": 0, "sea:temp": 1, "delay:felt": 2, "delay__felt": 2, "felt": 2, "hour": 3, "air:temp": -1, "delay:temp": -1, "delay:hour": 3,
	} {
		if at, err := naming.FindColumn(known, name); at != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", name, at, err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	at, why := naming.Match([]naming.Column{{Name: "temp"}, {Name: "sea__wind"}}, []string{"weather:temp", "sea:temp", "sea:wind", "rain"})
	if at[0] != -1 || at[1] != -1 || at[2] != 1 || at[3] != -1 {
		t.Error(at)
	}
	if why["weather:temp"] != "column temp may be sea:temp or weather:temp" || why["sea:temp"] != why["weather:temp"] || why["rain"] != "" {
		t.Error(why)
	}
}

// The full name always finds a feature, in each of its forms, whatever else is there.
func TestFullNameAlwaysFinds(t *testing.T) {
	word := rapid.StringMatching(`[a-z]{1,3}`)
	rapid.Check(t, func(t *rapid.T) {
		var known []string
		seen := map[string]bool{}
		for range rapid.IntRange(1, 6).Draw(t, "n") {
			name := word.Draw(t, "view") + ":" + word.Draw(t, "feature")
			if !seen[name] {
				seen[name] = true
				known = append(known, name)
			}
		}
		for i, name := range known {
			view, short, _ := strings.Cut(name, ":")
			for _, form := range []string{name, view + "@7:" + short, view + "__" + short} {
				if at, err := naming.Find(known, form); at != i || err != nil {
					t.Fatalf("%s among %v: %d, %v", form, known, at, err)
				}
			}
			at, err := naming.Find(known, short)
			unique := true
			for j, other := range known {
				unique = unique && (i == j || naming.Short(other) != short)
			}
			if unique != (at == i && err == nil) {
				t.Fatalf("%s among %v: %d, %v", short, known, at, err)
			}
		}
	})
}
