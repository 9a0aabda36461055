package feature

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Sources is what features need of sources of messages.
type Sources interface {
	// Check refuses a source whose messages are no events of the dataset, and names what
	// they are read from, NAME@…: another log has another name, also in a source of the
	// same name. Asks for the permission to see it.
	Check(ctx context.Context, p project.Name, source, dataset string) (reading string, err error)
	// Messages gives the messages of a reading behind a position (nil: all that are
	// there), up to where it stands now, with the position behind them, which only the
	// source can read. No messages with a position: there was nothing to read up to there.
	Messages(ctx context.Context, p project.Name, reading string, after json.RawMessage, take func(messages [][]byte, at json.RawMessage) error) error
}

const (
	feedPause = time.Second      // between looks for new messages
	feedTime  = 30 * time.Minute // of a look; what is left comes with the next
	maxFeeds  = 32               // read at a time
)

// FeedOnce brings the messages that sources have now into the logs of the views that
// follow them; a background loop calls it, and tests do. While one source takes its
// time the others are looked at again. While another process does it, nothing happens.
// What is no event is a dead letter: nobody else could be told.
func (s *Streams) FeedOnce(ctx context.Context) error {
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

// fed is a stream that a source feeds.
type fed struct {
	project         project.Name
	dataset, source string
}

func (s *Streams) feedAll(ctx context.Context) error {
	type end struct {
		of  fed
		err error
	}
	var group sync.WaitGroup
	defer group.Wait()
	ended := make(chan end, maxFeeds)
	running, failed := map[fed]bool{}, map[fed]error{}
	var due []fed // in turn
	views := map[fed]View{}
	start := func() {
		for len(due) > 0 && len(running) < maxFeeds {
			of, v := due[0], views[due[0]]
			due, running[of] = due[1:], true
			group.Go(func() { ended <- end{of, s.feedTold(ctx, v)} })
		}
	}
	again := time.NewTicker(feedPause)
	defer again.Stop()
	for {
		var err error
		if views, err = s.fedViews(ctx); err != nil {
			return err
		}
		due = slices.DeleteFunc(due, func(of fed) bool { _, there := views[of]; return !there })
		for of := range views {
			if !running[of] && !slices.Contains(due, of) {
				due = append(due, of)
			}
		}
		start()
		for looked := false; !looked; {
			if len(running) == 0 {
				return errors.Join(slices.SortedFunc(maps.Values(failed), func(a, b error) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })...)
			}
			select {
			case e := <-ended:
				delete(running, e.of)
				failed[e.of] = e.err
				start()
			case <-again.C:
				looked = true
			}
		}
	}
}

// fedViews are the views that follow a source, one of each stream.
func (s *Streams) fedViews(ctx context.Context) (views map[fed]View, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		views = map[fed]View{}
		ds, err := s.streamStore.StreamViews(ctx, tx)
		if err != nil {
			return err
		}
		for _, d := range ds {
			v, err := d.view()
			if err != nil {
				return err
			}
			if v.Source.Stream == nil || v.Source.Stream.Source == "" {
				continue
			}
			of := fed{v.Project, v.Source.Dataset, v.Source.Stream.Source}
			if _, known := views[of]; !known {
				views[of] = v
			}
		}
		return nil
	})
	return views, err
}

// feedTold feeds a stream, and tells it what is wrong.
func (s *Streams) feedTold(ctx context.Context, v View) error {
	err := s.feed(ctx, v)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.stream(Stream{Project: v.Project, Dataset: v.Source.Dataset})
	if f.starved = ""; err != nil && ctx.Err() == nil {
		f.starved = "source " + v.Source.Stream.Source + ": " + err.Error()
		if hint := fault.HintOf(err); hint != "" {
			f.starved += ". " + hint
		}
	}
	return fault.Wrap(err, "source %s of feature view %s in project %s", v.Source.Stream.Source, v.Ref(), v.Project)
}

// feed brings the messages of a view's source into the log. Each batch is accepted
// with the position behind it, in one transaction.
func (s *Streams) feed(ctx context.Context, v View) error {
	source := v.Source.Stream.Source
	reading, err := s.cfg.Sources.Check(ctx, v.Project, source, v.Source.Dataset) // it may have become another
	if err != nil {
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
		st, err := s.streamStore.Stream(ctx, tx, l.project, l.dataset)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		after = st.read(reading)
		return err
	})
	if err != nil {
		return err
	}
	return s.cfg.Sources.Messages(ctx, v.Project, reading, after, func(messages [][]byte, at json.RawMessage) error {
		in := entry{
			action: ActionPush, keep: true, reading: reading, before: after, at: at,
			raw:  func(i int) []byte { return messages[i] },
			from: func(int) string { return "source " + source + ", before " + string(at) },
		}
		in.parse(len(messages))
		_, _, _, _, err := s.accept(ctx, l, in)
		after = at
		return err
	})
}
