"""Streams datasets from a real server: all of it, in shards, and on after the server
was killed in the middle."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import pickle
import sys
import tempfile
import unittest
from unittest import mock

import falaj
from falaj import _flight
from tests.test_server import PROJECT, Server, binary

# `make engines` installs them; without them CI fails.
CI = bool(os.environ.get("CI"))
HAVE_ARROW = CI or importlib.util.find_spec("pyarrow") is not None
HAVE_FRAMES = CI or all(importlib.util.find_spec(name) for name in ("pandas", "polars"))
ROWS = 40_000


def started(case: type[unittest.TestCase]) -> Server:
    """A server with the dataset "numbers", which counts; ends with the class."""
    program = binary()
    if program is None:
        if CI:
            raise AssertionError("there is no falaj to ask: run `make build`")
        raise unittest.SkipTest("there is no falaj to ask: run `make build`")
    server = Server(program)
    case.addClassCleanup(server.stop)
    put(server.client, "numbers", {}, "n,half,word,at,day,even\n" + "".join(
        f"{i},{i / 2 if i % 7 else ''},w{i},2013-01-01T00:00:{i % 60:02}Z,2013-01-{i % 28 + 1:02},{str(i % 2 == 0).lower()}\n" for i in range(ROWS)))
    return server


def put(client: falaj.Client, name: str, spec: dict[str, object], content: str) -> None:
    client.apply(json.dumps({"api_version": "falaj/v1", "kind": "Dataset", "name": name, "spec": spec}))
    client.request("POST", f"/api/v1/projects/{PROJECT}/datasets/{name}/versions?filename={name}.csv", content.encode(), content_type="application/octet-stream")


class WithoutTest(unittest.TestCase):
    def test_pyarrow_that_does_not_fit(self) -> None:
        # pyarrow names no NumPy that it needs, so a resolver may choose one that the interpreter's does not fit.
        with tempfile.TemporaryDirectory() as d:
            package = pathlib.Path(d, "pyarrow")
            package.mkdir()
            (package / "__init__.py").write_text('raise ImportError("pyarrow requires NumPy 2.0 or newer, found 1.24.2")')
            with mock.patch.dict("sys.modules"), mock.patch.object(sys, "path", [d, *sys.path]), self.assertRaises(falaj.Error) as caught:
                for name in [m for m in sys.modules if m.partition(".")[0] == "pyarrow"]:
                    del sys.modules[name]
                falaj.dataset("weather", falaj.Client("http://127.0.0.1:1", "t", "p"))
        self.assertEqual(caught.exception.kind, "unsupported")
        self.assertIn("found 1.24.2", caught.exception.detail)
        self.assertIn("versions that work together", caught.exception.hint)

    def test_without_pyarrow(self) -> None:
        with mock.patch.dict("sys.modules", {"pyarrow": None}), self.assertRaises(falaj.Error) as caught:
            falaj.dataset("weather", falaj.Client("http://127.0.0.1:1", "t", "p"))
        self.assertEqual(caught.exception.kind, "unsupported")
        self.assertIn("falaj[arrow]", caught.exception.hint)

    @unittest.skipUnless(HAVE_ARROW, "pyarrow is not installed: make engines")
    def test_nobody_there(self) -> None:
        with self.assertRaises(falaj.Error) as caught:
            falaj.dataset("weather", falaj.Client("http://127.0.0.1:1", "t", "p"))
        self.assertEqual(caught.exception.kind, "unavailable")

    def test_a_client_is_copied_to_workers(self) -> None:
        client = falaj.Client("http://127.0.0.1:1", "t", "p", timeout=7)
        again = pickle.loads(pickle.dumps(client))
        self.assertEqual((again.url, again.project, again.timeout, again._token), (client.url, "p", 7, "t"))


@unittest.skipUnless(HAVE_ARROW, "pyarrow is not installed: make engines")
class DatasetTest(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = started(cls)
        cls.client = cls.server.client
        put(cls.client, "bad", {"expectations": [{"check": "not_null", "column": "a"}]}, "a,b\n,1\n")

    def kind(self, call: object, words: str = "") -> str:
        with self.assertRaises(falaj.Error) as caught:
            call()  # type: ignore[operator]
        self.assertIn(words, str(caught.exception))
        return caught.exception.kind

    def test_whole(self) -> None:
        data = falaj.dataset("numbers", self.client)
        self.assertEqual((data.version, len(data), data.schema.names), ("numbers@1", ROWS, ["n", "half", "word", "at", "day", "even"]))
        table = data.to_arrow()
        self.assertEqual(table.schema, data.schema)
        self.assertEqual(table.column("n").to_pylist(), list(range(ROWS)))
        self.assertEqual(data.to_arrow(["word", "n"]).slice(5, 1).to_pylist(), [{"word": "w5", "n": 5}])
        self.assertNotIn("token", repr(data))

    @unittest.skipUnless(HAVE_FRAMES, "pandas or polars is not installed: make engines")
    def test_frames(self) -> None:
        data = falaj.dataset("numbers@1", self.client)
        frame = data.to_pandas(["n", "half"])
        self.assertEqual((len(frame), frame["n"].sum(), frame["half"].isna().sum()), (ROWS, ROWS * (ROWS - 1) // 2, -(-ROWS // 7)))
        frame = data.to_polars()
        self.assertEqual((frame.height, frame["word"][3], str(frame["at"][3])), (ROWS, "w3", "2013-01-01 00:00:03+00:00"))
        for name, call in {"pandas": data.to_pandas, "polars": data.to_polars, "torch": data.torch}.items():
            with mock.patch.dict("sys.modules", {name: None}):
                self.assertEqual(self.kind(call, f"falaj[{name}]"), "unsupported")

    def test_batches(self) -> None:
        data = falaj.dataset("numbers", self.client)
        sizes = [b.num_rows for b in data.batches(["n"], 999)]
        self.assertEqual((set(sizes[:-1]), sum(sizes)), ({999}, ROWS))
        seen: list[int] = []
        for index in range(3):
            stopped = next(data.batches(["n"], 100, shard=(index, 3)))
            seen += stopped.column(0).to_pylist()
            for batch in data.batches(["n"], shard=(index, 3), skip=100):
                seen += batch.column(0).to_pylist()
        self.assertEqual(seen, list(range(ROWS)))
        self.assertEqual([b.column(0).to_pylist() for b in data.batches(["n"], 3, skip=ROWS - 10, take=5)], [[ROWS - 10, ROWS - 9, ROWS - 8], [ROWS - 7, ROWS - 6]])
        self.assertEqual(list(data.batches(["n"], skip=ROWS)), [])
        for wrong in (lambda: data.batches(["nn"]), lambda: data.batches("n"), lambda: data.batches(shard=(2, 2)), lambda: data.batches(skip=-1), lambda: next(data.batches(batch_size=0))):
            self.assertEqual(self.kind(wrong), "invalid")

    def test_refusals(self) -> None:
        self.assertEqual(self.kind(lambda: falaj.dataset("nothing", self.client), "nothing"), "not_found")
        self.assertEqual(self.kind(lambda: falaj.dataset("numbers@7", self.client), "newest version is 1"), "not_found")
        self.assertEqual(self.kind(lambda: falaj.dataset("bad", self.client), "is rejected"), "conflict")
        self.assertEqual(self.kind(lambda: falaj.dataset("../numbers", self.client)), "invalid")
        self.assertEqual(self.kind(lambda: falaj.dataset("numbers", falaj.Client(self.client.url, "wrong", PROJECT))), "unauthenticated")
        self.assertEqual(self.kind(lambda: falaj.dataset("numbers", falaj.Client(self.client.url, self.client._token))), "permission_denied")
        token = self.client.request("POST", "/api/v1/tokens", {"project": PROJECT, "name": "reader", "role": "viewer", "scopes": ["dataset.read"]})["secret"]
        data = falaj.dataset("numbers", falaj.Client(self.client.url, token))
        self.assertEqual(self.kind(data.to_arrow, "dataset.query"), "permission_denied")

    def test_an_input_of_a_job(self) -> None:
        with mock.patch.dict(os.environ, {"FALAJ_DATASET_MY_ROWS": "numbers@1"}):
            self.assertEqual(falaj.dataset("my-rows", self.client).version, "numbers@1")


@unittest.skipUnless(HAVE_ARROW, "pyarrow is not installed: make engines")
class KilledTest(unittest.TestCase):
    def test_killed_in_the_middle(self) -> None:
        """A stream goes on after kill -9, with every row once."""
        server = started(type(self))
        rows, pad = 200_000, "x" * 100  # more than is on its way at once
        put(server.client, "long", {}, "n,pad\n" + "".join(f"{i},{pad}\n" for i in range(rows)))
        data = falaj.dataset("long", server.client)
        seen: list[int] = []
        with mock.patch.object(_flight.Connection, "read", autospec=True, side_effect=_flight.Connection.read) as reads:
            for batch in data.batches(shard=(1, 2)):
                seen += batch.column(0).to_pylist()
                if not server.kills:
                    server.restart()
        self.assertEqual(seen, list(range(rows // 2, rows)))
        self.assertGreater(reads.call_count, 1)

    def test_away_for_good(self) -> None:
        server = started(type(self))
        data = falaj.dataset("numbers", server.client, patience=0)
        stream = data.batches()
        server.kill()
        with self.assertRaises(falaj.Error) as caught:
            list(stream)
        self.assertEqual(caught.exception.kind, "unavailable")
