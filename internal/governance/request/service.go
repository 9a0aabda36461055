package request

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	answerTime = 7 * 24 * time.Hour // how long a request waits for the second person
	maxPayload = 128 << 10
	maxOpen    = 100 // requests of a project that wait,
	maxOwn     = 25  // and of one requester in it
	pageSize   = 100
	defaultAge = 24 * time.Hour
	maxMessage = 2 << 10
	underWay   = time.Minute
	maxChange  = 32 << 10
)

// The actions of audit entries about requests.
const (
	ActionMade  = "request.make"
	ActionEnded = "request.decide"
)

// Config says what the service works with.
type Config struct {
	DB         *store.DB
	Store      Store
	Grants     Grants
	Accounts   Accounts
	Authorizer policy.Authorizer
	RoleAge    time.Duration // how long before a request its approver must have had the role; 0 is a day
	Log        *slog.Logger
	Now        func() time.Time
}

// Service keeps requests. Safe for concurrent use.
type Service struct {
	cfg Config

	mu    sync.Mutex
	carry map[string]policy.Carry
}

var _ policy.TwoPeople = (*Service)(nil)

// New makes the service.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.RoleAge == 0 {
		cfg.RoleAge = defaultAge
	}
	return &Service{cfg: cfg, carry: map[string]policy.Carry{}}
}

// Register implements policy.TwoPeople.
func (s *Service) Register(kind string, carry policy.Carry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.carry[kind] = carry
}

// approved marks a context in which an approved act is carried out.
type approved struct {
	kind    string
	payload []byte
}

type approvedKey struct{}

// Ask implements policy.TwoPeople. The same act that the same principal asks for again is
// the same request.
func (s *Service) Ask(ctx context.Context, a policy.Act) error {
	payload, err := json.Marshal(a.Payload)
	if err != nil {
		return fault.Wrap(err, "encode the request")
	}
	if len(payload) > maxPayload {
		return fault.New(fault.TooLarge, "the request has %d bytes, over the limit of %d", len(payload), maxPayload)
	}
	if ok, _ := ctx.Value(approvedKey{}).(approved); ok.kind == a.Kind && bytes.Equal(ok.payload, payload) {
		return nil
	}
	p := identity.From(ctx)
	if p.Kind == identity.System {
		return nil
	}
	if len(a.Approve) == 0 {
		a.Approve = []policy.Action{a.Action}
	}
	now := s.cfg.Now().UTC().Truncate(time.Microsecond)
	r := Request{
		ID: id.New("req"), Project: a.Object.Project, Kind: a.Kind, Object: a.Object.String(), Summary: a.Summary, Reason: a.Reason, Change: fault.Clip(a.Change, maxChange), State: Requested,
		RequestedBy: p.ID, RequestedByName: p.Name, RequestedAt: now, ExpiresAt: now.Add(answerTime), Approvers: a.Approve,
		Act: Stored{Action: a.Action, ObjectKind: a.Object.Kind, ObjectName: a.Object.Name, ByKind: string(p.Kind), Payload: payload, Same: a.Same},
	}
	alone := false
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		maker, err := s.maker(ctx, tx, p.ID)
		if err != nil {
			return err
		}
		others, err := s.others(ctx, tx, []string{p.ID, maker}, a.Approve, a.Object, now)
		alone = !others
		return err
	})
	if err != nil || alone {
		return err
	}
	err = s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
		open, err := s.cfg.Store.List(ctx, tx, r.Project, false, Requested, "", maxOpen)
		if err != nil {
			return err
		}
		own := 0
		for _, o := range open {
			if o.RequestedBy == p.ID {
				own++
			}
			if o.Kind == r.Kind && o.RequestedBy == p.ID && (a.Same != "" && o.Act.Same == a.Same || bytes.Equal(o.Act.Payload, payload)) && now.Before(o.ExpiresAt) {
				r = o
				return nil
			}
		}
		if len(open) >= maxOpen || own >= maxOwn {
			return fault.New(fault.Exhausted, "%d requests wait for a second person, %d of them yours; at most %d and %d may", len(open), own, maxOpen, maxOwn).
				WithHint("Have some decided, or withdraw yours: falaj request list --state requested.")
		}
		return s.put(ctx, tx, r, ActionMade)
	})
	if err != nil {
		return err
	}
	return audit.OnRecord(fault.New(fault.PermissionDenied, "this takes two people, and is requested as %s: %s", r.ID, a.Summary).
		WithHint("Another person with the right %s approves it: falaj request approve %s.", words(a.Approve), r.ID))
}

// put writes a request's state, to the audit log too.
func (s *Service) put(ctx context.Context, tx *store.Tx, r Request, action string) error {
	if r.State != Requested && r.State != Approved {
		r.Act.Payload, r.Act.Same = nil, "" // what was decided may be of a person who is erased
	}
	if err := s.cfg.Store.Put(ctx, tx, r); err != nil {
		return err
	}
	detail := map[string]any{"request": r.ID, "kind": r.Kind, "state": r.State, "summary": r.Summary, "requested_by": r.RequestedBy, "decided_by": r.DecidedBy}
	if r.Message != "" {
		detail["message"] = r.Message
	}
	if err := audit.Append(ctx, tx, audit.Entry{Project: r.Project, Action: action, Object: r.Object, Reason: r.Reason, Detail: detail}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, r.Project, Changed, r)
}

// Approve carries out a request. The caller must be another person, as Second says, and
// needs one of the rights that it names. Errors: fault.NotFound; fault.PermissionDenied;
// fault.Conflict when it is decided or expired. What could not be carried out is Failed.
func (s *Service) Approve(ctx context.Context, request string) (Request, error) {
	r, err := s.decide(ctx, request, Approved)
	if err != nil || r.State != Approved {
		return r, err
	}
	return s.perform(ctx, r)
}

// Reject ends a request without effect; for who requested it, it is a withdrawal. Needs
// what Approve needs, save that it may be the same person.
func (s *Service) Reject(ctx context.Context, request string) (Request, error) {
	return s.decide(ctx, request, Rejected)
}

// find gives a request to who may decide it, or made it.
func (s *Service) find(ctx context.Context, request string) (r Request, err error) {
	if err := id.Check("req", request); err != nil {
		return r, err
	}
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		r, err = s.cfg.Store.One(ctx, tx, request)
		return err
	}); err != nil {
		return r, err
	}
	if identity.From(ctx).ID == r.RequestedBy {
		return r, nil
	}
	for i, action := range r.Approvers {
		if i < len(r.Approvers)-1 {
			ok, err := policy.Permits(ctx, s.cfg.Authorizer, action, r.object())
			if err != nil {
				return r, err
			}
			if ok {
				return r, nil
			}
			continue
		}
		if err := s.cfg.Authorizer.Allow(ctx, action, r.object()); fault.Is(err, fault.NotFound) {
			return r, fault.New(fault.NotFound, "request %s does not exist", request)
		} else if err != nil {
			return r, err
		}
	}
	return r, nil
}

func (s *Service) decide(ctx context.Context, request string, to State) (Request, error) {
	r, err := s.find(ctx, request)
	if err != nil {
		return Request{}, err
	}
	p := identity.From(ctx)
	expired := false
	err = s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) (err error) {
		if r, err = s.cfg.Store.One(ctx, tx, request); err != nil {
			return err
		}
		now := s.cfg.Now().UTC().Truncate(time.Microsecond)
		expired = r.State == Requested && !now.Before(r.ExpiresAt)
		switch {
		case r.State != Requested:
			return fault.New(fault.Conflict, "request %s is %s already", r.ID, r.State)
		case expired:
			r.State, r.DecidedAt = Expired, now
			return s.put(ctx, tx, r, ActionEnded) // the refusal follows once this is durable
		case to == Rejected && r.RequestedBy == p.ID:
			r.State = Withdrawn
		case to == Rejected:
			r.State = Rejected
		default:
			if err := s.second(ctx, tx, r); err != nil {
				return audit.Describe(err, audit.Entry{Project: r.Project, Action: ActionEnded, Object: r.Object})
			}
			r.State = Approved
		}
		r.DecidedBy, r.DecidedByName, r.DecidedAt = p.ID, p.Name, now
		return s.put(ctx, tx, r, ActionEnded)
	})
	if err == nil && expired {
		err = fault.New(fault.Conflict, "request %s expired at %s", r.ID, r.ExpiresAt.Format("2006-01-02 15:04 MST")).WithHint("Request it again.")
	}
	if err != nil {
		return Request{}, err
	}
	return r, nil
}

// second refuses who may not approve a request. Who made the service that requested it is
// no second person either.
func (s *Service) second(ctx context.Context, tx *store.Tx, r Request) error {
	if r.Act.ByKind != string(identity.User) {
		maker, err := s.maker(ctx, tx, r.RequestedBy)
		if err != nil {
			return err
		}
		if maker == identity.From(ctx).ID {
			return fault.New(fault.PermissionDenied, "it takes two people, and you created the account of %s, which requested it", r.RequestedByName).
				WithHint("Ask another person with the right %s.", words(r.Approvers))
		}
	}
	return s.Second(ctx, tx, policy.Requested{By: []string{r.RequestedBy}, At: r.RequestedAt, Actions: r.Approvers, Object: r.object()})
}

// perform carries out what was approved, with the rights of who requested it.
func (s *Service) perform(ctx context.Context, r Request) (Request, error) {
	s.mu.Lock()
	carry := s.carry[r.Kind]
	s.mu.Unlock()
	act := identity.With(context.WithoutCancel(ctx), identity.Principal{Kind: identity.Kind(r.Act.ByKind), ID: r.RequestedBy, Name: r.RequestedByName})
	act = identity.WithCall(context.WithValue(act, approvedKey{}, approved{r.Kind, r.Act.Payload}), identity.Call{})
	var failure error
	if carry == nil {
		failure = fault.New(fault.Unsupported, "nothing carries out requests of the kind %s", r.Kind)
	} else {
		failure = carry(act, r.Act.Payload)
	}
	if fault.Is(failure, fault.Unavailable) || failure != nil && ctx.Err() != nil {
		return r, failure // it stays approved, and Recover tries again
	}
	r.State, r.Message = Done, ""
	if failure != nil {
		r.State, r.Message = Failed, fault.Clip(failure.Error(), maxMessage)
	}
	err := s.cfg.DB.Update(context.WithoutCancel(ctx), r.Project, func(ctx context.Context, tx *store.Tx) error {
		now, err := s.cfg.Store.One(ctx, tx, r.ID)
		if err != nil || now.State != Approved { // another process was faster
			r = now
			return err
		}
		return s.put(ctx, tx, r, ActionEnded)
	})
	return r, err
}

// Contents implements tenancy.Contents: what is requested of a project ends with it.
func (s *Service) Contents(ctx context.Context, tx *store.Tx, in project.Name) (string, error) {
	open, err := s.cfg.Store.List(ctx, tx, string(in), false, Requested, "", maxOpen)
	if err != nil {
		return "", err
	}
	for _, r := range open {
		r.State, r.Message, r.DecidedAt = Withdrawn, "the project was deleted", s.cfg.Now().UTC().Truncate(time.Microsecond)
		if err := s.put(ctx, tx, r, ActionEnded); err != nil {
			return "", err
		}
	}
	return "", nil
}

// expire ends requests without a decision in time.
func (s *Service) expire(ctx context.Context) error {
	now := s.cfg.Now().UTC().Truncate(time.Microsecond)
	overdue := func(ctx context.Context, tx *store.Tx) ([]Request, error) {
		return s.cfg.Store.Overdue(ctx, tx, now, maxOpen)
	}
	some := false // an idle server writes nothing
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		old, err := overdue(ctx, tx)
		some = len(old) > 0
		return err
	})
	if err != nil || !some {
		return err
	}
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		old, err := overdue(ctx, tx)
		if err != nil {
			return err
		}
		for _, r := range old {
			r.State, r.DecidedAt = Expired, now
			if err := s.put(ctx, tx, r, ActionEnded); err != nil {
				return err
			}
		}
		return nil
	})
}

// Recover carries out what was approved more than a minute ago and not carried out, because
// a process ended, and ends requests without a decision in time. Call it every minute.
func (s *Service) Recover(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("requests"))
	if err := s.expire(ctx); err != nil {
		return err
	}
	var left []Request
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		left, err = s.cfg.Store.List(ctx, tx, "", true, Approved, "", maxOpen)
		return err
	})
	if err != nil {
		return err
	}
	for _, r := range slices.Backward(left) {
		if s.cfg.Now().Sub(r.DecidedAt) < underWay {
			continue // who approved it carries it out
		}
		if _, failure := s.perform(ctx, r); failure != nil {
			err = errors.Join(err, fault.Wrap(failure, "carrying out request %s", r.ID))
		}
	}
	return err
}

// List gives requests, the newest first: of the project, or of the whole installation for an
// empty one; next is the page token of the following page. An empty state means all. Needs
// member.read.
func (s *Service) List(ctx context.Context, in string, state State, pageToken string) (list []Request, next string, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, "member.read", policy.Object{Project: in, Kind: "request"}); err != nil {
		return nil, "", err
	}
	if pageToken != "" {
		if err := id.Check("req", pageToken); err != nil {
			return nil, "", err
		}
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		list, err = s.cfg.Store.List(ctx, tx, in, in == "", state, pageToken, pageSize+1)
		return err
	})
	if len(list) > pageSize {
		list = list[:pageSize]
		next = list[pageSize-1].ID
	}
	return list, next, err
}

// One is a request. Needs member.read. Error: fault.NotFound.
func (s *Service) One(ctx context.Context, request string) (r Request, err error) {
	if err := id.Check("req", request); err != nil {
		return r, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		r, err = s.cfg.Store.One(ctx, tx, request)
		return err
	})
	if err != nil {
		return r, err
	}
	err = s.cfg.Authorizer.Allow(ctx, "member.read", policy.Object{Project: r.Project, Kind: "request", Name: r.ID})
	if fault.Is(err, fault.NotFound) {
		err = fault.New(fault.NotFound, "request %s does not exist", request)
	}
	if err != nil {
		return Request{}, err
	}
	return r, nil
}
