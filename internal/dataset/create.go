package dataset

import (
	"context"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// CreateRequest keeps derived rows.
type CreateRequest struct {
	Project project.Name
	Name    string // of the dataset; declared with a default spec if it is not there
	Rows    array.RecordReader
	// Parents are all the versions that the producer could read, whether it did
	// or not: residency and classification come from them. Those that a job's
	// attempt could read are added.
	Parents []Ref
	// Beside is what the rows also come from and is no dataset: its labels count
	// as the parents' do. The lineage does not have it; Producer.Text may.
	Beside   []Labelled
	Producer Producer
	// Columns is called after the rows were read, and returns their column lineage; nil, or a
	// result of nil, means unknown.
	Columns func() Columns
	// Description is for a dataset that is declared by this.
	Description string
	Progress    func(rows int64) // may be nil

	read  []JobInputs // parents, too, for which nobody is asked
	asked time.Time   // a dataset that was deleted since is not made again; zero makes it
	then  func(ctx context.Context, tx *store.Tx, v Version) error
}

// Labelled is anything with a label, such as a model.
type Labelled struct {
	Name           string // "model delay@3"
	Residency      residency.Label
	Classification Classification
}

const (
	maxParents      = 1000
	maxProducerText = 64 << 10
)

// Create makes a version of rows that were derived from other versions. It may
// be only where all parents may be, and is as closed as the most closed of
// them, or more where the dataset's own spec says so. The same rows from the
// same parents, made by the same thing, give the version that exists. Needs
// dataset.import, and dataset.read on every parent. Errors: as Import;
// fault.PermissionDenied naming the parents when no zone may hold the result;
// fault.Conflict for a rejected parent, fault.Gone for a deleted one,
// fault.Unavailable for one that a person was erased from while it was read.
func (s *Writes) Create(ctx context.Context, r CreateRequest) (Version, error) {
	if len(r.Parents) > maxParents {
		return Version{}, fault.New(fault.Invalid, "%d parents are over the limit of %d", len(r.Parents), maxParents)
	}
	if len(r.Producer.Text) > maxProducerText {
		r.Producer.Text = fault.Clip(r.Producer.Text, 200)
	}
	if r.Producer.Digest == "" && r.Producer.Text != "" {
		r.Producer.Digest = digestOf([]byte(r.Producer.Text))
	}
	d, err := s.allowed(ctx, ActionImport, r.Project, r.Name)
	if fault.Is(err, fault.NotFound) {
		if _, _, err = s.definitions.Apply(ctx, ApplyRequest{Project: r.Project, Name: r.Name, Spec: Spec{Description: r.Description}, asked: r.asked}); err == nil {
			d, err = s.load(ctx, r.Project, r.Name)
		}
	}
	if err != nil {
		return Version{}, err
	}
	def, err := s.defaults(ctx, r.Project)
	if err != nil {
		return Version{}, err
	}
	parents, err := s.parents(ctx, r.Project, r.Parents)
	if err != nil {
		return Version{}, err
	}
	read, err := s.jobInputs(ctx)
	if err != nil {
		return Version{}, err
	}
	read = slices.Concat(read, r.read)
	parents, beside, err := s.withJobInputs(ctx, r.Project, parents, r.Beside, read)
	if err != nil {
		return Version{}, err
	}
	label, class, err := inherit(parents, beside...)
	if err != nil {
		return Version{}, err
	}
	w := draft{project: r.Project, name: r.Name, spec: d.Spec, rows: r.Rows, read: read, progress: r.Progress, then: r.then}
	orphan := len(parents)+len(beside) == 0
	w.residency, w.classification, err = confine(d, def, orphan, label, class)
	if err == nil && orphan {
		w.classification, err = s.notBelow(ctx, d, w.classification)
	}
	if err != nil {
		return Version{}, err
	}
	if err := s.settle(ctx, w); err != nil {
		return Version{}, err
	}
	lineage := Lineage{Parents: lineageOf(parents)}
	if r.Producer != (Producer{}) {
		lineage.Producer = &r.Producer
	}
	w.lineage = func() (Lineage, error) {
		if r.Columns != nil {
			lineage.Columns = r.Columns().bounded()
		}
		return lineage, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.limits.ImportTime)
	defer cancel()
	v, err := s.write(ctx, w)
	return v, inTime(ctx, err)
}

// parents resolves what a derivation could read.
func (s *Writes) parents(ctx context.Context, p project.Name, refs []Ref) ([]Version, error) {
	vs := make([]Version, 0, len(refs))
	for _, ref := range refs {
		v, err := s.find(ctx, ActionRead, p, ref)
		if err != nil {
			return nil, fault.Wrap(err, "parent %s", ref)
		}
		if err := v.Usable(); err != nil {
			return nil, fault.Wrap(err, "parent %s", ref)
		}
		if !slices.ContainsFunc(vs, func(o Version) bool { return o.ID == v.ID }) {
			vs = append(vs, v)
		}
	}
	slices.SortFunc(vs, func(a, b Version) int { return compareRefs(a.Ref(), b.Ref()) })
	return vs, nil
}

func compareRefs(a, b Ref) int {
	if a.Name != b.Name {
		if a.Name < b.Name {
			return -1
		}
		return 1
	}
	return int(a.Number - b.Number)
}

func lineageOf(vs []Version) []Parent {
	parents := make([]Parent, len(vs))
	for i, v := range vs {
		parents[i] = Parent{Ref: v.Ref().String(), ID: v.ID, ContentDigest: v.ContentDigest}
	}
	return parents
}

// inherit is the residency and classification of what is made from versions, and
// from things beside them. Without any, the label is nil and the class public:
// nothing is inherited.
func inherit(vs []Version, beside ...Labelled) (residency.Label, Classification, error) {
	if len(vs)+len(beside) == 0 {
		return nil, Public, nil
	}
	ps := make([]residency.Parent, 0, len(vs)+len(beside))
	class := Public
	for _, v := range vs {
		ps = append(ps, residency.Parent{Name: "dataset " + v.Ref().String(), Label: v.Residency})
		class = project.Strictest(class, v.Classification)
	}
	for _, b := range beside {
		ps = append(ps, residency.Parent{Name: b.Name, Label: b.Residency})
		class = project.Strictest(class, b.Classification)
	}
	label, err := residency.Derive(ps...)
	return label, class, err
}

// confine adds what the dataset's own spec demands to what was inherited; an
// orphan inherited nothing, and has the project's defaults.
func confine(d Dataset, def Defaults, orphan bool, label residency.Label, class Classification) (residency.Label, Classification, error) {
	if orphan {
		return residency.Of(def.residency(d.Spec)...), def.classification(d.Spec), nil
	}
	if d.Spec.Classification != "" {
		class = project.Strictest(class, d.Spec.Classification)
	}
	if len(d.Spec.Residency) == 0 {
		return label, class, nil
	}
	label, err := residency.Derive(
		residency.Parent{Name: "the parents of " + d.Name, Label: label},
		residency.Parent{Name: "dataset " + d.Name + " as declared", Label: d.Spec.Residency})
	return label, class, err
}

// notBelow holds a version that was made of nothing here to the class of the one before
// it, unless two people have lowered what is declared of the dataset since.
func (s *core) notBelow(ctx context.Context, d Dataset, class Classification) (Classification, error) {
	if d.Accepted <= d.Lowered {
		return class, nil
	}
	var before Version
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		before, err = s.cfg.Store.Version(ctx, tx, d.ID, d.Accepted)
		return err
	})
	if err != nil || !before.Classification.Journalled() {
		return class, err
	}
	return project.Strictest(class, before.Classification), nil
}
