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
ORT=1.32.0

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
	unpack ".tmp/wheels/onnxruntime-$ORT-"*cp312*x86_64*.whl "onnxruntime/capi/libonnxruntime.so.$ORT" "lib/libonnxruntime.so.$ORT"
fi
if [ "$(readlink lib/libonnxruntime.so)" != "libonnxruntime.so.$ORT" ]; then
	# The new library is complete before anything points to it; then the old ones go.
	ln -sfn "libonnxruntime.so.$ORT" lib/libonnxruntime.so.link
	mv -f lib/libonnxruntime.so.link lib/libonnxruntime.so
	find lib -maxdepth 1 -name 'libonnxruntime.so.*' ! -name "libonnxruntime.so.$ORT" -delete
fi

if [ ! -f lib/package-index.json ]; then
	"$python" scripts/package_index.py >lib/package-index.json.new
	mv lib/package-index.json.new lib/package-index.json
fi
