package console

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// featureAnswers are what the made-up server says about features, lineage and search.
func featureAnswers(p string, answer func(path string, of func(r *http.Request) any)) {
	fixed := func(v any) func(*http.Request) any { return func(*http.Request) any { return v } }
	answer(p+"/feature-views/{ref}", fixed(weatherView()))
	answer(p+"/feature-views/{ref}/versions", fixed(object{"items": []feature.Listed{
		{Header: weatherView().Header, Aliases: []string{"latest"}},
		{Header: feature.Header{Project: "nyc", Name: "weather", Version: 1, CreatedAt: begin}, Aliases: []string{"prod"}},
	}}))
	answer(p+"/feature-views/{ref}/freshness", fixed(weatherFreshness()))
	answer(p+"/feature-views/{ref}/lineage", fixed(feature.Lineage{View: "weather@2", TrainingSets: []feature.TrainingSet{{
		Dataset: "orders@3", Views: []feature.UsedView{{View: "weather@2", Features: []feature.UsedFeature{{Feature: "temp", Column: "price"}, {Feature: "station", Column: "country"}}}},
	}}}))
	answer(p+"/feature-services/{ref}", fixed(feature.ServiceDefinition{
		Header: feature.Header{Project: "nyc", Name: "delay", Version: 2, CreatedAt: ago(-3*day, 0), CreatedBy: "usr_1"},
		ServiceSpec: feature.ServiceSpec{
			Description: "What the delay model reads", Purpose: "operations", Request: []feature.RequestSpec{{Name: "distance", Type: "float64"}},
			Computed: []feature.ComputedSpec{{Name: "felt", Type: "float64", Expression: "temp - 0.4 * weather__wind"}},
		},
		Selected: []string{"weather@2:temp", "weather@2:station"}, Used: []string{"weather@2:wind"},
	}))
	answer(p+"/feature-services/{ref}/versions", fixed(object{"items": []feature.Listed{{Header: feature.Header{Name: "delay", Version: 2, CreatedAt: begin}, Aliases: []string{"latest", "prod"}}}}))
	answer(p+"/lineage", func(r *http.Request) any {
		g := delayLineage()
		q := r.URL.Query()
		if ref := q.Get("dataset"); ref != "" {
			g.Root = "dataset " + ref
		} else if name := q.Get("name"); q.Get("namespace") == "" {
			g.Root = q.Get("kind") + " " + name
		}
		return g
	})
	answer(p+"/search", func(r *http.Request) any {
		all := []object{
			{"kind": "dataset", "name": "weather", "description": "Hourly observations at three airports", "owner": "layla", "matches": []object{{"field": "column", "value": "temp"}}},
			{"kind": "dataset", "name": "delays", "matches": []object{{"field": "column", "value": "weather__temp"}}},
			{"kind": "feature_view", "name": "weather", "description": "What the weather was", "matches": []object{{"field": "column", "value": "temp"}}},
			{"kind": "model", "name": "delay", "matches": []object{{"field": "tag", "value": "input=temp"}}},
			{"kind": "source", "name": "temperatures", "matches": []object{{"field": "name", "value": "temperatures"}}},
			{"kind": "lineage", "name": "lake.temps", "description": "dataset in s3://lake", "matches": []object{{"field": "name", "value": "lake.temps"}}},
		}
		if r.URL.Query().Get("q") != "temp" {
			all = nil
		}
		return object{"items": all}
	})
}

func weatherView() feature.View {
	return feature.View{
		Header: feature.Header{Project: "nyc", Name: "weather", Version: 2, Digest: "sha256:1", CreatedAt: ago(-5*day, 0), CreatedBy: "usr_1"},
		ViewSpec: feature.ViewSpec{
			Description: "What the weather was where a flight leaves", Entities: []string{"origin"}, Timestamp: "observed_at", CreatedTimestamp: "loaded_at", TTL: "3h", Purpose: []string{"operations", "research"},
			Source: feature.Source{SQL: "SELECT origin, observed_at, loaded_at,\n       (temp - 32) / 1.8 AS temp, wind_speed AS wind, station\nFROM observations", Inputs: map[string]string{"observations": "weather@3"}},
			Features: []feature.FieldSpec{
				{Name: "temp", Type: "float64", Description: "Degrees Celsius"}, {Name: "wind", Type: "float64"}, {Name: "station", Type: "string", Protect: feature.Pseudonym, Description: "Who measured"},
			},
			Tags: map[string]string{"team": "ops"},
		},
		Keys: []feature.Key{{Entity: "origin@1", Name: "origin", Type: value.String}},
	}
}

func weatherFreshness() feature.Freshness {
	return feature.Freshness{
		Materialised: true, Lag: 42 * time.Minute,
		Online: feature.Online{
			Project: "nyc", View: "weather", Version: 2, Residency: residency.Of("AE"), Classification: dataset.Internal, Watermark: ago(0, -42), Newest: ago(0, -45), UpdatedAt: ago(0, -40),
			Inputs: []feature.InputRef{{Table: "observations", Dataset: "weather@3"}},
		},
		Last:  &feature.Run{ID: "run_9", View: "weather", Version: 2, State: "succeeded", Rows: 26_115, CreatedAt: ago(0, -41), StartedAt: ago(0, -41), EndedAt: ago(0, -40)},
		Check: &feature.Check{View: "weather@2", At: ago(0, -30), Keys: 412, Values: 1236, Mismatches: 3, Features: []string{"wind"}, Rounded: 2},
	}
}

// delayLineage is how a deployment came from two files.
func delayLineage() openlineage.Graph {
	own := func(field, name string) []openlineage.Source {
		return []openlineage.Source{{Name: openlineage.Name{Name: name}, Field: field, Kind: "DIRECT", Subtype: "IDENTITY"}}
	}
	of := func(dataset, kind, how string, fields ...string) (out []openlineage.Source) {
		for _, f := range fields {
			out = append(out, openlineage.Source{Name: openlineage.Name{Namespace: "falaj://nyc", Name: dataset}, Field: f, Kind: kind, Subtype: how})
		}
		return out
	}
	fields := func(names ...string) (out []openlineage.Field) {
		for _, n := range names {
			out = append(out, openlineage.Field{Name: n})
		}
		return out
	}
	node := func(kind openlineage.Kind, name string, f []openlineage.Field, c openlineage.Columns) openlineage.Node {
		return openlineage.Node{ID: string(kind) + " " + name, Kind: kind, Namespace: "falaj://nyc", Name: name, Fields: f, Columns: c}
	}
	g := openlineage.Graph{Root: "deployment delay"}
	g.Nodes = []openlineage.Node{
		node(openlineage.DatasetKind, "weather@3", fields("origin", "observed_at", "loaded_at", "temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure"), nil),
		node(openlineage.DatasetKind, "flights@1", fields("origin", "scheduled_at", "carrier", "distance", "arr_delay"), nil),
		node(openlineage.ViewKind, "weather@2", fields("temp", "wind", "station"), openlineage.Columns{
			"temp": append(of("weather", "DIRECT", "TRANSFORMATION", "temp"), of("weather", "INDIRECT", "JOIN", "origin", "observed_at")...), "wind": of("weather", "DIRECT", "IDENTITY", "wind_speed"),
		}),
		node(openlineage.ServiceKind, "delay@2", fields("weather:temp", "weather:wind", "felt"), openlineage.Columns{"weather:temp": own("temp", "feature_view weather@2"), "weather:wind": own("wind", "feature_view weather@2")}),
		node(openlineage.DatasetKind, "delays@1", fields("carrier", "distance", "weather__temp", "weather__wind", "late"), openlineage.Columns{
			"carrier": of("flights", "DIRECT", "IDENTITY", "carrier"), "distance": of("flights", "DIRECT", "IDENTITY", "distance"), "late": of("flights", "DIRECT", "TRANSFORMATION", "arr_delay"),
			"weather__temp": append(own("weather:temp", "feature_service delay@2"), of("weather", "DIRECT", "TRANSFORMATION", "temp")...), "weather__wind": own("weather:wind", "feature_service delay@2"),
		}),
		node(openlineage.JobKind, "job_4", nil, nil),
		node(openlineage.ModelKind, "delay@3", nil, nil),
		node(openlineage.ModelKind, "delay@4", nil, nil),
		node(openlineage.DeploymentKind, "delay", fields("weather:temp", "weather:wind", "distance"), openlineage.Columns{"weather:temp": own("weather:temp", "feature_service delay@2"), "weather:wind": own("weather:wind", "feature_service delay@2")}),
		{ID: "s3://lake lake.temps", Kind: openlineage.DatasetKind, Namespace: "s3://lake", Name: "lake.temps", Foreign: true, Fields: fields("t", "at")},
		{ID: "job airflow load", Kind: openlineage.JobKind, Namespace: "airflow", Name: "load_weather", Foreign: true, State: "COMPLETE"},
	}
	g.Nodes[0].State, g.Nodes[5].State, g.Nodes[5].By, g.Nodes[6].By, g.Nodes[8].State = "accepted", "succeeded", "train-delay", "champion", "ready"
	g.Nodes[0].Columns = openlineage.Columns{"temp": {{Name: openlineage.Name{Namespace: "s3://lake", Name: "lake.temps"}, Field: "t", Kind: "DIRECT", Subtype: "TRANSFORMATION"}}}
	for _, e := range [][2]int{{9, 10}, {10, 0}, {0, 2}, {2, 3}, {3, 4}, {1, 4}, {0, 4}, {4, 5}, {5, 6}, {5, 7}, {6, 8}, {7, 8}, {3, 8}} {
		g.Edges = append(g.Edges, openlineage.Edge{From: g.Nodes[e[0]].ID, To: g.Nodes[e[1]].ID})
	}
	return g
}

// TestSearch: the box in the header finds objects as words are typed, by kind; the
// keyboard goes through what is found.
func TestSearch(t *testing.T) {
	s := pretend(t)
	b := open(t, s.URL)
	b.login(token)
	b.see("Needs attention")
	b.do(chromedp.KeyEvent("k", chromedp.KeyModifiers(input.ModifierCtrl)))
	b.until(`document.activeElement === document.querySelector('.search input')`)
	b.press("temp")
	b.see("6 found", "Feature views", "Hourly observations", "column weather__temp", "External (OpenLineage)")
	want := map[string]string{
		"weather·dataset": "/datasets/weather", "delays": "/datasets/delays", "weather·feature_view": "/features/weather", "delay": "/lineage/model%20delay", "temperatures": "",
		"lake.temps": "/lineage/dataset%20lake.temps?namespace=s3%3A%2F%2Flake",
	}
	links := b.text(`[...document.querySelectorAll('.found li > *')].map((e) => e.getAttribute('href') ?? '').join(' ')`)
	for _, path := range slices.Sorted(maps.Values(want)) {
		if path != "" && !slices.Contains(strings.Split(links, " "), "/console/p/nyc"+path) {
			t.Errorf("no result leads to %s: %s", path, links)
		}
	}
	b.accessible("search")
	b.picture("search")
	b.press(kb.ArrowDown, kb.ArrowDown, kb.ArrowDown)
	b.until(`document.activeElement.getAttribute('href') === '/console/p/nyc/features/weather'`)
	b.press(kb.ArrowUp)
	b.until(`document.activeElement.getAttribute('href') === '/console/p/nyc/datasets/delays'`)
	b.press(kb.Escape)
	b.until(`document.activeElement === document.querySelector('.search input') && document.querySelector('.found').hidden`)
	b.press(kb.End, "xyz")
	b.see("Nothing has “tempxyz”")
	b.press(kb.Backspace, kb.Backspace, kb.Backspace)
	b.see("6 found")
	b.press(kb.ArrowDown, kb.Enter)
	b.until(`location.pathname === '/console/p/nyc/datasets/weather'`)
	b.until(`document.querySelector('.found').hidden`)
}

// TestLineage: a graph from others' datasets to a deployment; a column shows what it
// came from and what it feeds.
func TestLineage(t *testing.T) {
	s := pretend(t)
	b := open(t, s.URL)
	b.login(token)
	b.see("Needs attention")
	b.do(chromedp.Navigate(s.URL + "/console/p/nyc/lineage/deployment%20delay"))
	b.see("deployment delay", "feature view", "train-delay", "external (OpenLineage)")
	b.until(`document.querySelectorAll('.node').length === 11 && document.querySelectorAll('.lineage .edge').length === 12`) // one leads over the view
	b.until(`document.querySelector('.node.root').getAttribute('aria-label') === 'deployment delay, made of 3'`)
	b.accessible("lineage")
	b.picture("lineage")
	choose := func(column, of string) {
		b.do(chromedp.Click(`button[aria-label=` + strconv.Quote("Column "+column+" of "+of) + `]`))
	}
	choose("weather:temp", "deployment delay")
	b.see("Came from", "temp of dataset weather@3", "t of dataset lake.temps", "transformation")
	b.until(`document.querySelectorAll('.lineage .values').length === 4 && document.querySelectorAll('.node .field.on').length === 4`)
	b.accessible("lineage of a column")
	b.picture("lineage-column")
	// From the other end: over more columns than a box shows by itself.
	b.do(chromedp.Click(`button[aria-label="5 more columns of dataset weather@3"]`))
	choose("wind_speed", "dataset weather@3")
	b.see("Feeds", "weather__wind of dataset delays@1", "weather:wind of deployment delay")
	b.picture("lineage-feeds")
	choose("temp", "feature view weather@2")
	b.see("Decided by", "observed_at of dataset weather@3")
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
	b.until(`document.documentElement.dataset.mantineColorScheme === 'dark'`)
	b.accessible("lineage, dark")
	b.picture("lineage-dark")
	b.do(chromedp.Click(`.node.feature_view .around`))
	b.until(`decodeURIComponent(location.pathname) === '/console/p/nyc/lineage/feature_view weather@2'`)
	b.until(`document.querySelector('.node.root.feature_view') !== null`)
	if wide := b.text(`document.documentElement.scrollWidth > innerWidth`); wide != "false" {
		t.Error("the graph is wider than the screen, and does not scroll by itself")
	}
}

// TestFeatureView: how a view and a service are defined, what is online, whether it is
// the same as its source, who may see it and who uses it.
func TestFeatureView(t *testing.T) {
	s := pretend(t)
	b := open(t, s.URL)
	b.login(token)
	b.see("Needs attention")
	b.do(chromedp.Navigate(s.URL + "/console/p/nyc/features/weather"))
	b.see("weather@2", "origin by origin", "3h", "42 min behind", "3 of 1\u2009236 differ", "prod", "/ 1.8 AS temp", "Degrees Celsius", "a pseudonym", "operations", "research", "feature.clear", "26\u2009115 rows", "3 differ, in wind", "in the last digit")
	b.see("Feature services", "Training sets", "delays@1", "train-delay", "delay@3", "champion")
	// What the values look like is of the training set that has them, by the names of the features.
	b.until(`[...document.querySelectorAll('.column h3')].map((h) => h.title).join() === 'temp,station'`)
	b.accessible("feature view")
	b.picture("feature-view")
	b.do(chromedp.ScrollIntoView(`.users`))
	b.picture("feature-view-used")
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}), chromedp.Evaluate(`document.querySelector('.page').scrollTo(0, 0)`, nil))
	b.until(`document.documentElement.dataset.mantineColorScheme === 'dark'`)
	b.accessible("feature view, dark")
	b.picture("feature-view-dark")
	b.do(chromedp.Click(`.users section[aria-label="Feature services"] a`))
	b.see("delay@2", "temp - 0.4 * weather__wind", "A request brings distance (float64)", "42 min behind", "as its operands")
	b.accessible("feature service")
	b.picture("feature-service")
	b.press(kb.Escape)
	b.until(`location.pathname === '/console/p/nyc/features'`)
}
