"""Writes what the client sees of a server as JSON: see.py URI."""

import hashlib
import json
import os
import sys
import tempfile

import mlflow
from mlflow.entities import ViewType

mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
out = {}


def every(search, **args):
    token, found = None, []
    while True:
        page = search(page_token=token, **args)
        found += page
        token = page.token
        if not token:
            return found


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def files(run, path=None):
    for f in client.list_artifacts(run, path):
        if f.is_dir:
            yield from files(run, f.path)
        else:
            yield f.path, f.file_size


def tree(root):
    return {os.path.relpath(os.path.join(d, f), root): digest(os.path.join(d, f)) for d, _, names in os.walk(root) for f in names}


experiments = every(client.search_experiments, view_type=ViewType.ALL)
for e in experiments:
    seen = dict(e)
    del seen["artifact_location"]
    if e.experiment_id == "0":
        del seen["creation_time"], seen["last_update_time"]
    out["experiment " + e.name] = seen

for r in every(client.search_runs, experiment_ids=[e.experiment_id for e in experiments], run_view_type=ViewType.ALL, max_results=40):
    r = client.get_run(r.info.run_id)
    seen = r.to_dictionary()
    del seen["info"]["artifact_uri"]
    for kind in ("inputs", "outputs"):
        for name, items in seen.get(kind, {}).items():
            seen[kind][name] = sorted((x if isinstance(x, dict) else dict(x) for x in items), key=str)
    seen["history"] = {k: [(m.timestamp, m.step, m.value) for m in client.get_metric_history(r.info.run_id, k)] for k in r.data.metrics}
    seen["files"] = sorted(files(r.info.run_id))
    if seen["files"] and r.info.lifecycle_stage == "active":
        with tempfile.TemporaryDirectory() as d:
            seen["content"] = tree(client.download_artifacts(r.info.run_id, "", d))
    out["run " + r.info.run_id] = seen

ordered = client.search_runs([e.experiment_id for e in experiments], "metrics.loss > 3 and params.empty = ''", order_by=["metrics.auc DESC"], max_results=50)
out["found"] = [r.info.run_id for r in ordered]

for m in every(client.search_logged_models, experiment_ids=[e.experiment_id for e in experiments]):
    m = client.get_logged_model(m.model_id)
    seen = m.to_dictionary()
    del seen["artifact_location"]
    seen["metrics"] = [sorted((k, str(v)) for k, v in dict(x).items()) for x in seen["metrics"] or []]
    if str(m.status) == "LoggedModelStatus.READY" or m.status.name == "READY":
        with tempfile.TemporaryDirectory() as d:
            seen["content"] = tree(mlflow.artifacts.download_artifacts(f"models:/{m.model_id}", dst_path=d))
    out["logged model " + m.model_id] = seen

for m in every(client.search_registered_models):
    m = client.get_registered_model(m.name)
    seen = {k: v for k, v in dict(m).items() if k != "latest_versions"}
    seen["latest"] = sorted((v.current_stage, str(v.version)) for v in m.latest_versions)
    seen["by alias"] = {a: str(client.get_model_version_by_alias(m.name, a).version) for a in m.aliases}
    seen["versions"] = []
    for v in client.search_model_versions(f"name='{m.name}'"):
        v = client.get_model_version(m.name, v.version)
        version = {k: x for k, x in dict(v).items() if k not in ("user_id", "model_id", "params", "metrics", "deployment_job_state")}
        version["version"] = str(v.version)
        with tempfile.TemporaryDirectory() as d:
            version["content"] = tree(mlflow.artifacts.download_artifacts(f"models:/{m.name}/{v.version}", dst_path=d))
        seen["versions"].append(version)
    out["registered model " + m.name] = seen



def exact(x):
    """Numbers as text: JSON has no NaN, and readers round long ones."""
    if isinstance(x, dict):
        return {str(k): exact(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [exact(v) for v in x]
    return repr(x) if isinstance(x, (int, float)) else x


json.dump(exact(out), sys.stdout, default=str, sort_keys=True)
