package doctor

import (
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
)

// certificateFinding is what the doctor says of the certificate.
func certificateFinding(cfg config.Config, now time.Time) []finding {
	if cfg.TLS.Cert == "" {
		return nil
	}
	c, err := config.LoadCertificate(cfg.TLS.Cert, cfg.TLS.Key, now)
	if err != nil {
		return []finding{{"✗", err.Error(), fault.HintOf(err)}}
	}
	end := config.CertificateEnd(c)
	text := fmt.Sprintf("certificate of %s, expires on %s", c.Leaf.Subject, end.UTC().Format(time.RFC3339))
	if now.After(end.Add(-config.CertificateSoon)) {
		return []finding{{"!", text, "Renew it: the server reloads the files automatically."}}
	}
	return []finding{{"✓", text, ""}}
}
