package remote

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// How often is looked whether a model is ready. Each pause is a fifth longer or
// shorter at random, so that not all look at once.
const (
	every      = 5 * time.Second        // while the breaker is not open
	firstPause = 250 * time.Millisecond // after it was opened; doubles with each look that fails, and each time it is opened again
	lastPause  = 10 * time.Second
	probeTime  = 5 * time.Second // of a look
)

func (b *breaker) pause() time.Duration {
	_, _, opens := b.reason()
	return min(firstPause<<min(max(0, opens-1), 8), lastPause)
}

// watch looks whether the model is ready, until life ends.
func (s *session) watch(life context.Context) {
	pause := every
	for {
		timer := time.NewTimer(pause*4/5 + rand.N(pause*2/5)) //nolint:gosec // it protects nothing
		select {
		case <-life.Done():
			timer.Stop()
			return
		case <-s.breaker.opened:
			timer.Stop()
			pause = s.breaker.pause()
			continue
		case <-timer.C:
		}
		why := s.look(life)
		if life.Err() != nil {
			return
		}
		if s.breaker.looked(why) {
			s.changed(life)
		}
		if s.breaker.now() == Open {
			pause = min(2*pause, lastPause)
		} else {
			pause = every
		}
	}
}

// look asks whether the model is ready, and after it was not, whether it is still
// the one that it was.
func (s *session) look(life context.Context) Reason {
	ctx, cancel := context.WithTimeout(life, probeTime)
	defer cancel()
	var err error
	if s.breaker.now() == Open {
		_, err = s.compare(ctx)
	} else {
		err = s.server.wire.ready(ctx, s.model)
	}
	if err == nil || life.Err() != nil {
		return ""
	}
	why := reasonOf(err)
	s.server.failed(why)
	return why
}

// changed logs the breaker's new state.
func (s *session) changed(ctx context.Context) {
	state, why, _ := s.breaker.reason()
	at := []any{slog.String("remote", s.server.name), slog.String("model", s.model.name), slog.String("version", s.model.version)}
	switch state {
	case Open:
		s.runtime.log.WarnContext(ctx, "a remote model is suspended", append(at, slog.String("reason", string(why)))...)
	case HalfOpen:
		s.runtime.log.InfoContext(ctx, "a remote model is ready again, and is tested", at...)
	case Closed:
		s.runtime.log.InfoContext(ctx, "a remote model is available again", at...)
	}
}
