package gauges

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/governance/audit"
)

func TestAuditGauges(t *testing.T) {
	status := audit.Status{Size: 7, Kept: 5, HasWitness: true, Folded: time.Unix(100, 0)}
	second := true
	values := func() map[string]float64 {
		t.Helper()
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(Audit{Status: func() audit.Status { return status }, Second: second}); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		return got
	}
	want := func(ok, second float64) {
		t.Helper()
		got := values()
		if got["falaj_audit_ok"] != ok || got["falaj_audit_second_place_ok"] != second || got["falaj_audit_entries"] != 7 ||
			got["falaj_audit_second_place_entries"] != 5 || got["falaj_audit_last_success_timestamp_seconds"] != 100 {
			t.Errorf("%v", got)
		}
	}
	want(1, 1)
	status.Err, status.WitnessErr = errors.New("forked"), errors.New("unreachable")
	want(0, 0)
	second = false // the checkpoints are in the data directory
	if _, ok := values()["falaj_audit_second_place_ok"]; ok {
		t.Error("there is no witness, and the metric is there")
	}
}
