package gauges

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestStateGauges: what the database says becomes these series.
func TestStateGauges(t *testing.T) {
	t.Parallel()
	job := id.New("job")
	at := id.Made(job).Add(90 * time.Second)
	whole := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	cpu, memory := 4*resource.Cores(1), resource.Bytes(0)
	s := state{
		at:   at,
		jobs: []training.Count{{Project: "nyc", State: training.Queued, Jobs: 3, Oldest: training.JobID(job)}},
		pools: []compute.Pool{
			{Name: "home", Engine: "local", Capacity: resource.Amount{CPU: cpu, Memory: 8 * resource.GiB}, Running: 1, Nodes: []compute.PoolNode{{}, {Down: "away"}, {Quarantine: &compute.Quarantine{}}}},
			{Name: "old", Engine: "slurm", State: "closed: gone", Trouble: "no answer", Capacity: resource.Amount{Accelerators: map[string]int64{"nvidia.com/gpu": 8}}},
		},
		queues:  []compute.Queue{{Name: "batch", QueueSpec: compute.QueueSpec{Quota: resource.Limit{CPU: &cpu, Memory: &memory}}, Used: resource.Amount{CPU: cpu}, Running: 2, Waiting: 5}},
		budgets: []compute.Budget{{Project: "nyc", BudgetSpec: compute.BudgetSpec{Amount: 100, Currency: "USD"}, Spent: 12.5}},
		sources: []ingestion.Source{
			{Project: "nyc", Name: "orders", Last: &ingestion.Run{State: ingestion.Failed}, NextAt: at.Add(-time.Minute)},
			{Project: "nyc", Name: "new", NextAt: at.Add(time.Minute)},
		},
		backups: []backup.Backup{{State: backup.Whole, Of: whole.Add(-time.Hour)}, {State: backup.Whole, Of: whole}, {State: backup.Making, Of: whole.Add(time.Hour)}},
	}
	got := map[string]float64{}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "falaj_`), `"`)
		key := name + " " + strings.Join(labels, " ")
		if _, twice := got[key]; twice {
			t.Errorf("%s comes twice", key)
		}
		prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...) // has the labels that it says
		got[key] = v
	}
	s.emit(gauge, func(d *prometheus.Desc, at time.Time, labels ...string) {
		if !at.IsZero() {
			gauge(d, float64(at.Unix()), labels...)
		}
	})
	want := map[string]float64{
		"jobs nyc queued": 3, "job_oldest_seconds nyc queued": 90,
		"pool_open home local": 1, "pool_engine_up home local": 1, "pool_running home": 1, "pool_capacity home cpu": 4, "pool_capacity home memory": 8 << 30,
		"pool_used home cpu": 0, "pool_used home memory": 0,
		"pool_nodes home ready": 1, "pool_nodes home down": 1, "pool_nodes home quarantined": 1, "pool_nodes home maintenance": 0,
		"pool_open old slurm": 0, "pool_engine_up old slurm": 0, "pool_running old": 0, "pool_capacity old cpu": 0, "pool_capacity old memory": 0, "pool_capacity old nvidia.com/gpu": 8,
		"pool_used old cpu": 0, "pool_used old memory": 0,
		"pool_nodes old ready": 0, "pool_nodes old down": 0, "pool_nodes old quarantined": 0, "pool_nodes old maintenance": 0,
		"queue_running batch": 2, "queue_waiting batch": 5, "queue_used batch cpu": 4, "queue_used batch memory": 0, "queue_quota batch cpu": 4, "queue_quota batch memory": 0,
		"budget_limit nyc USD": 100, "budget_spent nyc USD": 12.5,
		"source_ok nyc orders": 0, "source_overdue_seconds nyc orders": 60, "source_overdue_seconds nyc new": 0,
		"backup_last_success_timestamp_seconds ": float64(whole.Unix()),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
