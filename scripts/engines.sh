#!/usr/bin/env bash
# Installs the real engines and clients that the tests run against: those of `make
# test`, and with the argument all also those of `make test-engines`. Idempotent;
# every package is pinned here, in a requirements file, or by Debian's release.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
	say "PostgreSQL"
	apt postgresql
fi
if ! [ -x /usr/sbin/mariadbd ] && ! command -v mariadbd >/dev/null; then
	say "MariaDB"
	apt mariadb-server
fi
bin=$PWD/.tmp/bin GOFLAGS="" CGO_ENABLED=0 build versitygw versitygw github.com/versity/versitygw/cmd/versitygw "" # S3
bin=$PWD/.tmp/bin GOFLAGS="" CGO_ENABLED=0 build grpcurl grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl ""
if [ ! -x /usr/sbin/slurmctld ] || [ ! -x /usr/sbin/slurmd ] || [ ! -x /usr/sbin/munged ] || [ ! -x /usr/bin/sbatch ]; then
	say "Slurm"
	apt slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
fi
if ! command -v mold >/dev/null; then
	say "mold"
	apt mold # links the tests in half the time; they do without
fi
if ! command -v runc >/dev/null || ! command -v busybox >/dev/null || ! command -v ip >/dev/null; then
	say "runc"
	apt runc busybox-static iproute2
fi
if ! command -v redis-server >/dev/null; then
	say "Redis"
	apt redis-server
fi
if ! command -v chromium >/dev/null; then
	say "Chromium"
	apt chromium
fi
if ! [ -d /usr/share/libonnx-testdata ]; then
	say "ONNX's backend tests"
	apt libonnx-testdata
fi
if ! new_node; then
	say "Node"
	fetch_node
fi
venv mlflow internal/httpapi/mlflow/testdata/requirements.txt
venv mlflow-full test/mlflow/testdata/requirements.txt # with a server, and what is autologged
venv mlflow-2 internal/httpapi/mlflow/testdata/requirements-2.txt
venv feast internal/httpapi/feast/testdata/requirements.txt
venv feast-redis internal/feature/online/redis/testdata/requirements.txt
venv openlineage test/lineage/testdata/requirements.txt
venv sdk sdk/python/tests/requirements.txt
venv model-signing internal/registry/testdata/requirements.txt
venv great-expectations internal/cli/suite/testdata/requirements.txt
venv optuna test/optuna/testdata/requirements.txt
venv oip test/oip/testdata/requirements.txt
venv triton test/oip/testdata/requirements-triton.txt # with a tritonserver
if ! [ -e /usr/lib/x86_64-linux-gnu/libb64.so.0d ]; then
	say "libb64"
	apt libb64-0d # perf_analyzer links it
fi
venv perf test/oip/testdata/requirements-perf.txt # with perf_analyzer, of the last wheel that has it for Debian 12's libc
venv tables internal/httpapi/iceberg/testdata/requirements.txt
scripts/engines/images.sh
venv sdk-torch sdk/python/tests/requirements-torch.txt --python /usr/bin/python3.11 --system-site-packages # with Debian's torch
venv mlflow-torch internal/httpapi/mlflow/testdata/requirements-torch.txt --python /usr/bin/python3.11 --system-site-packages
scripts/demo-data.sh
if [ "${1:-}" = all ]; then
	scripts/engines/spark.sh
	scripts/engines/kube.sh
	scripts/engines/keycloak.sh
fi
