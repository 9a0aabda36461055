package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
)

// auditView is an entry as people read it.
type auditView struct {
	Index     int64     `json:"index"`
	Time      time.Time `json:"time"`
	Erased    bool      `json:"erased,omitempty"`
	ActorName string    `json:"actor_name"`
	audit.Entry
}

func (s *Server) listAudit(ctx context.Context, in *struct {
	Page
	Project string `query:"project" maxLength:"63"`
	Actor   string `query:"actor" maxLength:"200" doc:"Id or name"`
	Action  string `query:"action" maxLength:"200" doc:"dataset.import, or dataset.*"`
	Object  string `query:"object" maxLength:"200"`
	Outcome string `query:"outcome" doc:"done or refused"`
	Since   string `query:"since" doc:"RFC 3339, included"`
	Until   string `query:"until" doc:"RFC 3339, excluded"`
	Text    string `query:"text" maxLength:"200" doc:"Anywhere in the entry"`
},
) (*body[auditPage], error) {
	f := audit.Filter{Project: in.Project, Actor: in.Actor, Action: in.Action, Object: in.Object, Outcome: audit.Outcome(in.Outcome), Text: in.Text}
	var err error
	if f.Since, err = instant("since", in.Since); err != nil {
		return nil, err
	}
	if f.Until, err = instant("until", in.Until); err != nil {
		return nil, err
	}
	records, next, err := s.Audit.List(ctx, f, in.Size, in.Token)
	if err != nil {
		return nil, err
	}
	views := make([]auditView, len(records))
	for i, r := range records {
		views[i] = auditView{Index: r.Index, Time: r.Time, Erased: r.Erased, ActorName: r.Entry.Actor.String(), Entry: r.Entry}
	}
	page := auditPage{Items: views, Next: next}
	page.StaleSince, page.StaleBecause = s.Audit.Stale()
	return &body[auditPage]{page}, nil
}

// auditPage is a page of the log, and whether it may lack something.
type auditPage struct {
	Items        []auditView `json:"items"`
	Next         string      `json:"next_page_token,omitempty" doc:"Ask with it as page_token for the next page; empty at the end"`
	StaleSince   time.Time   `json:"stale_since,omitzero" doc:"What was done since then may be missing; absent when nothing is"`
	StaleBecause string      `json:"stale_because,omitempty" doc:"Why the log could not be extended"`
}

type erasedView struct {
	Erased int `json:"erased" doc:"How many had a content"`
}

func (s *Server) eraseAudit(ctx context.Context, in *struct {
	Body struct {
		Indexes []int64 `json:"indexes" minItems:"1" maxItems:"1000" doc:"As the list shows them"`
		Reason  string  `json:"reason" minLength:"1" maxLength:"2000" doc:"Why; kept in the log, so without the person's name"`
	}
},
) (*body[erasedView], error) {
	n, err := s.Audit.Erase(ctx, in.Body.Indexes, in.Body.Reason)
	return one(erasedView{n}, err)
}

// instant reads an RFC 3339 time; empty is the zero time.
func instant(field, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, fault.New(fault.Invalid, "%s: %.40q is not a time such as 2013-05-01T00:00:00Z", field, s)
	}
	return t, nil
}

// exportAudit writes the log. An error after the first byte cuts the answer, and
// the export's own trailer is then missing, so verification finds it.
func (s *Server) exportAudit(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	counted := &firstByte{ResponseWriter: w}
	if err := s.Audit.Export(r.Context(), counted); err != nil {
		if !counted.written {
			s.fail(w, r, err)
			return
		}
		s.logInternal(r.Context(), r.URL.Path, err)
		panic(http.ErrAbortHandler)
	}
}

type firstByte struct {
	http.ResponseWriter
	written bool
}

func (f *firstByte) Write(b []byte) (int, error) {
	f.written = true
	return f.ResponseWriter.Write(b)
}
