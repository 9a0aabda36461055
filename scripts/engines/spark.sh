#!/usr/bin/env bash
# Installs Spark with Iceberg's runtime under .tmp/venv/spark: a client of the
# catalog of open tables. The jar is pinned by digest.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

name=iceberg-spark-runtime-4.0_2.13 version=1.10.1
digest=2192a0881ed0f5773b5a83a8820d2b0b2069beec203028643a1c338551007f09

command -v java >/dev/null || apt openjdk-17-jre-headless
venv spark test/engines/spark/requirements.txt
jar=.tmp/venv/spark/iceberg.jar
echo "$digest  $jar" | sha256sum --check --status 2>/dev/null && exit
say "Iceberg's runtime for Spark"
command -v mvn >/dev/null || apt maven
retry mvn -q -B dependency:copy -Dartifact="org.apache.iceberg:$name:$version" -DoutputDirectory=.tmp/venv/spark -Dmdep.useBaseVersion=true </dev/null
mv ".tmp/venv/spark/$name-$version.jar" "$jar"
echo "$digest  $jar" | sha256sum --check --status || die "$jar is not what was pinned"
