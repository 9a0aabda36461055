"""Fills an MLflow server with a bit of everything: make.py URI RUNS."""

import hashlib
import math
import os
import sys
import tempfile

import mlflow
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, LoggedModelParameter, Metric, Param, RunTag

uri, runs = sys.argv[1], int(sys.argv[2])
mlflow.set_tracking_uri(uri)
client = mlflow.MlflowClient()

experiments = [client.create_experiment("delay", tags={"team": "punctuality", "mlflow.note.content": "a note\nof lines"})]
experiments.append(client.create_experiment("weather/é"))
gone = client.create_experiment("gone")


def write(run, name, text):
    with tempfile.TemporaryDirectory() as d:
        local = os.path.join(d, os.path.basename(name))
        with open(local, "w") as f:
            f.write(text)
        client.log_artifact(run, local, os.path.dirname(name) or None)


statuses = ["FINISHED", "FAILED", "KILLED", "RUNNING", "FINISHED", "SCHEDULED"]
made = []
for n in range(runs):
    experiment = experiments[n % 2] if n % 20 else gone
    run = client.create_run(experiment, start_time=1_700_000_000_000 + n, run_name=f"run {n}", tags={"n": str(n), "mlflow.user": "maryam"}).info.run_id
    made.append(run)
    points = [Metric("loss", 1 / (s + 1) + n, 1_700_000_000_000 + s, s) for s in range(10)]
    points += [Metric("auc", math.sin(n), 1_700_000_000_000, 0), Metric("odd/nan", math.nan, 5, 1), Metric("odd/inf", math.inf, 6, 2), Metric("odd/inf", -math.inf, 7, 3)]
    points += [Metric("edge", 1e-300, 0, 2**63 - 1), Metric("edge", -0.0, 1, -(2**63)), Metric("same", 2.0, 9, 1), Metric("same", 3.0, 9, 1)]
    client.log_batch(run, metrics=points, params=[Param("lr", str(0.1 / (n + 1))), Param("long", "é" * 3000), Param("empty", "")], tags=[RunTag("note", "x" * 5000)])
    if n % 10 == 0:
        client.log_inputs(run, [DatasetInput(Dataset("flights", f"d{n}", "local", '{"uri": "s3://b/f.parquet"}', '{"a": "long"}', None), [InputTag("mlflow.data.context", "training")])])
        write(run, "notes.txt", f"of run {n}")
        write(run, "model/MLmodel", "artifact_path: model\n")
        write(run, "model/data/deep/w.txt", "w" * 100_000)
    status = statuses[n % len(statuses)]
    if status not in ("RUNNING", "SCHEDULED"):
        client.set_terminated(run, status, end_time=1_700_000_100_000 + n)
    elif status == "SCHEDULED":
        client.update_run(run, status)
    if n % 50 == 10:
        client.delete_run(run)

# One with more points than a batch of an import (20,000) and a page of MLflow's (25,000) have.
long = client.create_run(experiments[0], start_time=1_600_000_000_000, run_name="long").info.run_id
for s in range(0, 26_000, 1000):
    client.log_batch(long, metrics=[Metric("steps", float(i % 97), 1_600_000_000_000 + i, i) for i in range(s, s + 1000)])
client.set_terminated(long, end_time=1_600_000_100_000)

for n in range(3):
    source = made[n * 20 + 10 if n else 20]
    model = client.create_logged_model(experiments[0], name=f"tree-{n}", source_run_id=made[1], tags={"k": "v"}, params={"depth": str(n)}, model_type="xgboost")
    with tempfile.TemporaryDirectory() as d:
        os.makedirs(os.path.join(d, "sub"))
        for name in ("MLmodel", "sub/tree.json"):
            with open(os.path.join(d, name), "w") as f:
                f.write(f"{name} of {n}")
        client.log_model_artifacts(model.model_id, d)
    client.finalize_logged_model(model.model_id, "READY")
    client.log_metric(made[1], "quality", 0.5 + n, model_id=model.model_id, dataset_name="flights", dataset_digest="d0", timestamp=1_700_000_000_000, step=n)
    client.log_outputs(made[1], [LoggedModelOutput(model.model_id, n)])
    client.log_inputs(made[3], models=[mlflow.entities.LoggedModelInput(model.model_id)])
pending = client.create_logged_model(experiments[1], name="pending")

client.create_registered_model("delay model", tags={"owner": "a"}, description="Says how late.")
run = client.get_run(made[20]).info  # of the deleted experiment: a run that still has files
first = client.get_run(made[30]).info
for n in range(4):
    v = client.create_model_version("delay model", f"{first.artifact_uri}/model", first.run_id, tags={"n": str(n)}, description=f"version {n}")
client.delete_model_version("delay model", "2")
client.transition_model_version_stage("delay model", "1", "Archived")
client.transition_model_version_stage("delay model", "4", "Production")
client.set_registered_model_alias("delay model", "champion", "4")
client.set_registered_model_alias("delay model", "old", "1")
client.create_registered_model("tree")
client.create_model_version("tree", f"models:/{model.model_id}", model_id=model.model_id)
client.create_registered_model("copy")
client.create_model_version("copy", "models:/tree/1")
client.create_registered_model("empty", description="none yet")
client.delete_experiment(gone)
print(len(made) + 1)
