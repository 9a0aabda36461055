#!/usr/bin/env bash
# All tests, with the race detector. The packages that link DuckDB or ONNX
# Runtime link slowly; -p 2 keeps two cores busy without running out of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
go vet ./...
go test -race -shuffle=on -count=1 -p 2 -timeout 15m ./...
