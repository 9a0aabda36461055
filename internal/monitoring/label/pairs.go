package label

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// page is how many labels are read or settled at a time.
const page = 1000

// Pair is a prediction with what turned out to be true.
type Pair struct {
	Seq        int64 // its place; Pairs goes on after it
	Record     *prediction.Record
	Labels     []float64 // one for each of Record.Rows; NaN of a row without a label
	Texts      []string  // the class of each row, in place of Labels; empty of a row without a label
	LabelledAt time.Time // on the clock of the records
	Received   time.Time // of the label
}

// Labelled reports whether a row has a label.
func (p Pair) Labelled(row int) bool {
	if p.Texts != nil {
		return p.Texts[row] != ""
	}
	return !math.IsNaN(p.Labels[row])
}

// Pairs calls visit for each pair of a deployment after a seq, in the order in
// which labels were joined, and returns the seq to go on from. Labels whose
// prediction is no longer in the log are passed over. It asks for no permission:
// it is for the loops of the server. Errors: visit's, after which the returned
// seq is that of the last pair that visit took; fault.Gone.
func (s *Service) Pairs(ctx context.Context, project, deployment string, after int64, visit func(Pair) error) (int64, error) {
	p := Place{Project: project, Deployment: deployment}
	for {
		var rows []Row
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			rows, err = s.cfg.Store.Joined(ctx, tx, p, after, page)
			return err
		})
		if err != nil || len(rows) == 0 {
			return after, err
		}
		key, err := s.key(ctx, p)
		if err != nil {
			return after, err
		}
		at := make([]prediction.Cursor, len(rows))
		for i, r := range rows {
			if at[i], err = prediction.ParseCursor(r.Where); err != nil {
				return after, fault.Wrap(err, "label %d of %s", r.Seq, deployment)
			}
		}
		err = s.cfg.Predictions.Fetch(ctx, project, deployment, at, func(i int, r *prediction.Record) error {
			row := rows[i]
			values, err := key.open(row)
			if err != nil {
				return err
			}
			if r != nil && r.ID == row.ID && r.Rows == values.rows() {
				if err := visit(Pair{Seq: row.Seq, Record: r, Labels: values.numbers, Texts: values.texts, LabelledAt: row.At, Received: row.Received}); err != nil {
					return err
				}
			}
			after = row.Seq
			return nil
		})
		if err != nil || len(rows) < page {
			return after, err
		}
	}
}

// trimEvery and trimBatch are how often, and how many at a time, labels that are
// too old are deleted.
const (
	trimEvery = time.Hour
	trimBatch = 5000
)

// trim deletes labels that are older than they are kept.
func (s *Service) trim(ctx context.Context) error {
	now := s.cfg.Now()
	s.mu.Lock()
	due := s.cfg.Keep > 0 && now.Sub(s.trimmed) >= trimEvery
	if due {
		s.trimmed = now
	}
	s.mu.Unlock()
	for due {
		n := 0
		if err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) (err error) {
			n, err = s.cfg.Store.Trim(ctx, tx, now.Add(-s.cfg.Keep), trimBatch)
			return err
		}); err != nil {
			return fault.Wrap(err, "deleting expired labels")
		}
		due = n == trimBatch
	}
	return nil
}

// RunOnce joins the labels that wait to predictions that have come since, gives
// up those that waited longer than the horizon, and deletes what is too old.
func (s *Service) RunOnce(ctx context.Context) error {
	s.share()
	if err := s.trim(ctx); err != nil {
		return err
	}
	var places []Place
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		places, err = s.cfg.Store.WaitingPlaces(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range places {
		if err := s.settle(ctx, p); err != nil && !fault.Is(err, fault.Gone) { // nobody can read those any more
			errs = append(errs, fault.Wrap(err, "pending labels of %s", p.Deployment))
		}
	}
	return errors.Join(errs...)
}

// look is when the labels of a deployment that wait were looked at last, and what
// was known of the log then.
type look struct {
	after prediction.Cursor
	at    time.Time
}

// settleEvery is how often labels that wait are looked at although no prediction
// came: they may have been written while those before were looked at, or be old.
const settleEvery = time.Minute

func (s *Service) settle(ctx context.Context, p Place) error {
	facts, err := s.cfg.Deployments.Facts(ctx, p.Project, p.Deployment)
	if fault.Is(err, fault.NotFound) {
		return nil // it was deleted, and its labels go with it
	}
	if err != nil {
		return err
	}
	x, err := s.index(ctx, p, facts.Owner)
	if err != nil {
		return err
	}
	now := look{after: x.newestPlace(), at: s.cfg.Now()}
	s.mu.Lock()
	last, seen := s.settled[p]
	s.mu.Unlock()
	if past := now.at.Sub(last.at); seen && last.after == now.after && past >= 0 && past < settleEvery {
		return nil
	}
	if err := s.settleAll(ctx, p, x); err != nil {
		return err
	}
	s.mu.Lock()
	s.settled[p] = now
	s.mu.Unlock()
	return nil
}

func (s *Service) settleAll(ctx context.Context, p Place, x *index) error {
	key, err := s.key(ctx, p)
	if err != nil {
		return err
	}
	old := s.cfg.Now().Add(-s.cfg.Horizon)
	for after := ""; ; {
		var rows []Row
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			rows, err = s.cfg.Store.Waiting(ctx, tx, p, after, page)
			return err
		}); err != nil || len(rows) == 0 {
			return err
		}
		after = rows[len(rows)-1].ID
		var settled []Row
		for _, r := range rows {
			values, err := key.open(r)
			if err != nil {
				return err
			}
			if r.Status, r.Where = x.find(r.ID, values.rows(), s.cfg.Horizon); r.Status == Unknown && r.Received.Before(old) {
				r.Status = Expired
			}
			if r.Status != Unknown {
				settled = append(settled, r)
			}
		}
		if len(settled) == 0 {
			continue
		}
		if err := s.cfg.DB.Update(ctx, p.Project, func(ctx context.Context, tx *store.Tx) error {
			return s.settleTx(ctx, tx, p, settled)
		}); err != nil {
			return err
		}
	}
}

func (s *Service) settleTx(ctx context.Context, tx *store.Tx, p Place, settled []Row) error {
	// Another process may have settled some of them meanwhile.
	ids := make([]string, len(settled))
	for i, r := range settled {
		ids[i] = r.ID
	}
	now, err := s.cfg.Store.Existing(ctx, tx, p, ids)
	if err != nil {
		return err
	}
	var c Counts
	for _, r := range settled {
		if now[r.ID].Status != Unknown {
			continue
		}
		c.Waiting--
		switch r.Status {
		case Accepted:
			if r.Seq, err = s.cfg.Store.Next(ctx, tx, p, 1); err != nil {
				return err
			}
			c.Joined++
		case TooLate:
			c.TooLate++
		case WrongRows:
			c.WrongRows++
		default:
			c.Expired++
		}
		if err := s.cfg.Store.Settle(ctx, tx, p, r); err != nil {
			return err
		}
	}
	if err := s.cfg.Store.Count(ctx, tx, p, c); err != nil {
		return err
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: p.Project, Action: string(ActionWrite), Object: "deployment " + p.Deployment,
		Detail: map[string]any{"waited": -c.Waiting, "joined": c.Joined, "expired": c.Expired, "too_late": c.TooLate, "wrong_rows": c.WrongRows},
	}); err != nil {
		return err
	}
	if c.Joined == 0 {
		return nil
	}
	return event.Publish(ctx, tx, p.Project, EventReceived, Received{Deployment: p.Deployment, Joined: int(c.Joined)})
}
