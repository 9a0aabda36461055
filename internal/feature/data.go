package feature

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/feature/lineage"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Data is what features need from datasets. Its methods ask for the permission
// of the context's principal themselves, and journal classified reads.
type Data interface {
	// Resolve names the version that a ref ("weather", "weather@3") means; a ref
	// without a version is the newest accepted one. Errors: fault.NotFound;
	// fault.Conflict for a rejected version; fault.Gone for a deleted one.
	Resolve(ctx context.Context, p project.Name, ref string) (DatasetVersion, error)
	// Standing is the version that stands for one now ("weather@5"), if persons were
	// erased from it; else the same.
	Standing(ctx context.Context, p project.Name, ref string) (string, error)
	// Open reads columns of a version, all when there are none. The caller
	// releases the rows.
	Open(ctx context.Context, p project.Name, ref string, columns []string) (array.RecordReader, error)
	// Reauthorize asks whether the caller may go on reading a version. It journals nothing.
	Reauthorize(ctx context.Context, p project.Name, ref string) error
	// Query runs SQL in the sandboxed child over inputs (table → ref). With nil
	// inputs the tables that the SQL names are datasets of the same name. The
	// caller releases the rows, whose times are instants.
	Query(ctx context.Context, p project.Name, sql string, inputs map[string]string, local Local) (Rows, error)
	// Create keeps derived rows as a version, which may be where all its parents
	// may be. Errors: fault.PermissionDenied when that is nowhere.
	Create(ctx context.Context, d Derived) (DatasetVersion, error)
	// Columns are those that a dataset declares. Error: fault.Invalid when it
	// declares none.
	Columns(ctx context.Context, p project.Name, dataset string) (*arrow.Schema, error)
	// Append makes a version of the rows of the newest accepted one and more.
	Append(ctx context.Context, a Appended) (DatasetVersion, error)
}

// Appended is rows behind those of the newest version of a dataset.
type Appended struct {
	Project project.Name
	Dataset string
	Base    string             // the newest accepted version, "clicks@3"; empty for none
	Rows    array.RecordReader // all rows, those of Base first; the caller releases it
	Text    string             // where the rows come from, for people
	// Then runs in the transaction of the version, if that is accepted and Base was
	// the newest until then; otherwise Append fails with fault.Conflict.
	Then func(ctx context.Context, tx *store.Tx, v DatasetVersion) error
}

// DatasetVersion describes a version of a dataset.
type DatasetVersion struct {
	Ref            string // "weather@3"
	Digest         string // of the content
	Residency      residency.Label
	Classification project.Classification
	Schema         *arrow.Schema // may be nil in the inputs of Rows
	Rows           int64
}

// Local says which instants a query's times without a zone are: those at which the
// clocks of a zone show them, of UTC when it is empty. Where clocks show a time twice
// it is the later instant, or the earlier; what they skip is as long after the change.
type Local struct {
	TimeZone string
	Early    bool
}

// Rows is the result of a query, and what it could read.
type Rows struct {
	array.RecordReader
	Local   []string // the columns whose times had no zone
	Inputs  []Input
	Origins lineage.Origins // nil when they are not known
}

// ColumnOrigins implements lineage.Traced.
func (r Rows) ColumnOrigins() lineage.Origins { return r.Origins }

// Input is a version that SQL sees as a table.
type Input struct {
	Table string
	DatasetVersion
}

// Derived is a dataset version to be made.
type Derived struct {
	Project     project.Name
	Name        string // of the dataset, which is made if it is not there
	Description string
	Rows        array.RecordReader // the caller releases it
	Parents     []string           // refs with versions: all that could be read
	Kind        string             // of the producer: "training_set"
	Digest      string             // of the producer's definition
	Text        string             // the definition for people, at most 64 KiB
	// Origins are asked for when the rows have been read; nil is not known.
	Origins func() lineage.Origins
}
