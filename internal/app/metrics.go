package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/usecase/gauges"
)

// collectors is the one list of what this package has on /metrics. httpapi.Measures are
// registered by the edge.
func (a *App) collectors(requests *membudget.Budget) []prometheus.Collector {
	all := []prometheus.Collector{
		a.state(),
		gauges.Audit{Status: a.sequencer.Status, Second: a.cfg.Audit.Checkpoints != ""},
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "falaj_objects_damaged_total", Help: "Number of reads of stored objects that failed verification."}, a.damage.Count),
		&a.stores,
		gauges.Stored{Accounts: a.stored, Reached: &a.reached},
		gauges.Predictions{Log: a.predictions},
		gauges.Serving{Measured: a.serving.Metrics.Measured},
		gauges.Scaling{Scaled: a.serving.Metrics.Scaled},
		a.remotes,
		gauges.Shares{},
		gauges.Requests(requests),
	}
	if a.certificate != nil {
		all = append(all, a.certificate)
	}
	if a.features.Verification != nil {
		all = append(all, gauges.Features{Verification: a.features.Verification, Rows: a.features.OnlineRows}, gauges.Streams{Streams: a.features.Streams})
	}
	return all
}

// state are the gauges of the installation's state.
func (a *App) state() *gauges.State {
	s := &gauges.State{Version: a.world.Version, Data: a.cfg.Data, DB: a.db, Compute: a.compute, Training: a.training.Jobs, Ingestion: a.ingestion, Accounts: a.accounts}
	if a.cfg.Backup.Dir != "" {
		s.Backups = a.backups
	}
	return s
}

// MetricsReference is the table of docs/reference/metrics.md.
func MetricsReference() (string, error) {
	a := &App{certificate: &certificate{}}
	a.features.Verification = &feature.Verification{}
	return gauges.Reference(append(a.collectors(membudget.New(1)), httpapi.Measures()...))
}
