"""Reads features from Redis by the unmodified Feast SDK, whose online store it is: for each line of entities, a line."""

import json
import os
import sys
import tempfile

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Bool, Float64, Int64, String, UnixTimestamp

port = sys.argv[1]
tmp = tempfile.mkdtemp(dir=os.getcwd())
path = os.path.join(tmp, "rows.parquet")
pd.DataFrame({"origin": ["x"], "slot": [1], "at": pd.to_datetime(["2026-01-01"], utc=True), "temp": [1.0], "count": [1], "note": ["x"], "busy": [True], "seen": pd.to_datetime(["2026-01-01"], utc=True)}).to_parquet(path)
store = FeatureStore(config=RepoConfig(
    project="flights", provider="local", registry=os.path.join(tmp, "registry.db"), entity_key_serialization_version=3,
    offline_store={"type": "file"}, online_store={"type": "redis", "connection_string": f"127.0.0.1:{port}"},
))
origin = Entity(name="origin", join_keys=["origin"], value_type=ValueType.STRING)
slot = Entity(name="slot", join_keys=["slot"], value_type=ValueType.INT64)
view = FeatureView(
    name="weather", entities=[origin, slot], ttl=None, source=FileSource(path=path, timestamp_field="at"),
    schema=[Field(name="origin", dtype=String), Field(name="slot", dtype=Int64), Field(name="temp", dtype=Float64), Field(name="count", dtype=Int64),
            Field(name="note", dtype=String), Field(name="busy", dtype=Bool), Field(name="seen", dtype=UnixTimestamp)],
)
store.apply([origin, slot, view])
for line in sys.stdin:
    got = store.get_online_features(features=[f"weather:{f}" for f in ("temp", "count", "note", "busy", "seen")], entity_rows=json.loads(line)).to_dict()
    print(json.dumps(got, default=str), flush=True)
