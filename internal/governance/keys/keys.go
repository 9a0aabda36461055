// Package keys holds the key hierarchy: a master key seals project keys, a
// project key seals the keys of its datasets, models and blobs. Destroying a
// key erases what it sealed.
package keys

import (
	"context"

	"github.com/tink-crypto/tink-go/v2/tink"
)

// Ring gives keys by scope: a project, and within it an owner such as
// "dataset/weather", "model/delay", "artifacts". An empty owner is the project's
// own key, an empty project the installation's. A scope's key is made on first
// use. The primitives may be kept for as long as one operation lasts, no longer:
// a destroyed key must stop working within seconds. Error: fault.Gone when the
// key was destroyed.
type Ring interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)                   // AES-256-GCM
	StreamingAEAD(ctx context.Context, project, owner string) (tink.StreamingAEAD, error) // AES-256-GCM-HKDF
	// DataKey is 32 bytes derived from the scope's key for a named use, for
	// formats that bring their own encryption (Parquet) and for HMAC.
	DataKey(ctx context.Context, project, owner, use string) ([]byte, error)
}
