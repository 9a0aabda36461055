# Trains on half of the rows with the other worker, and says how the model does on
# all of them, beside one of all rows and one of this half, each trained alone. The
# rows are sorted by their target, so that neither half looks like the whole.
import hashlib
import json
import os
import sys

import falaj
import numpy as np

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
framework, alone = sys.argv[1], sys.argv[2:] == ["alone"]
x = np.random.default_rng(1).random((2000, 4))
y = 3 * x[:, 0] + np.sin(6 * x[:, 1]) + (x[:, 2] > 0.5)
x, y = x[np.argsort(y)], np.sort(y)
half = slice(rank * len(x) // size, (rank + 1) * len(x) // size)

if framework == "xgboost":
    import xgboost

    def train(rows, **_):
        return xgboost.train({"tree_method": "hist", "nthread": 1}, xgboost.QuantileDMatrix(x[rows], y[rows]), 20)

    def error(model):
        return float(np.abs(model.predict(xgboost.DMatrix(x)) - y).mean())

    def text(model):
        return bytes(model.save_raw("json"))

else:
    import lightgbm

    def train(rows, **joined):
        parameters = {"objective": "regression", "num_threads": 1, "learning_rate": 0.3, **joined}
        return lightgbm.train(parameters, lightgbm.Dataset(x[rows], y[rows]), 20)

    def error(model):
        return float(np.abs(model.predict(x) - y).mean())

    def text(model):
        return model.model_to_string().split("\nparameters:")[0].encode()  # each has its own port among them


whole, part = error(train(slice(None))), error(train(half))
if alone:
    sys.exit()
with falaj.collective() as joined:
    if framework == "xgboost":
        assert xgboost.collective.get_rank() == rank
    model = train(half, **joined)
    print("RESULT", json.dumps({
        "model": hashlib.sha256(text(model)).hexdigest(), "together": error(model), "whole": whole, "part": part,
    }), flush=True)
