"""The peers of a window's evaluation: Evidently's preset, and scipy's functions.

Reads ref.f64 and cur.f64 (13 columns one after the other, little-endian) from DIR,
says who it is, then answers each line on standard input, the name of a task, with
the seconds that it took and how many columns drifted. Usage: windows.py DIR
"""

import os
import sys
import time
import warnings

os.environ["DO_NOT_TRACK"] = "1"  # Evidently reports its use otherwise

import evidently  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import scipy  # noqa: E402
from evidently import DataDefinition, Dataset, Report  # noqa: E402
from evidently.presets import DataDriftPreset  # noqa: E402
from scipy import stats  # noqa: E402

warnings.filterwarnings("ignore")
COLUMNS = 13

ref, cur = (np.fromfile(f"{sys.argv[1]}/{name}.f64").reshape(COLUMNS, -1) for name in ("ref", "cur"))
names = [f"f{i}" for i in range(COLUMNS)]
ref_frame, cur_frame = pd.DataFrame(ref.T, columns=names), pd.DataFrame(cur.T, columns=names)
definition = DataDefinition(numerical_columns=names)


def preset():
    report = Report([DataDriftPreset()]).run(
        Dataset.from_pandas(cur_frame, data_definition=definition),
        Dataset.from_pandas(ref_frame, data_definition=definition),
    )
    return report.dict()["metrics"][0]["value"]["count"]


def wasserstein():
    return sum(stats.wasserstein_distance(r, c) / r.std() >= 0.1 for r, c in zip(ref, cur, strict=True))


def ks():
    return sum(stats.ks_2samp(r, c).pvalue < 0.01 for r, c in zip(ref, cur, strict=True))


tasks = {"preset": preset, "wasserstein": wasserstein, "ks": ks}
print(f"Evidently {evidently.__version__}, scipy {scipy.__version__}", flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    drifted = tasks[line.strip()]()
    print(time.perf_counter() - began, int(drifted), flush=True)
