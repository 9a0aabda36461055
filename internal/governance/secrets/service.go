package secrets

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions that secrets ask for.
const (
	ActionRead   policy.Action = "secret.read"  // see that it exists, never the values
	ActionApply  policy.Action = "secret.apply" // make and rotate
	ActionUse    policy.Action = "secret.use"   // name it in something that opens it
	ActionDelete policy.Action = "secret.delete"
)

// owner is the scope of the project's key that seals its secrets.
const owner = "secrets"

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Sealer gives the primitive that seals. keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Users says what uses a secret: "source orders".
type Users func(ctx context.Context, tx *store.Tx, project, name string) ([]string, error)

// Config is what a Service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	Sealer     Sealer
	Users      []Users          // asked before a secret is deleted
	Now        func() time.Time // nil is time.Now
}

// Service is the only way to secrets. Safe for concurrent use.
type Service struct{ cfg Config }

// New makes a service.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{cfg: cfg}
}

// Register adds those who use secrets. Call it before the first request.
func (s *Service) Register(u Users) { s.cfg.Users = append(s.cfg.Users, u) }

func object(p, name string) policy.Object {
	return policy.Object{Project: p, Kind: "secret", Name: name}
}

// Request creates a secret or replaces its values.
type Request struct {
	Project string
	Name    string
	Spec    Spec
	DryRun  bool
}

// Apply makes the secret, or rotates it: all values are those of the manifest, or, where it
// says so, stay. A value that is set is a change even when it is equal: whether it equals the old one is
// nobody's to know. Needs secret.apply. Errors: fault.Invalid; fault.Exhausted over 1,000
// secrets in the project.
func (s *Service) Apply(ctx context.Context, r Request) (Secret, project.Change, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionApply, object(r.Project, r.Name)); err != nil {
		return Secret{}, "", err
	}
	if err := id.CheckName("secret name", r.Name); err != nil {
		return Secret{}, "", err
	}
	if err := r.Spec.Validate(); err != nil {
		return Secret{}, "", err
	}
	box, err := s.cfg.Sealer.AEAD(ctx, r.Project, owner)
	if err != nil {
		return Secret{}, "", fault.Wrap(err, "the key of the secrets of project %s", r.Project)
	}
	who, now := author(ctx), s.cfg.Now().UTC().Truncate(time.Microsecond)
	var row Row
	var change project.Change
	do := func(ctx context.Context, tx *store.Tx) error {
		row, err = s.cfg.Store.Find(ctx, tx, r.Project, r.Name)
		switch {
		case fault.Is(err, fault.NotFound):
			all, err := s.cfg.Store.List(ctx, tx, r.Project, "", maxSecrets)
			if err != nil {
				return err
			}
			if len(all) >= maxSecrets {
				return fault.New(fault.Exhausted, "project %s already has %d secrets", r.Project, len(all)).WithHint("Delete unused secrets; falaj get secrets lists them.")
			}
			change = project.Created
			row = Row{Secret: Secret{ID: ID(id.New("sec")), Project: r.Project, Name: r.Name, Created: now, CreatedBy: who}}
		case err != nil:
			return err
		default:
			change = project.Updated
			if r.Spec.kept() == len(r.Spec.Values) && row.Description == r.Spec.Description && slices.Equal(row.Keys, r.Spec.keys()) {
				change = project.Unchanged
				return nil
			}
		}
		plain, err := merged(box, row, r.Spec)
		if err != nil {
			return err
		}
		defer clear(plain)
		row.Description, row.Keys, row.Updated, row.UpdatedBy = r.Spec.Description, r.Spec.keys(), now, who
		row.Revision++
		if r.DryRun {
			return nil
		}
		if row.Sealed, err = box.Encrypt(plain, row.place()); err != nil {
			return fault.New(fault.Internal, "sealing secret %s: %w", r.Name, err)
		}
		if err := s.cfg.Store.Put(ctx, tx, row); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: r.Project, Action: string(ActionApply), Object: "secret " + r.Name,
			Detail: map[string]any{"change": change, "revision": row.Revision, "keys": row.Keys},
		})
	}
	if r.DryRun {
		err = s.cfg.DB.View(ctx, do)
	} else {
		err = s.cfg.DB.Update(ctx, r.Project, do)
	}
	if err != nil {
		return Secret{}, "", err
	}
	return row.Secret, change, nil
}

// merged is what a secret holds once its manifest is applied: what is set, and of the row
// what is kept. Error: fault.Invalid for too much, or a value that is not there to be kept.
func merged(box tink.AEAD, row Row, spec Spec) ([]byte, error) {
	values, had, all := make(map[string]string, len(spec.Values)), map[string]string{}, 0
	if row.Sealed != nil && spec.kept() > 0 {
		var err error
		if had, err = opened(box, row); err != nil {
			return nil, err
		}
	}
	for _, key := range spec.keys() {
		v := spec.Values[key]
		values[key] = v.Reveal()
		if v.Keep {
			var ok bool
			if values[key], ok = had[key]; !ok {
				return nil, fault.New(fault.Invalid, "spec.values.%s: secret %s has no such value to keep", key, row.Name).
					WithHint("Write it: {value: …}, {file: …} or {stdin: true}.")
			}
		}
		all += len(values[key])
	}
	if all > maxAll {
		return nil, fault.New(fault.Invalid, "spec.values: %d bytes together are over the limit of %d", all, maxAll)
	}
	plain, err := json.Marshal(values)
	if err != nil {
		return nil, fault.New(fault.Internal, "the values cannot be encoded")
	}
	return plain, nil
}

// opened is what a row holds.
func opened(box tink.AEAD, row Row) (values map[string]string, err error) {
	plain, err := box.Decrypt(row.Sealed, row.place())
	if err == nil {
		defer clear(plain)
		err = json.Unmarshal(plain, &values)
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "secret %s cannot be decrypted: its row was changed", row.Name)
	}
	return values, nil
}

// place is what the sealed values are bound to.
func (s Secret) place() []byte {
	return fmt.Appendf(nil, "falaj secret 1\n%s\n%s\n%s\n%d", s.Project, s.Name, s.ID, s.Revision)
}

func author(ctx context.Context) string {
	p := identity.From(ctx)
	if p.ID == "" {
		return string(p.Kind)
	}
	return p.ID
}

// One tells of a secret. Needs secret.read.
func (s *Service) One(ctx context.Context, p, name string) (one Secret, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, name)); err != nil {
		return Secret{}, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		row, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		one = row.Secret
		one.UsedBy, err = s.users(ctx, tx, p, name)
		return err
	})
	return one, err
}

// List tells of a project's secrets by name; next is the token of the following
// page. Needs secret.read.
func (s *Service) List(ctx context.Context, p string, size int, token string) (list []Secret, next string, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, "")); err != nil {
		return nil, "", err
	}
	after, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil, "", fault.New(fault.Invalid, "invalid page token")
	}
	if size <= 0 || size > 1000 {
		size = 100
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if list, err = s.cfg.Store.List(ctx, tx, p, string(after), size+1); err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			next = base64.RawURLEncoding.EncodeToString([]byte(list[size-1].Name))
		}
		for i := range list {
			if list[i].UsedBy, err = s.users(ctx, tx, p, list[i].Name); err != nil {
				return err
			}
		}
		return nil
	})
	return list, next, err
}

// Delete removes a secret. Needs secret.delete. Errors: fault.Conflict while
// something uses it, named; fault.Unavailable when it is deleted but its old
// bytes could not be removed yet.
func (s *Service) Delete(ctx context.Context, p, name string) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionDelete, object(p, name)); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, p, func(ctx context.Context, tx *store.Tx) error {
		row, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		users, err := s.users(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return fault.New(fault.Conflict, "secret %s is used by %s", name, strings.Join(users, ", ")).
				WithHint("First delete or change the objects that use it. To replace the values, apply the secret again.")
		}
		if err := s.cfg.Store.Delete(ctx, tx, row.ID); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Project: p, Action: string(ActionDelete), Object: "secret " + name, Detail: map[string]any{"revision": row.Revision}})
	})
}

// Use checks that the context's principal may use a secret, that it exists, and that it
// has the keys; an empty key is the only one. Needs secret.use. Errors: fault.NotFound;
// fault.Invalid for an empty key of a secret with several.
func (s *Service) Use(ctx context.Context, p, name string, keys ...string) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionUse, object(p, name)); err != nil {
		return err
	}
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		row, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		for _, key := range keys {
			switch {
			case key == "" && len(row.Keys) > 1:
				return fault.New(fault.Invalid, "secret %s has several keys: %s", name, strings.Join(row.Keys, ", ")).WithHint("Name one of them.")
			case key != "" && !slices.Contains(row.Keys, key):
				return fault.New(fault.NotFound, "secret %s has no key %q, only %s", name, key, strings.Join(row.Keys, ", "))
			}
		}
		return nil
	})
}

// Open reads a secret for a service of this process. It asks for no permission:
// the submitter who named the secret had secret.use. Errors: fault.NotFound; fault.Gone
// when its key was destroyed.
func (s *Service) Open(ctx context.Context, p, name string) (map[string]Text, error) {
	box, err := s.cfg.Sealer.AEAD(ctx, p, owner)
	if err != nil {
		return nil, fault.Wrap(err, "the key of the secrets of project %s", p)
	}
	var row Row
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		row, err = s.find(ctx, tx, p, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	values, err := opened(box, row)
	if err != nil {
		return nil, err
	}
	out := make(map[string]Text, len(values))
	for k, v := range values {
		out[k] = NewText(v)
	}
	return out, nil
}

func (s *Service) find(ctx context.Context, tx *store.Tx, p, name string) (Row, error) {
	row, err := s.cfg.Store.Find(ctx, tx, p, name)
	if fault.Is(err, fault.NotFound) {
		return Row{}, fault.New(fault.NotFound, "secret %q does not exist in project %s", name, p).
			WithHint("Apply a manifest of kind Secret first, or find its name with `falaj get secrets`.")
	}
	return row, err
}

func (s *Service) users(ctx context.Context, tx *store.Tx, p, name string) (all []string, err error) {
	for _, u := range s.cfg.Users {
		more, err := u(ctx, tx, p, name)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	slices.Sort(all)
	return all, nil
}
