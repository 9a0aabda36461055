package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/audit"
)

func TestAuditReady(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		status audit.Status
		want   string
	}{
		"all is well":           {audit.Status{Folded: now.Add(-time.Hour)}, ""},
		"a round failed":        {audit.Status{Err: errors.New("disk"), Folded: now.Add(-30 * time.Second)}, ""},
		"rounds fail":           {audit.Status{Err: errors.New("disk"), Folded: now.Add(-2 * time.Minute)}, "since 2025-12-31T23:58:00Z"},
		"only the witness lags": {audit.Status{WitnessErr: errors.New("mount"), Folded: now}, ""},
	} {
		err := auditReady(tt.status, now)
		if ready := err == nil; ready != (tt.want == "") || !ready && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
