package jobs

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
)

// Children of datasets are this binary again.
func TestMain(m *testing.M) { datasettest.Main(m, nil) }
