#!/usr/bin/env bash
# Makes the Go code of the protocols in api/ anew: after a change of the .proto, not in
# every build.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

venv proto scripts/proto.txt
mkdir -p .tmp/bin
GOFLAGS="" go build -o .tmp/bin/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go # of go.mod's version
.tmp/venv/proto/bin/python -m grpc_tools.protoc -I api --plugin=protoc-gen-go=.tmp/bin/protoc-gen-go \
	--go_out=. --go_opt=module=github.com/falaj-ml/falaj api/falaj/online/v1/online.proto api/inference/service.proto api/optuna/storage.proto
