package dataset

import (
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// IngestRequest keeps rows that came from a source.
type IngestRequest struct {
	Project project.Name
	Name    string // of the dataset, which must be declared
	Rows    array.RecordReader
	// Base is the version that the rows continue; 0 for none. The new version may
	// be only where it may be, and is at least as closed.
	Base int64
	// Next makes it the version right after Base: it fails with fault.Conflict when
	// the dataset's name means another one than Base by then.
	Next bool
	// Beside is the source, with where its rows may be.
	Beside   []Labelled
	Producer Producer
	Progress func(rows int64) // may be nil
	// Then runs in the transaction in which the version comes to be, or, when the
	// newest version has the same content, in one of its own: what it records is
	// there exactly if the version is.
	Then func(ctx context.Context, tx *store.Tx, v Version) error
}

// Ingest makes a version of a source's rows. When the newest version has the
// same content, made the same way, that is returned, marked Unchanged; an older
// one with the same content does not count, because the dataset has to mean what
// the source has. Needs dataset.import. Errors: as Create; fault.Unavailable when a
// person was erased from Base meanwhile.
func (s *Writes) Ingest(ctx context.Context, r IngestRequest) (Version, error) {
	if who := identity.From(ctx); who.Kind == identity.Attempt {
		return Version{}, fault.New(fault.PermissionDenied, "%s cannot ingest rows of a source", who).WithHint("From a job, write tables through the catalog, or import a file.")
	}
	d, err := s.allowed(ctx, ActionImport, r.Project, r.Name)
	if err != nil {
		return Version{}, err
	}
	def, err := s.defaults(ctx, r.Project)
	if err != nil {
		return Version{}, err
	}
	beside := r.Beside
	if r.Base > 0 {
		v, err := s.find(ctx, ActionRead, r.Project, Ref{Name: r.Name, Number: r.Base})
		if err != nil {
			return Version{}, err
		}
		beside = append(slices.Clip(beside), Labelled{Name: "dataset " + v.Ref().String(), Residency: v.Residency, Classification: v.Classification})
	}
	beside = append(slices.Clip(beside), Labelled{Name: "dataset " + d.Name + " as declared", Residency: def.residency(d.Spec), Classification: def.classification(d.Spec)})
	label, class, err := inherit(nil, beside...)
	if err != nil {
		return Version{}, err
	}
	w := draft{
		project: r.Project, name: r.Name, spec: d.Spec, residency: label, classification: class,
		rows: r.Rows, progress: r.Progress, then: r.Then, newest: true, base: r.Base,
	}
	if r.Next {
		w.onto = &onto{base: r.Base}
	}
	if err := s.settle(ctx, w); err != nil {
		return Version{}, err
	}
	w.lineage = func() (Lineage, error) { return Lineage{Producer: &r.Producer}, nil }
	ctx, cancel := context.WithTimeout(ctx, s.limits.ImportTime)
	defer cancel()
	v, err := s.write(ctx, w)
	return v, inTime(ctx, err)
}
