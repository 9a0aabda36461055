package gauges

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/blob/quota"
)

// ReachedQuotas counts the events of reached quotas, by project and kind. The zero value is
// ready, and is safe for concurrent use.
type ReachedQuotas struct {
	mu sync.Mutex
	of map[[2]string]float64
}

// Add counts one.
func (c *ReachedQuotas) Add(project, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[[2]string]float64{}
	}
	c.of[[2]string{project, kind}]++
}

// Stored are the metrics of what projects store.
type Stored struct {
	Accounts *quota.Accounts
	Reached  *ReachedQuotas
}

var (
	storedBytes   = prometheus.NewDesc("falaj_project_stored_bytes", "Bytes stored by the project, by kind. Absent until the first count after a server start, which a write, a delete or a read of the usage starts.", []string{"project", "kind"}, nil)
	storedObjects = prometheus.NewDesc("falaj_project_stored_objects", "Files that the project stores, by kind; absent as falaj_project_stored_bytes is.", []string{"project", "kind"}, nil)
	quotaBytes    = prometheus.NewDesc("falaj_project_quota_bytes", "Quota of stored bytes at the project's last write, of one kind or, with the kind all, of the project; absent without a limit, and as falaj_project_stored_bytes is.", []string{"project", "kind"}, nil)
	quotaObjects  = prometheus.NewDesc("falaj_project_quota_objects", "Quota of stored files; see falaj_project_quota_bytes.", []string{"project", "kind"}, nil)
	quotaReached  = prometheus.NewDesc("falaj_project_quota_reached_total", "Number of project.quota_reached events since the server start, of the quota of one kind or, with the kind all, of the project.", []string{"project", "kind"}, nil)
)

// Describe implements prometheus.Collector.
func (Stored) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{storedBytes, storedObjects, quotaBytes, quotaObjects, quotaReached} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g Stored) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int64, project, kind string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), project, kind)
	}
	limited := func(project, kind string, most quota.Amount) {
		if most.Bytes > 0 {
			gauge(quotaBytes, most.Bytes, project, kind)
		}
		if most.Objects > 0 {
			gauge(quotaObjects, most.Objects, project, kind)
		}
	}
	// A count that is there from the beginning rises at the first event, too.
	counts := map[[2]string]float64{}
	g.Accounts.Each(func(project string, kinds []quota.Used, limit quota.Limit) {
		for _, k := range kinds {
			gauge(storedBytes, k.Bytes, project, k.Kind)
			gauge(storedObjects, k.Objects, project, k.Kind)
		}
		limited(project, wholeProject, quota.Amount{Bytes: limit.Bytes, Objects: limit.Objects})
		if limit.Bytes > 0 || limit.Objects > 0 {
			counts[[2]string{project, ""}] = 0
		}
		for kind, most := range limit.Kinds {
			limited(project, kind, most)
			counts[[2]string{project, kind}] = 0
		}
	})
	g.Reached.mu.Lock()
	defer g.Reached.mu.Unlock()
	maps.Copy(counts, g.Reached.of)
	for of, n := range counts {
		kind := of[1]
		if kind == "" {
			kind = wholeProject
		}
		ch <- prometheus.MustNewConstMetric(quotaReached, prometheus.CounterValue, n, of[0], kind)
	}
}

// wholeProject is the label of a quota that is not of one kind.
const wholeProject = "all"
