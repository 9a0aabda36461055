#!/usr/bin/env bash
# Installs Spark with Iceberg's runtime and OpenLineage's listener under .tmp/venv/spark:
# a client of the catalog of open tables, which tells of its lineage. Jars are pinned by
# digest.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

command -v java >/dev/null || apt openjdk-17-jre-headless
venv spark test/engines/spark/requirements.txt

# jar FILE GROUP:NAME VERSION DIGEST: a jar beside Spark's Python environment.
jar() {
	local jar=.tmp/venv/spark/$1 name=${2#*:}
	echo "$4  $jar" | sha256sum --check --status 2>/dev/null && return
	say "$name for Spark"
	command -v mvn >/dev/null || apt maven
	retry mvn -q -B dependency:copy -Dartifact="$2:$3" -DoutputDirectory=.tmp/venv/spark -Dmdep.useBaseVersion=true </dev/null
	mv ".tmp/venv/spark/$name-$3.jar" "$jar"
	echo "$4  $jar" | sha256sum --check --status || die "$jar is not what was pinned"
}
jar iceberg.jar org.apache.iceberg:iceberg-spark-runtime-4.0_2.13 1.10.1 2192a0881ed0f5773b5a83a8820d2b0b2069beec203028643a1c338551007f09
jar openlineage.jar io.openlineage:openlineage-spark_2.13 1.27.0 e5eabb678472b4622a2f1a9f8f0d7f1abad1808b5a36464c288f3962993867a2
