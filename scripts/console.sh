#!/usr/bin/env bash
# Builds the web console into internal/console/dist, from where the binary takes
# it. Does nothing when that is up to date. Without Node the binary has a plain
# page instead: that is said, and is an error only under CI=true.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

dist=internal/console/dist
sources=$(find console api/openapi.json -name node_modules -prune -o -path console/dist -prune -o -path console/src/generated -prune -o -type f -print |
	LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1)
[ "$(cat $dist/.sources 2>/dev/null)" = "$sources" ] && exit

without() {
	[ "${CI:-}" != true ] || die "$1"
	say "$1 The console is the plain page."
	exit 0
}
new_node || without "Node 20.19 or newer with npm is needed to build the web console; \`make engines\` fetches one."

packages=$(sha256sum console/package-lock.json | cut -d' ' -f1)
if [ "$(cat console/node_modules/.lock 2>/dev/null)" != "$packages" ]; then
	say "packages of the web console"
	retry npm --prefix console ci --silent || without "The packages of the web console could not be fetched."
	echo "$packages" >console/node_modules/.lock
fi
say "building the web console"
said=$(npm --prefix console run --silent test 2>&1) || die "$said"
npm --prefix console run --silent build
echo "$sources" >$dist/.sources
