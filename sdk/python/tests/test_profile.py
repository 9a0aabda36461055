from __future__ import annotations

import json
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import falaj
from falaj import _profile


class Recorder:
    """Stands for torch.profiler.profile."""

    def __init__(self, activities: list[str]) -> None:
        self.said = [f"for {activities}"]

    def start(self) -> None:
        self.said.append("start")

    def stop(self) -> None:
        self.said.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(json.dumps(self.said))


class ProfileTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = Path(directory.name) / ".falaj-profile"
        self.dir.mkdir()
        self.now = 0.0
        torch: Any = types.ModuleType("torch")
        torch.profiler = types.ModuleType("torch.profiler")
        torch.profiler.profile = Recorder
        torch.profiler.supported_activities = lambda: {"cpu"}
        torch.profiler.ProfilerActivity = types.SimpleNamespace(__members__={"CPU": "cpu", "CUDA": "cuda"})
        for patch in (
            mock.patch.dict(os.environ, {"FALAJ_SCRATCH_DIR": directory.name, "RANK": "3"}),
            mock.patch.dict(sys.modules, {"torch": torch, "torch.profiler": torch.profiler}),
            mock.patch.object(_profile, "_state", _profile._State()),
            mock.patch.object(_profile.time, "monotonic", lambda: self.now),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.torch = torch

    def ask(self, name: str, text: str | None = None) -> None:
        (self.dir / "request.json").write_text(text or json.dumps({"id": name, "seconds": 5}))

    def names(self) -> list[str]:
        return sorted(p.name for p in self.dir.iterdir() if p.name != "request.json")

    def test_nobody_asks(self) -> None:
        falaj.step()
        self.assertEqual(self.names(), [])

    def test_one_request_is_one_trace(self) -> None:
        self.ask("prf_1")
        for self.now in (0.0, 2.0, 4.9):
            falaj.step()
            self.assertEqual(self.names(), ["prf_1.3.begun"])
        self.now = 5.0
        falaj.step()
        self.assertEqual(self.names(), ["prf_1.3.begun", "prf_1.3.json.gz"])
        self.assertEqual(json.loads((self.dir / "prf_1.3.json.gz").read_text()), ["for ['cpu']", "start", "stop"])
        (self.dir / "prf_1.3.json.gz").unlink()
        for self.now in (7.0, 20.0, 30.0):
            falaj.step()
        self.assertEqual(self.names(), ["prf_1.3.begun"])
        self.ask("prf_2")
        for self.now in (40.0, 50.0):
            falaj.step()
        self.assertIn("prf_2.3.json.gz", self.names())

    def test_looks_once_a_second(self) -> None:
        falaj.step()
        self.ask("prf_1")
        self.now = 0.5
        falaj.step()
        self.assertEqual(self.names(), [])
        self.now = 1.0
        falaj.step()
        self.assertEqual(self.names(), ["prf_1.3.begun"])

    def test_no_error_of_the_training(self) -> None:
        for i, text in enumerate(["{", "[]", '{"id": 1}', '{"id": "x", "seconds": "y"}']):
            self.now = 2.0 * i
            self.ask("", text)
            falaj.step()
        self.assertEqual(self.names(), [])
        self.torch.profiler.profile = mock.Mock(side_effect=RuntimeError("no Kineto"))
        self.now = 10.0
        self.ask("prf_1")
        with mock.patch("sys.stderr"):
            falaj.step()
        self.assertEqual(self.names(), [])

    def test_without_torch(self) -> None:
        self.ask("prf_1")
        with mock.patch.dict(sys.modules):
            del sys.modules["torch"]
            falaj.step()
        self.assertEqual(self.names(), [])


if __name__ == "__main__":
    unittest.main()
