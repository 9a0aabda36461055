#!/usr/bin/env bash
# The suites that need a real engine; arguments go to go test. An absent engine
# is skipped with the command that installs it, and fails under CI=true.
set -euo pipefail
cd "$(dirname "$0")/.."
go test -count=1 -p 1 -timeout 15m "$@" ./test/engines/...
