package audit

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions the service asks for.
const (
	ActionRead   = "audit.read"
	ActionExport = "audit.export"
	ActionErase  = "audit.erase"
	ActionReads  = "audit.reads"
)

// Authorizer is policy's question about the audit log of a project, or of the
// whole installation for an empty one. It is a function of plain words because
// policy itself writes to this log.
type Authorizer func(ctx context.Context, action, project string) error

// ServiceConfig says what the service stands on.
type ServiceConfig struct {
	DB        *store.DB
	Log       *Sequencer // its store is the service's
	Authorize Authorizer
	// Journal is this process's, for Erase; nil where there is none. Other
	// processes' keep what they recorded until their file is full.
	Journal interface {
		Turn(ctx context.Context) error
	}
	// Reads records the readers of the log; nil records none.
	Reads Journal
	// SecondPerson decides whether the caller may approve another person's request; nil:
	// whoever is not the one who requested it.
	SecondPerson SecondPerson
}

// Service lists, exports and erases. Safe for concurrent use.
type Service struct {
	cfg         ServiceConfig
	leaves      LeafStore
	checkpoints CheckpointStore
	erasures    ErasureStore
}

// New makes the service.
func New(cfg ServiceConfig) *Service {
	s := cfg.Log.cfg.Store
	return &Service{cfg: cfg, leaves: s, checkpoints: s, erasures: s}
}

// Filter narrows a list; zero fields match everything.
type Filter struct {
	Project string
	Actor   string // id or name
	Action  string // "dataset.import", or "dataset.*"
	Object  string
	Outcome Outcome
	Since   time.Time // included
	Until   time.Time // excluded
	Text    string    // anywhere in the record, upper or lower case alike
}

// JSONText is Text as a record, which is JSON, writes it.
func (f Filter) JSONText() string {
	b, _ := json.Marshal(f.Text) // strings always encode
	return string(b[1 : len(b)-1])
}

const (
	maxFilterText = 200
	defaultPage   = 100
	maxPage       = 1000
	maxReason     = 2000 // bytes
)

func (f Filter) check() error {
	for _, s := range []string{f.Project, f.Actor, f.Action, f.Object, string(f.Outcome), f.Text} {
		if len(s) > maxFilterText {
			return fault.New(fault.Invalid, "the filter has %d bytes", len(s)).WithHint("Use at most %d bytes.", maxFilterText)
		}
	}
	switch f.Outcome {
	case "", Done, Refused:
		return nil
	}
	return fault.New(fault.Invalid, "%q is not an outcome", string(f.Outcome)).WithHint("Use %q or %q.", Done, Refused)
}

// Record is an entry of the log.
type Record struct {
	Index  int64
	Time   time.Time
	Source string // "rows …" for changes, "journal …" for reads and refusals
	Erased bool   // the entry was erased: its commitment is left, and what the erasure says of it
	Entry  Entry  // when erased: project, actor, action and outcome
	By     int64  // when erased: index of the entry of the erasure
	// Damaged says what is not what was signed; then Entry, Time and Source are zero.
	Damaged string
}

// List gives entries, the newest first, and the token of the next page (empty at
// the end); a page may be short, or empty, though there are more. Needs audit.read on the filter's project, or on the installation.
// What is still to be folded is folded first, so the list has what was done
// before; where that is not possible, Stale says so. Each entry is proven against the
// signed tree; one that is not what was signed comes without its text, as Damaged, and
// is a finding. Errors: fault.Invalid for the filter or the token.
func (s *Service) List(ctx context.Context, f Filter, pageSize int, pageToken string) ([]Record, string, error) {
	if err := s.cfg.Authorize(ctx, ActionRead, f.Project); err != nil {
		return nil, "", err
	}
	if err := f.check(); err != nil {
		return nil, "", err
	}
	before, err := parsePageToken(pageToken)
	if err != nil {
		return nil, "", err
	}
	if pageSize <= 0 {
		pageSize = defaultPage
	}
	pageSize = min(pageSize, maxPage)
	if err := s.noteRead(ctx, f, before); err != nil {
		return nil, "", err
	}
	if pageToken == "" {
		_ = s.fold() // a log that cannot be extended can be read; Stale tells
	}
	leaves, next, err := s.find(ctx, f, before, pageSize)
	if err != nil {
		return nil, "", fault.Wrap(err, "list the audit log")
	}
	list, err := s.records(ctx, leaves)
	if err != nil {
		return nil, "", fault.Wrap(err, "read the audit log")
	}
	if f == (Filter{}) {
		s.gapless(leaves, before)
	}
	return list, next, nil
}

// find searches a page, and gives the token of the next.
func (s *Service) find(ctx context.Context, f Filter, before int64, limit int) (leaves []Leaf, token string, err error) {
	var next int64
	err = s.cfg.Log.view(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		leaves, next, err = s.leaves.Find(ctx, tx, f, before, limit)
		return err
	})
	if next > 0 {
		token = pageTokenOf(next)
	}
	return leaves, token, err
}

// noteRead records who reads a page of the log, and with what filter; a text that was
// searched for may name a person, and is not kept. What Falaj reads for itself is no read.
func (s *Service) noteRead(ctx context.Context, f Filter, before int64) error {
	if s.cfg.Reads == nil || identity.From(ctx).Kind == identity.System {
		return nil
	}
	detail := map[string]any{}
	if before != math.MaxInt64 {
		detail["before"] = before
	}
	if f.Text != "" {
		detail["text"] = "given"
	}
	for name, value := range map[string]string{"actor": f.Actor, "action": f.Action, "object": f.Object, "outcome": string(f.Outcome)} {
		if value != "" {
			detail[name] = value
		}
	}
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			detail[name] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	return fault.Wrap(s.cfg.Reads.Record(ctx, Entry{Project: f.Project, Action: ActionRead, Object: "audit log", Detail: detail}), "record the read of the audit log")
}

// records proves leaves, and gives what they say.
func (s *Service) records(ctx context.Context, leaves []Leaf) ([]Record, error) {
	bad, err := s.cfg.Log.prove(ctx, leaves)
	if err != nil {
		return nil, err
	}
	list := make([]Record, len(leaves))
	for i, l := range leaves {
		if what, ok := bad[l.Index]; ok {
			list[i] = Record{Index: l.Index, Damaged: what}
			continue
		}
		if list[i], err = l.record(); err != nil {
			return nil, fault.Wrap(err, "entry %d", l.Index)
		}
		if list[i].Erased {
			by := s.cfg.Log.erased.of(leaves[i : i+1])[l.Index]
			list[i].By = by.By
			list[i].Entry = Entry{Project: by.Project, Actor: by.Actor, Action: by.Action, Outcome: by.Outcome}
		}
	}
	return list, nil
}

// gapless raises a finding when an entry is missing in an unfiltered page.
func (s *Service) gapless(leaves []Leaf, before int64) {
	for i, l := range leaves {
		if want := l.Index + 1; i > 0 && leaves[i-1].Index != want || i == 0 && before != math.MaxInt64 && before != want {
			s.cfg.Log.found(changedLog(fmt.Sprintf("entry %d is missing", want)))
			return
		}
	}
}

// Stale says since when and why what was done may be missing from lists: the log
// cannot be extended. The zero time means that nothing is missing. For whom List
// has answered.
func (s *Service) Stale() (since time.Time, why string) {
	status := s.cfg.Log.Status()
	if status.Err == nil {
		return time.Time{}, ""
	}
	if since = status.Folded; since.IsZero() {
		since = s.cfg.Log.cfg.Now()
	}
	return since, status.Err.Error()
}

func (l Leaf) record() (Record, error) {
	r := Record{Index: l.Index, Time: l.At.Time(), Source: l.Source, Erased: l.Record == nil}
	if r.Erased {
		return r, nil
	}
	var b record
	if err := json.Unmarshal(l.Record, &b); err != nil {
		return r, err
	}
	return r, json.Unmarshal(b.Entry, &r.Entry)
}

func pageTokenOf(index int64) string {
	return base64.RawURLEncoding.EncodeToString([]byte("before " + strconv.FormatInt(index, 10)))
}

// parsePageToken gives the index before which a page begins.
func parsePageToken(token string) (int64, error) {
	if token == "" {
		return math.MaxInt64, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		var n int64
		digits, ok := cutPrefix(b, "before ")
		if n, err = strconv.ParseInt(digits, 10, 64); ok && err == nil && n >= 0 && pageTokenOf(n) == token {
			return n, nil
		}
	}
	return 0, fault.New(fault.Invalid, "invalid page token").WithHint("Start again without a page token.")
}

func cutPrefix(b []byte, prefix string) (string, bool) {
	if len(b) < len(prefix) || string(b[:len(prefix)]) != prefix {
		return "", false
	}
	return string(b[len(prefix):]), true
}

// fold brings the log up to date, not under the request's context: a client that
// hangs up does not stop the log.
func (s *Service) fold() error {
	ctx, cancel := context.WithTimeout(context.Background(), roundTimeout)
	defer cancel()
	_, err := s.cfg.Log.RunOnce(ctx)
	return err
}

// WhoRead gives the entries of a project that name a digest of a key that was read, the
// newest first, and the token of the next page. The question is an entry of the log with
// the digest, and reason names no person. Needs audit.reads on the project. Errors:
// fault.Invalid for the token, or without a reason.
func (s *Service) WhoRead(ctx context.Context, project, entity, digest, reason, pageToken string) ([]Record, string, error) {
	if err := s.cfg.Authorize(ctx, ActionReads, project); err != nil {
		return nil, "", err
	}
	before, err := parsePageToken(pageToken)
	if err != nil {
		return nil, "", err
	}
	if strings.TrimSpace(reason) == "" || len(reason) > maxReason {
		return nil, "", fault.New(fault.Invalid, "searching for the readers of a person's data needs a reason of at most %d bytes", maxReason)
	}
	_ = s.fold()
	leaves, next, err := s.find(ctx, Filter{Project: project, Action: "feature.*", Text: digest}, before, defaultPage)
	if err != nil {
		return nil, "", fault.Wrap(err, "search the audit log")
	}
	if err := s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		return Append(ctx, tx, Entry{
			Project: project, Action: ActionReads, Object: "entity " + entity, Reason: reason, Detail: map[string]any{"key_digest": digest, "found": len(leaves)},
		})
	}); err != nil {
		return nil, "", fault.Wrap(err, "record the search")
	}
	list, err := s.records(ctx, leaves)
	return list, next, fault.Wrap(err, "read the audit log")
}
