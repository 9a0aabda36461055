from __future__ import annotations

import importlib.util
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import falaj
from tests.fake import Asked, Answer, serve

# `make engines` installs both; without them CI fails.
CI = bool(os.environ.get("CI"))
HAVE_ARROW = CI or importlib.util.find_spec("pyarrow") is not None
HAVE_PANDAS = CI or HAVE_ARROW and importlib.util.find_spec("pandas") is not None


class InJobTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        env = mock.patch.dict(os.environ, {"FALAJ_JOB": "job_1", "FALAJ_DATA_MAY_FLIGHTS": directory.name})
        env.start()
        self.addCleanup(env.stop)

    def test_paths(self) -> None:
        for name in ("b.parquet", "a.parquet", "note.txt"):
            (self.root / name).touch()
        self.assertEqual([p.name for p in falaj.data("may-flights").paths], ["a.parquet", "b.parquet"])

    def test_unknown_input(self) -> None:
        with self.assertRaises(falaj.Error) as caught:
            falaj.data("weather")
        self.assertEqual(caught.exception.kind, "not_found")
        self.assertIn("may_flights", caught.exception.hint)

    def test_directory_gone(self) -> None:
        data = falaj.data("may-flights")
        self.root.rmdir()
        self.addCleanup(self.root.mkdir)
        with self.assertRaises(falaj.Error):
            data.paths  # noqa: B018

    @unittest.skipUnless(HAVE_ARROW, "pyarrow is not installed: pip install pyarrow")
    def test_read(self) -> None:
        import pyarrow
        import pyarrow.parquet

        for i in (1, 2):
            pyarrow.parquet.write_table(pyarrow.table({"a": [i]}), self.root / f"{i}.parquet")
        self.assertEqual(falaj.data("may-flights").read().to_pydict(), {"a": [1, 2]})
        self.assertEqual(list(falaj.data("may-flights").rows()), [{"a": 1}, {"a": 2}])

    @unittest.skipUnless(HAVE_PANDAS, "pandas is not installed: pip install pandas pyarrow")
    def test_pandas(self) -> None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2], "b": ["x", None]}), self.root / "1.parquet")
        frame = falaj.data("may-flights").pandas()
        self.assertEqual((list(frame.columns), frame["a"].tolist()), (["a", "b"], [1, 2]))

    def test_without_pandas(self) -> None:
        with mock.patch.dict("sys.modules", {"pandas": None}), self.assertRaises(falaj.Error) as caught:
            falaj.data("may-flights").pandas()
        self.assertEqual(caught.exception.kind, "unsupported")

    def test_read_without_pyarrow(self) -> None:
        with mock.patch.dict("sys.modules", {"pyarrow": None}), self.assertRaises(falaj.Error) as caught:
            falaj.data("may-flights").read()
        self.assertEqual(caught.exception.kind, "unsupported")


class OutsideTest(unittest.TestCase):
    def setUp(self) -> None:
        context = serve()
        self.server = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        self.client = falaj.Client(self.server.url, "t", "nyc")
        env = mock.patch.dict(os.environ)
        env.start()
        self.addCleanup(env.stop)
        for name in [n for n in os.environ if n.startswith("FALAJ_")]:
            del os.environ[name]

    def holds(self, rows: int) -> None:
        def answer(asked: Asked) -> Answer:
            body = asked.json()
            if "count(*)" in body["sql"]:
                return 200, {"columns": ["n"], "rows": [[rows]]}
            return 200, {"columns": ["a"], "rows": [[i] for i in range(min(rows, body["limit"]))], "truncated": rows > body["limit"]}

        self.server.answers["POST /api/v1/projects/nyc/query"] = answer

    def test_rows(self) -> None:
        self.holds(2)
        data = falaj.data("weather@1", self.client)
        self.assertEqual(list(data.rows()), [{"a": 0}, {"a": 1}])
        self.assertEqual(self.server.asked[0].json()["sql"], 'SELECT * FROM "weather@1"')
        self.assertEqual(data.paths, [])

    def test_just_as_many_as_fit(self) -> None:
        self.holds(10_000)
        self.assertEqual(sum(1 for _ in falaj.data("weather", self.client).rows()), 10_000)

    def test_too_many_rows(self) -> None:
        self.holds(10_001)
        with self.assertRaises(falaj.Error) as caught:
            next(falaj.data("weather", self.client).rows())
        self.assertEqual(caught.exception.kind, "too_large")

    def test_a_name_is_not_sql(self) -> None:
        with self.assertRaises(falaj.Error):
            next(falaj.data('x" UNION SELECT 1 --', self.client).rows())
        self.assertEqual(self.server.asked, [])

    @unittest.skipUnless(HAVE_ARROW, "pyarrow is not installed: pip install pyarrow")
    def test_read(self) -> None:
        self.holds(2)
        self.assertEqual(falaj.data("weather", self.client).read().to_pydict(), {"a": [0, 1]})
        self.holds(0)
        self.assertEqual(falaj.data("weather", self.client).read().column_names, ["a"])

    @unittest.skipUnless(HAVE_PANDAS, "pandas is not installed: pip install pandas pyarrow")
    def test_pandas(self) -> None:
        self.holds(2)
        self.assertEqual(falaj.data("weather", self.client).pandas()["a"].tolist(), [0, 1])
        self.holds(0)
        self.assertEqual(list(falaj.data("weather", self.client).pandas().columns), ["a"])
