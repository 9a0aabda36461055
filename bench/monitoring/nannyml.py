"""NannyML on the same numbers as windows.py. Usage: nannyml.py DIR

The calculator is fitted to the reference before anything is timed, as a baseline is
computed once.
"""

import os
import sys

sys.path.pop(0)  # this file has the package's name
os.environ["NML_DISABLE_USAGE_LOGGING"] = os.environ["DO_NOT_TRACK"] = "1"

import time  # noqa: E402
import warnings  # noqa: E402

import nannyml  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from nannyml.thresholds import ConstantThreshold  # noqa: E402

warnings.filterwarnings("ignore")
COLUMNS = 13

ref, cur = (np.fromfile(f"{sys.argv[1]}/{name}.f64").reshape(COLUMNS, -1) for name in ("ref", "cur"))
names = [f"f{i}" for i in range(COLUMNS)]
ref_frame, cur_frame = pd.DataFrame(ref.T, columns=names), pd.DataFrame(cur.T, columns=names)
calculator = nannyml.UnivariateDriftCalculator(
    column_names=names,
    continuous_methods=["wasserstein"],
    chunk_size=len(cur_frame),
    thresholds={"wasserstein": ConstantThreshold(upper=0.1)},
)
calculator.fit(ref_frame)

print(f"NannyML {nannyml.__version__}", flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    result = calculator.calculate(cur_frame).filter(period="analysis").to_df()
    drifted = sum(bool(result[(name, "wasserstein", "alert")].iloc[-1]) for name in names)
    print(time.perf_counter() - began, drifted, flush=True)
