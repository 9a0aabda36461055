package doctor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/config/configtest"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestDoctorAsksPostgres: version, locale and rights are lines of the doctor.
func TestDoctorAsksPostgres(t *testing.T) {
	var cfg config.Config
	if found := databaseFindings(t.Context(), cfg); found != nil {
		t.Errorf("of SQLite it says %v", found)
	}
	cfg.Store.URL = storetest.Postgres(t)
	found := databaseFindings(t.Context(), cfg)
	if len(found) != 1 || found[0].mark != "✓" || !strings.Contains(found[0].text, "locale C, which the user postgres may change") {
		t.Errorf("%v", found)
	}
	cfg.Store.URL = "postgres://falaj@/falaj?host=" + t.TempDir()
	found = databaseFindings(context.Background(), cfg)
	if len(found) != 1 || found[0].mark != "✗" || !strings.Contains(found[0].text, "PostgreSQL: open database") {
		t.Errorf("%v", found)
	}
}

// TestDoctorAsksWhetherNodesTrust: engines whose nodes would refuse the certificate are
// found before a job is.
func TestDoctorAsksWhetherNodesTrust(t *testing.T) {
	from, to := time.Now().AddDate(-1, 0, 0), time.Now().AddDate(1, 0, 0)
	cert, key := configtest.Certificate(t, t.TempDir(), "falaj.example", from, to)
	other, _ := configtest.Certificate(t, t.TempDir(), "other", from, to)
	for name, tt := range map[string]struct {
		engine config.Engine
		marks  int
	}{
		"it signed itself":      {config.Engine{URL: "https://falaj.example:7070"}, 0},
		"and has another name":  {config.Engine{URL: "https://10.0.0.7:7070"}, 1},
		"its authority":         {config.Engine{URL: "https://falaj.example:7070", CA: cert}, 0},
		"another authority":     {config.Engine{URL: "https://falaj.example:7070", CA: other}, 1},
		"at its own address":    {config.Engine{}, 0},
		"in the clear, locally": {config.Engine{URL: "http://127.0.0.1:7070"}, 0},
	} {
		var cfg config.Config
		cfg.TLS.Cert, cfg.TLS.Key = cert, key
		cfg.Engines = map[string]config.Engine{"hpc": tt.engine}
		if found := enginesFindings(cfg); len(found) != tt.marks || tt.marks > 0 && (found[0].mark != "!" || !strings.Contains(found[0].todo, "engines.hpc.ca")) {
			t.Errorf("%s: %v", name, found)
		}
	}
}
