"""The peers of the training sets: DuckDB and Polars, each as its documentation
advises, from Parquet files to a Parquet file, with the rule's TTL.

Prints what it took as JSON. Usage: training.py PEER DIR ORDER VIEW,VIEW
"""

import json
import resource
import sys
import time

peer, directory, order, views = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4].split(",")
TTL_HOURS = 2
rides = f"{directory}/rides-{order}.parquet"
out = f"{directory}/{peer}.parquet"


def path(view):
    return f"{directory}/{view}-{order}.parquet"


def features(view):
    return [f"{view}_{f}" for f in ("rides", "fare", "distance", "share")]


def by_duckdb():
    import duckdb

    db = duckdb.connect()
    db.execute("SET TimeZone = 'UTC'")
    columns, joins = ["r.*"], []
    for v in views:
        known = f"r.pickup - {v}.until <= INTERVAL {TTL_HOURS} HOUR"
        columns += [f"CASE WHEN {known} THEN {v}.{f} END AS {f}" for f in features(v)]
        joins.append(f"ASOF LEFT JOIN '{path(v)}' {v} ON r.zone = {v}.zone AND r.pickup >= {v}.until")
    db.execute(f"COPY (SELECT {', '.join(columns)} FROM '{rides}' r {' '.join(joins)}) TO '{out}' (FORMAT parquet)")


def by_polars():
    import polars as pl

    made = pl.scan_parquet(rides).sort("pickup")
    for v in views:
        known = pl.scan_parquet(path(v)).sort("until")
        made = made.join_asof(known, left_on="pickup", right_on="until", by="zone", tolerance=f"{TTL_HOURS}h")
        made = made.drop([c for c in ("until",) if c in made.collect_schema().names()])
    made.collect().write_parquet(out)


def peak():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM:"))


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


began, before = time.perf_counter(), cpu()
{"duckdb": by_duckdb, "polars": by_polars}[peer]()
cost = {"seconds": time.perf_counter() - began, "cpu": cpu() - before, "peak": peak()}

import pyarrow.parquet as pq  # noqa: E402  after the measurement

made = pq.read_table(out)
cost["rows"] = made.num_rows
cost["found"] = [made.num_rows - made[features(v)[0]].null_count for v in views]
print(json.dumps(cost))
