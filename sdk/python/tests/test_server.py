"""Asks a real server: the one that FALAJ_URL, FALAJ_TOKEN and FALAJ_PROJECT name, or its own.

Its own is started from bin/ (`make build`) or from what the Go tests built, on a
temporary directory, and gets a small dataset, a job that saves checkpoints and
reads data with this package, and nothing of the network.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile
import threading
import unittest
from typing import Any
from unittest import mock

import falaj

ROOT = pathlib.Path(__file__).parents[3]
PROJECT = "sdk"

# A job: leaves with SAVED at its third step, and goes on from there.
PROGRAM = """
import sys, falaj
last = falaj.latest()
step = last.step if last else 0
print("from", step, len(falaj.data("numbers").paths), flush=True)
while step < 5:
    step += 1
    with falaj.checkpoint(step, keep=2) as directory:
        (directory / "weights").write_text(str(step))
    if step == 3 and not last:
        sys.exit(falaj.SAVED)
print("kept", sorted(p.name for p in falaj.latest().path.parent.iterdir()), flush=True)
print("said", falaj.Client().request("GET", "/api/v1/whoami")["kind"], flush=True)
"""


def binary() -> pathlib.Path | None:
    """The falaj to start; the other binary must be beside it."""
    for directory in (ROOT / "bin", ROOT / ".tmp" / "test"):
        if (directory / "falaj").exists() and (directory / "falaj-worker").exists():
            return directory / "falaj"
    return None


class Server:
    """`falaj up` on a temporary directory, with a project."""

    def __init__(self, program: pathlib.Path) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="falaj-sdk-")
        self._program, self.kills = program, 0
        url = self._start("127.0.0.1:0")
        home = pathlib.Path(self._home.name)
        try:
            token = json.loads((home / "config" / "falaj" / "credentials.json").read_text())["token"]
            with mock.patch.dict(os.environ):
                os.environ.pop("FALAJ_PROJECT", None)  # the tester's own
                falaj.Client(url, token).apply(json.dumps({"api_version": "falaj/v1", "kind": "Project", "name": PROJECT, "spec": {}}))
        except BaseException:
            self.stop()
            raise
        self.client = falaj.Client(url, token, PROJECT)

    def _start(self, address: str) -> str:
        home = pathlib.Path(self._home.name)
        env = {k: v for k, v in os.environ.items() if not k.startswith("FALAJ_")}
        env.update(HOME=str(home), XDG_CONFIG_HOME=str(home / "config"))
        isolation = os.environ.get("FALAJ_ISOLATION")
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(self._program), "up", "--data", str(home / "data"), *(["--isolation", isolation] if isolation else []),
                 "--http", address, "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0"],
                stdout=subprocess.PIPE, stderr=log, text=True, env=env,
            )
        assert self._process.stdout
        late = threading.Timer(120, self._process.kill)
        late.start()
        url = ""
        for line in self._process.stdout:
            if line.startswith("Falaj is ready at "):
                url = line.split()[-1]
                break
        late.cancel()
        if not url:
            said = (home / "log").read_text()
            self.stop()
            raise AssertionError(f"the server did not start:\n{said}")
        return url

    def kill(self) -> None:
        """kill -9."""
        self.kills += 1
        self._process.kill()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()

    def restart(self) -> None:
        """kill -9, and a new start at the same address."""
        self.kill()
        self._start(self.client.url.removeprefix("http://"))

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()
        self._home.cleanup()


class ServerTest(unittest.TestCase):
    client: falaj.Client

    @classmethod
    def setUpClass(cls) -> None:
        if os.environ.get("FALAJ_URL"):
            cls.client = falaj.Client()
            return
        program = binary()
        if program is None:
            why = "there is no falaj to ask: run `make build`, or set FALAJ_URL, FALAJ_TOKEN and FALAJ_PROJECT"
            if os.environ.get("CI"):
                raise AssertionError(why)
            raise unittest.SkipTest(why)
        server = Server(program)
        cls.addClassCleanup(server.stop)
        cls.client = server.client

    def send(self, path: str, content: bytes) -> Any:
        return self.client.request(
            "POST", f"/api/v1/projects/{self.client.project}{path}", content, content_type="application/octet-stream",
        )

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return self.client.apply(json.dumps({"api_version": "falaj/v1", "kind": kind, "name": name, "spec": spec}))[0]

    def numbers(self) -> None:
        """A dataset of three rows."""
        self.apply("Dataset", "sdk-numbers", {})
        if not self.client.request("GET", f"/api/v1/projects/{self.client.project}/datasets/sdk-numbers/versions")["items"]:
            self.send("/datasets/sdk-numbers/versions?filename=numbers.csv", b"n,f,s\n1,0.5,a\n2,,b\n3,2.5,\n")

    def test_whoami(self) -> None:
        self.assertTrue(self.client.request("GET", "/api/v1/whoami"))

    def test_query(self) -> None:
        found = self.client.query("SELECT 1 AS one, 'NaN'::DOUBLE AS odd, NULL AS nothing")
        self.assertEqual(found.columns, ("one", "odd", "nothing"))
        self.assertEqual(found.rows[0][0], 1)
        self.assertNotEqual(found.rows[0][1], found.rows[0][1])
        self.assertIsNone(found.rows[0][2])

    def test_data(self) -> None:
        self.numbers()
        rows = list(falaj.data("sdk-numbers@1", self.client).rows())
        self.assertEqual(rows, [{"n": 1, "f": 0.5, "s": "a"}, {"n": 2, "f": None, "s": "b"}, {"n": 3, "f": 2.5, "s": None}])
        self.assertEqual(self.client.preview("sdk-numbers", 1).rows, [[1, 0.5, "a"]])

    def test_job(self) -> None:
        """A job reads data, saves, is run again and goes on where it was."""
        self.numbers()
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for module in sorted((ROOT / "sdk" / "python" / "falaj").glob("*.py")):
                tar.add(module, f"falaj/{module.name}")
            member = tarfile.TarInfo("train.py")
            member.size = len(PROGRAM)
            tar.addfile(member, io.BytesIO(PROGRAM.encode()))
        source = self.send("/sources", archive.getvalue())["digest"]
        job = self.apply("Job", "sdk-checkpoints", {
            "source": source, "command": ["python3", "train.py"], "data": {"numbers": "sdk-numbers@1"}, "timeout": "2m",
        })["id"]
        path = f"/api/v1/projects/{self.client.project}/jobs/{job}"
        for _ in range(8):
            said = self.client.request("GET", path + "?wait=30s")
            if said["state"] in ("succeeded", "failed", "cancelled"):
                break
        self.assertEqual(said["state"], "succeeded", said)
        self.assertEqual([t["class"] for t in self.client.request("GET", path + "?view=full")["tries"]], ["saved", "succeeded"])

    def test_problems(self) -> None:
        for ask, kind in (
            (lambda: self.client.query("SELECT FROM"), "invalid"),
            (lambda: self.client.preview("no-such-dataset"), "not_found"),
            (lambda: self.client.predict("no-such-deployment", {"X": [[1]]}), "not_found"),
            (lambda: self.client.label("no-such-deployment", {"a": 1}), "not_found"),
            (lambda: self.client.deployment_status("no-such-deployment"), "not_found"),
            (lambda: self.client.rollout("no-such-deployment"), "not_found"),
            (lambda: self.client.monitor("no-such-monitor"), "not_found"),
            (lambda: next(self.client.windows("no-such-monitor")), "not_found"),
            (lambda: self.client.apply("kind: Nothing"), "invalid"),
            (lambda: falaj.Client(self.client.url, "wrong").request("GET", "/api/v1/whoami"), "unauthenticated"),
        ):
            with self.assertRaises(falaj.Error) as caught:
                ask()
            self.assertEqual(caught.exception.kind, kind, str(caught.exception))
