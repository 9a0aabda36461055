package registry

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// gate is a condition on a metric of a version's run: against a number, or against a
// metric of the champion's run and a number more or less.
type gate struct {
	text     string
	metric   string
	op       string
	champion string // its metric; empty: none is compared with
	number   float64
}

const metricRE = `metrics\.([A-Za-z0-9_][A-Za-z0-9_./-]*|"[^"]{1,250}")`

var gateRE = regexp.MustCompile(`^\s*` + metricRE + `\s*(>=|<=|>|<)\s*(?:([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)|champion(?:\.` + metricRE + `)?(?:\s*([+-])\s*([0-9.]+(?:[eE][+-]?[0-9]+)?))?)\s*$`)

// parseGate reads a condition. Error: fault.Invalid.
func parseGate(text string) (gate, error) {
	refuse := func() (gate, error) {
		return gate{}, fault.New(fault.Invalid, "%q is not a condition on a metric", clip(text)).
			WithHint("Write metrics.auc >= 0.8, metrics.\"val loss\" < 0.3, or metrics.auc >= champion - 0.01.")
	}
	m := gateRE.FindStringSubmatch(text)
	if m == nil || len(text) > 600 {
		return refuse()
	}
	g := gate{text: strings.TrimSpace(text), metric: strings.Trim(m[1], `"`), op: m[2]}
	number := m[3]
	if number == "" {
		if g.champion = strings.Trim(m[4], `"`); g.champion == "" {
			g.champion = g.metric
		}
		number = m[5] + m[6]
	}
	if number == "" {
		return g, nil
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		return refuse()
	}
	g.number = n
	return g, nil
}

// metrics are the latest of a run by name.
func metricsOf(all []tracking.Metric) map[string]float64 {
	out := map[string]float64{}
	at := map[string]tracking.Millis{}
	for _, m := range all {
		if t, seen := at[m.Key]; !seen || m.At >= t {
			out[m.Key], at[m.Key] = m.Value, m.At
		}
	}
	return out
}

// check says what is wrong with a version; empty: it passes. Without a champion there is
// nothing to be worse than. NaN is worse than all.
func (g gate) check(own, champion map[string]float64, championIs string) string {
	value, ok := own[g.metric]
	if !ok {
		return fmt.Sprintf("%s: its run has no metric %s", g.text, g.metric)
	}
	bound := g.number
	if g.champion != "" {
		if championIs == "" {
			return ""
		}
		other, ok := champion[g.champion]
		if !ok {
			return fmt.Sprintf("%s: the run of the champion, %s, has no metric %s", g.text, championIs, g.champion)
		}
		bound += other
	}
	passes := false
	switch g.op {
	case ">=":
		passes = value >= bound
	case "<=":
		passes = value <= bound
	case ">":
		passes = value > bound
	case "<":
		passes = value < bound
	}
	if passes {
		return ""
	}
	if g.champion != "" {
		return fmt.Sprintf("%s: %s is %s, and the champion, %s, has %s", g.text, g.metric, short(value), championIs, short(champion[g.champion]))
	}
	return fmt.Sprintf("%s: %s is %s", g.text, g.metric, short(value))
}

func short(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
