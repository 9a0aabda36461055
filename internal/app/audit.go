package app

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
)

// auditLag is how long the log may not be extended until the server says that it
// is not ready. What is done meanwhile is on record, but not yet signed.
const auditLag = time.Minute

// auditReady is nil while the audit log can be relied on. Its text is for
// everybody.
func auditReady(s audit.Status, now time.Time) error {
	switch {
	case audit.Contradicted(s.Err):
		return fault.New(fault.Unavailable, "nothing can be changed: the audit log is not the one that was signed")
	case s.Err != nil && now.Sub(s.Folded) > auditLag:
		return fault.New(fault.Unavailable, "the audit log has not been extended since %s", s.Folded.UTC().Format(time.RFC3339))
	}
	return nil
}

// auditGauges are the state of the audit log, as Prometheus series.
type auditGauges struct{ status func() audit.Status }

var (
	auditOK          = prometheus.NewDesc("falaj_audit_ok", "1 while the audit log is extended, 0 while it is not; changes are refused when it was tampered with.", nil, nil)
	auditEntries     = prometheus.NewDesc("falaj_audit_entries", "Entries in the audit log.", nil, nil)
	auditFolded      = prometheus.NewDesc("falaj_audit_last_success_timestamp_seconds", "When the audit log was last up to date.", nil, nil)
	auditSecondOK    = prometheus.NewDesc("falaj_audit_second_place_ok", "1 while the second place takes checkpoints, 0 while it does not.", nil, nil)
	auditSecondPlace = prometheus.NewDesc("falaj_audit_second_place_entries", "Entries of the audit log that the newest checkpoint in the second place signs.", nil, nil)
)

// Describe implements prometheus.Collector.
func (g auditGauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{auditOK, auditEntries, auditFolded, auditSecondOK, auditSecondPlace} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g auditGauges) Collect(out chan<- prometheus.Metric) {
	s := g.status()
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
	if s.HasWitness {
		flag(auditSecondOK, s.WitnessErr == nil)
		gauge(auditSecondPlace, float64(s.Kept))
	}
}

// VerifyAudit proves an export offline and says in words what was proven.
func VerifyAudit(export io.Reader, key string, checkpoints io.Reader) (string, error) {
	options := audit.VerifyOptions{PublicKey: key}
	if checkpoints != nil {
		var err error
		if options.Checkpoints, err = audit.ReadCheckpoints(checkpoints); err != nil {
			return "", fault.Wrap(err, "checkpoints of the second place")
		}
	}
	r, err := audit.Verify(export, options)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d entries and %d checkpoints verified, root %s\n", r.Size, r.Checkpoints, r.Root)
	if r.Erased > 0 {
		fmt.Fprintf(&b, "%d entries were erased; their commitments are intact\n", r.Erased)
	}
	if checkpoints != nil {
		fmt.Fprintf(&b, "%d checkpoints of the second place agree, %d are newer than the export\n", r.Witnessed, r.Newer)
	}
	if !r.KeyGiven {
		fmt.Fprintf(&b, "signed by %s, which the export itself names: compare it with one you trust, or give --key\n", r.PublicKey)
	}
	return b.String(), nil
}
