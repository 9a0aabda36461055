package gauges

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/governance/audit"
)

// Audit are the state of the audit log, as Prometheus series.
type Audit struct {
	Status func() audit.Status
	Second bool // checkpoints are kept in another place than the data directory
}

var (
	auditOK          = prometheus.NewDesc("falaj_audit_ok", "1 if the audit log accepts entries, 0 otherwise; after tampering, changes are rejected.", nil, nil)
	auditEntries     = prometheus.NewDesc("falaj_audit_entries", "Number of entries in the audit log.", nil, nil)
	auditFolded      = prometheus.NewDesc("falaj_audit_last_success_timestamp_seconds", "Time at which the audit log was last up to date.", nil, nil)
	auditSecondOK    = prometheus.NewDesc("falaj_audit_second_place_ok", "1 if the witness, a second copy of the checkpoints, can be written, 0 otherwise; absent if audit.checkpoints is not set.", nil, nil)
	auditSwept       = prometheus.NewDesc("falaj_audit_verified_timestamp_seconds", "Time of the last verification of the whole audit log.", nil, nil)
	auditSweepTook   = prometheus.NewDesc("falaj_audit_verification_seconds", "Duration of the last verification of the whole audit log.", nil, nil)
	auditSecondPlace = prometheus.NewDesc("falaj_audit_second_place_entries", "Number of audit log entries signed by the newest checkpoint of the witness.", nil, nil)
)

// Describe implements prometheus.Collector.
func (g Audit) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{auditOK, auditEntries, auditFolded, auditSecondOK, auditSecondPlace, auditSwept, auditSweepTook} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g Audit) Collect(out chan<- prometheus.Metric) {
	s := g.Status()
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	flag := func(d *prometheus.Desc, ok bool) {
		if ok {
			gauge(d, 1)
			return
		}
		gauge(d, 0)
	}
	flag(auditOK, s.Err == nil)
	gauge(auditEntries, float64(s.Size))
	if !s.Folded.IsZero() {
		gauge(auditFolded, float64(s.Folded.UnixMilli())/1000)
	}
	if !s.Swept.IsZero() {
		gauge(auditSwept, float64(s.Swept.UnixMilli())/1000)
		gauge(auditSweepTook, s.SweepTook.Seconds())
	}
	if s.HasWitness && g.Second {
		flag(auditSecondOK, s.WitnessErr == nil)
		gauge(auditSecondPlace, float64(s.Kept))
	}
}
