"""Steps of a migration: again.py STEP URI; make and change the source, ours changes Falaj, see tells what it has."""

import json
import os
import sys
import tempfile

import mlflow

step, uri = sys.argv[1], sys.argv[2]
mlflow.set_tracking_uri(uri)
client = mlflow.MlflowClient()


def run_named(name):
    experiments = [e.experiment_id for e in client.search_experiments()]
    return next(r for r in client.search_runs(experiments) if r.info.run_name == name).info.run_id


def make():
    experiment = client.create_experiment("Wein rot", tags={"both": "1", "gone": "1", "there": "1"})
    other = client.create_experiment("other")
    for n, where in enumerate([experiment, experiment, other]):
        run = client.create_run(where, run_name=f"run {n}", tags={"both": "1", "gone": "1", "there": "1"}).info.run_id
        for s in range(5):
            client.log_metric(run, "loss", 1 / (s + 1), step=s)
            client.log_metric(run, "auc", s / 10, step=4 - s)
        client.log_params(run, {"b": "2", "a": "1"}) if hasattr(client, "log_params") else [client.log_param(run, k, k) for k in "ba"]
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "MLmodel")
            with open(path, "w") as f:
                f.write(f"artifact_path: model\nn: {n}\n")
            client.log_artifact(run, path, "model")
        client.set_terminated(run)
        client.create_registered_model("wine", tags={"both": "1", "gone": "1", "there": "1"}, description="one") if n == 0 else None
        client.create_model_version("wine", f"{client.get_run(run).info.artifact_uri}/model", run, tags={"both": "1", "gone": "1", "there": "1"}, description="one")
    client.set_registered_model_alias("wine", "champion", "1")
    client.set_registered_model_alias("wine", "gone", "1")
    client.set_registered_model_alias("wine", "both", "1")
    client.create_registered_model("old", description="will be deleted")
    client.create_registered_model("elsewhere")
    client.create_model_version("elsewhere", f"{client.get_run(run).info.artifact_uri}/model", run)


def ours():
    run = run_named("run 0")
    experiment = client.get_experiment_by_name("Wein rot").experiment_id
    client.set_tag(run, "both", "ours")
    client.set_experiment_tag(experiment, "both", "ours")
    client.set_registered_model_tag("wine", "both", "ours")
    client.set_model_version_tag("wine", "1", "both", "ours")
    client.set_registered_model_alias("wine", "both", "3")
    client.set_registered_model_alias("wine", "own", "3")
    client.update_model_version("wine", "2", "ours")


def change():
    run = run_named("run 0")
    experiment = client.get_experiment_by_name("Wein rot").experiment_id
    client.set_tag(run, "both", "theirs")
    client.set_tag(run, "there", "2")
    client.delete_tag(run, "gone")
    client.set_tag(run, "mlflow.note.content", "a new note")
    client.set_experiment_tag(experiment, "both", "theirs")
    client.set_experiment_tag(experiment, "there", "2")
    client.set_registered_model_tag("wine", "both", "theirs")
    client.set_registered_model_tag("wine", "there", "2")
    client.delete_registered_model_tag("wine", "gone")
    client.set_model_version_tag("wine", "1", "both", "theirs")
    client.set_model_version_tag("wine", "1", "there", "2")
    client.delete_model_version_tag("wine", "1", "gone")
    client.update_registered_model("wine", "two")
    client.update_model_version("wine", "1", "two")
    client.set_registered_model_alias("wine", "champion", "2")
    client.set_registered_model_alias("wine", "both", "2")
    client.set_registered_model_alias("wine", "new", "2")
    client.delete_registered_model_alias("wine", "gone")
    client.transition_model_version_stage("wine", "2", "Production")
    client.delete_model_version("wine", "3")
    client.rename_registered_model("wine", "Wein")
    client.rename_experiment(experiment, "Wein weiß")
    client.delete_registered_model("old")


def see():
    out = {}
    for e in client.search_experiments():
        out["experiment " + e.name] = {k: v for k, v in e.tags.items()}
    run = client.get_run(run_named("run 0"))
    out["run"] = {k: v for k, v in run.data.tags.items() if k in ("both", "gone", "there", "mlflow.note.content")}
    for m in client.search_registered_models():
        out["model " + m.name] = {"description": m.description or "", "tags": dict(client.get_registered_model(m.name).tags), "aliases": {k: int(v) for k, v in dict(client.get_registered_model(m.name).aliases).items()}}
        for v in client.search_model_versions(f"name='{m.name}'"):
            out[f"version {m.name}@{v.version}"] = {"description": v.description or "", "tags": dict(v.tags), "stage": v.current_stage}
    print(json.dumps(out, sort_keys=True))


{"make": make, "ours": ours, "change": change, "see": see}[step]()
