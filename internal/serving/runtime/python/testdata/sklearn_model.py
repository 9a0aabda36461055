"""Writes scikit-learn models in MLflow's format below a directory, and what they answer."""

import json
import os
import pickle
import sys

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

MLMODEL = """artifact_path: model
flavors:
  python_function:
    env:
      conda: conda.yaml
      virtualenv: python_env.yaml
    loader_module: mlflow.sklearn
    model_path: model.pkl
    predict_fn: predict
    python_version: 3.11.7
  sklearn:
    code: null
    pickled_model: model.pkl
    serialization_format: pickle
    sklearn_version: 1.2.1
mlflow_version: 2.9.2
model_size_bytes: 1234
model_uuid: 0d6e7a4b5f6c4d8e9f0a1b2c3d4e5f60
%sutc_time_created: '2026-11-27 06:00:00.000000'
"""

rng = np.random.default_rng(1)
x = rng.normal(size=(200, 4))
y = (x @ [1, -2, 0.5, 0] > 0).astype(np.int64)
ask = rng.normal(size=(5, 4))
ask[:, 2] = np.arange(5)


def write(name, model, signature="", outputs=None, predict="predict"):
    directory = os.path.join(sys.argv[1], name)
    os.makedirs(directory)
    if outputs:
        with open(os.path.join(directory, "falaj.json"), "w") as f:
            json.dump({"inputs": [{"name": "X", "datatype": "FP64", "shape": [-1, 4]}],
                       "outputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in outputs]}, f)
    with open(os.path.join(directory, "MLmodel"), "w", encoding="utf-8") as f:
        f.write((MLMODEL % signature).replace("predict_fn: predict\n", "predict_fn: %s\n" % predict))
    with open(os.path.join(directory, "model.pkl"), "wb") as f:
        pickle.dump(model, f)


tensor = """signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1,
    4]}}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
  params: null
"""
# As MLflow 3.17 writes it.
columns = r"""signature:
  inputs: '[{"type": "double", "name": "the first, very long \"name\" of a column",
    "required": true}, {"type": "double", "name": "it''s", "required": true}, {"type":
    "long", "name": "n", "required": true}, {"type": "double", "name": "\u0646\u062e\u0644\u0629",
    "required": true}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
  params: null
type_hint_from_example: false
"""
classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
words = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.where(y, "late", "نخلة"))
write("tensor", classifier, tensor)
write("columns", classifier, columns)
write("bare", words)
line = LinearRegression().fit(x, x @ [1.0, 2.0, 3.0, 4.0])
plane = LinearRegression().fit(x, x @ rng.normal(size=(4, 2)))
write("line", line)
write("plane", plane)
write("named", plane, outputs=[("east", "FP64", [-1]), ("north", "FP64", [-1, 1])])
write("renamed", classifier, outputs=[("probabilities", "FP64", [-1, 2]), ("late", "INT64", [-1])])
# Trained on a table whose columns have names, which pandas gives; and a signature in another order.
named = LogisticRegression().fit(x, y)
named.feature_names_in_ = np.array(["east", "north", "up", "time"], object)
write("trained", named)
write("shuffled", named, """signature:
  inputs: '[{"type": "double", "name": "time"}, {"type": "double", "name": "up"}, {"type": "double", "name": "north"}, {"type": "double", "name": "east"}]'
""")
unnamed = LogisticRegression().fit(x, y)
unnamed.feature_names_in_ = np.array(["Column_0", "Column_1", "Column_2", "Column_3"], object)  # as LightGBM has it
write("unnamed", unnamed)
write("proba", classifier, predict="predict_proba")
write("decision", classifier, predict="decision_function")
write("no method", line, predict="predict_proba")
write("too many", line, outputs=[("a", "FP64", [-1]), ("b", "FP64", [-1])])
write("too few", plane, outputs=[("a", "FP64", [-1]), ("b", "FP64", [-1]), ("c", "FP64", [-1])])
# As YAML writes what is not ASCII, with an escape of each kind; and a column of dates.
dated = r"""signature:
  inputs: "[{\"type\": \"datetime\", \"name\": \"\U0001F4C5 \x64ay \u00e9\", \"required\": true}]"
  outputs: null
metadata:
  note: "\U0001F600\ud83d\ude00 \e\0\_\N\a\/\t"
  smile: 😀 # as it is
"""
as_dates = FunctionTransformer(np.asarray, kw_args={"dtype": "datetime64[ns]"})
as_numbers = FunctionTransformer(np.asarray, kw_args={"dtype": "int64"})
days = np.array(["1970-01-01", "2026-02-03T10:30", "2026-09-10T00:00:00.123456789", "1677-09-22"], "datetime64[ns]").reshape(-1, 1)
season = make_pipeline(as_dates, as_numbers, LinearRegression()).fit(days, [1.0, 2.0, 4.0, 9.0])
write("dated", season, dated)
# A column of bytes, and one of text: what is predicted is whether it is one of two.
known = FunctionTransformer(np.isin, kw_args={"test_elements": [b"\xff\xd8\xff", b"abc"]})
finder = make_pipeline(FunctionTransformer(np.asarray, kw_args={"dtype": "S16"}), known, LinearRegression())
finder.fit(np.array([[b"abc"], [b"a"]], object), [1.0, 0.0])
for kind in ("binary", "string"):
    write(kind, finder, """signature:
  inputs: '[{"type": "%s", "name": "image", "required": true}]'
""" % kind)
write("escaped", line, 'metadata:\n  note: "\\q"\n')
write("improbable", line, outputs=[("variable", "FP64", [-1]), ("probabilities", "FP64", [-1, 2])])
json.dump({
    "x": ask.tolist(), "label": classifier.predict(ask).tolist(), "probabilities": classifier.predict_proba(ask).tolist(),
    "trained": named.predict_proba(ask).tolist(), "decision": classifier.decision_function(ask).tolist(),
    "words": words.predict(ask).tolist(), "wordsof": words.predict_proba(ask).tolist(), "line": line.predict(ask).tolist(), "seasons": season.predict(days).tolist(), "plane": plane.predict(ask).tolist(),
}, sys.stdout)
