"""Falaj for Python: read data, save checkpoints and ask models.

``Client`` speaks to the server. ``dataset`` streams a version's rows to pyarrow,
pandas, Polars and PyTorch. ``data``, ``params``,
``checkpoint``, ``latest``, ``should_stop``, ``collective`` and ``step`` are for training programs; ``predict``
asks a deployed model, and ``label`` says what turned out to be true.
Only the standard library is needed; ``dataset`` takes pyarrow. ``optuna`` is a module
of its own: Falaj as the storage of Optuna's studies.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._checkpoint import SAVED, Checkpoint, checkpoint, latest, should_stop
from ._client import Client, Error, Labelled, Prediction, Rows, label, predict
from ._collective import collective
from ._data import Data, data
from ._dataset import Dataset, dataset
from ._params import params
from ._profile import step

__all__ = [
    "SAVED",
    "Checkpoint",
    "Client",
    "Data",
    "Dataset",
    "Error",
    "Labelled",
    "Prediction",
    "Rows",
    "checkpoint",
    "collective",
    "data",
    "dataset",
    "label",
    "latest",
    "params",
    "predict",
    "should_stop",
    "step",
]


def __getattr__(name: str) -> Any:
    if name == "optuna":  # takes Optuna, so it is imported by who asks for it
        return importlib.import_module(".optuna", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
