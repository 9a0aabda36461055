package alert

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// sealedUnder is the key scope of a project's webhook secrets.
const sealedUnder = "webhook-secrets"

// secretPrefix and the sizes are those of the Standard Webhooks specification.
const (
	secretPrefix             = "whsec_"
	minSecret, maxSecret     = 24, 64
	maxSecretsOfOneProject   = 100
	signatureVersion         = "v1,"
	generatedSecretSizeBytes = 32
)

// sealedFor binds a sealed secret to its project and name.
func sealedFor(project, name string) []byte {
	return []byte("falaj webhook secret " + name + " of project " + project)
}

func parseSecret(value string) ([]byte, error) {
	rest, ok := strings.CutPrefix(value, secretPrefix)
	b, err := base64.StdEncoding.DecodeString(rest)
	if !ok || err != nil || len(b) < minSecret || len(b) > maxSecret {
		return nil, fault.New(fault.Invalid, "the value is not a webhook secret").
			WithHint("Use %s followed by the base64 of %d to %d random bytes, or leave it empty to generate one.", secretPrefix, minSecret, maxSecret)
	}
	return b, nil
}

// SetSecret keeps a secret under a name, in place of an older one. An empty value
// makes a new one, which is returned here and nowhere else. Error: fault.Invalid.
func (s *Sender) SetSecret(ctx context.Context, project, name, value string) (made string, err error) {
	if err := s.cfg.Authz.Allow(ctx, "monitor.apply", object(project)); err != nil {
		return "", err
	}
	if err := id.CheckName("secret", name); err != nil {
		return "", err
	}
	secret := make([]byte, generatedSecretSizeBytes)
	if value == "" {
		_, _ = rand.Read(secret) // never fails
		made = secretPrefix + base64.StdEncoding.EncodeToString(secret)
	} else if secret, err = parseSecret(value); err != nil {
		return "", err
	}
	aead, err := s.cfg.Sealer.AEAD(ctx, project, sealedUnder)
	if err != nil {
		return "", err
	}
	sealed, err := aead.Encrypt(secret, sealedFor(project, name))
	if err != nil {
		return "", err
	}
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.cfg.Store.Secrets(ctx, tx, project)
		if err != nil {
			return err
		}
		if len(all) >= maxSecretsOfOneProject {
			return fault.New(fault.Exhausted, "project %s has %d webhook secrets, the limit", project, len(all)).
				WithHint("Delete secrets that no monitor uses.")
		}
		if err := s.cfg.Store.PutSecret(ctx, tx, project, Secret{Name: name, Created: s.cfg.Now().UTC()}, sealed); err != nil {
			return err
		}
		return s.auditSecret(ctx, tx, project, name, "set")
	})
	if err != nil {
		return "", fault.Wrap(err, "webhook secret %s", name)
	}
	return made, nil
}

// Secrets lists names, never values.
func (s *Sender) Secrets(ctx context.Context, project string) (all []Secret, err error) {
	if err := s.cfg.Authz.Allow(ctx, "monitor.read", object(project)); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.cfg.Store.Secrets(ctx, tx, project)
		return err
	})
	return all, err
}

// DeleteSecret removes a secret; alerts to webhooks that name it wait until there
// is one again. Error: fault.NotFound.
func (s *Sender) DeleteSecret(ctx context.Context, project, name string) error {
	if err := s.cfg.Authz.Allow(ctx, "monitor.apply", object(project)); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Store.DeleteSecret(ctx, tx, project, name); err != nil {
			return err
		}
		return s.auditSecret(ctx, tx, project, name, "delete")
	})
}

func (s *Sender) auditSecret(ctx context.Context, tx *store.Tx, project, name, act string) error {
	return audit.Append(ctx, tx, audit.Entry{
		Project: project, Action: "monitor.apply", Object: "webhook secret " + name, Detail: map[string]any{"act": act},
	})
}

func (s *Sender) secret(ctx context.Context, project, name string) ([]byte, error) {
	var sealed []byte
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		sealed, err = s.cfg.Store.SealedSecret(ctx, tx, project, name)
		return err
	}); err != nil {
		return nil, err
	}
	aead, err := s.cfg.Sealer.AEAD(ctx, project, sealedUnder)
	if err != nil {
		return nil, err
	}
	secret, err := aead.Decrypt(sealed, sealedFor(project, name))
	if err != nil {
		return nil, refusal{fault.New(fault.Conflict, "webhook secret %s cannot be decrypted: it was modified, or belongs to another installation", name)}
	}
	return secret, nil
}

// sign is the Standard Webhooks signature: HMAC-SHA256 over id, time in seconds
// and body, joined by dots.
func sign(secret []byte, messageID string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(messageID + "." + strconv.FormatInt(at.Unix(), 10) + "."))
	mac.Write(body)
	return signatureVersion + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
