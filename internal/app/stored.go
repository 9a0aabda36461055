package app

import (
	"context"
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/resource"
)

// storageLimit is a project's quota as the store of objects holds it.
func storageLimit(q project.Quota) quota.Limit {
	l := quota.Limit{Bytes: int64(q.Bytes), Objects: q.Objects}
	for kind, most := range q.Kinds.ByKind() {
		if l.Kinds == nil {
			l.Kinds = map[string]quota.Amount{}
		}
		l.Kinds[kind] = quota.Amount{Bytes: int64(most.Bytes), Objects: most.Objects}
	}
	return l
}

// quotaReached records that something was refused at a project's quota.
func (a *App) quotaReached(ctx context.Context, r quota.Reached) error {
	err := a.projects.ReachQuota(ctx, tenancy.ReachedQuota{
		Project: project.Name(r.Project), Kind: r.Kind, Quota: project.Amount{Bytes: resource.Bytes(r.Limit.Bytes), Objects: r.Limit.Objects},
		StoredBytes: resource.Bytes(r.Stored.Bytes), StoredObjects: r.Stored.Objects,
	})
	if err == nil {
		a.reached.add(r.Project, r.Kind)
	}
	return err
}

// reachedCounts counts the events of reached quotas, by project and kind. The zero value is
// ready, and is safe for concurrent use.
type reachedCounts struct {
	mu sync.Mutex
	of map[[2]string]float64
}

func (c *reachedCounts) add(project, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[[2]string]float64{}
	}
	c.of[[2]string{project, kind}]++
}

// storedGauges are the metrics of what projects store.
type storedGauges struct {
	accounts *quota.Accounts
	reached  *reachedCounts
}

var (
	storedBytes   = prometheus.NewDesc("falaj_project_stored_bytes", "Bytes stored by the project, by kind. Absent until the first count after a server start, which a write, a delete or a read of the usage starts.", []string{"project", "kind"}, nil)
	storedObjects = prometheus.NewDesc("falaj_project_stored_objects", "Files that the project stores, by kind; absent as falaj_project_stored_bytes is.", []string{"project", "kind"}, nil)
	quotaBytes    = prometheus.NewDesc("falaj_project_quota_bytes", "Quota of stored bytes at the project's last write, of one kind or, with the kind all, of the project; absent without a limit, and as falaj_project_stored_bytes is.", []string{"project", "kind"}, nil)
	quotaObjects  = prometheus.NewDesc("falaj_project_quota_objects", "Quota of stored files; see falaj_project_quota_bytes.", []string{"project", "kind"}, nil)
	quotaReached  = prometheus.NewDesc("falaj_project_quota_reached_total", "Number of project.quota_reached events since the server start, of the quota of one kind or, with the kind all, of the project.", []string{"project", "kind"}, nil)
)

// Describe implements prometheus.Collector.
func (storedGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{storedBytes, storedObjects, quotaBytes, quotaObjects, quotaReached} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g storedGauges) Collect(ch chan<- prometheus.Metric) {
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
	g.accounts.Each(func(project string, kinds []quota.Used, limit quota.Limit) {
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
	g.reached.mu.Lock()
	defer g.reached.mu.Unlock()
	maps.Copy(counts, g.reached.of)
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
