package doctor

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/blob/s3blob"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/filewatch"
	"github.com/falaj-ml/falaj/internal/store"
)

// doctorTime bounds what the doctor asks of another server.
const doctorTime = 20 * time.Second

// databaseFindings is what the doctor says of PostgreSQL.
func databaseFindings(ctx context.Context, cfg config.Config) []finding {
	if cfg.Store.URL == "" || strings.HasPrefix(cfg.Store.URL, "sqlite:") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	of, err := database(cfg)
	if err != nil {
		return nil // the check of the files says so
	}
	is, err := store.Look(ctx, of)
	if err != nil {
		return append([]finding{{"✗", "PostgreSQL: " + err.Error(), fault.HintOf(err)}}, passwordFinding(cfg, "store")...)
	}
	out := []finding{{"✓", fmt.Sprintf("PostgreSQL %s: database %s, encoding %s, locale %s, which the user %s may change", is.Version, is.Database, is.Encoding, is.Locale, is.User), ""}}
	switch {
	case is.Here:
	case is.Encrypted && !is.Verified:
		out = append(out, finding{"!", "PostgreSQL is reached by TLS with any certificate", "Write ?sslmode=verify-full in store.url, and name a private authority's PEM file by sslrootcert."})
	default:
		out = append(out, finding{"✓", "PostgreSQL is reached by TLS, and its certificate is verified", ""})
	}
	if is.Conns < store.MaxConnections {
		out = append(out, finding{"!", fmt.Sprintf("PostgreSQL permits %d connections, but a server uses up to %d", is.Conns, store.MaxConnections), "Raise max_connections in postgresql.conf."})
	}
	return append(out, passwordFinding(cfg, "store")...)
}

// onlineFindings is what the doctor says of Redis.
func onlineFindings(ctx context.Context, cfg config.Config) []finding {
	if cfg.Online.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	of := cfg.Redis()
	if path := cfg.Online.PasswordFile; path != "" {
		f, err := filewatch.Secret(path)
		if err != nil {
			return nil // the check of the files says so
		}
		of.Password = f.Value
	}
	if path := cfg.Online.CA; path != "" {
		f, err := filewatch.Authorities(path)
		if err != nil {
			return nil // the same
		}
		of.Roots = f.Value
	}
	version, err := redis.Look(ctx, of)
	if err != nil {
		return append([]finding{{"✗", "Redis: " + err.Error(), fault.HintOf(err)}}, passwordFinding(cfg, "online")...)
	}
	return append([]finding{{"✓", strings.TrimSpace("Redis " + version), ""}}, passwordFinding(cfg, "online")...)
}

// passwordFinding is of a password in a URL.
func passwordFinding(cfg config.Config, of string) []finding {
	if !slices.Contains(cfg.PasswordsInURLs(), of) {
		return nil
	}
	return []finding{{"!", of + ".url has a password in it", fmt.Sprintf(config.MoveHint, of)}}
}

// enginesFindings is what the doctor says of the trust between the nodes of engines and
// this server. It knows the authorities of this machine only; the nodes' may be others.
func enginesFindings(cfg config.Config) (out []finding) {
	if cfg.TLS.Cert == "" {
		return nil
	}
	server, err := config.LoadCertificate(cfg.TLS.Cert, cfg.TLS.Key, time.Now())
	if err != nil {
		return nil // the certificate's own line says so
	}
	between := x509.NewCertPool()
	for _, der := range server.Certificate[1:] {
		if one, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(one)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Engines)) {
		e := cfg.Engines[name]
		u, err := url.Parse(e.URL)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || config.OwnAuthority(cfg.TLS.Cert) != "" && e.CA == "" && server.Leaf.VerifyHostname(u.Hostname()) == nil {
			continue
		}
		roots := (*x509.CertPool)(nil) // this machine's
		if e.CA != "" {
			b, err := os.ReadFile(e.CA)
			if err != nil {
				continue // the check of the files says so
			}
			roots = x509.NewCertPool()
			roots.AppendCertsFromPEM(b)
		}
		if _, err := server.Leaf.Verify(x509.VerifyOptions{DNSName: u.Hostname(), Roots: roots, Intermediates: between}); err != nil {
			out = append(out, finding{
				"!", fmt.Sprintf("nodes of the engine %s may not trust the certificate of this server at %s: %v", name, u.Host, err),
				fmt.Sprintf("Name the PEM file of the certificate's authority by engines.%[1]s.ca, and let engines.%[1]s.url be a name in the certificate. If a proxy stands before the server, its certificate counts.", name),
			})
		}
	}
	return out
}

// database is how the database is reached, for who only looks at it.
func database(c config.Config) (store.Config, error) {
	of := store.Config{URL: c.StoreURL(), Migrations: schema.Migrations}
	if path := c.Store.PasswordFile; path != "" {
		f, err := filewatch.Secret(path)
		if err != nil {
			return of, err
		}
		of.Password = f.Value
	}
	return of, nil
}

// checkBucket asks for the bucket, for the doctor.
func checkBucket(ctx context.Context, c config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cfg, err := c.Bucket()
	if err != nil {
		return err
	}
	return s3blob.Check(ctx, cfg)
}
