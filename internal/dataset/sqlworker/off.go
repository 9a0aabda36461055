//go:build !duckdb_arrow

package sqlworker

import (
	"io"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Main refuses: this binary has no DuckDB.
func Main(_ io.Reader, stdout io.Writer) error {
	return child.NewWriter(stdout).Fault(fault.New(fault.Unsupported, "this build does not support SQL").
		WithHint("Build with -tags duckdb_arrow, as the Makefile does."))
}
