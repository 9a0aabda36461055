"""Trains a model that says how likely a flight arrives more than 15 minutes late.

Runs in Falaj's sandbox: the rows are a private Parquet file, the MLflow client
is the ordinary one, and what is saved under model/ becomes a registered model.
"""

import os
from pathlib import Path

os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"

import mlflow
import numpy as np
import pyarrow.parquet as pq
from skl2onnx import to_onnx
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import brier_score_loss, roc_auc_score

FEATURES = [
    "minute_of_day", "weekday", "distance",
    "weather__temp", "weather__wind_speed", "weather__precip", "weather__visib", "weather__humid",
    "plane__built", "plane__seats", "plane__engines",
    "carrier_delay__mean_delay", "carrier_delay__landings",
]

table = pq.ParquetDataset(os.environ["FALAJ_DATA_TRAIN"]).read()
x = np.column_stack([table[name].to_numpy(zero_copy_only=False).astype(np.float32) for name in FEATURES])
y = table["late"].to_numpy(zero_copy_only=False).astype(np.int64)
when = table["departs"].to_numpy(zero_copy_only=False)
print(f"{len(y)} flights, {y.mean():.1%} of them late", flush=True)

# The last month is for validation: the past predicts the future, never the reverse.
cut = when.max() - np.timedelta64(30, "D")
train, valid = when < cut, when >= cut

params = {"max_iter": 120, "learning_rate": 0.08, "max_leaf_nodes": 31, "l2_regularization": 1.0}
with mlflow.start_run(run_id=os.environ["MLFLOW_RUN_ID"]):
    mlflow.log_params(params)
    model = HistGradientBoostingClassifier(**params, early_stopping=False, random_state=7)
    model.fit(x[train], y[train])
    p = model.predict_proba(x[valid])[:, 1]
    metrics = {"valid_auc": roc_auc_score(y[valid], p), "valid_brier": brier_score_loss(y[valid], p)}
    mlflow.log_metrics(metrics)
    mlflow.set_tag("features", ",".join(FEATURES))
    model.fit(x, y)  # what is served has seen the newest rows, too
    print(f"validation on the last 30 days, from {str(cut)[:10]}:", {k: round(v, 4) for k, v in metrics.items()}, flush=True)

    target = Path(os.environ["FALAJ_OUTPUT_DIR"]) / "model"
    target.mkdir(exist_ok=True)
    onnx = to_onnx(model, x[:1], options={"zipmap": False}, target_opset={"": 17, "ai.onnx.ml": 3})
    (target / "model.onnx").write_bytes(onnx.SerializeToString())
print("saved model/model.onnx", flush=True)
