package feature_test

import (
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
)

// Times without a zone are refused, or are of the one that is named: late in a view,
// where clocks show them twice, and early in a spine.
func TestTimesWithoutZone(t *testing.T) {
	w := weather(t)
	w.data.queries["SELECT local"] = query{tables: []string{"weather"}, local: []string{"time"}, run: func(in map[string]table) table { return in["weather"] }}
	w.data.queries["SELECT zoned"] = query{tables: []string{"weather"}, run: func(in map[string]table) table { return in["weather"] }}
	spec := weatherSpec
	apply := func(src feature.Source) error {
		spec.Source = src
		_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "local"}, spec)
		return err
	}
	refused(t, apply(feature.Source{SQL: "SELECT local"}), fault.Invalid, `spec.timestamp: column "time"`, "no time zone", "time_zone: America/New_York", "TIMESTAMPTZ")
	for _, zone := range []string{"Mars/Olympus", "Local", "../x", "/etc/localtime"} {
		refused(t, apply(feature.Source{SQL: "SELECT local", TimeZone: zone}), fault.Invalid, "spec.source.time_zone", zone, "Europe/Berlin")
	}
	refused(t, apply(feature.Source{Dataset: "weather", TimeZone: "UTC"}), fault.Invalid, "spec.source.time_zone", "instants")
	for _, src := range []feature.Source{{SQL: "SELECT zoned"}, {SQL: "SELECT local", TimeZone: "America/New_York"}} {
		if err := apply(src); err != nil {
			t.Fatal(err)
		}
	}
	set := feature.TrainingSetRequest{Project: nyc, Name: "set", Spine: feature.Source{SQL: "SELECT local"}, Timestamp: "time", Selection: feature.Selection{Features: []string{"local:humid"}, FullNames: true}}
	_, err := w.MakeTrainingSet(w.ctx, set)
	refused(t, err, fault.Invalid, `column "time" of the spine`, "no time zone", "time_zone")
	set.Spine.TimeZone = "Europe/London"
	w.data.asked = nil
	if _, err := w.MakeTrainingSet(w.ctx, set); err != nil {
		t.Fatal(err)
	}
	w.mustMaterialise("local", w.now)
	view, spine := feature.Local{TimeZone: "America/New_York"}, feature.Local{TimeZone: "Europe/London", Early: true}
	for _, l := range w.data.asked {
		if l != view && l != spine && l.TimeZone != spine.TimeZone { // it is looked at first
			t.Errorf("asked for times of %+v", l)
		}
	}
	if !slices.Contains(w.data.asked, view) || !slices.Contains(w.data.asked, spine) {
		t.Errorf("asked for times of %+v", w.data.asked)
	}
}
