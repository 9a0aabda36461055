package app

import (
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestStoresSayWhichIsAway: /readyz, the metric and the log name a store that does not
// answer; the address is in the log alone.
func TestStoresSayWhichIsAway(t *testing.T) {
	var log strings.Builder
	var outage error
	s := &stores{log: slog.New(slog.NewTextHandler(&log, nil)), away: map[string]error{}, database: func() error { return outage }}
	s.set(t.Context(), onlineStore, nil)
	if err := s.ready(); err != nil {
		t.Errorf("all are there: %v", err)
	}
	away := &fault.Error{Kind: fault.Unavailable, Message: "Redis is unavailable", Err: errors.New("dial tcp 10.0.0.7:6379: refused")}
	for range 2 { // it is told of once
		s.set(t.Context(), onlineStore, away)
	}
	outage = fault.New(fault.Unavailable, "the database does not answer")
	if err := s.ready(); !fault.Is(err, fault.Unavailable) || err.Error() != "away: database, online store" {
		t.Errorf("%v", err)
	}
	if strings.Count(log.String(), "a store is unavailable") != 1 || !strings.Contains(log.String(), "10.0.0.7") {
		t.Errorf("the log says: %s", &log)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "falaj_store_up" {
		t.Fatal(families, err)
	}
	up := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		up[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if want := map[string]float64{databaseStore: 0, onlineStore: 0}; !maps.Equal(up, want) {
		t.Errorf("falaj_store_up is %v, want %v", up, want)
	}
	outage = nil
	s.set(t.Context(), onlineStore, nil)
	if err := s.ready(); err != nil || !strings.Contains(log.String(), "a store is available again") {
		t.Errorf("%v; the log says: %s", err, &log)
	}
}
