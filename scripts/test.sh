#!/usr/bin/env bash
# All tests. `make test` has vetted them with the linters. As many packages at a time
# as keep two cores busy: those that link DuckDB or ONNX Runtime take a gigabyte each
# while they link, and those below test/ wait for the servers that they drive.
set -euo pipefail
cd "$(dirname "$0")/.."
# Clients in Python start a hundred times: without its bytecode MLflow takes four
# seconds of CPU to import, with it one. Images set this to stay small.
unset PYTHONDONTWRITEBYTECODE
link=()
! command -v mold >/dev/null || link=(-ldflags=-extldflags=-fuse-ld=mold)
flags=("${link[@]}" -vet=off -shuffle=on -count=1 -timeout 15m)
go test "${flags[@]}" -race -p 3 $(go list ./... | grep -vE '/(test|bench)/')
(cd tools/release && GOFLAGS=-buildvcs=false go test -vet=off -count=1 .)
# These drive the built binaries, which have no race detector: it would see the driver only.
go test "${flags[@]}" -p 4 $(go list ./bench/... ./test/... | grep -v /test/engines)
# Of the suites on real engines those that fit here; `make test-engines` runs all.
scripts/test-engines.sh oci local slurm chaos
scripts/test-engines.sh isolation -- -skip 'OnKubernetes|OnRay'
python=.tmp/venv/sdk/bin/python # of `make engines`: has pyarrow and pandas
[ -x $python ] || python=python3
timeout 10m $python -m unittest discover -q -s sdk/python/tests -t sdk/python
python=.tmp/venv/sdk-torch/bin/python # Debian's torch, and pyarrow
[ ! -x $python ] || (cd sdk/python && timeout 10m "../../$python" -m unittest -q tests.test_torch)
[ -x $python ] || [ -z "${CI:-}" ] || { echo "torch is not installed: make engines" >&2; exit 1; }
