from __future__ import annotations

import contextlib
import json
import os
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import falaj


class CollectiveTest(unittest.TestCase):
    def setUp(self) -> None:
        self.joined: list[dict[str, Any]] = []
        self.now = False

        @contextlib.contextmanager
        def context(**arguments: Any) -> Iterator[None]:
            self.joined.append(arguments)
            self.now = True
            try:
                yield
            finally:
                self.now = False

        collective: Any = types.ModuleType("xgboost.collective")
        collective.CommunicatorContext = context
        modules = {"xgboost": types.ModuleType("xgboost"), "xgboost.collective": collective}
        for patch in (mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ)):
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop("FALAJ_COLLECTIVE", None)
        os.environ.pop("FALAJ_WORKERS", None)

    def test_xgboost_joins_for_the_block(self) -> None:
        given = {"dmlc_tracker_uri": "10.0.0.1", "dmlc_tracker_port": 7001, "dmlc_task_id": "0001", "dmlc_retry": 10}
        os.environ["FALAJ_COLLECTIVE"] = json.dumps(given)
        with self.assertRaises(ValueError), falaj.collective():
            self.assertTrue(self.now)
            raise ValueError
        self.assertFalse(self.now)
        self.assertEqual(self.joined, [given])

    def test_lightgbm_gets_parameters(self) -> None:
        given = {"machines": "10.0.0.1:7001,10.0.0.2:7002", "local_listen_port": 7002, "num_machines": 2, "tree_learner": "data"}
        os.environ["FALAJ_COLLECTIVE"] = json.dumps(given)
        with falaj.collective() as joined:
            self.assertEqual(joined, given)
        self.assertEqual(self.joined, [])

    def test_alone(self) -> None:
        for workers in (None, "1"):
            if workers:
                os.environ["FALAJ_WORKERS"] = workers
            with falaj.collective() as joined:
                self.assertEqual(joined, {})
        self.assertEqual(self.joined, [])

    def test_another_framework_is_told(self) -> None:
        os.environ["FALAJ_WORKERS"] = "2"
        with self.assertRaisesRegex(falaj.Error, "2 workers") as caught, falaj.collective():
            self.fail("it trains alone")
        self.assertIn("framework: xgboost", caught.exception.hint)


if __name__ == "__main__":
    unittest.main()
