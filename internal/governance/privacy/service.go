package privacy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions that erasures ask for.
const (
	ActionRead  policy.Action = "erasure.read"  // see erasures and their certificates
	ActionErase policy.Action = "erasure.apply" // look for a person everywhere, and erase
)

// owner is the scope of the project's key that seals what is kept of a person until
// the erasure is done.
const owner = "erasures"

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Sealer gives the primitive that seals. keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Config is what a Service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	TwoPeople  policy.TwoPeople // says when erasing takes two people; nil: never
	Sealer     Sealer
	Ledger     *Ledger
	// Key makes pseudonyms. It is the same for the life of the installation, whatever
	// backup is restored.
	Key []byte
	// Canonical gives the values of an entity's join keys as rows have them. Errors:
	// fault.NotFound for an entity that is not there; fault.Invalid for other values.
	Canonical func(ctx context.Context, project, entity string, values []string) ([]string, error)
	// Where says by which columns persons of an entity are found now; nil leaves it to
	// the participants.
	Where func(ctx context.Context, project, entity string) (Where, error)
	// Trained names the models that were trained on what has rows of the person, or had
	// them before an earlier erasure, and
	// flags them when there is an erasure; nil knows of none.
	Trained func(ctx context.Context, project string, f Found, erasure ID) ([]string, error)
	// Beyond names the places that no participant searches and that may have something
	// of the person, given what was found, now and by earlier erasures; nil knows of none. kinds are those that it
	// searched itself.
	Beyond func(ctx context.Context, s Subject, f Found) (left []Unsearched, kinds []string, err error)
	Log    *slog.Logger     // nil discards
	Now    func() time.Time // nil is time.Now
}

// Service is the only way to erasures. Safe for concurrent use.
type Service struct {
	cfg          Config
	participants []Participant
	loop         *lifecycle.Loop
}

const (
	// term is when an erasure has to be done if the request does not say: the month of
	// GDPR 12(3). Other law may say less.
	term      = 30 * 24 * time.Hour
	maxReason = 2000
	maxValue  = 4 << 10
	maxValues = 16
	maxOpen   = 1000
	pageSize  = 100
)

// New makes a service. Register the participants, call Recover, then start the
// Background.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg}
	if cfg.TwoPeople != nil {
		cfg.TwoPeople.Register("erasure", s.approved)
	}
	s.loop = &lifecycle.Loop{
		Name: "erasures", Every: time.Minute, Timeout: 6 * time.Hour, Logger: cfg.Log,
		Run: func(ctx context.Context) error { return s.RunOnce(identity.With(ctx, identity.Loop("erasure"))) },
	}
	return s
}

// Register adds places that keep rows of persons, in the order in which they are
// erased: what is made of something else comes after it. Call it before Recover.
func (s *Service) Register(p ...Participant) { s.participants = append(s.participants, p...) }

// Background does what is asked for.
func (s *Service) Background() lifecycle.Service { return s.loop.Service() }

// Ask names a person.
type Ask struct {
	Project string
	Entity  string
	Values  []string // of the entity's join keys, in their order
	// Reason is kept for ever, so it names no person: "request 2026-17 of the subject".
	Reason   string
	Deadline time.Time // zero is a month from now
}

func object(p, name string) policy.Object {
	return policy.Object{Project: p, Kind: "erasure", Name: name}
}

// Look says where a person is. It changes nothing, and is audited. Needs
// erasure.apply. Errors: fault.NotFound for an unknown entity; fault.Invalid.
func (s *Service) Look(ctx context.Context, a Ask) (Found, error) {
	subject, err := s.subject(ctx, &a)
	if err != nil {
		return Found{}, err
	}
	if err := s.cfg.DB.Update(ctx, a.Project, func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, audit.Entry{
			Project: a.Project, Action: string(ActionErase), Object: "entity " + a.Entity, Reason: a.Reason,
			Detail: map[string]any{"phase": "looked", "person": hex.EncodeToString(subject.pseudonym[:])},
		})
	}); err != nil {
		return Found{}, err
	}
	ctx = identity.With(ctx, identity.Loop("erasure"))
	f, err := s.find(ctx, subject)
	if err == nil {
		err = s.trained(ctx, subject, &f)
	}
	if err == nil {
		_, err = s.beyond(ctx, subject, &f)
	}
	return f, err
}

// beyond adds the places that no participant searches, and gives the kinds of places
// that were searched.
func (s *Service) beyond(ctx context.Context, subject Subject, f *Found) (searched []string, err error) {
	for _, p := range s.participants {
		searched = append(searched, p.Kind())
	}
	if s.cfg.Beyond != nil {
		ever, err := s.ever(ctx, subject, *f)
		if err != nil {
			return nil, err
		}
		left, kinds, err := s.cfg.Beyond(ctx, subject, ever)
		if err != nil {
			return nil, fault.Wrap(err, "listing places that are not searched")
		}
		f.Unsearched = mergeUnsearched(f.Unsearched, left)
		searched = append(searched, kinds...)
	}
	return merge(nil, searched), nil
}

// find asks every participant.
func (s *Service) find(ctx context.Context, subject Subject) (all Found, err error) {
	all.Places = []Place{}
	for _, p := range s.participants {
		f, err := p.Find(ctx, subject)
		if err != nil {
			return Found{}, fault.Wrap(err, "searching %s", p.Kind())
		}
		all.add(p.Kind(), f)
	}
	return all, nil
}

// trained adds the models to what was found.
func (s *Service) trained(ctx context.Context, subject Subject, f *Found) error {
	if s.cfg.Trained == nil {
		return nil
	}
	ever, err := s.ever(ctx, subject, *f)
	if err != nil {
		return err
	}
	models, err := s.cfg.Trained(ctx, subject.Project, ever, subject.Erasure)
	f.Models = merge(f.Models, models)
	return fault.Wrap(err, "finding the models that were trained on rows of the person")
}

func (f *Found) add(kind string, g Found) {
	for _, p := range g.Places {
		p.Kind = kind
		f.Places = append(f.Places, p)
	}
	for _, p := range g.Deleted {
		p.Kind = kind
		if !slices.ContainsFunc(f.Deleted, func(q Place) bool { return q.Kind == p.Kind && q.Name == p.Name }) {
			f.Deleted = append(f.Deleted, p)
		}
	}
	f.Unsearched = mergeUnsearched(f.Unsearched, g.Unsearched)
	f.Models = merge(f.Models, g.Models)
}

func merge(a, b []string) []string {
	a = append(slices.Clip(a), b...)
	slices.Sort(a)
	return slices.Compact(a)
}

// mergeUnsearched has each place once: what is said of it last.
func mergeUnsearched(a, b []Unsearched) []Unsearched {
	all := slices.Clone(a)
	for _, u := range b {
		if i := slices.IndexFunc(all, func(o Unsearched) bool { return o.Kind == u.Kind && o.Name == u.Name }); i >= 0 {
			all[i] = u
		} else {
			all = append(all, u)
		}
	}
	slices.SortStableFunc(all, func(a, b Unsearched) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return all
}

// subject checks what is asked, and who asks.
func (s *Service) subject(ctx context.Context, a *Ask) (Subject, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionErase, object(a.Project, a.Entity)); err != nil {
		return Subject{}, err
	}
	if err := id.CheckName("entity name", a.Entity); err != nil {
		return Subject{}, err
	}
	if len(a.Reason) > maxReason {
		return Subject{}, fault.New(fault.Invalid, "the reason has %d bytes, over the limit of %d", len(a.Reason), maxReason)
	}
	if len(a.Values) == 0 || len(a.Values) > maxValues || slices.ContainsFunc(a.Values, func(v string) bool { return v == "" || len(v) > maxValue }) {
		return Subject{}, fault.New(fault.Invalid, "a person is named by 1 to %d keys of 1 to %d bytes", maxValues, maxValue).
			WithHint("Give the value of each join key of entity %s, in their order.", a.Entity)
	}
	var err error
	if a.Values, err = s.cfg.Canonical(ctx, a.Project, a.Entity, a.Values); err != nil {
		return Subject{}, err
	}
	return Subject{
		Project: a.Project, Entity: a.Entity, values: a.Values, key: s.cfg.Key,
		pseudonym: pseudonym(s.cfg.Key, a.Project, a.Entity, a.Values),
	}, nil
}

// secret is what is sealed until the erasure is done.
type secret struct {
	Values []string          `json:"values,omitempty"`
	Memo   map[string][]byte `json:"memo,omitempty"`
}

// Pseudonym names a person: HMAC-SHA-256 of the entity and its key under a key that
// serves erasures only. Who keeps it, sealed by Box, can later be asked for a person whose
// rows are gone.
func (s *Service) Pseudonym(project, entity string, values []string) [sha256.Size]byte {
	return pseudonym(s.cfg.Key, project, entity, values)
}

// Box seals what is kept of persons for later erasures.
func (s *Service) Box(ctx context.Context, project string) (tink.AEAD, error) {
	return s.cfg.Sealer.AEAD(ctx, project, owner)
}

// place is what the sealed bytes are bound to.
func (e *Erasure) place() []byte { return fmt.Appendf(nil, "falaj erasure 1\n%s\n%s", e.Project, e.ID) }

func (s *Service) seal(ctx context.Context, e Erasure, x secret) ([]byte, error) {
	box, err := s.cfg.Sealer.AEAD(ctx, e.Project, owner)
	if err != nil {
		return nil, fault.Wrap(err, "the key of the erasures of project %s", e.Project)
	}
	plain, err := json.Marshal(x)
	if err != nil {
		return nil, fault.New(fault.Internal, "the pending data of the erasure cannot be encoded")
	}
	defer clear(plain)
	return box.Encrypt(plain, e.place())
}

func (s *Service) open(ctx context.Context, r Row) (x secret, err error) {
	box, err := s.cfg.Sealer.AEAD(ctx, r.Project, owner)
	if err != nil {
		return x, fault.Wrap(err, "the key of the erasures of project %s", r.Project)
	}
	plain, err := box.Decrypt(r.Sealed, r.place())
	if err != nil {
		return x, fault.New(fault.Internal, "the pending data of erasure %s cannot be decrypted", r.ID).WithHint("The database was changed or damaged: restore it from its backup, and request the erasure again.")
	}
	defer clear(plain)
	if json.Unmarshal(plain, &x) != nil {
		return x, fault.New(fault.Internal, "the pending data of erasure %s cannot be read", r.ID)
	}
	return x, nil
}

// Request puts an erasure on record and returns; the Background does it. A person
// whose erasure is under way has that one. Needs erasure.apply. Errors: as Look;
// fault.Exhausted while 1,000 are under way.
func (s *Service) Request(ctx context.Context, a Ask) (Erasure, error) {
	subject, err := s.subject(ctx, &a)
	if err != nil {
		return Erasure{}, err
	}
	if a.Reason == "" {
		return Erasure{}, fault.New(fault.Invalid, "an erasure needs a reason").WithHint("Give the reference of the request, such as a ticket number, without the person's name.")
	}
	for _, v := range a.Values {
		if len(v) > 3 && strings.Contains(strings.ToLower(a.Reason), strings.ToLower(v)) {
			return Erasure{}, fault.New(fault.Invalid, "the reason names the person, and it is kept permanently").WithHint("Name the request instead, such as \"request 2026-17\".")
		}
	}
	who, now := author(ctx), s.cfg.Now().UTC().Truncate(time.Microsecond)
	if a.Deadline.IsZero() {
		a.Deadline = now.Add(term)
	}
	if !a.Deadline.After(now) {
		return Erasure{}, fault.New(fault.Invalid, "the deadline %s has passed", a.Deadline.UTC().Format(time.RFC3339))
	}
	e := Erasure{
		ID: ID(id.New("ers")), Project: a.Project, Entity: a.Entity, Pseudonym: hex.EncodeToString(subject.pseudonym[:]), State: Requested, Reason: a.Reason,
		RequestedBy: who, RequestedAt: now, Deadline: a.Deadline.UTC().Truncate(time.Microsecond), Places: []Place{},
	}
	sealed, err := s.seal(ctx, e, secret{Values: a.Values})
	if err != nil {
		return Erasure{}, err
	}
	r := Row{Erasure: e, Sealed: sealed}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		had, err := s.cfg.Store.Same(ctx, tx, e.Project, e.Entity, e.Pseudonym)
		if err == nil {
			e = had.Erasure
		}
		return err
	})
	if err == nil || !fault.Is(err, fault.NotFound) {
		return e, err
	}
	act := policy.Act{
		Kind: "erasure", Action: ActionErase, Object: object(a.Project, a.Entity), Reason: a.Reason, Payload: r, Same: e.Pseudonym,
		Summary: fmt.Sprintf("erase the person %.16s of entity %s everywhere", e.Pseudonym, a.Entity),
	}
	if err := policy.Ask(ctx, s.cfg.TwoPeople, act); err != nil {
		return Erasure{}, err
	}
	return s.begin(ctx, r)
}

// approved begins an erasure that a second person approved.
func (s *Service) approved(ctx context.Context, payload []byte) error {
	var r Row
	if err := json.Unmarshal(payload, &r); err != nil {
		return err
	}
	if err := s.cfg.Authorizer.Allow(ctx, ActionErase, object(r.Project, r.Entity)); err != nil {
		return err
	}
	_, err := s.begin(ctx, r)
	return err
}

// begin puts an erasure on record, unless the person has one already.
func (s *Service) begin(ctx context.Context, r Row) (Erasure, error) {
	e := r.Erasure
	err := s.cfg.DB.Update(ctx, e.Project, func(ctx context.Context, tx *store.Tx) error {
		had, err := s.cfg.Store.Same(ctx, tx, e.Project, e.Entity, e.Pseudonym)
		if err == nil {
			e = had.Erasure
			return nil
		}
		if !fault.Is(err, fault.NotFound) {
			return err
		}
		open, err := s.cfg.Store.CountOpen(ctx, tx)
		if err != nil {
			return err
		}
		if open >= maxOpen {
			return fault.New(fault.Exhausted, "%d erasures are in progress, the limit", open).WithHint("Try again when some of them have finished.")
		}
		if err := s.cfg.Store.Put(ctx, tx, r); err != nil {
			return err
		}
		return s.record(ctx, tx, e, map[string]any{"phase": "requested", "deadline": e.Deadline})
	})
	if err != nil {
		return Erasure{}, err
	}
	s.loop.Wake()
	return e, nil
}

func author(ctx context.Context) string {
	p := identity.From(ctx)
	if p.ID == "" {
		return string(p.Kind)
	}
	return p.ID
}

// record audits a step.
func (s *Service) record(ctx context.Context, tx *store.Tx, e Erasure, detail map[string]any) error {
	detail["person"], detail["entity"] = e.Pseudonym, e.Entity
	return audit.Append(ctx, tx, audit.Entry{Project: e.Project, Action: string(ActionErase), Object: "erasure " + string(e.ID), Reason: e.Reason, Detail: detail})
}

// One is an erasure. Needs erasure.read.
func (s *Service) One(ctx context.Context, p string, id ID) (Erasure, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, string(id))); err != nil {
		return Erasure{}, err
	}
	var r Row
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if r, err = s.cfg.Store.Find(ctx, tx, id); err == nil && r.Project != p {
			err = fault.New(fault.NotFound, "the erasure does not exist")
		}
		return err
	})
	return r.Erasure, err
}

// List gives a project's erasures, newest first; next is the token of the following
// page. Needs erasure.read.
func (s *Service) List(ctx context.Context, p string, size int, token string) (list []Erasure, next string, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, "")); err != nil {
		return nil, "", err
	}
	before, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil, "", fault.New(fault.Invalid, "invalid page token")
	}
	if size <= 0 || size > 1000 {
		size = pageSize
	}
	var rows []Row
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		rows, err = s.cfg.Store.List(ctx, tx, p, ID(before), size+1)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = base64.RawURLEncoding.EncodeToString([]byte(rows[size-1].ID))
	}
	list = make([]Erasure, len(rows))
	for i, r := range rows {
		list[i] = r.Erasure
	}
	return list, next, nil
}

// Touching lists the erasures of persons who had rows in one of the places, or perhaps
// had, in the transaction of somebody who makes something of these. It asks for no
// permission: the trainer may lack the permission to see erasures.
func (s *Service) Touching(ctx context.Context, tx *store.Tx, p string, places []string) (ids []string, err error) {
	for before := ID(""); ; {
		rows, err := s.cfg.Store.List(ctx, tx, p, before, pageSize)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			before = r.ID
			had := slices.ContainsFunc(slices.Concat(r.Places, r.Deleted), func(at Place) bool { return slices.Contains(places, at.Name) })
			if had || slices.ContainsFunc(r.Unsearched, func(u Unsearched) bool { return slices.Contains(places, u.Name) }) {
				ids = append(ids, string(r.ID))
			}
		}
		if len(rows) < pageSize {
			slices.Sort(ids)
			return ids, nil
		}
	}
}

// Gone is a person who was erased from a project.
type Gone struct {
	Subject Subject
	Until   time.Time // what is told of a later time is of a new relation
}

// Gone lists those who were erased from a project, or are being: what others bring of
// them that is older comes without what it says. It asks for no permission: who brings
// it may lack the permission to see erasures.
func (s *Service) Gone(ctx context.Context, p string) (all []Gone, err error) {
	lines := slices.DeleteFunc(s.cfg.Ledger.Lines(), func(l Line) bool { return l.Project != p })
	if len(lines) == 0 {
		return nil, nil
	}
	now := s.cfg.Now()
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all = nil
		for _, l := range lines {
			g := Gone{Until: now, Subject: Subject{Erasure: l.ID, Project: l.Project, Entity: l.Entity, key: s.cfg.Key, tokens: l.Tokens, where: l.Where, asked: l.At}}
			if g.Subject.pseudonym, err = parsePseudonym(l.Pseudonym); err != nil {
				return err
			}
			r, err := s.cfg.Store.Find(ctx, tx, l.ID)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			if r.State.Ended() {
				g.Until = r.DoneAt
			}
			all = append(all, g)
		}
		return nil
	})
	return all, err
}

// leaseTime is how long others wait for a process that vanished.
const leaseTime = 15 * time.Second

// RunOnce carries every erasure that is under way as far as it goes. One that
// fails holds up no other. While another process does it, nothing happens.
func (s *Service) RunOnce(ctx context.Context) error {
	if !s.cfg.DB.Shared() {
		return s.runAll(ctx)
	}
	lease, err := s.cfg.DB.Lease(ctx, "privacy.erasures", rand.Text()[:8], leaseTime)
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	if err != nil {
		return err
	}
	return lease.Keep(ctx, s.runAll)
}

func (s *Service) runAll(ctx context.Context) error {
	var open []Row
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		open, err = s.cfg.Store.Open(ctx, tx, maxOpen)
		return err
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range open {
		if err := s.run(ctx, r); err != nil {
			failed = append(failed, fault.Wrap(err, "erasure %s", r.ID))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// run carries an erasure to its end.
func (s *Service) run(ctx context.Context, r Row) (err error) {
	defer func() {
		if err == nil || ctx.Err() != nil || r.Trouble == err.Error() {
			return
		}
		r.Trouble = err.Error()
		err = errors.Join(err, s.keep(ctx, r))
	}()
	x, err := s.open(ctx, r)
	if err != nil {
		return err
	}
	subject := Subject{Erasure: r.ID, Project: r.Project, Entity: r.Entity, values: x.Values, key: s.cfg.Key, memo: x.Memo, tokens: r.Tokens, where: r.Where, asked: r.RequestedAt}
	if subject.pseudonym, err = parsePseudonym(r.Pseudonym); err != nil {
		return err
	}
	if r.State == Requested {
		if err := s.prepare(ctx, &r, &subject, x); err != nil {
			return err
		}
	}
	for _, p := range s.participants {
		err := p.Erase(ctx, subject, func(f Found) error {
			r.take(p.Kind(), f)
			return s.keep(ctx, r)
		})
		if err != nil {
			return fault.Wrap(err, "erasing from %s", p.Kind())
		}
	}
	// Whether it is so is asked of all of them, not taken for granted.
	left, err := s.find(ctx, subject)
	if err != nil {
		return err
	}
	for _, p := range left.Places {
		return fault.New(fault.Conflict, "%s %s has %d new rows of the person", p.Kind, p.Name, p.Rows).
			WithHint("The rows were written during the erasure. The next attempt erases them.")
	}
	f := Found{Places: r.Places, Deleted: r.Deleted, Unsearched: r.Unsearched, Models: r.Models}
	f.add("", Found{Unsearched: left.Unsearched})
	for _, p := range left.Deleted {
		f.add(p.Kind, Found{Deleted: []Place{p}})
	}
	if err := s.trained(ctx, subject, &f); err != nil {
		return err
	}
	if r.Searched, err = s.beyond(ctx, subject, &f); err != nil {
		return err
	}
	r.Deleted, r.Unsearched, r.Models = f.Deleted, f.Unsearched, f.Models
	return s.conclude(ctx, r)
}

// take notes what was removed. A place that comes again, because a crash came
// between, is noted once.
func (e *Erasure) take(kind string, f Found) {
	g := Found{Deleted: e.Deleted, Unsearched: e.Unsearched, Models: e.Models}
	g.add(kind, f)
	e.Deleted, e.Unsearched, e.Models = g.Deleted, g.Unsearched, g.Models
	for _, p := range g.Places {
		i := slices.IndexFunc(e.Places, func(q Place) bool { return q.Kind == p.Kind && q.Name == p.Name })
		if i < 0 {
			e.Places = append(e.Places, p)
		} else {
			e.Places[i].Rows = max(e.Places[i].Rows, p.Rows)
		}
	}
}

// prepare remembers what will not be known later, and puts the erasure into the
// ledger: from then on a restore repeats it.
func (s *Service) prepare(ctx context.Context, r *Row, subject *Subject, x secret) error {
	x.Memo = map[string][]byte{}
	if s.cfg.Where != nil && !r.Restored {
		var err error
		if r.Where, err = s.cfg.Where(ctx, r.Project, r.Entity); err != nil {
			return err
		}
	}
	for _, p := range s.participants {
		preparer, ok := p.(Preparer)
		if !ok {
			continue
		}
		memo, tokens, err := preparer.Prepare(ctx, *subject)
		if err != nil {
			return fault.Wrap(err, "preparing to erase from %s", p.Kind())
		}
		x.Memo[p.Kind()] = memo
		r.Tokens = merge(r.Tokens, tokens)
	}
	sealed, err := s.seal(ctx, r.Erasure, x)
	if err != nil {
		return err
	}
	line, err := s.cfg.Ledger.Append(Line{
		ID: r.ID, Project: r.Project, Entity: r.Entity, Pseudonym: r.Pseudonym, Tokens: r.Tokens, Where: r.Where, Reason: r.Reason,
		By: r.RequestedBy, At: r.RequestedAt, Deadline: r.Deadline,
	})
	if err != nil {
		return err
	}
	r.State, r.Sealed, r.Ledger, r.LedgerHash = Erasing, sealed, line.Number, line.hash
	subject.memo, subject.tokens, subject.where = x.Memo, r.Tokens, r.Where
	return s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Store.Put(ctx, tx, *r); err != nil {
			return err
		}
		return s.record(ctx, tx, r.Erasure, map[string]any{"phase": "began", "ledger": r.Ledger, "ledger_hash": r.LedgerHash, "restored": r.Restored})
	})
}

// keep notes how far it is.
func (s *Service) keep(ctx context.Context, r Row) error {
	return s.cfg.DB.Update(context.WithoutCancel(ctx), r.Project, func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.Put(ctx, tx, r)
	})
}

// Canonical is an erasure as the digest in the audit log is made of it: JSON in the form
// of RFC 8785, with keys in order and without spaces. Whoever has the certificate in any
// layout can make it.
func Canonical(e Erasure) ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return canonical(b)
}

func canonical(b []byte) ([]byte, error) {
	var value any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // whole numbers only
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	// encoding/json escapes two line separators that RFC 8785 leaves as they are.
	b = bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	plain := make([]byte, 0, len(b))
	for len(b) > 0 {
		switch {
		case bytes.HasPrefix(b, []byte(`\u2028`)), bytes.HasPrefix(b, []byte(`\u2029`)):
			plain = append(plain, "\u2028\u2029"[3*(b[5]-'8'):][:3]...)
			b = b[6:]
		case b[0] == '\\':
			plain = append(plain, b[:2]...)
			b = b[2:]
		default:
			plain = append(plain, b[0])
			b = b[1:]
		}
	}
	return plain, nil
}

// Certificate is the certificate of an erasure that has ended: the bytes whose digest
// the audit log has. Needs erasure.read. Error: fault.Conflict while it is under way.
func (s *Service) Certificate(ctx context.Context, p string, id ID) ([]byte, error) {
	e, err := s.One(ctx, p, id)
	if err != nil {
		return nil, err
	}
	if !e.State.Ended() {
		return nil, fault.New(fault.Conflict, "erasure %s is %s and has no certificate yet", id, e.State).WithHint("Show its progress: falaj erase show %s.", id)
	}
	var doc []byte
	// As it was written then: a later release may know other fields.
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		doc, err = s.cfg.Store.Document(ctx, tx, id)
		return err
	}); err != nil {
		return nil, err
	}
	return canonical(doc)
}

// known reports whether somebody by this key was seen: in what was found, as text, or
// by an erasure before.
func (s *Service) known(ctx context.Context, r Row) (yes bool, err error) {
	if r.Restored || len(r.Deleted) > 0 || slices.ContainsFunc(r.Places, func(p Place) bool { return p.Rows > 0 }) ||
		slices.ContainsFunc(r.Unsearched, func(u Unsearched) bool { return u.Seen }) {
		return true, nil
	}
	before, err := s.erased(ctx, r.Project, r.Entity, r.Pseudonym)
	return len(before) > 0, err
}

// erased are the erasures of a person that ended as done, in part too.
func (s *Service) erased(ctx context.Context, project, entity, pseudonym string) (rows []Row, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		rows, err = s.cfg.Store.Erased(ctx, tx, project, entity, pseudonym)
		return err
	})
	return rows, err
}

// ever is what was found, and what earlier erasures of the person found: jobs and models
// that read rows have read them, though the rows are erased since.
func (s *Service) ever(ctx context.Context, subject Subject, f Found) (Found, error) {
	before, err := s.erased(ctx, subject.Project, subject.Entity, hex.EncodeToString(subject.pseudonym[:]))
	if err != nil {
		return Found{}, err
	}
	for _, e := range before {
		for _, p := range slices.Concat(e.Places, e.Deleted) {
			f.add(p.Kind, Found{Deleted: []Place{p}})
		}
		for _, u := range e.Unsearched {
			if !slices.ContainsFunc(f.Unsearched, func(o Unsearched) bool { return o.Kind == u.Kind && o.Name == u.Name }) {
				f.Unsearched = append(slices.Clip(f.Unsearched), u)
			}
		}
	}
	return f, nil
}

// conclude decides between done, done in part and not found, and makes the certificate. The digest
// of the certificate is in the audit log, so a later change of it is noticed.
func (s *Service) conclude(ctx context.Context, r Row) error {
	r.Tokens, r.Where = nil, Where{} // the ledger has them
	known, err := s.known(ctx, r)
	if err != nil {
		return err
	}
	switch {
	case !known:
		r.State = NotFound
		r.Note = "The key was not found in any searched place, and it was not erased before. Check the key, and the order of the join keys of entity " + r.Entity + "."
	case len(r.Unsearched) > 0:
		r.State = InPart
	default:
		r.State = Done
	}
	r.Sealed, r.Trouble, r.DoneAt = nil, "", s.cfg.Now().UTC().Truncate(time.Microsecond)
	r.Late = r.DoneAt.After(r.Deadline)
	certificate, err := Canonical(r.Erasure)
	if err != nil {
		return err
	}
	rows := int64(0)
	for _, p := range r.Places {
		rows += p.Rows
	}
	err = s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Store.Put(ctx, tx, r); err != nil {
			return err
		}
		return s.record(ctx, tx, r.Erasure, map[string]any{
			"phase": string(r.State), "places": len(r.Places), "unsearched": len(r.Unsearched), "rows": rows, "models": len(r.Models), "late": r.Late, "certificate": hashOf(certificate),
		})
	})
	if err == nil {
		s.cfg.Log.InfoContext(ctx, "an erasure ended", slog.String("state", string(r.State)), slog.String("erasure", string(r.ID)), slog.String("project", r.Project), slog.Int("places", len(r.Places)))
	}
	return err
}

// Recover compares the ledger with the database and erases again whom a restored
// backup contains. Call it before any request is answered. Errors:
// fault.Conflict for a ledger that is older than the database; what an erasure
// fails with, for then the person is still there.
func (s *Service) Recover(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("erasure"))
	lines := s.cfg.Ledger.Lines()
	var again []Line
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		again = nil
		known, hash, err := s.cfg.Store.Lines(ctx, tx)
		if err != nil {
			return err
		}
		if known > int64(len(lines)) || known > 0 && lines[known-1].hash != hash {
			return fault.New(fault.Conflict, "the erasure ledger has %d lines, and the database records %d", len(lines), known).
				WithHint("Restore the newest copy of the ledger (erasures.ledger): without it, erased persons could reappear when a backup is restored.")
		}
		for _, l := range lines {
			r, err := s.cfg.Store.Find(ctx, tx, l.ID)
			if fault.Is(err, fault.NotFound) || err == nil && r.Restored && !r.State.Ended() || err == nil && r.State == Requested {
				again = append(again, l)
				continue
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, l := range again {
		if err := s.again(ctx, l); err != nil {
			return fault.Wrap(err, "erasing a person again after a restore (erasure %s)", l.ID)
		}
	}
	return nil
}

// again erases whom a line of the ledger names.
func (s *Service) again(ctx context.Context, l Line) error {
	var r Row
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		r, err = s.cfg.Store.Find(ctx, tx, l.ID)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		r = Row{Erasure: Erasure{
			ID: l.ID, Project: l.Project, Entity: l.Entity, Pseudonym: l.Pseudonym, State: Requested, Reason: l.Reason, Restored: true,
			RequestedBy: l.By, RequestedAt: l.At, Deadline: l.Deadline, Places: []Place{},
		}, Tokens: l.Tokens, Where: l.Where}
		if r.Sealed, err = s.seal(ctx, r.Erasure, secret{}); err == nil {
			err = s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
				if err := s.cfg.Store.Put(ctx, tx, r); err != nil {
					return err
				}
				return s.record(ctx, tx, r.Erasure, map[string]any{"phase": "restored", "ledger": l.Number})
			})
		}
	}
	if err != nil {
		return err
	}
	if r.Restored {
		s.cfg.Log.WarnContext(ctx, "a restored backup contains an erased person; erasing again", slog.String("erasure", string(l.ID)), slog.String("project", l.Project))
	}
	return s.run(ctx, r)
}
