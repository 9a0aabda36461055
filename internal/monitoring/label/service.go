package label

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions asked for.
const (
	ActionWrite policy.Action = "label.write"
	actionRead  policy.Action = "deployment.read"
)

// Authorizer decides who may.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Predictions is the log; *prediction.Log is.
type Predictions interface {
	Read(ctx context.Context, project, deployment string, after prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error
	Fetch(ctx context.Context, project, deployment string, at []prediction.Cursor, visit func(i int, r *prediction.Record) error) error
	Since(ctx context.Context, project, deployment string, received time.Time) (prediction.Cursor, error)
}

// Deployments says what a deployment is. Error: fault.NotFound.
type Deployments interface {
	Facts(ctx context.Context, project, deployment string) (Facts, error)
}

// Sealer gives the primitives that encrypt a project's labels; keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Config is what a Service is made of.
type Config struct {
	DB          *store.DB
	Store       Store
	Authorizer  Authorizer
	Sealer      Sealer
	Predictions Predictions
	Deployments Deployments
	// Horizon is how old a prediction may be, on the clock of the records, to be
	// joined, and how long a label waits for one, on the wall's; 30 days when 0.
	Horizon time.Duration
	// Keep is how long labels are kept after they were received, as long as the
	// predictions that they are of: for ever when 0.
	Keep time.Duration
	// MaxIndex bounds the predictions that labels may join, of all deployments, each
	// of which has an equal share; the oldest go first. 5,000,000 when 0, which
	// takes about 400 MB.
	MaxIndex int
	// MaxWaiting bounds the labels of a deployment that wait for predictions which
	// are not known; 200,000 when 0.
	MaxWaiting int64
	Now        func() time.Time // time.Now when nil
	Logger     *slog.Logger     // slog.Default() when nil
}

// Service is the only way in. Safe for concurrent use.
type Service struct {
	cfg Config

	mu      sync.Mutex
	indexes map[Place]*index
	settled map[Place]look // of RunOnce
	trimmed time.Time
}

// New makes a service; RunOnce is its background work.
func New(cfg Config) *Service {
	if cfg.Horizon == 0 {
		cfg.Horizon = 30 * 24 * time.Hour
	}
	if cfg.MaxIndex == 0 {
		cfg.MaxIndex = 5_000_000
	}
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = 200_000
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Service{cfg: cfg, indexes: map[Place]*index{}, settled: map[Place]look{}}
}

func object(p Place, f Facts) policy.Object {
	return policy.Object{Project: p.Project, Kind: "deployment", Name: p.Deployment, Classification: f.Classification, Residency: f.Residency}
}

// Add keeps labels of a deployment's predictions and says what became of each.
// Needs label.write. Errors: fault.Invalid, fault.TooLarge, fault.NotFound (no
// such deployment), fault.Gone (the project's key was destroyed), fault.Exhausted
// (too many wait for predictions).
func (s *Service) Add(ctx context.Context, project, deployment string, labels []Label) (Answer, error) {
	p := Place{Project: project, Deployment: deployment}
	if err := s.cfg.Authorizer.Allow(ctx, ActionWrite, object(p, Facts{})); err != nil {
		return Answer{}, err
	}
	facts, err := s.cfg.Deployments.Facts(ctx, project, deployment)
	if err != nil {
		return Answer{}, err
	}
	if err := s.cfg.Authorizer.Allow(ctx, ActionWrite, object(p, facts)); err != nil {
		return Answer{}, err
	}
	if err := validate(labels); err != nil {
		return Answer{}, err
	}
	x, err := s.index(ctx, p, facts.Owner)
	if err != nil {
		return Answer{}, err
	}
	key, err := s.key(ctx, p)
	if err != nil {
		return Answer{}, err
	}
	now := store.At(s.cfg.Now()).Time()
	fresh := make([]incoming, len(labels))
	ids := make([]string, len(labels))
	for i, l := range labels {
		ids[i] = l.ID
		r := Row{ID: l.ID, At: store.At(l.At).Time(), Received: now}
		if r.At.IsZero() {
			r.At = now
		}
		if r.Sealed, err = key.seal(l.ID, truth{l.Values, l.Texts}); err != nil {
			return Answer{}, err
		}
		r.Status, r.Where = x.find(l.ID, l.rows(), s.cfg.Horizon)
		fresh[i] = incoming{r, truth{l.Values, l.Texts}}
	}
	var answer Answer
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		answer = Answer{Results: make([]Result, 0, len(labels))} // it may run again
		return s.insert(ctx, tx, p, facts, key, fresh, ids, &answer)
	})
	return answer, fault.Wrap(err, "labels of %s", deployment)
}

// incoming is a label that came, with its values.
type incoming struct {
	Row
	values truth
}

// truth is what a label says of each row: numbers, or classes as text.
type truth struct {
	numbers []float64
	texts   []string
}

func (t truth) rows() int { return len(t.numbers) + len(t.texts) }

func (t truth) equal(o truth) bool {
	same := func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) } // NaN is no label
	return slices.EqualFunc(t.numbers, o.numbers, same) && slices.Equal(t.texts, o.texts)
}

// insert keeps those of the labels that are new, in the caller's transaction.
func (s *Service) insert(ctx context.Context, tx *store.Tx, p Place, facts Facts, key key, fresh []incoming, ids []string, answer *Answer) error {
	known, err := s.cfg.Store.Existing(ctx, tx, p, ids)
	if err != nil {
		return err
	}
	var rows []Row
	var count Counts
	joined := 0
	for _, r := range fresh {
		status := r.Status
		if old, there := known[r.ID]; there {
			status = Duplicate
			values, err := key.open(old)
			if err != nil {
				return err
			}
			if !values.equal(r.values) {
				status = Contradicts
			}
		} else {
			known[r.ID] = r.Row
			rows = append(rows, r.Row)
		}
		answer.add(r.ID, status)
	}
	for i := range rows {
		if rows[i].Status == Accepted {
			joined++
		}
	}
	if joined > 0 {
		seq, err := s.cfg.Store.Next(ctx, tx, p, joined)
		if err != nil {
			return err
		}
		for i := range rows {
			if rows[i].Status == Accepted {
				rows[i].Seq = seq
				seq++
			}
		}
	}
	count = Counts{
		Joined: int64(joined), Duplicates: int64(answer.Duplicates), Contradicts: int64(answer.Contradicts),
		TooLate: int64(answer.TooLate), WrongRows: int64(answer.WrongRows), Waiting: int64(answer.Unknown),
	}
	if err := s.cfg.Store.Count(ctx, tx, p, count); err != nil {
		return err
	}
	if answer.Unknown > 0 {
		all, err := s.cfg.Store.Counts(ctx, tx, p)
		if err != nil {
			return err
		}
		if all.Waiting > s.cfg.MaxWaiting {
			return fault.New(fault.Exhausted, "there would be %d pending labels without a prediction, over the limit of %d", all.Waiting, s.cfg.MaxWaiting).
				WithHint("Check the ids: they must be the ids of predictions. Pending labels expire after %s.", s.cfg.Horizon)
		}
	}
	if err := s.cfg.Store.Insert(ctx, tx, p, rows); err != nil {
		return err
	}
	sealed, err := key.sealDigest(digest(fresh))
	if err != nil {
		return err
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: p.Project, Action: string(ActionWrite), Object: "deployment " + p.Deployment,
		Detail: map[string]any{
			"labels": len(fresh), "new": len(rows), "contradicts": answer.Contradicts,
			"digest": sealed, "classification": facts.Classification,
		},
	}); err != nil {
		return err
	}
	if joined == 0 {
		return nil
	}
	return event.Publish(ctx, tx, p.Project, EventReceived, Received{Deployment: p.Deployment, Joined: joined})
}

// digest is of the labels as they came: the audit log names them by it, sealed, because
// few values can be guessed.
func digest(rows []incoming) []byte {
	h := sha256.New()
	var b []byte
	for _, r := range rows {
		b = binary.AppendUvarint(b[:0], uint64(len(r.ID)))
		b = append(b, r.ID...)
		b = binary.AppendUvarint(b, uint64(r.values.rows())) //nolint:gosec // G115: a length
		for _, v := range r.values.numbers {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
		for _, v := range r.values.texts {
			b = append(binary.AppendUvarint(b, uint64(len(v))), v...)
		}
		b = binary.AppendVarint(b, r.At.UnixMicro())
		h.Write(b)
	}
	return h.Sum(nil)
}

// sealDigest is "sealed:" and a digest that only the labels' key opens.
func (k key) sealDigest(digest []byte) (string, error) {
	sealed, err := k.aead.Encrypt(digest, k.bound("digest"))
	return "sealed:" + base64.RawURLEncoding.EncodeToString(sealed), err
}

// key seals the values of a deployment's labels: they are data of the project.
type key struct {
	place Place
	aead  tink.AEAD
}

// key is that of a deployment. Error: fault.Gone.
func (s *Service) key(ctx context.Context, p Place) (key, error) {
	a, err := s.cfg.Sealer.AEAD(ctx, p.Project, "labels")
	return key{p, a}, fault.Wrap(err, "opening the key of the labels")
}

func (k key) bound(id string) []byte {
	return []byte("label/" + k.place.Project + "/" + k.place.Deployment + "/" + id)
}

// textsMark begins the plain form of classes: their lengths and bytes follow. Numbers
// are eight bytes each, and so a multiple of eight long; classes are filled up to one more
// than such a multiple.
const textsMark = 'T'

func (k key) seal(id string, values truth) ([]byte, error) {
	plain := make([]byte, 0, 8*len(values.numbers))
	for _, v := range values.numbers {
		plain = binary.LittleEndian.AppendUint64(plain, math.Float64bits(v))
	}
	if len(values.texts) > 0 {
		plain = binary.AppendUvarint(append(plain, textsMark), uint64(len(values.texts)))
		for _, t := range values.texts {
			plain = append(binary.AppendUvarint(plain, uint64(len(t))), t...)
		}
		for len(plain)%8 != 1 {
			plain = append(plain, 0)
		}
	}
	return k.aead.Encrypt(plain, k.bound(id))
}

func (k key) open(r Row) (truth, error) {
	plain, err := k.aead.Decrypt(r.Sealed, k.bound(r.ID))
	values, ok := decodeTruth(plain)
	if err != nil || !ok {
		return truth{}, fault.New(fault.Conflict, "label %s cannot be decrypted: it was modified, or belongs to another installation", r.ID)
	}
	return values, nil
}

// decodeTruth reads the plain form of a label's values.
func decodeTruth(plain []byte) (t truth, ok bool) {
	if len(plain)%8 == 0 {
		t.numbers = make([]float64, len(plain)/8)
		for i := range t.numbers {
			t.numbers[i] = math.Float64frombits(binary.LittleEndian.Uint64(plain[8*i:]))
		}
		return t, true
	}
	if len(plain)%8 != 1 || plain[0] != textsMark {
		return t, false
	}
	plain = plain[1:]
	count := func() int {
		n, size := binary.Uvarint(plain)
		if size <= 0 || n > uint64(len(plain)-size) { //nolint:gosec // G115: at most what is left
			return -1
		}
		plain = plain[size:]
		return int(n) //nolint:gosec // G115: at most what is left
	}
	n := count()
	if n < 1 {
		return t, false
	}
	t.texts = make([]string, n)
	for i := range t.texts {
		size := count()
		if size < 0 {
			return truth{}, false
		}
		t.texts[i], plain = string(plain[:size]), plain[size:]
	}
	return t, true
}

// Counts is how many labels a deployment has had. Needs deployment.read.
func (s *Service) Counts(ctx context.Context, project, deployment string) (Counts, error) {
	p := Place{Project: project, Deployment: deployment}
	if err := s.cfg.Authorizer.Allow(ctx, actionRead, object(p, Facts{})); err != nil {
		return Counts{}, err
	}
	if _, err := s.cfg.Deployments.Facts(ctx, project, deployment); err != nil {
		return Counts{}, err
	}
	var c Counts
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		c, err = s.cfg.Store.Counts(ctx, tx, p)
		return err
	})
	s.mu.Lock()
	x := s.indexes[p]
	s.mu.Unlock()
	if x != nil {
		c.Repeated = x.repeats()
	}
	return c, err
}

// Forget removes the labels and judgements of a deployment that was deleted.
func (s *Service) Forget(ctx context.Context, project, deployment string) error {
	p := Place{Project: project, Deployment: deployment}
	err := s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Store.Delete(ctx, tx, p); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: project, Action: string(ActionWrite), Object: "deployment " + deployment, Detail: map[string]any{"forgotten": true},
		})
	})
	s.mu.Lock()
	delete(s.indexes, p)
	delete(s.settled, p)
	s.mu.Unlock()
	return fault.Wrap(err, "erasing the labels of %s", deployment)
}
