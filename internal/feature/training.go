package feature

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/lineage"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// TrainingSetRequest asks for a training set: the rows of the spine, with
// features as they were known at each row's time.
type TrainingSetRequest struct {
	Project     project.Name
	Name        string // of the dataset that keeps it
	Description string
	Spine       Source   // entity keys, time, labels and whatever else should be kept
	Timestamp   string   // column of the spine
	Labels      []string // columns of the spine, for people and tools
	Selection
}

// TrainingSet is the definition from which a dataset version was made.
type TrainingSet struct {
	Project   project.Name      `json:"project"`
	Dataset   string            `json:"dataset"` // "delays@1"
	Digest    string            `json:"digest"`  // of the dataset version's content
	Rows      int64             `json:"rows"`
	Spine     Source            `json:"spine"`
	Inputs    []InputRef        `json:"inputs"` // of the spine
	Timestamp string            `json:"timestamp"`
	Labels    []string          `json:"labels,omitempty"`
	Service   string            `json:"service,omitempty"` // "delay@2", when it was asked for
	Views     []UsedView        `json:"views"`
	Computed  []ComputedFeature `json:"computed,omitempty"`
	Purpose   string            `json:"purpose,omitempty"`
	// Protected are the columns that its maker did not see as they are, Clear the
	// protected features that are.
	Protected []ProtectedFeature `json:"protected,omitempty"`
	Clear     []string           `json:"clear,omitempty"`
	Stats     []offline.Stats    `json:"stats"` // beside views
	CreatedAt time.Time          `json:"created_at"`
	CreatedBy string             `json:"created_by"`
}

// ColumnsOf says which columns of the set are which features, of those that a schema has.
func (t *TrainingSet) ColumnsOf(names []string) []naming.Column {
	features := map[string]string{}
	for _, v := range t.Views {
		for _, f := range v.Features {
			features[f.Column] = v.View + ":" + f.Feature
		}
	}
	for _, f := range t.Computed {
		features[f.Column] = f.Feature
	}
	out := make([]naming.Column, len(names))
	for i, name := range names {
		out[i] = naming.Column{Name: name, Feature: features[name]}
	}
	return out
}

// UsedView is an exact version of a view over exact versions of its source.
type UsedView struct {
	View     string        `json:"view"`   // "weather@3"
	Digest   string        `json:"digest"` // of the definition
	Inputs   []InputRef    `json:"inputs"`
	Features []UsedFeature `json:"features"`
}

// UsedFeature is a feature and the column that holds it.
type UsedFeature struct {
	Feature string `json:"feature"`
	Column  string `json:"column"`
}

// OfflineReads makes training sets and other point-in-time joins.
type OfflineReads struct {
	*access
	streams *Streams
}

// MakeTrainingSet joins and keeps a training set as a dataset version, whose
// parents are the spine's inputs and the sources of the views. The same request
// over the same versions gives the same version. Needs feature.history on each
// view, and what reading the sources and making the dataset need. Errors:
// fault.Invalid for a wrong spine or selection; fault.Conflict for a rejected
// source; fault.PermissionDenied when no zone may hold the result.
func (s *OfflineReads) MakeTrainingSet(ctx context.Context, r TrainingSetRequest) (TrainingSet, error) {
	// 1. Resolve everything to exact versions, and ask.
	pl, err := s.resolve(ctx, r.Project, r.Selection)
	if err != nil {
		return TrainingSet{}, asInvalid(err)
	}
	t, views, err := s.planTrainingSet(ctx, r, pl)
	if err != nil {
		return TrainingSet{}, err
	}

	// 2. Join, straight into the dataset.
	definition, err := json.Marshal(t)
	if err != nil {
		return TrainingSet{}, err
	}
	digest, err := digestOf(t)
	if err != nil {
		return TrainingSet{}, err
	}
	var made lineage.Trace
	for i := range views {
		views[i].Open = made.Watch(i, views[i].Open, datasetsOf(t.Views[i].Inputs)...)
	}
	open := made.Watch(lineage.Spine, s.spine(r.Project, t.Spine, t.Inputs), datasetsOf(t.Inputs)...)
	joined, err := offline.Join(ctx, offline.Spine{Open: open, Timestamp: r.Timestamp}, views, s.cfg.Join)
	if err != nil {
		return TrainingSet{}, fault.Wrap(err, "creating training set %s", r.Name)
	}
	rows, failed := pl.finish(ctx, joined)
	rows, err = s.hiding(ctx, r.Project, rows, t.Protected)
	if err != nil {
		return TrainingSet{}, err
	}
	defer rows.Release()
	kept, err := s.cfg.Data.Create(ctx, Derived{
		Project: r.Project, Name: r.Name, Description: r.Description, Rows: rows, Parents: t.parents(),
		Kind: "training_set", Digest: digest, Text: string(definition),
		Origins: func() lineage.Origins { return made.Origins(pl.join(r.Timestamp)) },
	})
	if err != nil {
		return TrainingSet{}, fault.Wrap(err, "creating training set %s", r.Name)
	}

	// 3. Record what it was made of.
	t.Dataset, t.Digest, t.Rows, t.Stats = kept.Ref, kept.Digest, kept.Rows, joined.Stats()
	for i, n := range failed() {
		t.Computed[i].Failed = n
	}
	t.CreatedAt, t.CreatedBy = store.At(s.now()).Time(), identity.From(ctx).ID
	err = s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		if err := s.trainingSetStore.PutTrainingSet(ctx, tx, t); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionHistory), Object: "dataset " + t.Dataset,
			Detail: map[string]any{"views": pl.refs(), "digest": t.Digest, "definition": digest, "purpose": t.Purpose, "clear": t.Clear},
		}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(r.Project), EventTrainingSet, TrainingSetMade{Dataset: t.Dataset, Views: pl.refs()})
	})
	return t, fault.Wrap(err, "recording training set %s", t.Dataset)
}

// planTrainingSet asks for permission and finds out, before anything is read,
// what the training set will be made of.
func (s *OfflineReads) planTrainingSet(ctx context.Context, r TrainingSetRequest, pl *plan) (TrainingSet, []offline.View, error) {
	t := TrainingSet{Project: r.Project, Spine: r.Spine, Timestamp: r.Timestamp, Labels: r.Labels, Service: pl.service}
	used, views, objects, err := s.planViews(ctx, r.Project, pl)
	if err != nil {
		return t, nil, err
	}
	t.Views, t.Computed = used, pl.computes()
	if t.Purpose, err = s.forPurpose(ctx, ActionHistory, r.Project, pl, r.Purpose); err != nil {
		return t, nil, err
	}
	sees, err := s.show(ctx, pl, objects)
	if err != nil {
		return t, nil, err
	}
	t.Protected, t.Clear = pl.hides(sees), sees.features()

	if err := id.CheckName("training set name", r.Name); err != nil {
		return t, nil, err
	}
	if err := r.Spine.validate("spine"); err != nil {
		return t, nil, err
	}
	schema, err := s.look(ctx, r.Project, &t.Spine)
	if err != nil {
		return t, nil, fault.Wrap(err, "inspecting the spine")
	}
	inputs, err := s.streams.pin(ctx, r.Project, t.Spine)
	if err != nil {
		return t, nil, fault.Wrap(err, "the spine")
	}
	t.Inputs = refsOf(inputs)
	return t, views, checkSpine(schema, r, pl)
}

// planViews asks for permission on the views of a plan, pins their sources and
// makes them ready for the join. objects are what was asked about, beside views.
func (s *OfflineReads) planViews(ctx context.Context, p project.Name, pl *plan) (used []UsedView, views []offline.View, objects []policy.Object, err error) {
	for i, v := range pl.views {
		if i == 0 { // a first answer without looking at any source
			if err := s.allow(ctx, ActionRead, p, v.view.Ref()); err != nil {
				return nil, nil, nil, err
			}
		}
		inputs, err := s.streams.pin(ctx, p, v.view.Source)
		if err != nil {
			return nil, nil, nil, fault.Wrap(err, "source of feature view %s", v.view.Ref())
		}
		label, class, err := origin(inputs)
		if err != nil {
			return nil, nil, nil, err
		}
		object := policy.Object{Project: string(p), Kind: objectKind, Name: v.view.Ref(), Classification: string(class), Residency: label}
		if err := s.cfg.Authorizer.Allow(ctx, ActionHistory, object); err != nil {
			return nil, nil, nil, err
		}
		u := UsedView{View: v.view.Ref(), Digest: v.view.Digest, Inputs: refsOf(inputs)}
		selected := make(map[int]string, len(v.features))
		for n, f := range v.features {
			selected[f] = pl.column(v.order[n])
			if v.order[n] < pl.visible {
				u.Features = append(u.Features, UsedFeature{Feature: v.view.Features[f].Name, Column: selected[f]})
			}
		}
		used, objects = append(used, u), append(objects, object)
		views = append(views, s.offline(v.view, u.Inputs, selected))
	}
	return used, views, objects, nil
}

// checkSpine refuses a spine that cannot be joined, before anything is read.
func checkSpine(schema *arrow.Schema, r TrainingSetRequest, pl *plan) error {
	names := make([]string, 0, schema.NumFields())
	for _, f := range schema.Fields() {
		names = append(names, f.Name)
	}
	need := func(what, name string, t value.Type) error {
		at := slices.Index(names, name)
		if at < 0 {
			return fault.New(fault.Invalid, "the spine has no column %q, which is %s%s", clip(name), what, nearest(name, names)).
				WithHint("Its columns are %s.", clipList(names))
		}
		if t != 0 && !offline.Readable(schema.Field(at).Type, t) {
			return fault.New(fault.Invalid, "column %q of the spine, which is %s, is %s and not %s", clip(name), what, schema.Field(at).Type, t).
				WithHint("CAST the column in the spine's SQL.")
		}
		if t.Elem() == value.Timestamp {
			if err := r.Spine.zoned(schema.Field(at).Type); err != nil {
				return fault.New(fault.Invalid, "column %q of the spine, which is %s: %s", clip(name), what, err).WithHint("%s", fault.HintOf(err))
			}
		}
		return nil
	}
	if r.Timestamp == "" {
		return fault.New(fault.Invalid, "the spine's timestamp column is required").
			WithHint("Name the event timestamp column of the spine. The spine's columns are %s.", clipList(names))
	}
	if err := need("the event timestamp", r.Timestamp, value.Timestamp); err != nil {
		return err
	}
	for _, l := range r.Labels {
		if err := need("a label", l, 0); err != nil {
			return err
		}
	}
	for _, v := range pl.views {
		for _, k := range v.view.Keys {
			if err := need("a join key of feature view "+v.view.Ref(), k.Name, k.Type); err != nil {
				return err
			}
		}
	}
	if pl.computed != nil {
		for _, q := range pl.computed.request {
			if err := need("a request value of feature service "+pl.service, q.name, q.typ); err != nil {
				return err
			}
		}
	}
	for _, n := range pl.names {
		if slices.Contains(names, n) {
			return fault.New(fault.Invalid, "column %q is in the features and in the spine", n).
				WithHint("Request full feature names, or rename the column in the spine.")
		}
	}
	return nil
}

// parents are all dataset versions that the training set could read.
func (t *TrainingSet) parents() []string {
	var refs []string
	add := func(inputs []InputRef) {
		for _, in := range inputs {
			if !slices.Contains(refs, in.Dataset) {
				refs = append(refs, in.Dataset)
			}
		}
	}
	add(t.Inputs)
	for _, v := range t.Views {
		add(v.Inputs)
	}
	slices.Sort(refs)
	return refs
}

// TrainingSet returns the definition from which a dataset version was made. Needs feature.read.
func (s *OfflineReads) TrainingSet(ctx context.Context, p project.Name, dataset string) (TrainingSet, error) {
	if err := s.allow(ctx, ActionRead, p, dataset); err != nil {
		return TrainingSet{}, err
	}
	return s.trainingSet(ctx, p, dataset)
}

func (s *core) trainingSet(ctx context.Context, p project.Name, dataset string) (TrainingSet, error) {
	var t TrainingSet
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		t, err = s.trainingSetStore.TrainingSet(ctx, tx, p, dataset)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return t, fault.New(fault.NotFound, "there is no training set %q in project %s", clip(dataset), p).
			WithHint("Name a version made by `falaj feature training-set`, such as delays@1.")
	}
	return t, err
}

// datasetsOf are the datasets of inputs.
func datasetsOf(inputs []InputRef) []string {
	refs := make([]string, len(inputs))
	for i, in := range inputs {
		refs[i] = in.Dataset
	}
	return refs
}

// join is how the plan makes the columns of a training set.
func (pl *plan) join(timestamp string) lineage.Join {
	j := lineage.Join{Timestamp: timestamp, Names: pl.names, Read: pl.read, Visible: pl.visible, Views: make([]lineage.View, len(pl.views))}
	for i, v := range pl.views {
		of := lineage.View{Times: []string{v.view.Timestamp, v.view.CreatedTimestamp}}
		for _, key := range v.view.Keys {
			of.Keys = append(of.Keys, key.Name)
		}
		for n, f := range v.features {
			column := lineage.Feature{At: v.order[n]}
			switch {
			case f < len(v.view.Aggregations):
				column.Column, column.Aggregated = v.view.Aggregations[f].Column, true
			case f < len(v.view.Features):
				column.Column = v.view.Features[f].Name
			}
			of.Features = append(of.Features, column)
		}
		j.Views[i] = of
	}
	if c := pl.computed; c != nil {
		for _, q := range c.request {
			j.Requests = append(j.Requests, q.name)
		}
		for _, f := range c.fields {
			j.Computed = append(j.Computed, lineage.Computed{Uses: f.program.Uses()})
		}
	}
	return j
}
