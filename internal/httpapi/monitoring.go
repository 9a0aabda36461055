package httpapi

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
)

func (s *Server) monitoringRoutes(p string) {
	route(s, "GET", p+"/monitors", monitoring.ActionRead, "List monitors", s.listMonitors)
	route(s, "GET", p+"/monitors/{name}", monitoring.ActionRead, "Get a monitor and its results for the stable version", s.oneMonitor)
	route(s, "DELETE", p+"/monitors/{name}", monitoring.ActionApply, "Delete a monitor and its results", s.deleteMonitor)
	route(s, "GET", p+"/monitors/{name}/windows", monitoring.ActionRead, "List a monitor's windows, newest end first", s.listWindows)
	route(s, "GET", p+"/monitors/{name}/windows/{window}", monitoring.ActionRead, "Get a window with summaries of its inputs and drift scores", s.oneWindow)
	route(s, "GET", p+"/monitors/{name}/baseline", monitoring.ActionRead, "Get the baseline of a version", s.oneBaseline)
	route(s, "POST", p+"/monitors/{name}/classify", monitoring.ActionSubmit, "Train a domain classifier between a window and the baseline", s.classifyWindow)
}

func (s *Server) monitoringKinds() map[string]applier {
	return map[string]applier{
		"Monitor": {gate: monitoring.ActionApply, apply: decoded(func(ctx context.Context, p, name string, spec monitoring.Spec, dry bool) (applied, error) {
			m, change, err := s.Monitoring.Apply(ctx, p, name, spec, dry)
			return applied{Result: string(change), ID: string(m.ID)}, err
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			m, err := s.Monitoring.One(ctx, p, name)
			return m.Name, m.Spec, err
		}},
	}
}

// InMonitor is the path of a monitor.
type InMonitor struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Monitor"`
}

func (s *Server) listMonitors(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[monitoring.Monitor]], error) {
	return named(in.Page, func(after string, limit int) ([]monitoring.Monitor, error) {
		return s.Monitoring.List(ctx, in.Project, after, limit)
	}, func(m monitoring.Monitor) string { return m.Name })
}

func (s *Server) oneMonitor(ctx context.Context, in *InMonitor) (*tagged[monitoring.Monitor], error) {
	m, err := s.Monitoring.One(ctx, in.Project, in.Name)
	return revised(m, m.Revision, err)
}

func (s *Server) deleteMonitor(ctx context.Context, in *struct {
	InMonitor
	Deleting
},
) (*none, error) {
	if err := s.Deletions.Allow(ctx, project.Name(in.Project), "monitor", in.Name, deletion.Request{Yes: in.Yes}); err != nil {
		return nil, err
	}
	return &none{}, s.Monitoring.Delete(ctx, in.Project, in.Name)
}

func (s *Server) listWindows(ctx context.Context, in *struct {
	InMonitor
	Page
	Version int64  `query:"version" minimum:"0" doc:"Model version; 0 means all"`
	From    string `query:"from" maxLength:"40" doc:"Only windows that end after this event time (RFC 3339)"`
	To      string `query:"to" maxLength:"40" doc:"Only windows that end at or before this event time"`
},
) (*body[items[monitoring.Window]], error) {
	f := monitoring.WindowFilter{Version: in.Version, Limit: in.Size}
	for _, q := range []struct {
		name, text string
		into       *time.Time
	}{{"from", in.From, &f.From}, {"to", in.To, &f.To}} {
		if q.text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, q.text)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: %.40q is not a timestamp", q.name, q.text).WithHint("Write it as 2013-07-01T00:00:00Z.")
		}
		*q.into = t
	}
	all, next, err := s.Monitoring.Windows(ctx, in.Project, in.Name, f, in.Token)
	return listed(all, next, err)
}

func (s *Server) oneWindow(ctx context.Context, in *struct {
	InMonitor
	Window string `path:"window" maxLength:"60" doc:"Id of the window"`
},
) (*body[monitoring.Summaries], error) {
	return one(s.Monitoring.Window(ctx, in.Project, in.Name, in.Window))
}

func (s *Server) oneBaseline(ctx context.Context, in *struct {
	InMonitor
	Version int64 `query:"version" minimum:"0" doc:"Model version; 0 means the version evaluated last"`
},
) (*body[monitoring.Baseline], error) {
	return one(s.Monitoring.Baseline(ctx, in.Project, in.Name, in.Version))
}

func (s *Server) classifyWindow(ctx context.Context, in *struct {
	InMonitor
	Body monitoring.ClassifyRequest
},
) (*body[monitoring.Classification], error) {
	return one(s.Monitoring.Classify(ctx, in.Project, in.Name, in.Body))
}
