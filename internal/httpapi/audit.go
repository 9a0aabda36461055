package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// auditView is an entry as people read it.
type auditView struct {
	Index     int64     `json:"index"`
	Time      time.Time `json:"time"`
	Erased    bool      `json:"erased,omitempty" doc:"The entry's contents were erased; project, actor, action and outcome are kept"`
	ErasedBy  int64     `json:"erased_by,omitempty" doc:"Index of the erasure's entry"`
	Damaged   string    `json:"damaged,omitempty" doc:"Part of the entry that does not match the signed one; its text is not shown"`
	ActorName string    `json:"actor_name"`
	audit.Entry
}

func auditViews(records []audit.Record) []auditView {
	views := make([]auditView, len(records))
	for i, r := range records {
		views[i] = auditView{Index: r.Index, Time: r.Time, Erased: r.Erased, ErasedBy: r.By, Damaged: r.Damaged, ActorName: r.Entry.Actor.String(), Entry: r.Entry}
	}
	return views
}

func (s *Server) listAudit(ctx context.Context, in *struct {
	Page
	Project string `query:"project" maxLength:"63"`
	Actor   string `query:"actor" maxLength:"200" doc:"Actor by id or name"`
	Action  string `query:"action" maxLength:"200" doc:"Action, such as dataset.import, or dataset.*"`
	Object  string `query:"object" maxLength:"200"`
	Outcome string `query:"outcome" doc:"Outcome: done or refused"`
	Since   string `query:"since" doc:"Start time (RFC 3339), inclusive"`
	Until   string `query:"until" doc:"End time (RFC 3339), exclusive"`
	Text    string `query:"text" maxLength:"200" doc:"Text that an entry must contain"`
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
	page := auditPage{Items: auditViews(records), Next: next, Truncated: next != ""}
	page.StaleSince, page.StaleBecause = s.Audit.Stale()
	return &body[auditPage]{page}, nil
}

// auditPage is a page of the log, and whether it may lack something.
type auditPage struct {
	Items        []auditView `json:"items"`
	Next         string      `json:"next_page_token,omitempty" doc:"page_token of the next page; empty on the last page"`
	Truncated    bool        `json:"truncated" doc:"Further pages have more matching entries"`
	StaleSince   time.Time   `json:"stale_since,omitzero" doc:"Entries after this time may be missing; absent if the list is complete"`
	StaleBecause string      `json:"stale_because,omitempty" doc:"Why the log could not be extended"`
}

func (s *Server) eraseAudit(ctx context.Context, in *struct {
	Body struct {
		Indexes []int64 `json:"indexes" minItems:"1" maxItems:"1000" doc:"Indexes, as in the list"`
		Reason  string  `json:"reason" minLength:"1" maxLength:"2000" doc:"Reason; stored in the audit log, so it must not name the person"`
	}
},
) (*body[audit.EntryErasure], error) {
	return one(s.Audit.RequestErasure(ctx, in.Body.Indexes, in.Body.Reason))
}

func (s *Server) listAuditErasures(ctx context.Context, in *struct {
	Token string `query:"page_token" maxLength:"64" doc:"next_page_token of the previous page"`
},
) (*body[items[audit.EntryErasure]], error) {
	return listed(s.Audit.Erasures(ctx, in.Token))
}

// InAuditErasure is the path of a request to erase audit entries.
type InAuditErasure struct {
	ID string `path:"id" maxLength:"64" doc:"Request to erase entries"`
}

func (s *Server) approveAuditErasure(ctx context.Context, in *InAuditErasure) (*body[audit.EntryErasure], error) {
	return one(s.Audit.ApproveErasure(ctx, in.ID))
}

func (s *Server) rejectAuditErasure(ctx context.Context, in *InAuditErasure) (*body[audit.EntryErasure], error) {
	return one(s.Audit.RejectErasure(ctx, in.ID))
}

// whoReadPage are the reads of a person, and whether they are all.
type whoReadPage struct {
	Items     []auditView `json:"items"`
	Next      string      `json:"next_page_token,omitempty" doc:"page_token of the next page; empty on the last page"`
	Truncated bool        `json:"truncated" doc:"Further pages have more matching reads"`
}

// whoRead answers who read the features of a person. The person's key is in the body, so
// that no log of addresses has it.
func (s *Server) whoRead(ctx context.Context, in *struct {
	InProject
	Body struct {
		Entity string   `json:"entity" minLength:"1" maxLength:"63" doc:"Entity, such as customer"`
		Values []string `json:"values" minItems:"1" maxItems:"16" doc:"Values of the entity's join keys, in order"`
		Reason string   `json:"reason" minLength:"1" maxLength:"2000" doc:"Reason; stored in the audit log, so it must not name the person"`
		Token  string   `json:"page_token,omitempty" maxLength:"512" doc:"next_page_token of the previous page"`
	}
},
) (*body[whoReadPage], error) {
	digest, err := s.Features.OnlineReads.ReadDigest(ctx, project.Name(in.Project), in.Body.Entity, in.Body.Values)
	if err != nil {
		return nil, err
	}
	records, next, err := s.Audit.WhoRead(ctx, in.Project, in.Body.Entity, digest, in.Body.Reason, in.Body.Token)
	return one(whoReadPage{Items: auditViews(records), Next: next, Truncated: next != ""}, err)
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
	export := s.Audit.Export
	if p := r.URL.Query().Get("project"); p != "" {
		export = func(ctx context.Context, w io.Writer) error { return s.Audit.ExportProject(ctx, p, w) }
	}
	if err := export(r.Context(), counted); err != nil {
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
