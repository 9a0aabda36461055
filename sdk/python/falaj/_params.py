"""What a job was told to try."""

from __future__ import annotations

import json
import os
from typing import Any


def params(**defaults: Any) -> dict[str, Any]:
    """The hyper-parameters of this job, behind the defaults given for those it has not.

    A job has them from ``spec.params``, a trial of a sweep from the sweep. Outside of
    jobs there are the defaults only, so that a program runs anywhere::

        p = falaj.params(lr=0.1, layers=2)
        train(lr=p["lr"], layers=p["layers"])
    """
    text = os.environ.get("FALAJ_PARAMS", "")
    told = json.loads(text) if text else {}
    if not isinstance(told, dict):
        raise ValueError("$FALAJ_PARAMS is not a JSON object")
    return {**defaults, **told}
