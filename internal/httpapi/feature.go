package httpapi

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

func (s *Server) featureRoutes(p string) {
	route(s, "GET", p+"/entities", "feature.read", "List entities", s.listEntities)
	route(s, "GET", p+"/entities/{ref}", "feature.read", "Get an entity", s.oneEntity)
	route(s, "GET", p+"/feature-views", "feature.read", "List feature views", s.listViews)
	route(s, "GET", p+"/feature-views/{ref}", "feature.read", "Get a feature view", s.oneView)
	route(s, "POST", p+"/feature-views/{ref}/materialise", "feature.materialise", "Materialise a view into the online store", s.materialise)
	route(s, "GET", p+"/feature-views/{ref}/versions", "feature.read", "List a view's versions, newest first", s.viewVersions)
	route(s, "POST", p+"/feature-views/{ref}/promote", "feature.apply", "Set an alias, such as prod, to a version", s.promoteView)
	route(s, "GET", p+"/feature-views/{ref}/lineage", "feature.read", "Get the upstream and downstream lineage of a view", s.viewLineage)
	route(s, "GET", p+"/feature-views/{ref}/freshness", "feature.read", "Get the freshness of a view in the online store", s.freshness)
	route(s, "GET", p+"/feature-views/{ref}/runs", "feature.read", "List a view's materialisations, newest first", s.listRuns)
	route(s, "GET", p+"/feature-runs/{run}", "feature.read", "Get a materialisation; with wait, when it has finished", s.oneRun)
	route(s, "POST", p+"/feature-runs/{run}/cancel", "feature.materialise", "Cancel a materialisation", s.cancelRun).keepsNothing()
	route(s, "GET", p+"/feature-services", "feature.read", "List feature services", s.listBundles)
	route(s, "GET", p+"/feature-services/{ref}", "feature.read", "Get a feature service", s.oneBundle)
	route(s, "GET", p+"/feature-services/{ref}/versions", "feature.read", "List a feature service's versions, newest first", s.bundleVersions)
	route(s, "POST", p+"/feature-services/{ref}/promote", "feature.apply", "Set an alias, such as prod, to a version", s.promoteBundle)
	route(s, "GET", p+"/features/freshness", "feature.read", "List the freshness of all views in the online store", s.freshnesses)
	route(s, "POST", p+"/features/online", "feature.online", "Read current features from the online store, or features as of a past time", s.online).takes(onlineBody).keepsNothing()
	route(s, "POST", p+"/training-sets", "feature.history", "Create a training set by a point-in-time join", s.makeTrainingSet)
	route(s, "GET", p+"/training-sets/{ref}", "feature.read", "Get the definition of a training set", s.oneTrainingSet)
	route(s, "POST", p+"/training-sets/{ref}/verify", "feature.history", "Verify that training and serving used the same feature values", s.verifyTrainingSet).keepsNothing()
	route(s, "POST", p+"/feature-views/{ref}/push", "feature.push", "Push events to the stream of a view", s.pushEvents)
	route(s, "GET", p+"/feature-views/{ref}/stream", "feature.read", "Get the lag of a view and its dataset behind their stream", s.streamStatus)
	route(s, "GET", p+"/feature-views/{ref}/dead", "feature.history", "List the dead letters of a view's stream, with reasons", s.deadLetters)
	route(s, "POST", p+"/feature-views/{ref}/dead/replay", "feature.push", "Replay dead letters", s.replayDead)
	route(s, "POST", p+"/feature-views/{ref}/dead/drop", "feature.push", "Remove dead letters", s.dropDead)
	route(s, "DELETE", p+"/feature-views/{ref}/online", "feature.materialise", "Remove a view's rows from the online store", s.clearView)
}

func (s *Server) featureKinds() map[string]applier {
	request := func(p, name string, dry bool) feature.ApplyRequest {
		return feature.ApplyRequest{Project: project.Name(p), Name: name, DryRun: dry}
	}
	return map[string]applier{
		"Entity": {gate: "feature.apply", apply: decoded(func(ctx context.Context, p, name string, spec feature.EntitySpec, dry bool) (applied, error) {
			e, change, err := s.Features.Definitions.ApplyEntity(ctx, request(p, name, dry), spec)
			return applied{Result: string(change), Version: int64(e.Version)}, err
		}), show: func(ctx context.Context, p, ref string) (string, any, error) {
			e, err := s.Features.Definitions.Entity(ctx, project.Name(p), ref)
			return e.Name, e.EntitySpec, err
		}},
		"FeatureView": {gate: "feature.apply", apply: decoded(func(ctx context.Context, p, name string, spec feature.ViewSpec, dry bool) (applied, error) {
			v, change, err := s.Features.Definitions.ApplyView(ctx, request(p, name, dry), spec)
			return applied{Result: string(change), Version: int64(v.Version)}, err
		}), show: func(ctx context.Context, p, ref string) (string, any, error) {
			v, err := s.Features.Definitions.View(ctx, project.Name(p), ref)
			return v.Name, v.ViewSpec, err
		}},
		"FeatureService": {gate: "feature.apply", apply: decoded(func(ctx context.Context, p, name string, spec feature.ServiceSpec, dry bool) (applied, error) {
			b, change, err := s.Features.Definitions.ApplyServiceDefinition(ctx, request(p, name, dry), spec)
			return applied{Result: string(change), Version: int64(b.Version)}, err
		}), show: func(ctx context.Context, p, ref string) (string, any, error) {
			b, err := s.Features.Definitions.ServiceDefinition(ctx, project.Name(p), ref)
			return b.Name, b.ServiceSpec, err
		}},
	}
}

// named is a page of a list that goes on after a name.
func named[T any](p Page, list func(after string, limit int) ([]T, error), name func(T) string) (*body[items[T]], error) {
	size := p.Size
	if size == 0 {
		size = 100
	}
	all, err := list(p.Token, size+1)
	next := ""
	if len(all) > size {
		all = all[:size]
		next = name(all[size-1])
	}
	return listed(all, next, err)
}

// InPage is a page of a project's list.
type InPage struct {
	InProject
	Page
}

func (s *Server) listEntities(ctx context.Context, in *InPage) (*body[items[feature.Entity]], error) {
	return named(in.Page, func(after string, limit int) ([]feature.Entity, error) {
		return s.Features.Definitions.Entities(ctx, project.Name(in.Project), after, limit)
	}, func(e feature.Entity) string { return e.Name })
}

func (s *Server) listViews(ctx context.Context, in *InPage) (*body[items[feature.View]], error) {
	return named(in.Page, func(after string, limit int) ([]feature.View, error) {
		return s.Features.Definitions.Views(ctx, project.Name(in.Project), after, limit)
	}, func(v feature.View) string { return v.Name })
}

func (s *Server) listBundles(ctx context.Context, in *InPage) (*body[items[feature.ServiceDefinition]], error) {
	return named(in.Page, func(after string, limit int) ([]feature.ServiceDefinition, error) {
		return s.Features.Definitions.ServiceDefinitions(ctx, project.Name(in.Project), after, limit)
	}, func(b feature.ServiceDefinition) string { return b.Name })
}

func (s *Server) oneEntity(ctx context.Context, in *InRef) (*body[feature.Entity], error) {
	return one(s.Features.Definitions.Entity(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) oneView(ctx context.Context, in *InRef) (*body[feature.View], error) {
	return one(s.Features.Definitions.View(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) oneBundle(ctx context.Context, in *InRef) (*body[feature.ServiceDefinition], error) {
	return one(s.Features.Definitions.ServiceDefinition(ctx, project.Name(in.Project), in.Ref))
}

// materialise starts bringing values and, with wait, answers when that ended.
func (s *Server) materialise(ctx context.Context, in *struct {
	InRef
	Body struct {
		From  string `json:"from,omitempty" doc:"Start of the event time range (RFC 3339); empty: from the beginning"`
		Until string `json:"until,omitempty" doc:"End of the event time range (RFC 3339); empty: now"`
		Wait  string `json:"wait,omitempty" doc:"Wait until it has ended, at most this time, such as 30s; at most 1m"`
	}
},
) (*body[feature.Run], error) {
	r := feature.MaterialiseRequest{Project: project.Name(in.Project), View: in.Ref}
	var err error
	if r.From, err = instant("from", in.Body.From); err != nil {
		return nil, err
	}
	if r.Until, err = instant("until", in.Body.Until); err != nil {
		return nil, err
	}
	run, err := s.Features.Materialisation.Materialise(ctx, r)
	if err != nil || in.Body.Wait == "" {
		return one(run, err)
	}
	return s.waitRun(ctx, run.Project, run.ID, in.Body.Wait)
}

// waitRun answers with a materialisation when it has ended or the time is over.
func (s *Server) waitRun(ctx context.Context, p project.Name, run feature.RunID, wait string) (*body[feature.Run], error) {
	if wait == "" {
		return one(s.Features.Materialisation.Run(ctx, p, run))
	}
	d, err := time.ParseDuration(wait)
	if err != nil || d < 0 {
		return nil, fault.New(fault.Invalid, "wait: %q is not a duration such as 30s", wait)
	}
	waiting, cancel := context.WithTimeout(ctx, min(d, maxWait))
	defer cancel()
	ended, err := s.Features.Materialisation.WaitRun(waiting, p, run)
	if err != nil && waiting.Err() != nil {
		return one(s.Features.Materialisation.Run(ctx, p, run))
	}
	return one(ended, err)
}

func (s *Server) oneRun(ctx context.Context, in *struct {
	InRun
	Wait string `query:"wait" doc:"Wait until it has ended, at most this time, such as 30s; at most 1m"`
},
) (*body[feature.Run], error) {
	return s.waitRun(ctx, project.Name(in.Project), feature.RunID(in.Run), in.Wait)
}

// InRun is the path of a materialisation.
type InRun struct {
	InProject
	Run string `path:"run" maxLength:"64" doc:"Materialisation"`
}

func (s *Server) cancelRun(ctx context.Context, in *InRun) (*body[feature.Run], error) {
	return one(s.Features.Materialisation.CancelRun(ctx, project.Name(in.Project), feature.RunID(in.Run)))
}

// InRefPage is a page of a list below a ref.
type InRefPage struct {
	InRef
	Page
}

func (s *Server) listRuns(ctx context.Context, in *InRefPage) (*body[items[feature.Run]], error) {
	return named(in.Page, func(before string, limit int) ([]feature.Run, error) {
		return s.Features.Materialisation.Runs(ctx, project.Name(in.Project), in.Ref, feature.RunID(before), limit)
	}, func(r feature.Run) string { return string(r.ID) })
}

func (s *Server) clearView(ctx context.Context, in *InRef) (*none, error) {
	return &none{}, s.Features.Materialisation.Clear(ctx, project.Name(in.Project), in.Ref)
}

func (s *Server) freshness(ctx context.Context, in *InRef) (*body[feature.Freshness], error) {
	return one(s.Features.Materialisation.Freshness(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) freshnesses(ctx context.Context, in *InProject) (*body[items[feature.Freshness]], error) {
	all, err := s.Features.Materialisation.Freshnesses(ctx, project.Name(in.Project))
	return listed(all, "", err)
}

func (s *Server) viewLineage(ctx context.Context, in *InRef) (*body[feature.Lineage], error) {
	return one(s.Features.Definitions.Lineage(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) viewVersions(ctx context.Context, in *InRefPage) (*body[items[feature.Listed]], error) {
	return s.definitions(ctx, feature.ViewKind, in)
}

func (s *Server) bundleVersions(ctx context.Context, in *InRefPage) (*body[items[feature.Listed]], error) {
	return s.definitions(ctx, feature.ServiceKind, in)
}

func (s *Server) definitions(ctx context.Context, k feature.Kind, in *InRefPage) (*body[items[feature.Listed]], error) {
	name, _, _ := strings.Cut(in.Ref, "@")
	return named(in.Page, func(token string, limit int) ([]feature.Listed, error) {
		below := 0
		if token != "" {
			var err error
			if below, err = strconv.Atoi(token); err != nil || below < 1 {
				return nil, fault.New(fault.Invalid, "page_token %.20q is invalid", token)
			}
		}
		return s.Features.Definitions.Versions(ctx, project.Name(in.Project), k, name, below, limit)
	}, func(h feature.Listed) string { return strconv.Itoa(h.Version) })
}

// InPromotion is an alias for a version.
type InPromotion struct {
	InRef
	Body struct {
		Alias string `json:"alias" maxLength:"63" doc:"Alias, such as prod; the version is then also NAME@prod"`
	}
}

func (s *Server) promoteView(ctx context.Context, in *InPromotion) (*body[feature.Header], error) {
	return one(s.Features.Definitions.Promote(ctx, project.Name(in.Project), feature.ViewKind, in.Ref, in.Body.Alias))
}

func (s *Server) promoteBundle(ctx context.Context, in *InPromotion) (*body[feature.Header], error) {
	return one(s.Features.Definitions.Promote(ctx, project.Name(in.Project), feature.ServiceKind, in.Ref, in.Body.Alias))
}

func (s *Server) online(ctx context.Context, in *struct {
	InProject
	Body struct {
		feature.Selection
		Entities []map[string]any `json:"entities" maxItems:"10000" doc:"One row for each entity: values by join key"`
		AsOf     string           `json:"as_of,omitempty" doc:"Read features as of this time (RFC 3339); needs feature.history"`
	}
},
) (*body[feature.OnlineAnswer], error) {
	asOf, err := instant("as_of", in.Body.AsOf)
	if err != nil {
		return nil, err
	}
	return one(s.Features.OnlineReads.Online(ctx, feature.OnlineRequest{
		Project: project.Name(in.Project), Selection: in.Body.Selection, Entities: in.Body.Entities, AsOf: asOf,
	}))
}

// makeTrainingSet answers with the dataset version that was made.
func (s *Server) makeTrainingSet(ctx context.Context, in *struct {
	InProject
	Body struct {
		feature.Selection
		Name        string            `json:"name" maxLength:"63" doc:"Dataset for the training set"`
		Description string            `json:"description,omitempty"`
		Spine       string            `json:"spine" doc:"SQL of the spine: join keys, a timestamp, labels and other columns"`
		Inputs      map[string]string `json:"inputs,omitempty" doc:"Datasets by the table names in spine; default: datasets of the same names"`
		TimeZone    string            `json:"time_zone,omitempty" doc:"Time zone of local timestamps in spine (TIMESTAMP, not TIMESTAMPTZ), such as America/New_York or UTC; without it they are rejected"`
		Timestamp   string            `json:"timestamp" doc:"The spine's timestamp column"`
		Labels      []string          `json:"labels,omitempty" doc:"The spine's label columns"`
	}
},
) (*body[dataset.Version], error) {
	b := in.Body
	p := project.Name(in.Project)
	set, err := s.Features.OfflineReads.MakeTrainingSet(ctx, feature.TrainingSetRequest{
		Project: p, Name: b.Name, Description: b.Description, Spine: feature.Source{SQL: b.Spine, Inputs: b.Inputs, TimeZone: b.TimeZone},
		Timestamp: b.Timestamp, Labels: b.Labels, Selection: b.Selection,
	})
	if err != nil {
		return nil, err
	}
	ref, err := dataset.ParseRef(set.Dataset)
	if err != nil {
		return nil, err
	}
	v, err := s.Datasets.Definitions.Version(ctx, p, ref)
	if err != nil {
		return nil, err
	}
	d, err := s.Datasets.Definitions.One(ctx, p, ref.Name)
	if d.Accepted != v.Number { // the same set was made before, and another after it
		v.Current = dataset.Ref{Name: d.Name, Number: d.Accepted}.String()
	}
	return one(v, err)
}

func (s *Server) oneTrainingSet(ctx context.Context, in *InRef) (*body[feature.TrainingSet], error) {
	return one(s.Features.OfflineReads.TrainingSet(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) verifyTrainingSet(ctx context.Context, in *struct {
	InRef
	Body struct {
		View   string `json:"view,omitempty" doc:"Only this view; empty: all views of the training set"`
		Sample int    `json:"sample,omitempty" minimum:"0" maximum:"100000" doc:"Number of rows to compare; 0 means 1000"`
		Seed   uint64 `json:"seed,omitempty" doc:"Random seed of the sample"`
	}
},
) (*body[feature.Report], error) {
	return one(s.Features.Verification.Verify(ctx, feature.VerifyRequest{
		Project: project.Name(in.Project), TrainingSet: in.Ref, View: in.Body.View, Sample: in.Body.Sample, Seed: in.Body.Seed,
	}))
}

// pushEvents answers when the events are synced and, with wait, when reads find them.
func (s *Server) pushEvents(ctx context.Context, in *struct {
	InRef
	Body struct {
		Events []json.RawMessage `json:"events" maxItems:"10000" doc:"Events, each an object with the columns of the view's dataset"`
		IDs    []string          `json:"ids,omitempty" maxItems:"10000" doc:"Idempotency key of each event: an event whose id was received within the last day is skipped, so that a push can be repeated"`
		Keep   bool              `json:"keep,omitempty" doc:"Store invalid events as dead letters instead of rejecting the request"`
		Wait   string            `json:"wait,omitempty" doc:"Wait until online reads include the events, at most this time, such as 2s; at most 1m"`
	}
},
) (*body[feature.EventsAnswer], error) {
	r := feature.EventsRequest{Project: project.Name(in.Project), View: in.Ref, Raw: in.Body.Events, IDs: in.Body.IDs, Keep: in.Body.Keep}
	if in.Body.Wait != "" {
		d, err := time.ParseDuration(in.Body.Wait)
		if err != nil || d < 0 {
			return nil, fault.New(fault.Invalid, "wait: %q is not a duration such as 2s", in.Body.Wait)
		}
		r.Wait = min(d, maxWait)
	}
	return one(s.Features.Streams.PushEvents(ctx, r))
}

func (s *Server) streamStatus(ctx context.Context, in *InRef) (*body[feature.StreamStatus], error) {
	return one(s.Features.Streams.StreamStatus(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) deadLetters(ctx context.Context, in *struct {
	InRefPage
	Purpose string `query:"purpose" maxLength:"63" doc:"Purpose of the read, if the view requires one; or the header Falaj-Purpose"`
},
) (*body[items[feature.DeadLetter]], error) {
	if in.Purpose != "" {
		ctx = feature.WithPurpose(ctx, in.Purpose)
	}
	return named(in.Page, func(after string, limit int) ([]feature.DeadLetter, error) {
		return s.Features.Streams.DeadLetters(ctx, project.Name(in.Project), in.Ref, after, limit)
	}, func(l feature.DeadLetter) string { return l.ID })
}

// InLetters names dead letters.
type InLetters struct {
	InRef
	Body struct {
		IDs []string `json:"ids,omitempty" maxItems:"1000" doc:"Ids of dead letters; empty: all"`
	}
}

func (s *Server) replayDead(ctx context.Context, in *InLetters) (*body[feature.Replayed], error) {
	return one(s.Features.Streams.ReplayDeadLetters(ctx, project.Name(in.Project), in.Ref, in.Body.IDs))
}

// Dropped says how many dead letters were removed.
type Dropped struct {
	Dropped int `json:"dropped"`
}

func (s *Server) dropDead(ctx context.Context, in *InLetters) (*body[Dropped], error) {
	n, err := s.Features.Streams.DropDeadLetters(ctx, project.Name(in.Project), in.Ref, in.Body.IDs)
	return one(Dropped{n}, err)
}
