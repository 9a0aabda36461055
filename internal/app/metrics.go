package app

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/membudget"
)

// collectors is the one list of what this package has on /metrics. httpapi.Measures are
// registered by the edge.
func (a *App) collectors(requests *membudget.Budget) []prometheus.Collector {
	all := []prometheus.Collector{
		&stateGauges{a: a},
		auditGauges{a.sequencer.Status, a.cfg.Audit.Checkpoints != ""},
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "falaj_objects_damaged_total", Help: "Number of reads of stored objects that failed verification."}, a.damage.Count),
		&a.stores,
		storedGauges{a.stored, &a.reached},
		predictionGauges{a.predictions},
		servingGauges{a.serving.Measured},
		scalingGauges{a.serving.Scaled},
		remoteGauges{a.remotes},
		shareGauges{},
		requestGauges(requests),
	}
	if a.certificate != nil {
		all = append(all, a.certificate)
	}
	if a.features.Verification != nil {
		all = append(all, featureGauges{a.features.Verification, a.features.OnlineRows}, streamGauges{a.features.Streams})
	}
	return all
}

// distributions are the metrics that are histograms.
var distributions = []string{"falaj_http_request_seconds", "falaj_serving_request_seconds", "falaj_serving_queue_seconds", "falaj_serving_batch_rows"}

// described is what Prometheus' client prints of a metric.
var described = regexp.MustCompile(`^Desc\{fqName: "([a-z_0-9]+)", help: "((?:[^"\\]|\\.)*)"(?:, unit: "[^"]*")?, constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}\}$`)

// MetricsReference is the table of docs/reference/metrics.md.
func MetricsReference() (string, error) {
	a := &App{certificate: &certificate{}}
	a.features.Verification = &feature.Verification{}
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		for _, c := range append(a.collectors(membudget.New(1)), httpapi.Measures()...) {
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
