package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestMetricsReference: every metric is described once, with its labels.
func TestMetricsReference(t *testing.T) {
	t.Parallel()
	page, err := MetricsReference()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(page) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "`"); ok && strings.HasPrefix(line, "| `falaj_") {
			if seen[name] {
				t.Errorf("%s stands twice", name)
			}
			seen[name] = true
			if strings.Count(line, " | ") < 4 {
				t.Errorf("%q has a column too few", line)
			}
		}
	}
	for _, line := range []string{
		"| `falaj_http_requests_total` | counter | `route` `status` | number |",
		"| `falaj_http_request_seconds` | histogram | `route` | seconds |",
		"| `falaj_audit_last_success_timestamp_seconds` | gauge | – | seconds since 1970 |",
		"| `falaj_request_memory_bytes` | gauge | `limit` | bytes |",
		"| `falaj_tls_certificate_end_timestamp_seconds` | gauge |",
		"| `falaj_jobs` | gauge | `project` `state` | number |",
	} {
		if !strings.Contains(page, line) {
			t.Errorf("there is no line %q", line)
		}
	}
	if len(seen) < 70 {
		t.Errorf("only %d metrics: %s", len(seen), fmt.Sprint(slices.Sorted(maps.Keys(seen))))
	}
}
