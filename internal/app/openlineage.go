package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage/openlineagesql"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// tellLineage is the subscription whose place says what the receiver was told.
const tellLineage = "openlineage"

// openLineage takes lineage from others, and tells them ours: the outbox is that of
// events, so what happened is told even if the server dies before, in order.
func (a *App) openLineage(ctx context.Context) error {
	a.lineage = openlineage.New(openlineage.Config{
		DB: a.db, Store: openlineagesql.Store{}, Authorizer: a.authorizer, Datasets: a.datasets, Tables: a.cfg.tablesDir(), Objects: a.lineageObjects,
	})
	a.projects.Register(projectLineage{a.lineage})
	to := a.cfg.Lineage.OpenLineage
	if to.URL == "" {
		// Nobody is told, so no event waits for it.
		return fault.Wrap(event.Unsubscribe(ctx, a.db, tellLineage), "lineage")
	}
	t := teller{App: a, sender: openlineage.NewSender(to.URL, to.TokenFile, nil), zone: residency.Zone(to.Zone)}
	a.group.Add(event.Subscribe(a.db, event.Config{
		Name: tellLineage, Logger: a.log, Handle: t.tell,
		Names: []string{dataset.EventVersionCreated, training.JobStarted, training.JobFinished, feature.EventMaterialised, feature.EventFailed},
	}).Service())
	return nil
}

// projectLineage goes with its project.
type projectLineage struct{ lineage *openlineage.Service }

// Contents implements tenancy.Contents.
func (c projectLineage) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	return "", c.lineage.Forget(ctx, tx, p)
}

// teller tells a receiver of what Falaj ran: names, schemas, digests and counts.
type teller struct {
	*App
	sender *openlineage.Sender
	zone   residency.Zone
}

// told is what an event of ours becomes, and where the data may be that it names.
type told struct {
	events []openlineage.Event
	what   string
	label  residency.Label
}

// tell sends what an event tells of. An error brings it again, so one that no other
// try would mend is logged, and passed over.
func (t teller) tell(ctx context.Context, e event.Event) error {
	ctx = identity.With(ctx, identity.Loop("openlineage"))
	out, err := t.translate(ctx, e)
	switch {
	case fault.Is(err, fault.NotFound), fault.Is(err, fault.Gone):
		return nil // it was deleted meanwhile
	case err != nil:
		return err
	case len(out.events) == 0:
		return nil
	}
	err = t.guard.Pass(ctx, residency.Transfer{
		Project: e.Project, What: out.what, Label: out.label, Where: "the receiver of lineage", Zone: t.zone, Action: string(openlineage.ActionReport),
	})
	if fault.Is(err, fault.PermissionDenied) {
		return nil // on record
	}
	for _, o := range out.events {
		if err == nil {
			err = t.sender.Send(ctx, o)
		}
		if fault.Is(err, fault.Invalid) {
			t.log.ErrorContext(ctx, "lineage was not told", slog.String("of", out.what), slog.String("error", err.Error()))
			err = nil
		}
	}
	return err
}

func (t teller) translate(ctx context.Context, e event.Event) (told, error) {
	p := project.Name(e.Project)
	switch e.Name {
	case dataset.EventVersionCreated:
		var of dataset.Event
		if err := e.Decode(&of); err != nil {
			return told{}, err
		}
		v, err := t.datasets.Version(ctx, p, dataset.Ref{Name: of.Name, Number: of.Number})
		if err != nil {
			return told{}, err
		}
		return t.version(v), nil
	case feature.EventMaterialised, feature.EventFailed:
		var of feature.RunEnded
		if err := e.Decode(&of); err != nil {
			return told{}, err
		}
		r, err := t.features.Run(ctx, p, of.ID)
		if err != nil {
			return told{}, err
		}
		return materialised(p, r), nil
	case training.JobStarted, training.JobFinished:
		var of training.Event
		if err := e.Decode(&of); err != nil {
			return told{}, err
		}
		j, err := t.training.One(ctx, p, of.Job)
		if err != nil {
			return told{}, err
		}
		return job(j, e), nil
	}
	return told{}, nil
}

// began is an event of Falaj's, to be completed.
func began(p project.Name, run, job, kind string, at time.Time) openlineage.Event {
	return openlineage.Event{
		Type: openlineage.Start, Time: at.UTC(), Producer: openlineage.Producer, SchemaURL: openlineage.SchemaURL,
		Run: &openlineage.Run{ID: openlineage.RunID(run)},
		Job: &openlineage.Job{Namespace: openlineage.Namespace(p), Name: job, Facets: openlineage.Facets{}.WithJobType(kind)},
	}
}

// ended is a started event and how it ended.
func ended(start openlineage.Event, how openlineage.Type, at time.Time, why string) []openlineage.Event {
	end := start
	end.Type, end.Time = how, at.UTC()
	if why != "" {
		run := *start.Run
		run.Facets = openlineage.Facets{}.WithError(why)
		end.Run = &run
	}
	start.Outputs = nil
	return []openlineage.Event{start, end}
}

// input is a version of a dataset that was read, "weather@3".
func input(p project.Name, ref string) openlineage.Dataset {
	name, version, _ := registry.SplitRef(ref) // of models, too
	d := openlineage.Dataset{Namespace: openlineage.Namespace(p), Name: name}
	if version != "" {
		d.Facets = d.Facets.WithVersion(version)
	}
	return d
}

// version tells how a version of a dataset came to be. What is rejected is told as
// a failure, without the reason, which may name values.
func (t teller) version(v dataset.Version) told {
	kind := "import"
	if p := v.Lineage.Producer; p != nil {
		kind = p.Kind
	}
	start := began(v.Project, string(v.ID), kind+"/"+v.Dataset, strings.ToUpper(kind), v.Created)
	for _, parent := range v.Lineage.Parents {
		start.Inputs = append(start.Inputs, input(v.Project, parent.Ref))
	}
	out := input(v.Project, v.Ref().String())
	fields := make([]openlineage.Field, len(v.Schema))
	for i, f := range v.Schema {
		fields[i] = openlineage.Field{Name: f.Name, Type: string(f.Type)}
	}
	out.Facets = out.Facets.WithSchema(fields)
	if columns := openlineage.MadeOf(v.Project, v.Lineage.Columns); columns != nil {
		out.Facets = out.Facets.WithColumns(columns)
	}
	if v.Protection == dataset.Open && v.State == dataset.Accepted {
		at := filepath.Join(t.cfg.tablesDir(), dataset.TableKey(v.Project, v.Dataset))
		out.Facets = out.Facets.WithSymlinks("LOCATION", openlineage.Name{Namespace: "file", Name: at})
	}
	out.OutputFacets = out.OutputFacets.WithRows(v.Rows, v.Bytes)
	start.Outputs = []openlineage.Dataset{out}
	how, why := openlineage.Complete, ""
	if v.State == dataset.Rejected {
		how, why = openlineage.Fail, "the version does not meet its expectations"
	}
	return told{ended(start, how, v.Created, why), "lineage of dataset " + v.Ref().String(), v.Residency}
}

// materialised tells of features that were brought online.
func materialised(p project.Name, r feature.Run) told {
	at := r.StartedAt
	if at.IsZero() {
		at = r.CreatedAt
	}
	start := began(p, string(r.ID), "materialise/"+r.View, "MATERIALISATION", at)
	for _, in := range r.Inputs {
		start.Inputs = append(start.Inputs, input(p, in.Dataset))
	}
	out := input(p, openlineage.ViewPrefix+feature.Header{Name: r.View, Version: r.Version}.Ref())
	out.OutputFacets = out.OutputFacets.WithRows(r.Rows, 0)
	start.Outputs = []openlineage.Dataset{out}
	how, why := openlineage.Complete, ""
	switch r.State {
	case feature.Failed:
		how, why = openlineage.Fail, "the materialisation failed"
	case feature.Cancelled:
		how = openlineage.Abort
	default:
	}
	return told{ended(start, how, r.EndedAt, why), "lineage of materialisation " + string(r.ID), r.Residency}
}

// job tells that a job started, or how it ended. Attempts of one job are one run.
func job(j training.Job, e event.Event) told {
	start := began(j.Project, string(j.ID), "job/"+j.Name, "TRAINING", j.StartedAt)
	if j.StartedAt.IsZero() {
		start.Time = e.Time
	}
	for _, in := range j.Inputs {
		if model := in.Model(); model != "" {
			start.Inputs = append(start.Inputs, input(j.Project, openlineage.ModelPrefix+model))
			continue
		}
		start.Inputs = append(start.Inputs, input(j.Project, in.Dataset()))
	}
	out := told{[]openlineage.Event{start}, "lineage of job " + string(j.ID), j.Residency}
	if e.Name != training.JobFinished {
		return out
	}
	if strings.Contains(j.Model, "@") { // else it was logged, and has no name
		start.Outputs = []openlineage.Dataset{input(j.Project, openlineage.ModelPrefix+j.Model)}
	}
	how, why := openlineage.Complete, ""
	switch j.State {
	case training.Failed:
		how, why = openlineage.Fail, string(j.Class)
	case training.Cancelled:
		how = openlineage.Abort
	default:
	}
	out.events = ended(start, how, e.Time, why)
	return out
}
