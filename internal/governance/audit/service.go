package audit

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions the service asks for.
const (
	ActionRead   = "audit.read"
	ActionExport = "audit.export"
	ActionErase  = "audit.erase"
)

// Authorizer is policy's question about the audit log of a project, or of the
// whole installation for an empty one. It is a function of plain words because
// policy itself writes to this log.
type Authorizer func(ctx context.Context, action, project string) error

// ServiceConfig says what the service stands on.
type ServiceConfig struct {
	DB        *store.DB
	Store     Store
	Log       *Sequencer
	Authorize Authorizer
	// Journal is this process's, for Erase; nil where there is none. Other
	// processes' keep what they recorded until their file is full.
	Journal interface {
		Turn(ctx context.Context) error
	}
}

// Service lists, exports and erases. Safe for concurrent use.
type Service struct {
	cfg ServiceConfig
}

// New makes the service.
func New(cfg ServiceConfig) *Service { return &Service{cfg: cfg} }

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

const (
	maxFilterText = 200
	defaultPage   = 100
	maxPage       = 1000
	maxReason     = 2000 // bytes
)

func (f Filter) check() error {
	for _, s := range []string{f.Project, f.Actor, f.Action, f.Object, string(f.Outcome), f.Text} {
		if len(s) > maxFilterText {
			return fault.New(fault.Invalid, "a filter of %d bytes", len(s)).WithHint("Use at most %d bytes.", maxFilterText)
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
	Erased bool   // the entry was erased; only its commitment is left
	Entry  Entry  // zero when erased
}

// List gives entries, the newest first, and the token of the next page (empty at
// the end). Needs audit.read on the filter's project, or on the installation.
// What is still to be folded is folded first, so the list has what was done
// before; where that is not possible, Stale says so. Errors: fault.Invalid for the filter or the token.
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
	if pageToken == "" {
		_ = s.fold() // a log that cannot be extended can be read; Stale tells
	}
	var leaves []Leaf
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		leaves, err = s.cfg.Store.Find(ctx, tx, f, before, pageSize+1)
		return err
	})
	if err != nil {
		return nil, "", fault.Wrap(err, "list the audit log")
	}
	next := ""
	if len(leaves) > pageSize {
		leaves = leaves[:pageSize]
		next = pageTokenOf(leaves[pageSize-1].Index)
	}
	list := make([]Record, len(leaves))
	for i, l := range leaves {
		if list[i], err = l.record(); err != nil {
			return nil, "", fault.Wrap(err, "read entry %d of the audit log", l.Index)
		}
	}
	return list, next, nil
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
	return 0, fault.New(fault.Invalid, "the page token is not one this list gave").WithHint("Begin again without a page token.")
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

// Erase removes the content of entries and keeps their commitments, so that the
// log still verifies and no longer tells, and gives how many it erased. It is an
// act of its own in the log, with the reason: that names no person. Needs
// audit.erase on the installation. Errors: fault.Invalid without a reason or with
// more than 1,000 entries, fault.NotFound when none of them is left,
// fault.Unavailable when they are erased but their old bytes could not be removed
// from the database's files yet.
func (s *Service) Erase(ctx context.Context, indexes []int64, reason string) (erased int, err error) {
	if err := s.cfg.Authorize(ctx, ActionErase, ""); err != nil {
		return 0, err
	}
	if strings.TrimSpace(reason) == "" || len(reason) > maxReason || len(indexes) == 0 || len(indexes) > maxPage {
		return 0, fault.New(fault.Invalid, "erasing audit entries needs a reason of at most %d bytes and 1 to %d entries", maxReason, maxPage).
			WithHint("Say why, and name the entries by their index.")
	}
	// What was folded is out of the stream and out of journal files that nobody
	// writes to any more, so nothing else holds it.
	if s.cfg.Journal != nil {
		if err := s.cfg.Journal.Turn(ctx); err != nil {
			return 0, fault.Wrap(err, "begin another journal file")
		}
	}
	if err := s.fold(); err != nil {
		return 0, fault.Wrap(err, "bring the audit log up to date")
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		n, err := s.cfg.Store.Erase(ctx, tx, indexes)
		if err != nil {
			return fault.Wrap(err, "erase audit entries")
		}
		if n == 0 {
			return fault.New(fault.NotFound, "none of these audit entries is there, or they were erased before")
		}
		erased = n
		return Append(ctx, tx, Entry{
			Action: ActionErase, Object: "audit log", Reason: reason,
			Detail: map[string]any{"entries": indexes, "erased": n},
		})
	})
	return erased, err
}
