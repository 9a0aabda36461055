package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// signingKeys is the key scope that seals a project's signing key.
const signingKeys = "model-signing"

// signingKey is a project's ECDSA P-256 key. Its private half lies in the
// database sealed by the key ring; that it opens there proves that the pair is
// ours, so the public half needs no other proof.
type signingKey struct {
	id      string
	public  string // PEM
	private *ecdsa.PrivateKey
}

// sealedFor binds the sealed key to its project.
func sealedFor(p project.Name) []byte {
	return []byte("falaj model signing key of project " + string(p))
}

// PublicKey is the PEM of the key that signs the project's models, for verifiers
// elsewhere (model_signing verify key --public_key). It is made on first use.
func (s *Files) PublicKey(ctx context.Context, p project.Name) (string, error) {
	if err := s.allow(ctx, ActionRead, p, ""); err != nil {
		return "", err
	}
	k, err := s.key(ctx, p)
	return k.public, err
}

// key is the project's signing key, made on first use.
func (s *core) key(ctx context.Context, p project.Name) (signingKey, error) {
	var stored Key
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		stored, err = s.store.Key(ctx, tx, p)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		stored, err = s.makeKey(ctx, p)
	}
	if err != nil {
		return signingKey{}, fault.Wrap(err, "the signing key of project %s", p)
	}
	return s.unseal(ctx, stored)
}

func (s *core) makeKey(ctx context.Context, p project.Name) (Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Key{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return Key{}, err
	}
	aead, err := s.sealer.AEAD(ctx, string(p), signingKeys)
	if err != nil {
		return Key{}, err
	}
	k := Key{Project: p}
	if k.ID, k.Public, err = publicPEM(&private.PublicKey); err != nil {
		return Key{}, err
	}
	if k.Private, err = aead.Encrypt(der, sealedFor(p)); err != nil {
		return Key{}, err
	}
	made := k
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if k, err = s.store.InsertKey(ctx, tx, made); err != nil || k.ID != made.ID {
			return err
		}
		return s.audit(ctx, tx, ActionWrite, p, "model signing key "+k.ID, map[string]any{"act": "create"})
	})
	return k, err
}

func (s *core) unseal(ctx context.Context, k Key) (signingKey, error) {
	aead, err := s.sealer.AEAD(ctx, string(k.Project), signingKeys)
	if err != nil {
		return signingKey{}, err
	}
	der, err := aead.Decrypt(k.Private, sealedFor(k.Project))
	if err != nil {
		return signingKey{}, fault.New(fault.Conflict, "the signing key of project %s cannot be decrypted: it was modified, or belongs to another installation", k.Project)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return signingKey{}, err
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return signingKey{}, fault.New(fault.Internal, "the signing key of project %s is a %T", k.Project, parsed)
	}
	out := signingKey{private: private}
	out.id, out.public, err = publicPEM(&private.PublicKey)
	return out, err
}

// publicPEM is a public key's PEM and its name: the hex SHA-256 of that PEM.
func publicPEM(public *ecdsa.PublicKey) (keyID, text string, err error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", "", err
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), string(b), nil
}
