package lineage

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/training"
)

// Reported are the events that an OpenLineage receiver gets a report of.
var Reported = []string{dataset.EventVersionCreated, training.JobStarted, training.JobFinished, feature.EventMaterialised, feature.EventFailed}

// Reporter sends Falaj's runs to an OpenLineage receiver: names, schemas, digests and counts.
type Reporter struct {
	*Service
	Sender *openlineage.Sender
	Zone   residency.Zone // of the receiver
}

// report is what one event becomes, with the residency label of the data that it names.
type report struct {
	events []openlineage.Event
	what   string
	label  residency.Label
}

// Report handles an event: it sends the event's report, if the residency label permits the
// receiver's zone. The subscription retries an event on error, so a report that the receiver
// will never accept is logged and skipped.
func (t Reporter) Report(ctx context.Context, e event.Event) error {
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
	err = t.Guard.Pass(ctx, residency.Transfer{
		Project: e.Project, What: out.what, Label: out.label, Where: "the receiver of lineage", Zone: t.Zone, Action: string(openlineage.ActionReport),
	})
	if fault.Is(err, fault.PermissionDenied) {
		return nil // on record
	}
	for _, o := range out.events {
		if err == nil {
			err = t.Sender.Send(ctx, o)
		}
		if fault.Is(err, fault.Invalid) {
			t.Log.ErrorContext(ctx, "lineage report rejected", slog.String("of", out.what), slog.String("error", err.Error()))
			err = nil
		}
	}
	return err
}

func (t Reporter) translate(ctx context.Context, e event.Event) (report, error) {
	p := project.Name(e.Project)
	switch e.Name {
	case dataset.EventVersionCreated:
		var of dataset.Event
		if err := e.Decode(&of); err != nil {
			return report{}, err
		}
		v, err := t.Datasets.Version(ctx, p, dataset.Ref{Name: of.Name, Number: of.Number})
		if err != nil {
			return report{}, err
		}
		return t.version(v), nil
	case feature.EventMaterialised, feature.EventFailed:
		var of feature.RunEnded
		if err := e.Decode(&of); err != nil {
			return report{}, err
		}
		r, err := t.Features.Materialisation.Run(ctx, p, of.ID)
		if err != nil {
			return report{}, err
		}
		return materialised(p, r), nil
	case training.JobStarted, training.JobFinished:
		var of training.Event
		if err := e.Decode(&of); err != nil {
			return report{}, err
		}
		j, err := t.Training.One(ctx, p, of.Job)
		if err != nil {
			return report{}, err
		}
		return job(j, e), nil
	}
	return report{}, nil
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
func (t Reporter) version(v dataset.Version) report {
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
		at := filepath.Join(t.Tables, dataset.TableKey(v.Project, v.Dataset))
		out.Facets = out.Facets.WithSymlinks("LOCATION", openlineage.Name{Namespace: "file", Name: at})
	}
	out.OutputFacets = out.OutputFacets.WithRows(v.Rows, v.Bytes)
	start.Outputs = []openlineage.Dataset{out}
	how, why := openlineage.Complete, ""
	if v.State == dataset.Rejected {
		how, why = openlineage.Fail, "the version does not meet its expectations"
	}
	return report{ended(start, how, v.Created, why), "lineage of dataset " + v.Ref().String(), v.Residency}
}

// materialised tells of features that were brought online.
func materialised(p project.Name, r feature.Run) report {
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
	return report{ended(start, how, r.EndedAt, why), "lineage of materialisation " + string(r.ID), r.Residency}
}

// job tells that a job started, or how it ended. Attempts of one job are one run.
func job(j training.Job, e event.Event) report {
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
	out := report{[]openlineage.Event{start}, "lineage of job " + string(j.ID), j.Residency}
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
