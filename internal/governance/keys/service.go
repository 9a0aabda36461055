package keys

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/streamingaead"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Authorizer is asked before the inventory is shown and before a key is destroyed.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// The actions the service asks for.
const (
	ActionRead    policy.Action = "keys.read"
	ActionDestroy policy.Action = "keys.destroy"
)

// Config says where the keys are.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	TwoPeople  policy.TwoPeople // says when destroying takes two people; nil: never
	MasterFile string           // path of master.key; its directory exists
	Passphrase []byte           // empty: the file holds the bare key
	CacheTTL   time.Duration    // how long another process may use a destroyed key; default 2 s
}

// Service is the Ring. Safe for concurrent use.
type Service struct {
	cfg    Config
	master *subtle.AESGCM // seals the keys of projects
	last   []byte         // of Lasting

	mu     sync.Mutex
	cache  map[Scope]cached
	forgot uint64 // how often something was forgotten
}

type cached struct {
	keys *scopeKeys
	read time.Time
}

// scopeKeys are a scope's keys, ready for use.
type scopeKeys struct {
	aead      tink.AEAD
	streaming tink.StreamingAEAD
	secret    []byte

	mu   sync.Mutex
	data map[string][]byte // keys derived for a use
}

// dataKeys bounds the derived keys that a scope remembers.
const dataKeys = 64

// dataKey derives a key for a use.
func (k *scopeKeys) dataKey(use string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.data[use]
	if !ok {
		if k.data == nil || len(k.data) >= dataKeys {
			k.data = map[string][]byte{}
		}
		key = derive(k.secret, "falaj data key v1 "+use)
		k.data[use] = key
	}
	return slices.Clone(key) // it is the caller's
}

const (
	cacheSize   = 4096
	maxPageSize = 1000
)

// Open reads (or, for a new installation, makes) the master key and proves it
// right. With a passphrase and a bare file, the file is sealed. Errors:
// fault.Invalid for a wrong, missing, damaged or unprotected master key or a
// wrong passphrase, with what to do.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	if cfg.CacheTTL <= 0 {
		cfg.CacheTTL = 2 * time.Second
	}
	master, err := loadMaster(ctx, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Passphrase = nil
	seal, err := subtle.NewAESGCM(derive(master, "falaj master key seal v1"))
	if err != nil {
		return nil, err
	}
	last := derive(master, "falaj lasting secret v1")
	clear(master)
	s := &Service{cfg: cfg, master: seal, last: last, cache: map[Scope]cached{}}
	if cfg.TwoPeople != nil {
		cfg.TwoPeople.Register("key", s.destroy)
	}
	return s, nil
}

// Lasting derives 32 bytes for a named use from the master key alone: they are the
// same for the life of the installation, whatever backup of the database is
// restored, and cannot be destroyed. Only for what has to outlive a restore.
func (s *Service) Lasting(use string) []byte { return derive(s.last, "falaj lasting key v1 "+use) }

// AEAD gives the scope's AES-256-GCM. See Ring.
func (s *Service) AEAD(ctx context.Context, project, owner string) (tink.AEAD, error) {
	k, err := s.keys(ctx, project, owner)
	if err != nil {
		return nil, err
	}
	return k.aead, nil
}

// StreamingAEAD gives the scope's AES-256-GCM-HKDF. See Ring.
func (s *Service) StreamingAEAD(ctx context.Context, project, owner string) (tink.StreamingAEAD, error) {
	k, err := s.keys(ctx, project, owner)
	if err != nil {
		return nil, err
	}
	return k.streaming, nil
}

// DataKey derives 32 bytes for a named use. See Ring.
func (s *Service) DataKey(ctx context.Context, project, owner, use string) ([]byte, error) {
	if use == "" || len(use) > maxOwner {
		return nil, fault.New(fault.Invalid, "a data key needs a use of 1 to %d bytes", maxOwner)
	}
	k, err := s.keys(ctx, project, owner)
	if err != nil {
		return nil, err
	}
	return k.dataKey(use), nil
}

// Destroy makes a scope's key unusable for ever, and with it everything the key
// sealed; for an empty owner, the keys of all owners in the project. When it
// returns, the key is in no file of the database, not in SQLite's log either; a
// backup of the database that lies with the master key still opens what it
// sealed. Destroying twice is not an error. Needs keys.destroy. Errors:
// fault.NotFound when there was never such a key, fault.Invalid for the
// installation's own key, fault.Unavailable when the key is destroyed but its old
// bytes could not be removed yet.
func (s *Service) Destroy(ctx context.Context, project, owner string) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionDestroy, policy.Object{Project: project, Kind: "key", Name: owner}); err != nil {
		return err
	}
	act := policy.Act{
		Kind: "key", Action: ActionDestroy, Object: policy.Object{Project: project, Kind: "key", Name: owner},
		Summary: "destroy the " + describe(project, owner), Payload: Scope{project, owner},
	}
	if err := policy.Ask(ctx, s.cfg.TwoPeople, act); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		return s.DestroyTx(ctx, tx, project, owner)
	})
}

// destroy is Destroy that was approved.
func (s *Service) destroy(ctx context.Context, payload []byte) error {
	var at Scope
	if err := json.Unmarshal(payload, &at); err != nil {
		return err
	}
	return s.Destroy(ctx, at.Project, at.Owner)
}

// DestroyTx is Destroy in the transaction that deletes what the key sealed. It
// asks for no permission: the caller has asked for its own.
func (s *Service) DestroyTx(ctx context.Context, tx *store.Tx, project, owner string) error {
	if err := CheckScope(project, owner); err != nil {
		return err
	}
	if project == "" && owner == "" {
		return fault.New(fault.Invalid, "the key of the installation cannot be destroyed").
			WithHint("Destroy the keys of projects, or the data directory as a whole.")
	}
	if _, err := s.cfg.Store.Find(ctx, tx, project, owner); err != nil {
		return fault.Wrap(err, "destroy the %s", describe(project, owner))
	}
	gone, err := s.cfg.Store.Destroy(ctx, tx, project, owner, store.At(time.Now()))
	if err != nil {
		return fault.Wrap(err, "destroy the %s", describe(project, owner))
	}
	for _, k := range gone {
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: project, Action: string(ActionDestroy), Object: describe(k.Project, k.Owner),
			Detail: map[string]any{"key": k.ID},
		}); err != nil {
			return err
		}
		if err := event.Publish(ctx, tx, project, KeyDestroyed, KeyEvent{ID: k.ID, Project: k.Project, Owner: k.Owner}); err != nil {
			return err
		}
	}
	tx.OnCommit(func() { s.forget(project, owner) })
	return nil
}

// List is the key inventory in the order of project and owner, and the token of
// the next page (empty at the end). Needs key.read on the filter's project, or
// on the system.
func (s *Service) List(ctx context.Context, f Filter, pageSize int, pageToken string) ([]Key, string, error) {
	object := policy.Object{Kind: "key"}
	if f.Project != nil {
		object.Project = *f.Project
	}
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object); err != nil {
		return nil, "", err
	}
	if pageSize <= 0 || pageSize > maxPageSize {
		pageSize = maxPageSize
	}
	after, err := parsePageToken(pageToken)
	if err != nil {
		return nil, "", err
	}
	var list []Key
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		list, err = s.cfg.Store.List(ctx, tx, f, after, pageSize+1)
		return err
	})
	if err != nil {
		return nil, "", fault.Wrap(err, "list keys")
	}
	if len(list) <= pageSize {
		return list, "", nil
	}
	list = list[:pageSize]
	last := list[pageSize-1]
	return list, pageTokenOf(Scope{last.Project, last.Owner}), nil
}

func pageTokenOf(s Scope) string {
	return base64.RawURLEncoding.EncodeToString([]byte(s.Project + "\x00" + s.Owner))
}

// parsePageToken gives the scope after which a page begins, nil for the first.
func parsePageToken(token string) (*Scope, error) {
	if token == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	project, owner, ok := strings.Cut(string(b), "\x00")
	if err != nil || !ok || CheckScope(project, owner) != nil {
		return nil, fault.New(fault.Invalid, "invalid page token").
			WithHint("Start again without a page token.")
	}
	return &Scope{project, owner}, nil
}

// keys gives a scope's keys from the cache, the database, or freshly made.
func (s *Service) keys(ctx context.Context, project, owner string) (*scopeKeys, error) {
	at := Scope{project, owner}
	now := time.Now()
	s.mu.Lock()
	c, ok := s.cache[at]
	before := s.forgot
	s.mu.Unlock()
	if ok && (now.Sub(c.read) < s.cfg.CacheTTL || s.cfg.DB.Bridges(c.read)) {
		return c.keys, nil
	}
	if err := CheckScope(project, owner); err != nil {
		return nil, err
	}
	k, err := s.load(ctx, at)
	if fault.Is(err, fault.NotFound) {
		k, err = s.make(ctx, at)
	}
	if fault.Is(err, fault.Gone) { // destroyed by another process: an outage must not bring it back
		s.forget(project, owner)
	} else if err != nil && ok && s.cfg.DB.Bridges(c.read) {
		return c.keys, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "use the %s", describe(project, owner))
	}
	s.remember(at, k, now, before)
	return k, nil
}

// remember keeps a key that was read after the cache had forgotten something that
// often. One that was read meanwhile may be destroyed, and is good for this once.
func (s *Service) remember(at Scope, k *scopeKeys, read time.Time, before uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forgot != before {
		return
	}
	if len(s.cache) >= cacheSize {
		clear(s.cache) // cheap to refill, and bounded
	}
	s.cache[at] = cached{keys: k, read: read}
}

func (s *Service) forget(project, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot++
	for at := range s.cache {
		if at.Project == project && (owner == "" || at.Owner == owner) {
			delete(s.cache, at)
		}
	}
}

func (s *Service) load(ctx context.Context, at Scope) (*scopeKeys, error) {
	var m material
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		m, err = s.find(ctx, tx, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m.keys()
}

// make creates a scope's key, and its project's if need be, unless somebody was
// faster.
func (s *Service) make(ctx context.Context, at Scope) (*scopeKeys, error) {
	// Made outside the closure, which may run more than once.
	own, err := newMaterial()
	if err != nil {
		return nil, err
	}
	parent, err := newMaterial()
	if err != nil {
		return nil, err
	}
	var m material
	err = s.cfg.DB.Update(withoutOnce{ctx}, at.Project, func(ctx context.Context, tx *store.Tx) error {
		var err error
		if at.Owner != "" {
			if _, err = s.findOrInsert(ctx, tx, Scope{Project: at.Project}, parent); err != nil {
				return err
			}
		}
		m, err = s.findOrInsert(ctx, tx, at, own)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m.keys()
}

// withoutOnce hides a request's idempotency key: making a key on the way is not
// the effect that the request may have once.
type withoutOnce struct{ context.Context }

func (c withoutOnce) Value(key any) any {
	v := c.Context.Value(key)
	if _, ok := v.(*store.Once); ok {
		return nil
	}
	return v
}

func (s *Service) findOrInsert(ctx context.Context, tx *store.Tx, at Scope, fresh material) (material, error) {
	m, err := s.find(ctx, tx, at)
	if !fault.Is(err, fault.NotFound) {
		return m, err
	}
	row := Row{Key: Key{
		ID: ID(id.New("key")), Project: at.Project, Owner: at.Owner,
		Algorithms: Algorithms, State: Active, Created: time.Now(),
	}}
	seal, err := s.sealer(ctx, tx, at)
	if err != nil {
		return material{}, err
	}
	b, err := json.Marshal(fresh) //nolint:gosec // G117: it is sealed two lines below
	if err != nil {
		return material{}, err
	}
	if row.Sealed, err = seal.Encrypt(b, associated(row.Key)); err != nil {
		return material{}, err
	}
	if err := s.cfg.Store.Insert(ctx, tx, row); err != nil {
		return material{}, err
	}
	return fresh, audit.Append(ctx, tx, audit.Entry{
		Project: at.Project, Action: "key.create", Object: describe(at.Project, at.Owner),
		Detail: map[string]any{"key": row.ID, "algorithms": row.Algorithms},
	})
}

// find opens a scope's row. Errors: fault.NotFound, fault.Gone.
func (s *Service) find(ctx context.Context, tx *store.Tx, at Scope) (material, error) {
	row, err := s.cfg.Store.Find(ctx, tx, at.Project, at.Owner)
	if err != nil {
		return material{}, err
	}
	if row.State == Destroyed {
		return material{}, fault.New(fault.Gone, "the key was destroyed on %s", row.Destroyed.UTC().Format(time.DateOnly)).
			WithHint("Data that it encrypted cannot be read again. Create the object again under another name.")
	}
	seal, err := s.sealer(ctx, tx, at)
	if err != nil {
		return material{}, err
	}
	b, err := seal.Decrypt(row.Sealed, associated(row.Key))
	if err != nil {
		return material{}, fault.New(fault.Internal, "the encrypted bytes of %s cannot be decrypted: %w", row.ID, err).
			WithHint("The database was changed or damaged: restore it from its backup.")
	}
	var m material
	return m, json.Unmarshal(b, &m)
}

// sealer gives the primitive that seals a scope's row: the master's for a
// project, the project's for an owner.
func (s *Service) sealer(ctx context.Context, tx *store.Tx, at Scope) (*subtle.AESGCM, error) {
	if at.Owner == "" {
		return s.master, nil
	}
	parent, err := s.find(ctx, tx, Scope{Project: at.Project})
	if err != nil {
		return nil, err
	}
	return subtle.NewAESGCM(derive(parent.Secret, "falaj project key seal v1"))
}

// associated binds sealed bytes to their place. NUL is in none of the parts.
func associated(k Key) []byte {
	return []byte(strings.Join([]string{"falaj key v1", string(k.ID), k.Project, k.Owner}, "\x00"))
}

// material is what a sealed row holds.
type material struct {
	AEAD      []byte `json:"aead"`      // Tink keyset
	Streaming []byte `json:"streaming"` // Tink keyset
	Secret    []byte `json:"secret"`    // 32 bytes
}

func newMaterial() (material, error) {
	a, err := newKeyset(aead.AES256GCMKeyTemplate())
	if err != nil {
		return material{}, err
	}
	st, err := newKeyset(streamingaead.AES256GCMHKDF1MBKeyTemplate())
	if err != nil {
		return material{}, err
	}
	return material{AEAD: a, Streaming: st, Secret: randomBytes(keySize)}, nil
}

func newKeyset(template *tinkpb.KeyTemplate) ([]byte, error) {
	h, err := keyset.NewHandle(template)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	// In clear only between here and the seal a few lines up.
	if err := insecurecleartextkeyset.Write(h, keyset.NewBinaryWriter(&b)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (m material) keys() (*scopeKeys, error) {
	ah, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(m.AEAD)))
	if err != nil {
		return nil, err
	}
	a, err := aead.New(ah)
	if err != nil {
		return nil, err
	}
	sh, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(m.Streaming)))
	if err != nil {
		return nil, err
	}
	st, err := streamingaead.New(sh)
	if err != nil {
		return nil, err
	}
	if len(m.Secret) != keySize {
		return nil, fault.New(fault.Internal, "the scope's secret has %d bytes", len(m.Secret))
	}
	return &scopeKeys{aead: a, streaming: st, secret: m.Secret}, nil
}

var _ Ring = (*Service)(nil)
