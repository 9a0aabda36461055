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
jar openlineage.jar io.openlineage:openlineage-spark_2.13 1.53.0 5d84b0ae7e72909b5aae7ed87df878bf06b28d9ac3005765c3529d0a66dbae6f
