"""Reads a training set as a data frame; prints what it took as JSON."""

import json
import resource
import time

import falaj
import pandas  # noqa: F401  not part of what is measured
import pyarrow.flight  # noqa: F401


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


began, before = time.perf_counter(), cpu()
frame = falaj.dataset("set").to_pandas()
print(json.dumps({"seconds": time.perf_counter() - began, "cpu": cpu() - before, "rows": len(frame)}))
