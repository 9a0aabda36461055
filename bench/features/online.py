"""The peer of the online reads: Feast's own feature server, one worker, as
`feast serve` starts it, on SQLite or Redis.

Writes the rows of DIR/wideN.parquet through Feast's own online store, says
"Feast is ready at URL", and serves. Usage: online.py STORE DIR PORT [REDIS]
"""

import datetime
import glob
import logging
import os
import sys

os.environ["FEAST_USAGE"] = "False"
store_type, directory, port = sys.argv[1], sys.argv[2], int(sys.argv[3])

import pyarrow.parquet as pq
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.feature_server import start_server
from feast.types import Float64, Int64

logging.disable(logging.WARNING)
own = os.path.join(directory, "feast-" + store_type)
os.makedirs(own, exist_ok=True)
online = {"type": "sqlite", "path": own + "/online.db"}
if store_type == "redis":
    online = {"type": "redis", "connection_string": sys.argv[4] + ",db=1", "skip_dedup": True}
store = FeatureStore(config=RepoConfig(
    project="bench", provider="local", registry=own + "/registry.db", online_store=online, offline_store={"type": "file"},
    entity_key_serialization_version=3))
entity = Entity(name="id", join_keys=["id"], value_type=ValueType.INT64)
for path in sorted(glob.glob(directory + "/peer*.parquet")):
    rows = pq.read_table(path).to_pandas()
    name = "wide" + os.path.basename(path)[len("peer"):-len(".parquet")]
    features = [c for c in rows.columns if c not in ("id", "at")]
    view = FeatureView(
        name=name, entities=[entity], ttl=datetime.timedelta(0), source=FileSource(name=name + "_rows", path=path, timestamp_field="at"),
        schema=[Field(name="id", dtype=Int64)] + [Field(name=f, dtype=Float64) for f in features])
    store.apply([entity, view])
    for at in range(0, len(rows), 2000):
        store.write_to_online_store(name, df=rows.iloc[at:at + 2000])
print(f"Feast is ready at http://127.0.0.1:{port}", flush=True)
start_server(store, "127.0.0.1", port, True, 1, 1000, 0, 0, 30, 3600, "", "", False)
