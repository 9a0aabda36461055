"""Writes an MLflow database that no server wrote: hostile.py FILE."""

import sqlite3
import sys

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

SqlAlchemyStore(f"sqlite:///{sys.argv[1]}", "mlflow-artifacts:/")
db = sqlite3.connect(sys.argv[1])
db.execute("PRAGMA ignore_check_constraints = ON")
db.execute("PRAGMA foreign_keys = OFF")


def run(id, status="FINISHED", stage="active", start=1, uri="mlflow-artifacts:/0/x/artifacts", experiment=0, name="r"):
    db.execute(
        "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, end_time, source_version,"
        " lifecycle_stage, artifact_uri, experiment_id) VALUES (?, ?, 'UNKNOWN', '', '', 'u', ?, ?, 2, '', ?, ?, ?)",
        (id, name, status, start, stage, uri, experiment),
    )


good, bad = "a" * 32, "b" * 32
run(good, uri="file:///etc")
run("c" * 32, stage="undead")
run("d" * 32, status="EXPLODED")
run("../../../../etc/passwd")
run("e" * 32, start="yesterday")
run("f" * 32, uri="s3://bucket/0/f/artifacts")
run("0" * 32, uri="mlflow-artifacts:/../../../../etc")
run("1" * 32, uri="file:///etc/../etc")
run("2" * 32, experiment=99)
run("3" * 32, name=b"\xff\xfe")
db.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", [("ok", "1", good), ("long", "x" * 7000, good), ("../up", "1", good), ("'; DROP TABLE runs; --", "1", good), ("bytes", b"\xff", good)])
db.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", [("null", None, good), ("long", "y" * 2_000_000, good), ("k" * 300, "v", good)])
metric = "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
db.execute(metric, ("nan", 0, 1, good, 1, 1))
db.execute(metric, ("max", 1.7976931348623157e308, 1, good, 2**63 - 1, 0))
db.execute(metric, ("text", "many", 1, good, 1, 0))
db.execute(metric, ("when", 1.0, -5, good, 1, 0))
db.execute(metric, ("step", 1.0, 1, good, 1.5, 0))
db.execute("INSERT INTO experiments (experiment_id, name, lifecycle_stage, workspace) VALUES (7, ?, 'active', 'default')", ("n" * 600,))
db.execute("INSERT INTO experiments (experiment_id, name, lifecycle_stage, workspace) VALUES (8, 'lost', 'limbo', 'default')")
db.execute("INSERT INTO experiments (experiment_id, name, lifecycle_stage, workspace) VALUES (9, 'elsewhere', 'active', 'another')")
db.execute("INSERT INTO registered_models (name, workspace) VALUES ('../model', 'default')")
db.execute("INSERT INTO registered_models (name, workspace) VALUES ('m', 'default')")
version = "INSERT INTO model_versions (name, version, source, run_id, current_stage, status, creation_time, workspace) VALUES ('m', ?, ?, ?, 'None', ?, 1, 'default')"
db.execute(version, (1, "file:///etc/passwd", good, "READY"))
db.execute(version, (2, f"runs:/{good}/../../x", good, "READY"))
db.execute(version, (3, "s3://b/m", None, "READY"))
db.execute(version, (4, f"runs:/{good}/model", good, "FAILED_REGISTRATION"))
db.commit()
