package gauges

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// distributions are the metrics that are histograms.
var distributions = []string{"falaj_http_request_seconds", "falaj_serving_request_seconds", "falaj_serving_queue_seconds", "falaj_serving_batch_rows"}

// described is what Prometheus' client prints of a metric.
var described = regexp.MustCompile(`^Desc\{fqName: "([a-z_0-9]+)", help: "((?:[^"\\]|\\.)*)"(?:, unit: "[^"]*")?, constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}\}$`)

// Reference is a table of what collectors give, in Markdown.
func Reference(all []prometheus.Collector) (string, error) {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		for _, c := range all {
			c.Describe(descs)
		}
	}()
	lines := map[string]string{}
	var failed error
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			failed = fmt.Errorf("the description of a metric reads %q", d)
			continue
		}
		lines[m[1]] = fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", m[1], kindOfMetric(m[1]), labelsOf(m[3], m[4]), unitOf(m[1]), strings.ReplaceAll(m[2], "|", `\|`))
	}
	if failed != nil {
		return "", failed
	}
	var b strings.Builder
	b.WriteString("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(lines[name])
	}
	return b.String(), nil
}

func kindOfMetric(name string) string {
	switch {
	case slices.Contains(distributions, name):
		return "histogram"
	case strings.HasSuffix(name, "_total"):
		return "counter"
	}
	return "gauge"
}

func labelsOf(constant, variable string) string {
	var names []string
	for _, pair := range strings.FieldsFunc(constant, func(r rune) bool { return r == ',' }) {
		name, _, _ := strings.Cut(pair, "=")
		names = append(names, "`"+name+"`")
	}
	for _, name := range strings.FieldsFunc(variable, func(r rune) bool { return r == ',' }) {
		names = append(names, "`"+name+"`")
	}
	if len(names) == 0 {
		return "–"
	}
	return strings.Join(names, " ")
}

// unitOf is the unit that a metric's name says, as Prometheus' conventions have it.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	for _, u := range [][2]string{
		{"_timestamp_seconds", "seconds since 1970"},
		{"_seconds", "seconds"},
		{"_bytes", "bytes"},
		{"_rows", "rows"},
		{"_ok", "0 or 1"},
		{"_up", "0 or 1"},
		{"_open", "0 or 1"},
		{"_leader", "0 or 1"},
		{"_info", "1"},
		{"_budget_limit", "currency"},
		{"_budget_spent", "currency"},
		{"_capacity", "see there"},
		{"_used", "see there"},
		{"_quota", "see there"},
	} {
		if strings.HasSuffix(name, u[0]) {
			return u[1]
		}
	}
	return "number"
}
