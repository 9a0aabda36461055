package feature

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// maxDigests bounds the digests of one audit entry: 25 bytes each, of 64 KiB.
const maxDigests = 1500

// keyDigester makes the digests by which audit entries name the entities that were read:
// the first 16 bytes of HMAC-SHA-256 under a key of the project, over the entity's name
// and its encoded key. The same entity has the same digest in all views of a project.
// Keys of persons can be guessed, so whoever sees the log must not be able to make the
// digest of a guess: that takes the key of the project, and Falaj does it only for the
// audited question who read a person.
type keyDigester struct {
	mac  hash.Hash
	all  []string
	seen map[string]bool
}

func (s *access) digester(ctx context.Context, p project.Name) (*keyDigester, error) {
	key, err := s.cfg.Keys.DataKey(ctx, string(p), "", "digests of keys that were read 1")
	if err != nil {
		return nil, fault.Wrap(err, "the key of the audit log's digests")
	}
	return &keyDigester{mac: hmac.New(sha256.New, key)}, nil
}

func (d *keyDigester) digest(entity string, parts ...[]byte) string {
	d.mac.Reset()
	d.mac.Write([]byte("falaj read 1\x00" + entity + "\x00"))
	for _, p := range parts {
		d.mac.Write(p) // self-delimiting
	}
	return base64.RawURLEncoding.EncodeToString(d.mac.Sum(nil)[:16])
}

// add adds the digests of the entities that keys of a view name, each once.
func (d *keyDigester) add(v View, keys [][]byte) {
	entities := v.entities()
	for _, key := range keys {
		if len(key) == 0 {
			continue // NULL: no entity
		}
		if len(entities) == 1 {
			d.put(d.digest(entities[0], key))
			continue
		}
		parts, ok := value.SplitKey(key)
		if !ok || len(parts) != len(v.Keys) {
			continue // never: it was encoded from these keys
		}
		for _, entity := range entities {
			var own [][]byte
			for _, i := range v.about(entity) {
				own = append(own, parts[i])
			}
			d.put(d.digest(entity, own...))
		}
	}
}

func (d *keyDigester) put(digest string) {
	if d.seen[digest] {
		return
	}
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[digest] = true
	d.all = append(d.all, digest)
}

// entities are the names of those whose join keys the view has, each once.
func (v View) entities() []string {
	var names []string
	for _, k := range v.Keys {
		name, _, _ := strings.Cut(k.Entity, "@")
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return names
}

// ReadDigest is the digest by which audit entries name an entity with these values of
// its join keys, as text and in their order. It asks for no permission: the caller has
// asked, and records the question. Errors: those of Identify.
func (s *OnlineReads) ReadDigest(ctx context.Context, p project.Name, entity string, values []string) (string, error) {
	e, err := s.entity(ctx, p, entity)
	if err != nil {
		return "", err
	}
	parts, err := e.parse(entity, values)
	if err != nil {
		return "", err
	}
	d, err := s.digester(ctx, p)
	if err != nil {
		return "", err
	}
	var key []byte
	for _, v := range parts {
		key = value.AppendKey(key, v)
	}
	return d.digest(entity, key), nil
}

// rowsDigest is the digest by which the audit log names rows that were pushed: an HMAC
// under a key of the project, because rows of one person can be guessed.
func (s *access) rowsDigest(ctx context.Context, p project.Name, rows []online.Row) (string, error) {
	key, err := s.cfg.Keys.DataKey(ctx, string(p), "", "digests of rows that were pushed 1")
	if err != nil {
		return "", fault.Wrap(err, "the key of the audit log's digests")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(chain("", rows)))
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil)), nil
}
