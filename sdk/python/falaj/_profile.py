"""Profiles of a training program, on request.

``falaj job profile JOB --tool torch`` puts a request below FALAJ_SCRATCH_DIR; the
program sees it at the end of a step, runs torch.profiler for a while, and leaves
the trace beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_LOOK = 1.0  # seconds between looks for a request


class _State:
    """What is under way; one for the process, used by the thread that trains."""

    def __init__(self) -> None:
        self.look_at = 0.0
        self.seen = ""
        self.profiler: Any = None
        self.until = 0.0
        self.trace = Path()


_state = _State()


def step() -> None:
    """Say that a step of the training is done: profiles begin and end here.

    Costs next to nothing while nobody asks for a profile. Whatever goes wrong
    with one is no error of the training.
    """
    now = time.monotonic()
    if _state.profiler is not None:
        if now >= _state.until:
            _end()
        return
    if now < _state.look_at:
        return
    _state.look_at = now + _LOOK
    scratch = os.environ.get("FALAJ_SCRATCH_DIR")
    if scratch and "torch" in sys.modules:
        _begin(Path(scratch) / ".falaj-profile", now)


def _begin(directory: Path, now: float) -> None:
    try:
        request = json.loads((directory / "request.json").read_text())
        name, seconds = str(request["id"]), float(request["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if name == _state.seen:
        return
    _state.seen = name
    try:
        from torch import profiler

        rank = os.environ.get("RANK", os.environ.get("FALAJ_WORKER_INDEX", "0"))
        supported = profiler.supported_activities()
        wanted = [a for a in profiler.ProfilerActivity.__members__.values() if a in supported]
        started = profiler.profile(activities=wanted)
        started.start()
        (directory / f"{name}.{rank}.begun").touch()
    except Exception as e:  # noqa: BLE001
        print(f"falaj: no profile: {e}", file=sys.stderr)
        return
    _state.profiler, _state.until = started, now + seconds
    _state.trace = directory / f"{name}.{rank}.json.gz"


def _end() -> None:
    ended, _state.profiler = _state.profiler, None
    work = _state.trace.with_name("." + _state.trace.name)
    try:
        ended.stop()
        ended.export_chrome_trace(str(work))
        work.rename(_state.trace)
    except Exception as e:  # noqa: BLE001
        print(f"falaj: no profile: {e}", file=sys.stderr)
