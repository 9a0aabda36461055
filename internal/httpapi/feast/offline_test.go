package feast

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// refusing are features that the caller may not use.
type refusing struct{ OfflineFeatures }

func (refusing) CheckHistory(context.Context, feature.HistoryRequest, *arrow.Schema) error {
	return fault.New(fault.PermissionDenied, "feature.history is not allowed")
}

// sent are datasets that have nothing but the rows that were sent.
type sent struct {
	OfflineDatasets
	t *testing.T
}

func (s sent) One(context.Context, project.Name, string) (dataset.Dataset, error) {
	return dataset.Dataset{}, fault.New(fault.NotFound, "there is no dataset")
}

func (s sent) Sent(context.Context, io.Reader) (array.RecordReader, error) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.BinaryTypes.String}, {Name: "event_timestamp", Type: arrow.FixedWidthTypes.Timestamp_us}}, nil)
	return array.NewRecordReader(schema, nil)
}

func (s sent) Create(context.Context, dataset.CreateRequest) (dataset.Version, error) {
	s.t.Error("rows are kept of what is refused")
	return dataset.Version{}, fault.New(fault.Internal, "it is")
}

// A training set that is refused leaves no entity rows.
func TestPersistAsksFirst(t *testing.T) {
	o := Offline{Features: refusing{}, Datasets: sent{t: t}}
	err := o.Put(t.Context(), []byte(`{"api": "persist", "retrieve_func": "get_historical_features", "data_source_name": "kept", "feature_refs": ["v:f"]}`), strings.NewReader(""))
	if !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
}
