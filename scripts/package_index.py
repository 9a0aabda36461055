"""Prints, as JSON, the package index that pip is set up with on this machine
and the host:port pairs that serve it. Falaj allows environment builds to
connect there and nowhere else; environments.index and environments.hosts in the
configuration override it."""

import json
import os
import subprocess
import sys
from urllib.parse import urlsplit

from pip._internal.models.index import PyPI


def configured() -> str:
    run = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True, text=True, check=False,
    )
    return os.environ.get("PIP_INDEX_URL") or run.stdout.strip()


def port(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (80 if parts.scheme == 'http' else 443)}"


index = configured() or PyPI.simple_url
if "@" in urlsplit(index).netloc:
    sys.exit(
        f"the package index {urlsplit(index).hostname} of this machine's pip is set up with credentials, which would be\n"
        "written to lib/package-index.json and shown by uv's command line. Use one that needs none in your\n"
        "network: PIP_INDEX_URL=https://mirror.example/simple make deps"
    )
hosts = [port(index)]
if index == PyPI.simple_url:
    hosts.append(f"{PyPI.file_storage_domain}:443")
json.dump({"index": index, "hosts": hosts}, sys.stdout)
print()
