#!/usr/bin/env bash
# The suites that need a real engine: test-engines.sh [SUITE…] [-- GO-TEST-FLAG…].
# Without a suite all of them, which takes half an hour on two cores; `make test`
# names those that fit in its time. One at a time: each starts whole clusters. An
# absent engine is skipped with the command that installs it, and fails under
# CI=true.
set -euo pipefail
cd "$(dirname "$0")/.."
suites=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	suites+=("./test/engines/$1")
	shift
done
[ $# = 0 ] || shift
go test -count=1 -p 1 -timeout 15m "$@" "${suites[@]:-./test/engines/...}"
