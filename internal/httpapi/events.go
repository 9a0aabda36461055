package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// Streams that are open at a time, of events and of logs that are followed: of all, of
// a project and of a principal.
const (
	maxStreams          = 4096
	maxProjectStreams   = 512
	maxPrincipalStreams = 32
)

func newStreams(name, what string) *share.Pool {
	return share.New(share.Limits{Name: name, What: what, Slots: maxStreams, PerProject: maxProjectStreams, PerPrincipal: maxPrincipalStreams, NoWait: true})
}

// readers is the action that an event's body takes, by the event's noun. What
// is not here, overseers see.
var readers = map[string]policy.Action{
	"project": "project.read", "policy": "project.read", "member": "member.read", "account": "member.read", "token": "token.read",
	"dataset": "dataset.read", "label": "dataset.read", "feature": "feature.read", "environment": "environment.read",
	"job": "job.read", "workload": "job.read", "budget": "cost.read", "run": "run.read", "logged_model": "run.read", "model": "model.read",
	"deployment": "deployment.read", "rollout": "deployment.read", "monitor": "monitor.read", "alert": "monitor.read", "key": "keys.read", "request": "member.read",
}

func readerOf(eventName string) policy.Action {
	noun, _, _ := strings.Cut(eventName, ".")
	if a, ok := readers[noun]; ok {
		return a
	}
	return "audit.read"
}

// eventMessage is an event as clients receive it.
type eventMessage struct {
	Name    string          `json:"name"`
	Time    time.Time       `json:"time"`
	Project string          `json:"project"`
	Body    json.RawMessage `json:"body"`
}

// events streams what happens in a project, as server-sent events: after the one
// that Last-Event-ID names ("0-0" is before the oldest kept), else from now on.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	var after store.Position
	in := r.PathValue("project")
	_, err := s.Projects.One(r.Context(), project.Name(in)) // who may see all projects may name one that is not there
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after, err = store.ParsePosition(last)
	} else {
		after, err = event.Now(r.Context(), s.db)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	leave, err := s.watches.Take(r.Context(), identity.Share(r.Context(), project.Name(in)))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	write := func(text string) error {
		_, err := io.WriteString(w, text) //nolint:gosec // a stream of JSON lines, never a page; nosniff is set
		return err
	}
	say := func(text string) error {
		if err := write(text); err != nil {
			return err
		}
		return control.Flush()
	}
	watcher := event.Watch(s.db, in, after)
	// The first words come after the position is fixed: what happens once they
	// are read is told.
	if say("retry: 3000\n: watching\n\n") != nil {
		return
	}
	for due := time.Now().Add(s.cfg.Heartbeat); ; {
		if !time.Now().Before(due) {
			// The id lets a reader resume past what was not for it.
			if !s.mayStill(r, "project.read", policy.Object{Project: in}) || say("id: "+watcher.Position().String()+"\n: alive\n\n") != nil {
				return
			}
			due = time.Now().Add(s.cfg.Heartbeat)
		}
		ctx, cancel := context.WithDeadline(r.Context(), due)
		e, err := watcher.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && r.Context().Err() == nil {
			continue
		}
		if err == nil {
			err = s.sendEvent(r.Context(), e, write)
		}
		if err == nil && !watcher.Pending() && control.Flush() != nil { // one for all that came together
			err = context.Canceled
		}
		if err != nil {
			if r.Context().Err() == nil {
				s.logInternal(r.Context(), r.URL.Path, err)
			}
			return
		}
	}
}

// sendEvent writes an event if the caller may read its object.
func (s *Server) sendEvent(ctx context.Context, e event.Event, say func(string) error) error {
	noun, _, _ := strings.Cut(e.Name, ".")
	may, err := s.authz.Permits(ctx, readerOf(e.Name), policy.Object{Project: e.Project, Kind: noun})
	if err != nil || !may {
		return err
	}
	b, err := json.Marshal(eventMessage{Name: e.Name, Time: e.Time.UTC(), Project: e.Project, Body: e.Body})
	if err != nil {
		return fault.Wrap(err, "event %s at %s", e.Name, e.Position)
	}
	if say(fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", e.Position, e.Name, b)) != nil {
		return context.Canceled // the reader went away
	}
	return nil
}

// mayStill reports whether the token and the role still hold and the project is
// still there.
func (s *Server) mayStill(r *http.Request, action policy.Action, object policy.Object) bool {
	who, err := s.principal(r)
	if err != nil {
		return false
	}
	ctx := identity.With(r.Context(), who)
	if ok, err := s.authz.Permits(ctx, action, object); err != nil || !ok {
		return false
	}
	_, err = s.Projects.One(ctx, project.Name(object.Project))
	return err == nil
}
