package doctor

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/config/configtest"
)

var may = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

func TestCertificateIsChecked(t *testing.T) {
	other := t.TempDir()
	_, otherKey := configtest.Certificate(t, other, "other", may.AddDate(0, -1, 0), may.AddDate(1, 0, 0))
	for name, tt := range map[string]struct {
		from, to   time.Time
		key        string
		text, mark string
	}{
		"good":       {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), "", "", "✓"},
		"ends soon":  {may.AddDate(0, -1, 0), may.AddDate(0, 0, 3), "", "", "!"},
		"expired":    {may.AddDate(-1, 0, 0), may.AddDate(0, 0, -1), "", "expired on 2026-04-30", "✗"},
		"not yet":    {may.AddDate(0, 0, 1), may.AddDate(1, 0, 0), "", "not valid before 2026-05-02", "✗"},
		"wrong key":  {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), otherKey, "private key does not match", "✗"},
		"no key":     {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), filepath.Join(other, "none"), "no such file", "✗"},
		"not a file": {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), filepath.Join(other, "cert.pem"), "tls.cert and tls.key", "✗"},
	} {
		t.Run(name, func(t *testing.T) {
			cert, key := configtest.Certificate(t, t.TempDir(), "falaj.example", tt.from, tt.to)
			if tt.key != "" {
				key = tt.key
			}
			_, err := config.LoadCertificate(cert, key, may)
			if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want %q", err, tt.text)
			}
			var cfg config.Config
			cfg.TLS.Cert, cfg.TLS.Key = cert, key
			if found := certificateFinding(cfg, may); len(found) != 1 || found[0].mark != tt.mark {
				t.Errorf("the doctor says %v, want %s", found, tt.mark)
			}
		})
	}
	if found := certificateFinding(config.Config{}, may); found != nil {
		t.Errorf("without a certificate the doctor says %v", found)
	}
}
