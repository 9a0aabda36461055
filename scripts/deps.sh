#!/usr/bin/env bash
# Fetches what Falaj runs with, by digest, into bin/ and lib/: uv (environment
# builds) and the ONNX Runtime library. Does nothing when all is there.
#
# Also writes lib/package-index.json: the package index that this machine's pip
# is set up with, which is where environment builds may connect to.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

UV=0.13.9
ORT=1.27.0

mkdir -p bin lib .tmp
python=$(tools_python)

if [ ! -x bin/uv ] || [ "$(bin/uv --version | cut -d' ' -f2)" != "$UV" ]; then
	say "uv $UV"
	fetch scripts/uv.txt --platform manylinux2014_x86_64 --python-version 3.12
	unpack ".tmp/wheels/uv-$UV-"*x86_64*.whl "uv-$UV.data/scripts/uv" bin/uv
	chmod 755 bin/uv
fi

if [ ! -f "lib/libonnxruntime.so.$ORT" ]; then
	say "ONNX Runtime $ORT"
	fetch scripts/onnxruntime.txt --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --python-version 3.12
	rm -f lib/libonnxruntime.so*
	unpack ".tmp/wheels/onnxruntime-$ORT-"*x86_64*.whl "onnxruntime/capi/libonnxruntime.so.$ORT" "lib/libonnxruntime.so.$ORT"
	ln -sf "libonnxruntime.so.$ORT" lib/libonnxruntime.so
fi

if [ ! -f lib/package-index.json ]; then
	"$python" scripts/package_index.py >lib/package-index.json.new
	mv lib/package-index.json.new lib/package-index.json
fi
