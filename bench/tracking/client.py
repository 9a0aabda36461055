"""What a training script does, timed: client.py URI TOKEN TIMES."""

import logging
import os
import statistics
import sys
import time

if sys.argv[2]:
    os.environ["MLFLOW_TRACKING_TOKEN"] = sys.argv[2]
import mlflow
from mlflow.entities import Metric

logging.disable(logging.CRITICAL)
os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()


def timed(name, times, do):
    took = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        took.append((time.perf_counter() - began) * 1000)
    print(f"{name}\t{statistics.median(took)}", flush=True)


def script():
    run = client.create_run("1").info.run_id
    for step in range(10):
        client.log_metric(run, "loss", 1 / (step + 1), step=step)
    client.update_run(run, "FINISHED")


run = client.create_run("1").info.run_id
steps = iter(range(10**9))


def batch():
    client.log_batch(run, [Metric(f"m{i % 10}", i, 1_700_000_000_000, next(steps)) for i in range(1000)])


times = int(sys.argv[3])
timed("start_run, log_metric × 10, end_run", max(times // 10, 2), script)
timed("log_batch 1000", max(times // 10, 2), batch)
timed("search_runs", times, lambda: client.search_runs(["1"], "metrics.m0 > 5", order_by=["metrics.m1 DESC"], max_results=100))
