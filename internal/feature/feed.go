package feature

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Sources is what features need of sources of messages.
type Sources interface {
	// Check refuses a source whose messages are no events of the dataset. Asks for the
	// permission to see it.
	Check(ctx context.Context, p project.Name, source, dataset string) error
	// Messages gives the messages of a source behind a position (nil: all that are
	// there), up to where it stands now, with the position behind them, which only the
	// source can read.
	Messages(ctx context.Context, p project.Name, source string, after json.RawMessage, take func(messages [][]byte, at json.RawMessage) error) error
}

const (
	feedPause = time.Second      // between looks for new messages
	feedTime  = 30 * time.Minute // of a look; what is left comes with the next
	maxFeeds  = 8                // read at a time
)

// FeedOnce brings the messages that sources have now into the logs of the views that
// follow them; a background loop calls it, and tests do. While another process does
// it, nothing happens. What is no event is a dead letter: nobody else could be told.
func (s *Service) FeedOnce(ctx context.Context) error {
	if s.cfg.Sources == nil {
		return nil
	}
	if !s.cfg.DB.Shared() {
		return s.feedAll(ctx)
	}
	lease, err := s.cfg.DB.Lease(ctx, "feature.feeds", strconv.FormatUint(rand.Uint64(), 36), leaseTime) //nolint:gosec // a name, no secret
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	if err != nil {
		return err
	}
	return lease.Keep(ctx, s.feedAll)
}

func (s *Service) feedAll(ctx context.Context) error {
	var views []View
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		views = nil
		ds, err := s.cfg.Store.StreamViews(ctx, tx)
		if err != nil {
			return err
		}
		known := map[[3]string]bool{}
		for _, d := range ds {
			v, err := d.view()
			if err != nil {
				return err
			}
			if v.Source.Stream == nil || v.Source.Stream.Source == "" {
				continue
			}
			key := [3]string{string(v.Project), v.Source.Dataset, v.Source.Stream.Source}
			if !known[key] {
				known[key] = true
				views = append(views, v)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	free := make(chan struct{}, maxFeeds)
	failed := make([]error, len(views))
	for i, v := range views {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			err := s.feed(ctx, v)
			s.mu.Lock()
			f := s.stream(Stream{Project: v.Project, Dataset: v.Source.Dataset})
			if f.starved = ""; err != nil && ctx.Err() == nil {
				f.starved = "source " + v.Source.Stream.Source + ": " + err.Error()
			}
			s.mu.Unlock()
			failed[i] = fault.Wrap(err, "source %s of feature view %s in project %s", v.Source.Stream.Source, v.Ref(), v.Project)
		})
	}
	group.Wait()
	return errors.Join(failed...)
}

// feed brings the messages of a view's source into the log. Each batch is accepted
// with the position behind it, in one transaction.
func (s *Service) feed(ctx context.Context, v View) error {
	source := v.Source.Stream.Source
	if err := s.cfg.Sources.Check(ctx, v.Project, source, v.Source.Dataset); err != nil { // it may have become another
		return err
	}
	l, err := s.openLog(ctx, v)
	if err != nil {
		return err
	}
	if err := s.mayPush(ctx, l); err != nil {
		return err
	}
	var after json.RawMessage
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		st, err := s.cfg.Store.Stream(ctx, tx, l.project, l.dataset)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		after = st.Offsets[source]
		return err
	})
	if err != nil {
		return err
	}
	return s.cfg.Sources.Messages(ctx, v.Project, source, after, func(messages [][]byte, at json.RawMessage) error {
		in := entry{
			action: ActionPush, keep: true, source: source, before: after, at: at,
			raw:  func(i int) []byte { return messages[i] },
			from: func(int) string { return "source " + source + ", before " + string(at) },
		}
		in.parse(len(messages))
		_, _, _, _, err := s.accept(ctx, l, in)
		after = at
		return err
	})
}
