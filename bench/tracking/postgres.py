"""Copies an MLflow database into an empty one: postgres.py FILE URL."""

import sqlite3
import sys

import sqlalchemy
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

SqlAlchemyStore(sys.argv[2], "mlflow-artifacts:/")
source, target = sqlite3.connect(sys.argv[1]), sqlalchemy.create_engine(sys.argv[2])
tables = sqlalchemy.MetaData()
tables.reflect(target)
with target.begin() as to:
    for name in ("experiments", "runs", "params", "tags", "metrics", "latest_metrics"):
        table = tables.tables[name]
        columns = [c.name for c in table.columns]
        flags = [i for i, c in enumerate(table.columns) if isinstance(c.type, sqlalchemy.Boolean)]
        if name == "experiments":
            to.execute(table.delete())
        rows = source.execute(f"SELECT {', '.join(columns)} FROM {name}")
        raw = to.connection.cursor()
        with raw.copy(f"COPY {name} ({', '.join(columns)}) FROM STDIN") as copy:
            while chunk := rows.fetchmany(10_000):
                for row in chunk:
                    row = list(row)
                    for i in flags:
                        row[i] = bool(row[i])
                    copy.write_row(row)
    to.execute(sqlalchemy.text("SELECT setval('experiments_experiment_id_seq', 10)"))
