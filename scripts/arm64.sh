#!/usr/bin/env bash
# Builds Falaj for 64-bit ARM on this machine, into bin/arm64/, a folder to copy: falaj,
# falaj-worker, uv and lib/ with ONNX Runtime. Installs Debian's cross compiler.
# LDFLAGS come from the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

out=bin/arm64
mkdir -p $out/lib .tmp
command -v aarch64-linux-gnu-g++ >/dev/null || apt gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross

UV=$(sed -n 's/^UV=//p' scripts/deps.sh)
ORT=$(sed -n 's/^ORT=//p' scripts/deps.sh)
if [ "$(cat $out/.stamp 2>/dev/null)" != "$UV $ORT" ]; then
	say "uv $UV and ONNX Runtime $ORT for arm64"
	fetch scripts/uv.txt --platform manylinux2014_aarch64 --python-version 3.12
	unpack ".tmp/wheels/uv-$UV-"*aarch64*.whl "uv-$UV.data/scripts/uv" $out/uv
	chmod 755 $out/uv
	fetch scripts/onnxruntime.txt --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --python-version 3.12
	unpack ".tmp/wheels/onnxruntime-$ORT-"*aarch64*.whl "onnxruntime/capi/libonnxruntime.so.$ORT" $out/lib/libonnxruntime.so
	echo "$UV $ORT" >$out/.stamp
fi

say "building for arm64 (the first time takes some minutes)"
export GOOS=linux GOARCH=arm64
CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ go build -ldflags "$LDFLAGS" -o $out/falaj ./cmd/falaj
CGO_ENABLED=0 go build -ldflags "$LDFLAGS" -o $out/falaj-worker ./cmd/falaj-worker
