#!/usr/bin/env bash
# Makes the images of the engines' tests in .tmp/images, of this Debian's files, and
# the Python environment of Ray, of which one image has the profiler.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

for program in runc:runc busybox:busybox-static; do
	command -v "${program%%:*}" >/dev/null || missing="${missing:-} ${program##*:}"
done
[ -e /usr/lib/python3/dist-packages/torch ] || missing="${missing:-} python3-torch"
[ -e /usr/lib/python3/dist-packages/sklearn ] || missing="${missing:-} python3-sklearn"
if [ -n "${missing:-}" ]; then
	say "Debian's$missing"
	# shellcheck disable=SC2086 # A list.
	apt $missing
fi
venv ray test/engines/ray/requirements.txt
python3 scripts/engines/images.py .tmp/images
