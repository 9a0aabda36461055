#!/usr/bin/env bash
# Installs torch 2 for the proof that a checkpoint is loaded by another number of
# ranks (make proof-dcp): 670 MB to fetch, 1.5 GB in .tmp/venv/dcp. Debian's torch
# 1.13, which the other tests use, cannot do it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

dir=.tmp/venv/dcp
requirements=test/engines/dcp/requirements.txt
stamp=$(sha256sum "$requirements" scripts/engines/cudaless.py | sha256sum | cut -d' ' -f1)
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && exit
say "Python environment dcp"
rm -rf "$dir"
bin/uv venv -q --no-config --python-preference only-system --python 3.11 "$dir"
retry bin/uv pip install -q --no-deps --python "$dir/bin/python" -r "$requirements"
lib=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/torch/lib
"$dir/bin/python" scripts/engines/cudaless.py "$lib" "$dir/cudaless"
cp "$dir"/cudaless/*.so* "$lib/" # torch looks beside itself
echo "$stamp" >"$dir/.stamp"
