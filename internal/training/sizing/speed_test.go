package sizing_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/training/sizing"
)

func TestSpeeds(t *testing.T) {
	k := sizing.Kind{Family: "p/resnet", Unit: sizing.Examples, Setting: "batch 256"}
	at := func(workers int, rate float64) sizing.Profile {
		return sizing.Profile{Kind: k, Device: "A100", Workers: workers, Batch: 256, Rate: rate}
	}
	for name, c := range map[string]struct {
		least, most int
		all         []sizing.Profile
		want        string
	}{
		"nothing is known":                {2, 8, nil, "1.00"},
		"others had more, and no rate":    {1, 8, []sizing.Profile{{Kind: sizing.Kind{Family: "p/resnet"}, Workers: 2}}, "1.00 2.00 3.00 4.00"},
		"what was measured is believed":   {1, 8, []sizing.Profile{at(1, 100), at(2, 190), at(4, 300)}, "1.00 1.90"},
		"no more than it may have":        {1, 2, []sizing.Profile{at(1, 100), at(2, 190), at(4, 300)}, "1.00 1.90"},
		"another device, if there's none": {1, 2, []sizing.Profile{{Kind: k, Device: "T4", Workers: 1, Batch: 256, Rate: 10}, {Kind: k, Device: "T4", Workers: 2, Batch: 256, Rate: 15}}, "1.00 1.50"},
		"more does not help":              {1, 4, []sizing.Profile{at(1, 100), at(2, 100)}, "1.00 1.00"},
	} {
		got := sizing.Speeds(k, "A100", 1, c.least, c.most, c.all)
		words := make([]string, len(got))
		for i, v := range got {
			words[i] = fmt.Sprintf("%.2f", v)
		}
		text := strings.Join(words, " ")
		if len(text) < len(c.want) || text[:len(c.want)] != c.want || c.want == "1.00" && len(got) != 1 {
			t.Errorf("%s: %s, not %s", name, text, c.want)
		}
	}
	if got := sizing.Speeds(k, "A100", 1, 1, 64, []sizing.Profile{at(1, 100), at(2, 190), at(4, 300)}); len(got) != 8 {
		t.Errorf("%d sizes where four were tried", len(got))
	}
}

// Whatever was measured: the least is one, and all are positive and finite.
func TestSpeedsAreNumbers(t *testing.T) {
	k := sizing.Kind{Family: "p/x", Unit: sizing.Steps}
	rapid.Check(t, func(t *rapid.T) {
		var all []sizing.Profile
		for range rapid.IntRange(0, 8).Draw(t, "profiles") {
			all = append(all, sizing.Profile{
				Kind: k, Device: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "device"), Workers: rapid.IntRange(1, 40).Draw(t, "workers"),
				Rate: rapid.SampledFrom([]float64{0, 1e-9, 0.1, 1, 17, sizing.MaxRate}).Draw(t, "rate"), Seen: rapid.Bool().Draw(t, "seen"), Communication: rapid.Float64Range(0, 1).Draw(t, "communication"),
			})
		}
		least := rapid.IntRange(1, 9).Draw(t, "least")
		most := least + rapid.IntRange(0, 60).Draw(t, "more")
		got := sizing.Speeds(k, "a", rapid.IntRange(1, 8).Draw(t, "processes"), least, most, all)
		if len(got) == 0 || len(got) > most-least+1 || math.Abs(got[0]-1) > 1e-9 {
			t.Fatalf("%v of %d to %d", got, least, most)
		}
		for _, v := range got {
			if !(v > 0) || math.IsInf(v, 0) {
				t.Fatal(got)
			}
		}
	})
}
