#!/usr/bin/env bash
# Installs Keycloak under .tmp/venv/keycloak: an identity provider to log in at. Pinned by
# digest. It is built once here, so that a test's server starts in seconds.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

version=26.7.3
digest=27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f
home=$PWD/.tmp/venv/keycloak
[ "$(cat "$home/version" 2>/dev/null)" != $version ] || exit 0
command -v java >/dev/null || apt openjdk-17-jre-headless
command -v mvn >/dev/null || apt maven
say "Keycloak"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
retry mvn -q -B dependency:copy -Dartifact=org.keycloak:keycloak-quarkus-dist:$version:zip -DoutputDirectory="$work" -Dmdep.useBaseVersion=true </dev/null
zip=$work/keycloak-quarkus-dist-$version.zip
echo "$digest  $zip" | sha256sum --check --status || die "Keycloak is not what was pinned"
(cd "$work" && python3 -m zipfile -e "$zip" .)
rm -rf "$home"
mv "$work/keycloak-$version" "$home"
chmod +x "$home/bin/kc.sh"
"$home/bin/kc.sh" build --db=dev-mem --health-enabled=true >/dev/null
echo $version >"$home/version"
