"""Checkpoints of a training program.

A checkpoint is a directory below FALAJ_CHECKPOINT_DIR. It counts once it has
its final name, "step-…"; until then its name begins with a dot. Falaj keeps the
directory between the attempts of a job and removes it when the job has ended.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ._client import Error

SAVED = 75
"""Exit code (EX_TEMPFAIL) that means: saved, run me again."""

_NAME = re.compile(r"step-(\d{1,18})\Z")
_stop = threading.Event()
_installed = False


class Checkpoint(NamedTuple):
    """A complete checkpoint."""

    step: int
    path: Path


def should_stop() -> bool:
    """Whether SIGTERM came: save a checkpoint now, then leave with SAVED.

    The first call of should_stop, checkpoint or latest installs the handler, if
    it is in the main thread; a handler that was there before is called too.
    """
    _install()
    return _stop.is_set()


def latest() -> Checkpoint | None:
    """The complete checkpoint with the highest step; None if there is none."""
    _install()
    found = _complete(_directory())
    return found[-1] if found else None


@contextmanager
def checkpoint(step: int, *, keep: int | None = None) -> Iterator[Path]:
    """Make the checkpoint of a step: write files into the directory it gives.

    When the block ends, the files are synced and the directory gets its final
    name, in that order, so a crash leaves no half checkpoint that counts. When
    the block raises, what it wrote is removed. A checkpoint of the same step is
    replaced. ``keep`` removes all but so many of the newest.

    When SIGTERM came before the end of the block, this leaves the process with
    exit code SAVED: Falaj runs the job again, which then finds latest().
    """
    if step < 0 or step >= 10**18:
        raise Error("invalid", f"step {step} is not between 0 and 10**18")
    if keep is not None and keep < 1:
        raise Error("invalid", f"keep is {keep}", "Keep at least one checkpoint.")
    _install()
    root = _directory()
    final = root / f"step-{step:012d}"
    work = root / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        yield work
        _sync_tree(work)
        _rename(work, final)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    if keep is not None:
        for old in _complete(root)[:-keep]:
            if old.path != final:
                shutil.rmtree(old.path, ignore_errors=True)
    if _stop.is_set():
        sys.exit(SAVED)


def _install() -> None:
    global _installed
    if _installed or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> Any:
        _stop.set()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, stop)
    _installed = True


def _directory() -> Path:
    name = os.environ.get("FALAJ_CHECKPOINT_DIR")
    if not name:
        raise Error("invalid", "FALAJ_CHECKPOINT_DIR is not set", "Inside of a job it is. Elsewhere, set it to a directory.")
    root = Path(name)
    root.mkdir(parents=True, exist_ok=True)
    return root


def _complete(root: Path) -> list[Checkpoint]:
    found = []
    for entry in root.iterdir():
        name = _NAME.match(entry.name)
        if name and entry.is_dir() and not entry.is_symlink():
            found.append(Checkpoint(int(name.group(1)), entry))
    return sorted(found)


def _rename(work: Path, final: Path) -> None:
    """Give the final name; rename is atomic, and the parent's sync makes it last."""
    aside = None
    if final.exists():
        aside = work.with_name(work.name.removesuffix(".tmp") + ".old.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    work.rename(final)
    _sync(final.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def _sync_tree(root: Path) -> None:
    for directory, _, files in os.walk(root, topdown=False):
        for file in files:
            path = Path(directory) / file
            if path.is_file() and not path.is_symlink():
                _sync(path)
        _sync(Path(directory))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
