"""Writes an MLflow database: generate.py FILE RUNS METRICS POINTS.

The tables are made by MLflow itself; the rows are written straight into them, as
the server would have written them. Identifiers and values follow from the numbers,
so the same arguments give the same rows.
"""

import hashlib
import math
import sqlite3
import sys

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

file, runs, metrics, points = sys.argv[1], *map(int, sys.argv[2:5])
SqlAlchemyStore(f"sqlite:///{file}", "mlflow-artifacts:/")
db = sqlite3.connect(file)
db.execute("PRAGMA synchronous = OFF")
db.execute("PRAGMA cache_size = -200000")
start = 1_700_000_000_000
db.execute(
    "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage, creation_time, last_update_time, workspace)"
    " VALUES (1, 'bench', 'mlflow-artifacts:/1', 'active', ?, ?, 'default')",
    (start, start),
)


def run_id(n):
    return hashlib.md5(b"run %d" % n).hexdigest()


def value(n, m, p):
    return math.sin(n * 7.3 + m) * 10 + 1 / (p + 1)


for n in range(runs):
    run = run_id(n)
    db.execute(
        "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, end_time, source_version,"
        " lifecycle_stage, artifact_uri, experiment_id) VALUES (?, ?, 'UNKNOWN', '', '', 'bench', 'FINISHED', ?, ?, '', 'active', ?, 1)",
        (run, f"run-{n}", start + n * 1000, start + n * 1000 + 900, f"mlflow-artifacts:/1/{run}/artifacts"),
    )
    db.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", [(f"p{k}", str((n * 31 + k) % 97), run) for k in range(5)])
    db.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", [("mlflow.runName", f"run-{n}", run), ("team", f"t{n % 7}", run), ("mlflow.user", "bench", run)])
    for m in range(metrics):
        db.executemany(
            "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)",
            [(f"m{m}", value(n, m, p), start + n * 1000 + p, run, p) for p in range(points)],
        )
        db.execute(
            "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, 0, ?)",
            (f"m{m}", value(n, m, points - 1), start + n * 1000 + points - 1, points - 1, run),
        )
db.commit()
