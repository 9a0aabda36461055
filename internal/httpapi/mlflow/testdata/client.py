"""The unmodified MLflow client against a Falaj server.

MLFLOW_TRACKING_URI and MLFLOW_TRACKING_TOKEN say where and as whom. Each step
that does not hold raises, so the exit status is the verdict.
"""

import json
import math
import os
import tempfile
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.data.meta_dataset import MetaDataset
from mlflow.data.http_dataset_source import HTTPDatasetSource
from mlflow.entities import Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException

V3 = int(mlflow.__version__.split(".")[0]) >= 3  # before it there are no logged models
if V3:
    from mlflow.entities import LoggedModelInput, LoggedModelOutput


def refused(code, text, act, *args, **kwargs):
    try:
        act(*args, **kwargs)
    except MlflowException as e:
        assert e.error_code == code, (e.error_code, e.message)
        assert text in e.message, e.message
        return
    raise AssertionError(f"{act} was not refused with {code} {text!r}")


def experiments(client):
    assert client.get_experiment("0").name == "Default"
    exp = client.create_experiment("flights", tags={"team": "ops"})
    refused("RESOURCE_ALREADY_EXISTS", "already exists", client.create_experiment, "flights")
    e = client.get_experiment_by_name("flights")
    assert e.experiment_id == exp and e.tags == {"team": "ops"} and e.creation_time > 0
    assert client.get_experiment_by_name("absent") is None
    client.set_experiment_tag(exp, "note", "hello")
    client.rename_experiment(exp, "flights-2")
    assert client.get_experiment(exp).name == "flights-2"
    client.delete_experiment(exp)
    assert client.get_experiment(exp).lifecycle_stage == "deleted"
    assert exp in [e.experiment_id for e in client.search_experiments(ViewType.DELETED_ONLY)]
    client.restore_experiment(exp)
    client.rename_experiment(exp, "flights")
    found = client.search_experiments(filter_string="tags.team = 'ops'", order_by=["name DESC"])
    assert [e.name for e in found] == ["flights"]
    if V3:
        client.delete_experiment_tag(exp, "note")
        assert client.get_experiment(exp).tags == {"team": "ops"}
    assert mlflow.set_experiment("flights").experiment_id == exp
    return exp


def fluent(client, exp):
    with mlflow.start_run(run_name="first", tags={"stage": "test"}) as active:
        run_id = active.info.run_id
        mlflow.log_param("lr", 0.1)
        mlflow.log_params({"depth": 3, "loss": "log"})
        mlflow.log_metric("auc", 0.5, step=0)
        mlflow.log_metric("auc", 0.75, step=1)
        mlflow.log_metrics({"nan": math.nan, "inf": math.inf, "ninf": -math.inf, "big": 1e300}, step=2)
        mlflow.set_tag("color", "blau ü")
        mlflow.set_tags({"a": 1, "b": "2"})
        mlflow.log_text("hello", "notes/hello.txt")
        mlflow.log_dict({"k": [1, 2]}, "conf.json")
        dataset = MetaDataset(HTTPDatasetSource("https://example.org/weather.csv"), name="weather", digest="d1")
        mlflow.log_input(dataset, context="training")
        with mlflow.start_run(nested=True, run_name="child") as child:
            mlflow.log_metric("auc", 0.9)
        assert child.info.run_id != run_id
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and run.info.end_time >= run.info.start_time > 0, run.info
    assert run.info.run_name == "first" and run.info.experiment_id == exp
    assert run.data.params == {"lr": "0.1", "depth": "3", "loss": "log"}
    m = run.data.metrics
    assert m["auc"] == 0.75 and math.isnan(m["nan"]) and m["inf"] == math.inf and m["ninf"] == -math.inf and m["big"] == 1e300, m
    assert run.data.tags["color"] == "blau ü" and run.data.tags["a"] == "1" and run.data.tags["mlflow.runName"] == "first"
    assert run.inputs.dataset_inputs[0].dataset.name == "weather"
    assert run.inputs.dataset_inputs[0].tags[0].value == "training"
    assert [(p.step, p.value) for p in client.get_metric_history(run_id, "auc")] == [(0, 0.5), (1, 0.75)]
    refused("INVALID_PARAMETER_VALUE", "Changing param values is not allowed", client.log_param, run_id, "lr", 0.2)
    client.log_param(run_id, "lr", 0.1)
    client.delete_tag(run_id, "b")
    refused("RESOURCE_DOES_NOT_EXIST", "No tag with name: b", client.delete_tag, run_id, "b")
    return run_id


def batch(client, exp):
    run = client.create_run(exp, run_name="batch", start_time=123)
    rid = run.info.run_id
    client.log_batch(
        rid,
        metrics=[Metric("loss", 1.0 / (i + 1), 1000 + i, i) for i in range(1000)],
    )
    client.log_batch(rid, params=[Param(f"p{i}", "x" * 100) for i in range(100)], tags=[RunTag(f"t{i}", "ü") for i in range(100)])
    points = client.get_metric_history(rid, "loss")
    assert len(points) == 1000 and points[999].step == 999 and points[0].timestamp == 1000
    got = client.get_run(rid)
    assert len(got.data.params) == 100 and got.data.tags["t99"] == "ü" and got.data.metrics["loss"] == 1 / 1000
    client.log_batch(rid, metrics=[Metric("loss", float(i), 2000 + i, 1000 + i) for i in range(1500)])  # the client splits
    assert len(client.get_metric_history(rid, "loss")) == 2500
    client.update_run(rid, status="KILLED", name="renamed")
    assert client.get_run(rid).info.run_name == "renamed" and client.get_run(rid).info.status == "KILLED"
    client.set_terminated(rid, "FAILED", end_time=456)
    assert client.get_run(rid).info.end_time == 456
    client.delete_run(rid)
    assert client.get_run(rid).info.lifecycle_stage == "deleted"
    refused("INVALID_PARAMETER_VALUE", "must be in the 'active' state", client.log_metric, rid, "x", 1)
    client.restore_run(rid)
    refused("RESOURCE_DOES_NOT_EXIST", "not found", client.get_run, "run_01J9Z6AAAAAAAAAAAAAAAAAAAA")
    refused("INVALID_PARAMETER_VALUE", "run_id", client.get_run, "no such run")  # the client looks itself
    return rid


def search(client, exp, first):
    def names(filter_string="", **kw):
        return [r.info.run_name for r in client.search_runs([exp], filter_string, **kw)]

    assert names("metrics.auc > 0.7 and params.lr = '0.1'") == ["first"]
    assert names("metrics.auc >= 0.75", order_by=["metrics.auc DESC"]) == ["child", "first"]
    assert names("tags.`mlflow.runName` LIKE 'fir%'") == ["first"]
    assert names("attributes.status = 'FINISHED' AND tags.stage IS NOT NULL") == ["first"]
    assert names(f"run_id IN ('{first}')") == ["first"]
    assert names("datasets.name = 'weather'") == ["first"]
    assert names("params.lr ILIKE '0%' AND start_time > 0") == ["first"]
    assert len(mlflow.search_runs([exp], output_format="list")) == 3
    page = client.search_runs([exp], max_results=2, order_by=["start_time ASC"])
    rest = client.search_runs([exp], max_results=2, order_by=["start_time ASC"], page_token=page.token)
    assert len(page) == 2 and len(rest) == 1 and rest.token is None
    refused("INVALID_PARAMETER_VALUE", "OR", names, "params.a = '1' OR params.b = '2'")
    refused("INVALID_PARAMETER_VALUE", "max_results", client.search_runs, [exp], max_results=123456789)


def artifacts(client, run_id, tmp):
    src = tmp / "src"
    (src / "sub dir").mkdir(parents=True)
    (src / "model.onnx").write_bytes(os.urandom(300_000))
    (src / "sub dir" / "ümlaut.txt").write_text("hi")
    client.log_artifacts(run_id, str(src), "model")
    client.log_artifact(run_id, str(src / "model.onnx"))
    root = {f.path: (f.is_dir, f.file_size) for f in client.list_artifacts(run_id)}
    assert root["model"] == (True, None) and root["model.onnx"] == (False, 300_000), root
    below = {f.path for f in client.list_artifacts(run_id, "model")}
    assert below == {"model/model.onnx", "model/sub dir"}, below
    assert client.list_artifacts(run_id, "model/model.onnx") == []
    out = Path(client.download_artifacts(run_id, "model", str(tmp)))
    assert (out / "model.onnx").read_bytes() == (src / "model.onnx").read_bytes()
    assert (out / "sub dir" / "ümlaut.txt").read_text() == "hi"
    one = mlflow.artifacts.download_artifacts(artifact_uri=f"runs:/{run_id}/notes/hello.txt", dst_path=str(tmp / "one"))
    assert Path(one).read_text() == "hello"
    assert mlflow.artifacts.load_dict(client.get_run(run_id).info.artifact_uri + "/conf.json") == {"k": [1, 2]}
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repo = get_artifact_repository(client.get_run(run_id).info.artifact_uri)
    repo.delete_artifacts("conf.json")
    assert "conf.json" not in {f.path for f in client.list_artifacts(run_id)}
    return src


def multipart(client, run_id, tmp):
    """A file in parts, as clients send large ones."""
    settings = {"MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "true", "MLFLOW_MULTIPART_UPLOAD_MINIMUM_FILE_SIZE": "1000000", "MLFLOW_MULTIPART_UPLOAD_CHUNK_SIZE": "5242880"}
    os.environ.update(settings)
    try:
        big = tmp / "big.bin"
        big.write_bytes(os.urandom(12_000_001))
        client.log_artifact(run_id, str(big), "large")
    finally:
        for name in settings:
            del os.environ[name]
    out = Path(client.download_artifacts(run_id, "large/big.bin", str(tmp)))
    assert out.read_bytes() == big.read_bytes()


def webhooks(client):
    hook = client.create_webhook("ci", "http://127.0.0.1:9/hook", ["model_version.created", "model_version_alias.created"], description="d", secret="s", status="DISABLED")
    assert hook.status == "DISABLED" and hook.secret is None and [str(e) for e in hook.events] == ["model_version.created", "model_version_alias.created"], hook
    assert [w.webhook_id for w in client.list_webhooks()] == [hook.webhook_id]
    hook = client.update_webhook(hook.webhook_id, name="ci-2", status="ACTIVE")
    assert (hook.name, hook.status, client.get_webhook(hook.webhook_id).description) == ("ci-2", "ACTIVE", "d")
    result = client.test_webhook(hook.webhook_id)
    assert not result.success and result.error_message, result  # nobody listens there
    refused("PERMISSION_DENIED", "not a public address", client.create_webhook, "x", "https://10.0.0.1/x", ["model_version.created"])
    client.delete_webhook(hook.webhook_id)
    refused("RESOURCE_DOES_NOT_EXIST", "not found", client.get_webhook, hook.webhook_id)


def logged_models(client, exp, run_id, src):
    with mlflow.start_run(run_id=run_id):
        model = mlflow.initialize_logged_model(name="delay", params={"depth": "3"}, tags={"k": "v"}, model_type="onnx")
        assert model.status == "PENDING" and model.source_run_id == run_id, model
        client.log_model_artifacts(model.model_id, str(src))
        model = mlflow.finalize_logged_model(model.model_id, "READY")
        assert model.status == "READY"
        mlflow.log_metric("val_auc", 0.81, model_id=model.model_id)
        client.log_inputs(run_id, models=[LoggedModelInput(model.model_id)])
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=3)])
        mlflow.log_model_params({"extra": "1"}, model.model_id)
        mlflow.set_logged_model_tags(model.model_id, {"t": "1"})
    mlflow.delete_logged_model_tag(model.model_id, "k")
    got = mlflow.get_logged_model(model.model_id)
    assert got.params == {"depth": "3", "extra": "1"} and got.tags["t"] == "1" and "k" not in got.tags, got
    assert [m.value for m in got.metrics] == [0.81]
    run = client.get_run(run_id)
    assert [m.model_id for m in run.outputs.model_outputs] == [model.model_id]
    assert [m.model_id for m in run.inputs.model_inputs] == [model.model_id]
    found = mlflow.search_logged_models([exp], "metrics.val_auc > 0.8 AND params.depth = '3'", order_by=[{"field_name": "metrics.val_auc", "ascending": False}], output_format="list")
    assert [m.model_id for m in found] == [model.model_id]
    paths = {f.path for f in client.list_logged_model_artifacts(model.model_id)}
    assert "model.onnx" in paths, paths
    gone = client.create_logged_model(exp, name="gone", params={f"p{i}": "x" for i in range(250)})
    assert len(client.get_logged_model(gone.model_id).params) == 250
    client.delete_logged_model(gone.model_id)
    refused("RESOURCE_DOES_NOT_EXIST", "not found", client.get_logged_model, gone.model_id)
    return model.model_id


def python_model(client, exp, tmp):
    """log_model of the pyfunc flavour, without its dependencies being installed."""
    code = tmp / "model_code.py"
    code.write_text("import mlflow\nclass M(mlflow.pyfunc.PythonModel):\n    def predict(self, model_input):\n        return model_input\nmlflow.models.set_model(M())\n")
    try:
        import numpy, pandas  # noqa: F401
    except ImportError:
        return None  # the pyfunc flavour needs them; the protocol below it is tested above
    with mlflow.start_run():
        info = mlflow.pyfunc.log_model(name="pyfunc", python_model=str(code), pip_requirements=[])
    return info.model_id


def registry(client, run_id, model_id, src, tmp):
    client.create_registered_model("delay", tags={"team": "ops"}, description="arrival delay")
    refused("RESOURCE_ALREADY_EXISTS", "already exists", client.create_registered_model, "delay")
    v1 = client.create_model_version("delay", f"runs:/{run_id}/model", run_id, tags={"from": "run"})
    assert (v1.version, v1.status, v1.run_id) == ("1", "READY", run_id) or (v1.version, v1.status) == (1, "READY"), v1
    if V3:
        v2 = mlflow.register_model(f"models:/{model_id}", "delay")
        assert int(v2.version) == 2 and v2.source == f"models:/{model_id}", v2
    else:
        client.create_model_version("delay", f"runs:/{run_id}/model", run_id)
    refused("INVALID_PARAMETER_VALUE", "Invalid model version source", client.create_model_version, "delay", "/etc/passwd", run_id)
    refused("INVALID_PARAMETER_VALUE", "Invalid model version source", client.create_model_version, "delay", "http://evil/x")
    refused("RESOURCE_DOES_NOT_EXIST", "not found", client.create_model_version, "absent", f"runs:/{run_id}/model", run_id)

    client.set_registered_model_alias("delay", "champion", 1)
    client.set_registered_model_alias("delay", "champion", 2)
    assert int(client.get_model_version_by_alias("delay", "champion").version) == 2
    assert client.get_registered_model("delay").aliases == {"champion": "2"}
    refused("INVALID_PARAMETER_VALUE", "reserved", client.set_registered_model_alias, "delay", "latest", 1)
    for uri in ("models:/delay@champion", "models:/delay/1"):
        out = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(tmp / uri.replace("/", "_"))))
        assert (out / "model.onnx").read_bytes() == (src / "model.onnx").read_bytes(), uri
    client.set_model_version_tag("delay", "1", "auc", "0.8")
    client.delete_model_version_tag("delay", "1", "from")
    assert client.get_model_version("delay", "1").tags == {"auc": "0.8"}
    client.update_model_version("delay", "1", "better")
    assert client.get_model_version("delay", "1").description == "better"
    client.set_registered_model_tag("delay", "k", "v")
    client.delete_registered_model_tag("delay", "k")
    assert [m.name for m in client.search_registered_models("name LIKE 'del%' AND tags.team = 'ops'")] == ["delay"]
    assert [int(v.version) for v in client.search_model_versions("name = 'delay'", order_by=["version_number ASC"])] == [1, 2]
    assert [int(v.version) for v in client.search_model_versions(f"run_id = '{run_id}' AND tags.auc = '0.8'")] == [1]
    staged = client.transition_model_version_stage("delay", "1", "Production")
    assert staged.current_stage == "Production"
    assert {v.current_stage for v in client.get_latest_versions("delay")} == {"None", "Production"}
    client.rename_registered_model("delay", "arrival delay")
    assert client.get_registered_model("arrival delay").description == "arrival delay"
    copied = client.copy_model_version("models:/arrival delay/1", "copy")
    assert int(copied.version) == 1
    client.delete_registered_model_alias("arrival delay", "champion")
    refused("INVALID_PARAMETER_VALUE", "alias champion not found", client.get_model_version_by_alias, "arrival delay", "champion")
    client.delete_model_version("arrival delay", "2")
    refused("RESOURCE_DOES_NOT_EXIST", "not found", client.get_model_version, "arrival delay", "2")
    client.delete_registered_model("copy")
    refused("RESOURCE_DOES_NOT_EXIST", "not found", client.get_registered_model, "copy")
    client.update_registered_model("arrival delay", "kept")


def unsupported(client, exp):
    if V3:
        refused("NOT_IMPLEMENTED", "not supported", client.search_traces, locations=[exp])


def main():
    client = MlflowClient()
    with tempfile.TemporaryDirectory() as d:
        tmp = Path(d)
        exp = experiments(client)
        run_id = fluent(client, exp)
        batch(client, exp)
        search(client, exp, run_id)
        src = artifacts(client, run_id, tmp)
        multipart(client, run_id, tmp)
        model_id = logged_models(client, exp, run_id, src) if V3 else None
        pyfunc = python_model(client, exp, tmp) if V3 else None
        registry(client, run_id, model_id, src, tmp)
        if V3:
            webhooks(client)
        unsupported(client, exp)
    print(json.dumps({"mlflow": mlflow.__version__, "run": run_id, "model": model_id, "pyfunc": pyfunc}))


if __name__ == "__main__":
    main()
