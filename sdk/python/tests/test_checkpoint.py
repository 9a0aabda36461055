from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import falaj
from falaj import _checkpoint

SDK = Path(__file__).parents[1]

# A training program that says each step and goes on until it is asked to stop.
PROGRAM = """
import sys, falaj
last = falaj.latest()
step = last.step if last else 0
print("from", step, flush=True)
for line in sys.stdin:
    step += 1
    if falaj.should_stop():
        with falaj.checkpoint(step) as directory:
            (directory / "weights").write_text(str(step))
        sys.exit("checkpoint() came back")
    print("did", step, flush=True)
"""


class CheckpointTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name) / "checkpoints"
        env = mock.patch.dict(os.environ, {"FALAJ_CHECKPOINT_DIR": str(self.root)})
        env.start()
        self.addCleanup(env.stop)
        for event in (mock.patch.object(_checkpoint, "_stop", threading.Event()), mock.patch.object(_checkpoint, "_installed", True)):
            event.start()
            self.addCleanup(event.stop)

    def save(self, step: int, text: str = "w", keep: int | None = None) -> None:
        with falaj.checkpoint(step, keep=keep) as directory:
            (directory / "sub").mkdir()
            (directory / "sub" / "weights").write_text(text)

    def names(self) -> list[str]:
        return sorted(p.name for p in self.root.iterdir())

    def test_none(self) -> None:
        self.assertIsNone(falaj.latest())

    def test_latest_is_the_highest_step(self) -> None:
        for step in (9, 100, 20):
            self.save(step)
        last = falaj.latest()
        assert last is not None
        self.assertEqual(last.step, 100)
        self.assertEqual((last.path / "sub" / "weights").read_text(), "w")

    def test_it_has_no_final_name_before_the_end(self) -> None:
        with falaj.checkpoint(1) as directory:
            # Falaj ignores and clears names with a leading dot or a .tmp at the end.
            self.assertTrue(directory.name.startswith(".") and directory.name.endswith(".tmp"))
            self.assertIsNone(falaj.latest())
        self.assertEqual(self.names(), ["step-000000000001"])

    def test_files_are_synced_before_the_rename(self) -> None:
        order: list[str] = []
        rename = Path.rename

        def fsync(fd: int) -> None:
            order.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))

        def renamed(path: Path, target: Path) -> Path:
            order.append("rename")
            return rename(path, target)

        with mock.patch("os.fsync", fsync), mock.patch.object(Path, "rename", renamed):
            self.save(1)
        self.assertEqual(order[:2], ["weights", "sub"])
        self.assertEqual(order[-2:], ["rename", "checkpoints"])

    def test_a_failure_leaves_nothing(self) -> None:
        self.save(1, "good")
        with self.assertRaises(ZeroDivisionError), falaj.checkpoint(2) as directory:
            (directory / "weights").touch()
            1 / 0  # noqa: B018
        self.assertEqual(self.names(), ["step-000000000001"])

    def test_the_same_step_is_replaced(self) -> None:
        self.save(1, "old")
        self.save(1, "new")
        self.assertEqual(self.names(), ["step-000000000001"])
        self.assertEqual((self.root / self.names()[0] / "sub" / "weights").read_text(), "new")

    def test_keep(self) -> None:
        for step in range(5):
            self.save(step, keep=2)
        self.assertEqual(self.names(), ["step-000000000003", "step-000000000004"])

    def test_strangers_are_left_alone(self) -> None:
        self.save(1)
        (self.root / "step-7").write_text("a file")
        (self.root / "step-000000000009").symlink_to(self.root)
        (self.root / "best").mkdir()
        last = falaj.latest()
        assert last is not None
        self.assertEqual(last.step, 1)
        self.save(2, keep=1)
        self.assertIn("best", self.names())

    def test_wrong_use(self) -> None:
        for step, keep in ((-1, None), (10**18, None), (1, 0)):
            with self.assertRaises(falaj.Error), falaj.checkpoint(step, keep=keep):
                self.fail("the block ran")
        with mock.patch.dict(os.environ, clear=True), self.assertRaises(falaj.Error):
            falaj.latest()


class StopTest(unittest.TestCase):
    def program(self, root: str) -> subprocess.Popen[str]:
        p = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(SDK), "FALAJ_CHECKPOINT_DIR": root, "PATH": os.environ.get("PATH", "")},
        )
        self.addCleanup(p.wait)
        for stream in (p.stdin, p.stdout, p.stderr):
            assert stream is not None
            self.addCleanup(stream.close)
        self.addCleanup(p.kill)
        return p

    def test_sigterm_saves_and_the_next_attempt_goes_on(self) -> None:
        with tempfile.TemporaryDirectory() as root:
            p = self.program(root)
            assert p.stdin and p.stdout and p.stderr
            self.assertEqual(p.stdout.readline(), "from 0\n")
            p.stdin.write("go\n")
            p.stdin.flush()
            self.assertEqual(p.stdout.readline(), "did 1\n")
            p.send_signal(signal.SIGTERM)
            p.stdin.write("go\n")
            p.stdin.flush()
            self.assertEqual(p.wait(60), falaj.SAVED, p.stderr.read())
            again = self.program(root)
            assert again.stdout
            self.assertEqual(again.stdout.readline(), "from 2\n")
