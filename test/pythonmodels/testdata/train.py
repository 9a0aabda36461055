"""Trains a pipeline, logs it in MLflow's format, and says what it answers to some rows."""

import json
import os
import pickle

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

rng = np.random.default_rng(7)
x = rng.normal(size=(400, 3))
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.where(x @ [1, -2, 1] > 0, "late", "on time"))

out = os.path.join(os.environ["FALAJ_OUTPUT_DIR"], "model")
os.makedirs(out)
with open(os.path.join(out, "MLmodel"), "w") as f:
    f.write("""flavors:
  python_function:
    loader_module: mlflow.sklearn
  sklearn:
    code: null
    pickled_model: model.pkl
    serialization_format: pickle
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 3]}}]'
""")
with open(os.path.join(out, "model.pkl"), "wb") as f:
    pickle.dump(model, f)
ask = rng.normal(size=(6, 3))
print("RESULT", json.dumps({"x": ask.ravel().tolist(), "label": model.predict(ask).tolist(), "probabilities": model.predict_proba(ask).ravel().tolist()}))
