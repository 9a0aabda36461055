//go:build duckdb_arrow

package sqlworker

import (
	"testing"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestFull: a disk without room is told from what limits.sql_disk allows.
func TestFull(t *testing.T) {
	for msg, full := range map[string]bool{
		`IO Error: Could not write all bytes to file "duckdb_temp_storage-0.tmp": wanted=262144 wrote=4096: No space left on device`:                                true,
		`IO Error: Could not create file "x": Disk quota exceeded`:                                                                                                  true,
		"Out of Memory Error: failed to offload data block of size 256.0 KiB (1.0 MiB/1.0 MiB used).\nThis limit was set by the 'max_temp_directory_size' setting.": false,
	} {
		kind := duckdb.ErrorTypeIO
		if !full {
			kind = duckdb.ErrorTypeOutOfMemory
		}
		if err := explain(&duckdb.Error{Type: kind, Msg: msg}); !fault.Is(err, fault.Exhausted) || fault.Full(err) != full || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, full %t", msg, err, fault.Full(err))
		}
	}
}
