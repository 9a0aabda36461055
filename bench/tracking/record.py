"""Records what MLflow's client sends: record.py URI >recorded.jsonl.

Each line is a request: name, method, path, body. ${run} stands for a run,
${name} for a name that nothing has.
"""

import json
import sys

import mlflow
import requests
from mlflow.entities import Metric, Param, RunTag

mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
name = None
run = ""
send = requests.Session.send


def recording(self, request, **kw):
    if name:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body or ""
        path = request.path_url
        for value, word in ((run, "${run}"), ("recorded-name", "${name}")):
            if value:
                body, path = body.replace(value, word), path.replace(value, word)
        print(json.dumps({"name": name, "method": request.method, "path": path, "body": body}))
    return send(self, request, **kw)


def record(called, do):
    global name
    name = called
    try:
        return do()
    finally:
        name = None


experiment = mlflow.set_experiment("bench").experiment_id
assert experiment == "1", "record from an empty server"
requests.Session.send = recording
made = record("create run", lambda: client.create_run(experiment, run_name="recorded-name", start_time=1_700_000_000_000, tags={"mlflow.user": "bench", "mlflow.source.type": "LOCAL"}))
run = made.info.run_id
for n in (10, 500, 1000):
    points = [Metric(f"m{i % 10}", i / 7, 1_700_000_000_000 + i, i // 10) for i in range(n)]
    record(f"log_batch {n}", lambda: client.log_batch(run, metrics=points, params=[Param("lr", "0.1")] if n == 10 else [], tags=[RunTag("note", "x")] if n == 10 else [], synchronous=True))
record("search", lambda: client.search_runs([experiment], "metrics.m0 > 5", order_by=["metrics.m1 DESC"], max_results=100))
record("history", lambda: client.get_metric_history(run, "m0"))
record("register", lambda: client.create_registered_model("recorded-name", tags={"owner": "bench"}))
record("registered", lambda: client.get_registered_model("recorded-name"))
record("tag model", lambda: client.set_registered_model_tag("recorded-name", "stage", "tried"))
