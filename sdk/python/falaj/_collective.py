"""The workers of a job as one: for xgboost and lightgbm."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._client import Error


@contextmanager
def collective() -> Iterator[dict[str, Any]]:
    """Train together with the job's other workers, each on rows of its own.

    With ``framework: xgboost`` the block joins them: one block around all that
    xgboost does. With ``framework: lightgbm`` it gives the parameters that join
    them, to add to those of ``lightgbm.train``. Outside of a job
    it does nothing and gives no parameters, so that the same program runs alone.
    """
    given = os.environ.get("FALAJ_COLLECTIVE")
    if not given:
        workers = os.environ.get("FALAJ_WORKERS", "1")
        if workers != "1":
            raise Error(
                "invalid", f"the job's {workers} workers are told nothing that xgboost or lightgbm understands",
                "Set `framework: xgboost` or `framework: lightgbm` in the job.",
            )
        yield {}
        return
    arguments: dict[str, Any] = json.loads(given)
    if "dmlc_tracker_uri" not in arguments:
        yield arguments
        return
    from xgboost.collective import CommunicatorContext

    with CommunicatorContext(**arguments):
        yield arguments
