// Package keys holds the key hierarchy: a master key seals project keys, a
// project key seals the keys of its datasets, models and blobs. Destroying a
// key erases what it sealed.
//
// # Map
//
//   - Ring is what other packages ask for; Service is the one implementation.
//   - master.go keeps the master key in a 0600 file, as it is or sealed by a
//     passphrase (argon2id), and proves at start that it is the right one.
//   - service.go makes, opens, lists and destroys the keys of scopes; store.go
//     says what it needs from a database; keyssql implements that.
//
// # Hierarchy
//
//	master.key ── HKDF ──▶ seals the key of each project ("p", "")
//	                       and of the installation ("", "")
//	("p", "")  ── HKDF ──▶ seals the key of each owner ("p", "dataset/weather")
//
// Each scope has three secrets in one sealed row: a Tink AES-256-GCM keyset, a
// Tink AES-256-GCM-HKDF streaming keyset (1 MiB segments), and 32 bytes from
// which DataKey and, for a project, the key that seals its owners are derived.
//
// # Guarantees
//
// No key is in the database unsealed. A sealed row opens only at its own
// project, owner and identifier. A wrong master key is refused at Open. After
// Destroy returns, this process refuses the key; others do within the cache's
// time to live. A destroyed scope stays destroyed: its name is never used again.
//
// # What the caller owes
//
// The Ring's methods open a transaction of their own on first use: do not call
// them inside a store closure. They check no permission: the code that hands out
// data has asked already.
package keys

import (
	"context"
	"regexp"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
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

// ID names a key: "key_01J…".
type ID string

// State of a key.
type State string

// The states.
const (
	Active    State = "active"
	Destroyed State = "destroyed"
)

// Algorithms are those of every scope made today, for the inventory.
const Algorithms = "AES-256-GCM, AES-256-GCM-HKDF-1MiB, HKDF-SHA-256"

// Key is a line of the key inventory. It holds no secret.
type Key struct {
	ID         ID
	Project    string // empty: the installation
	Owner      string // empty: the project's own key, which seals its owners'
	Algorithms string
	State      State
	Created    time.Time
	Destroyed  time.Time // zero while the key is active
}

// Scope is what a key is for.
type Scope struct {
	Project string `json:"project"`
	Owner   string `json:"owner"`
}

// Filter narrows the inventory.
type Filter struct {
	Project *string // nil: all projects, which takes the permission on the system
	State   State   // empty: any
}

const maxOwner = 200

var ownerRE = regexp.MustCompile(`^[A-Za-z0-9._=@+-]+(/[A-Za-z0-9._=@+-]+)*$`)

// CheckScope refuses a project or owner that cannot be a scope: a project is a
// name (or empty), an owner is segments of [A-Za-z0-9._=@+-] joined by '/', at
// most 200 bytes (or empty). Error: fault.Invalid.
func CheckScope(project, owner string) error {
	if project != "" {
		if err := id.CheckName("project", project); err != nil {
			return err
		}
	}
	if owner != "" && (len(owner) > maxOwner || !ownerRE.MatchString(owner)) {
		return fault.New(fault.Invalid, "%.80q is not a key owner", owner).
			WithHint("Use segments of letters, digits and . _ = @ + - joined by '/', at most %d bytes.", maxOwner)
	}
	return nil
}

// describe names a scope in messages and audit entries.
func describe(project, owner string) string {
	switch {
	case project == "" && owner == "":
		return "key of the installation"
	case owner == "":
		return "key of project " + project
	case project == "":
		return "key " + owner + " of the installation"
	}
	return "key " + owner + " of project " + project
}
