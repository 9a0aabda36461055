// Package digest makes the digests by which audit entries name the entities that were read: the
// first 16 bytes of HMAC-SHA-256 under a key of the project, over the entity's name and its
// encoded key. The same entity has the same digest in all views of a project.
//
// Keys of persons can be guessed, so whoever sees the log must not be able to make the digest of
// a guess: that takes the key of the project, and Falaj does it only for the audited question who
// read a person.
package digest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Entity is one that the key of a row names.
type Entity struct {
	Name  string
	Parts []int // of the key, that are its join keys
}

// Digester makes digests under one key, and collects them. It is not safe for concurrent use.
type Digester struct {
	mac  hash.Hash
	all  []string
	seen map[string]bool
}

// New makes digests under a key of a project.
func New(key []byte) *Digester { return &Digester{mac: hmac.New(sha256.New, key)} }

// All are the digests that were added, each once.
func (d *Digester) All() []string { return d.all }

// Digest is that of an entity with an encoded key, which may be in parts.
func (d *Digester) Digest(entity string, parts ...[]byte) string {
	d.mac.Reset()
	d.mac.Write([]byte("falaj read 1\x00" + entity + "\x00"))
	for _, p := range parts {
		d.mac.Write(p) // self-delimiting
	}
	return base64.RawURLEncoding.EncodeToString(d.mac.Sum(nil)[:16])
}

// Add adds the digests of the entities that keys name, each once. A key has so many parts.
func (d *Digester) Add(entities []Entity, parts int, keys [][]byte) {
	for _, key := range keys {
		if len(key) == 0 {
			continue // NULL: no entity
		}
		if len(entities) == 1 {
			d.put(d.Digest(entities[0].Name, key))
			continue
		}
		split, ok := value.SplitKey(key)
		if !ok || len(split) != parts {
			continue // never: it was encoded from these keys
		}
		for _, entity := range entities {
			var own [][]byte
			for _, i := range entity.Parts {
				own = append(own, split[i])
			}
			d.put(d.Digest(entity.Name, own...))
		}
	}
}

func (d *Digester) put(digest string) {
	if d.seen[digest] {
		return
	}
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[digest] = true
	d.all = append(d.all, digest)
}
