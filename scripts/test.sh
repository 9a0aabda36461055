#!/usr/bin/env bash
# All tests, with the race detector. -p 2: the packages that link DuckDB or ONNX
# Runtime take a gigabyte each while they link.
set -euo pipefail
cd "$(dirname "$0")/.."
link=()
! command -v mold >/dev/null || link=(-ldflags=-extldflags=-fuse-ld=mold)
go test "${link[@]}" -race -shuffle=on -count=1 -p 2 -timeout 15m $(go list ./... | grep -v /test/engines)
# Of the suites on real engines, which drive the built binaries, those that fit
# here; `make test-engines` runs all.
scripts/test-engines.sh oci local slurm chaos
scripts/test-engines.sh isolation -- -skip 'OnKubernetes|OnRay'
python=.tmp/venv/sdk/bin/python # of `make engines`: has pyarrow and pandas
[ -x $python ] || python=python3
$python -m unittest discover -q -s sdk/python/tests -t sdk/python
python=.tmp/venv/sdk-torch/bin/python # Debian's torch, and pyarrow
[ ! -x $python ] || (cd sdk/python && "../../$python" -m unittest -q tests.test_torch)
[ -x $python ] || [ -z "${CI:-}" ] || { echo "torch is not installed: make engines" >&2; exit 1; }
