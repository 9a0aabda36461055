package dataset

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// checkAge reads a time that may pass; empty is none.
func checkAge(text string) error {
	d, err := resource.ParseDuration(text)
	if err == nil && text != "" && d < time.Minute {
		err = fault.New(fault.Invalid, "%q is less than a minute", text)
	}
	return err
}

// columnTime is a time in the unit of a column.
func columnTime(t Type, now time.Time) (int64, error) {
	switch t {
	case table.Timestamp:
		return now.UnixMicro(), nil
	case table.Date:
		return int64(math.Floor(float64(now.Unix()) / 86400)), nil
	default:
	}
	return 0, fmt.Errorf("a column of %s contains no dates or timestamps", t)
}

// observeFreshness looks for the newest time that has come.
func (k *check) observeFreshness(rec arrow.RecordBatch, row func(i int) int64) {
	a := rec.Column(k.cols[0])
	for i := range a.Len() {
		if a.IsNull(i) {
			continue
		}
		k.checked++
		if at := cellInt(a, i); at > k.newest && at <= k.now {
			k.newest, k.newestAt = at, row(i)
		}
	}
}

// checkFreshness checks the age of the newest time. The reason names no value.
func (k *check) checkFreshness() {
	if k.problem != "" {
		return
	}
	if k.newest == math.MinInt64 {
		k.problem = "all its times are in the future"
		return
	}
	most, _ := resource.ParseDuration(k.e.Within) // validated
	unit, text := time.Microsecond, timestampText(k.newest)
	if k.days {
		unit, text = 24*time.Hour, dateText(k.newest)
	}
	if age := k.now - k.newest; age > int64(most/unit) {
		k.problem = "the newest time is too old"
		x := Example{Row: k.newestAt, Column: k.e.Column, Hidden: k.hide}
		if !k.hide {
			x.Value = text
		}
		k.examples = []Example{x}
	}
}

// PublishStale tells, by an event, of each dataset of a project that had no new version
// for longer than it says. It is a loop's to call, and asks no permission. It gives
// how many it told of.
func (s *Maintenance) PublishStale(ctx context.Context, p project.Name) (told int, err error) {
	err = s.eachDataset(ctx, p, func(d Dataset) error {
		late := false
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			_, late, err = s.overdue(ctx, tx, d)
			return err
		}); err != nil || !late {
			return err
		}
		return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			now, err := s.live(ctx, tx, p, d.Name)
			if fault.Is(err, fault.NotFound) {
				return nil // deleted meanwhile
			}
			if err != nil {
				return err
			}
			since, late, err := s.overdue(ctx, tx, now)
			if err != nil || !late {
				return err
			}
			now.Stale = true
			if err := s.cfg.Store.PutDataset(ctx, tx, now); err != nil {
				return err
			}
			if err := audit.Append(ctx, tx, audit.Entry{
				Project: string(p), Action: string(ActionImport), Object: "dataset " + d.Name, Reason: "no new version for " + now.Spec.Fresh, Detail: map[string]any{"change": "stale", "since": since},
			}); err != nil {
				return err
			}
			tx.OnCommit(func() { told++ })
			return event.Publish(ctx, tx, string(p), EventStale, Event{Dataset: now.ID, Name: now.Name, Number: now.Accepted})
		})
	})
	return told, err
}

// overdue reports whether a dataset had no new version for longer than it says, and was
// not told of; since is when the newest came.
func (s *Maintenance) overdue(ctx context.Context, tx *store.Tx, d Dataset) (since time.Time, late bool, err error) {
	if d.Spec.Fresh == "" || d.Stale {
		return since, false, nil
	}
	most, _ := resource.ParseDuration(d.Spec.Fresh) // validated
	since, err = s.lastArrival(ctx, tx, d)
	return since, err == nil && s.cfg.Now().Sub(since) > most, err
}

// lastArrival is when the newest accepted version came, and not when it was redacted;
// without one, when the dataset was declared.
func (s *Maintenance) lastArrival(ctx context.Context, tx *store.Tx, d Dataset) (time.Time, error) {
	at := d.Created
	for n := d.Accepted; n > 0; {
		v, err := s.cfg.Store.Version(ctx, tx, d.ID, n)
		if err != nil {
			return at, err
		}
		at, n = v.Created, v.Redacts
	}
	return at, nil
}
