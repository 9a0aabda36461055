#!/usr/bin/env bash
# All tests. `make test` has vetted them with the linters. A part that fails does not keep the
# others from running: the last line names all that failed. As many packages at a time
# as keep two cores busy: those that link DuckDB or ONNX Runtime take a gigabyte each
# while they link, and those below test/ wait for the servers that they drive.
set -euo pipefail
cd "$(dirname "$0")/.."
# Clients in Python start a hundred times: without its bytecode MLflow takes four
# seconds of CPU to import, with it one. Images set this to stay small.
unset PYTHONDONTWRITEBYTECODE
link=()
! command -v mold >/dev/null || link=(-ldflags=-extldflags=-fuse-ld=mold)
failed=()
part() { # NAME COMMAND…
	local began=$SECONDS
	"${@:2}" || failed+=("$1")
	echo "  · $1: $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s"
}
flags=("${link[@]}" -vet=off -shuffle=on -count=1 -timeout 15m)
release() { (cd tools/release && GOFLAGS=-buildvcs=false go test -vet=off -count=1 .); }
# Of the suites on real engines those that fit here; `make test-engines` runs all.
engines() {
	scripts/test-engines.sh oci local slurm chaos &&
		scripts/test-engines.sh isolation -- -skip 'OnKubernetes|OnRay'
}
sdk() {
	local python=.tmp/venv/sdk/bin/python # of `make engines`: has pyarrow and pandas
	[ -x $python ] || python=python3
	timeout 10m $python -m unittest discover -q -s sdk/python/tests -t sdk/python || return
	python=.tmp/venv/sdk-torch/bin/python # Debian's torch, and pyarrow
	if [ -x $python ]; then
		(cd sdk/python && timeout 10m "../../$python" -m unittest -q tests.test_torch)
	elif [ -n "${CI:-}" ]; then
		echo "torch is not installed: make engines" >&2
		return 1
	fi
}
part "packages, with the race detector" go test "${flags[@]}" -race -p 3 $(go list ./... | grep -vE '/(test|bench)/')
part release release
# These drive the built binaries, which have no race detector: it would see the driver only.
part "built binaries" go test "${flags[@]}" -p 4 $(go list ./bench/... ./test/... | grep -v /test/engines)
part engines engines
part "Python SDK" sdk
if [ ${#failed[@]} -gt 0 ]; then
	printf 'failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
