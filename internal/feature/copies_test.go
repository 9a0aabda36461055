package feature_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// copier keeps the copies that it is given, by view.
type copier struct {
	online.Driver
	held map[string]string
}

var _ online.Copier = (*copier)(nil)

func (c *copier) Copies() bool { return true }

func (c *copier) Copy(_ context.Context, s online.Shape, copies []online.Copy) error {
	for _, r := range copies {
		c.held[s.View] += fmt.Sprintf("%s %v %v; ", strings.Join(s.JoinKeys, ","), r.Key, r.Values)
	}
	return nil
}

func (c *copier) DropCopiesOf(_ context.Context, _, view string) error {
	if view == "" {
		clear(c.held)
	}
	delete(c.held, view)
	return nil
}

// What everybody may read unasked is copied, and nothing else.
func TestCopies(t *testing.T) {
	w := weather(t)
	c := &copier{Driver: w.driver, held: map[string]string{}}
	w.online = online.New(c, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(*feature.Config) {})
	has := func(want map[string]string) {
		t.Helper()
		expect(t, maps.Collect(maps.All(c.held)), want)
		clear(c.held)
	}

	w.mustMaterialise("weather", w.now)
	all := "origin [EWR] [10 50]; origin [EWR] [11 NULL]; origin [EWR] [18 58]; origin [JFK] [21 51]; "
	has(map[string]string{"weather": all})
	if err := w.push(pushed(2, "EWR", 12)); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{"weather": "origin [EWR] [12 NULL]; "})

	hidden := weatherSpec
	hidden.Features = slices.Clone(hidden.Features)
	hidden.Features[0].Protect = feature.Mask
	w.view("weather", hidden) // the version before gets no copies any more
	if _, err := w.Push(w.ctx, feature.PushRequest{Project: nyc, View: "weather@1", Columns: pushed(3, "EWR", 13)}); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{})
	w.mustMaterialise("weather", w.now)
	has(map[string]string{"weather": "origin [EWR] [NULL 50]; origin [EWR] [NULL NULL]; origin [EWR] [NULL 58]; origin [JFK] [NULL 51]; "})

	// What was copied before goes.
	purposed := weatherSpec
	purposed.Purpose = []string{"care"}
	w.view("weather", purposed)
	c.held["weather"] = "before"
	w.mustMaterialise("weather", w.now)
	has(map[string]string{})
	longer := weatherSpec
	longer.TTL = "4h"
	w.view("weather", longer)
	w.data.put("weather", weatherRows(), func(v *version) { v.Classification = project.Confidential })
	c.held["weather"] = "before"
	w.mustMaterialise("weather", w.now)
	has(map[string]string{})

	// Rows of windows are not features.
	w.data.declared["purchases"] = purchaseCols
	w.view("spending", spending)
	w.mustPush(purchase("EWR", 1, 10))
	w.mustMaterialise("spending", time.Time{})
	w.mustPush(purchase("EWR", 2, 10))
	w.follow()
	has(map[string]string{})

	// What a stream brings is copied as it comes.
	bought := feature.ViewSpec{Source: spending.Source, Entities: spending.Entities, Timestamp: "time", Features: []feature.FieldSpec{{Name: "amount", Type: "float64"}}}
	w.view("bought", bought)
	w.mustMaterialise("bought", time.Time{})
	clear(c.held)
	w.mustPush(purchase("JFK", 3, 7))
	w.follow()
	has(map[string]string{"bought": "origin [JFK] [7]; "})

	c.held["bought"], c.held["weather"] = "before", "before"
	if err := w.KeyDestroyed(w.ctx, nyc, "dataset/weather"); err != nil {
		t.Fatal(err)
	}
	if err := w.KeyDestroyed(w.ctx, nyc, "feature/weather"); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{"bought": "before"})
	c.held["bought"] = "before"
	if err := w.KeyDestroyed(w.ctx, nyc, ""); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{})
}
