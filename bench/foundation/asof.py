"""The peer of the as-of join: DuckDB, tables in its memory, Arrow out.

Reads the tables that the program beside this file wrote, then answers each line
on standard input with the seconds of one join and what it found. Usage: asof.py DIR
"""

import sys
import time

import duckdb
import pyarrow.ipc as ipc

JOIN = """
SELECT s.*,
       CASE WHEN s.departs - w.observed_at <= INTERVAL 3 HOUR THEN w.temp END AS temp,
       CASE WHEN s.departs - w.observed_at <= INTERVAL 3 HOUR THEN w.wind_speed END AS wind_speed,
       CASE WHEN s.departs - w.observed_at <= INTERVAL 3 HOUR THEN w.precip END AS precip,
       CASE WHEN s.departs - w.observed_at <= INTERVAL 3 HOUR THEN w.visib END AS visib,
       CASE WHEN s.departs - w.observed_at <= INTERVAL 3 HOUR THEN w.humid END AS humid,
       p.built, p.seats, p.engines,
       CASE WHEN s.departs - c.landed_at <= INTERVAL 7 DAY THEN c.mean_delay END AS mean_delay,
       CASE WHEN s.departs - c.landed_at <= INTERVAL 7 DAY THEN c.landings END AS landings
FROM flights s
ASOF LEFT JOIN weather w ON s.origin = w.origin AND s.departs >= w.observed_at
ASOF LEFT JOIN plane p ON s.tailnum = p.tailnum AND s.departs >= p.known_at
ASOF LEFT JOIN carrier c ON s.carrier = c.carrier AND s.departs >= c.landed_at
"""

db = duckdb.connect()
db.execute("SET TimeZone = 'UTC'")
for name in ("flights", "weather", "plane", "carrier"):
    with ipc.open_file(f"{sys.argv[1]}/{name}.arrow") as f:
        rows = f.read_all()
    db.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
print(f"DuckDB {duckdb.__version__}", flush=True)

for _ in sys.stdin:
    began = time.perf_counter()
    result = db.sql(JOIN).to_arrow_table()
    took = time.perf_counter() - began
    found = [len(result) - result[c].null_count for c in ("temp", "built", "mean_delay")]
    print(took, len(result), *found, flush=True)
