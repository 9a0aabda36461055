"""Reads features from Redis by the unmodified Feast SDK, whose online store it is: for each line of entities, a line."""

import json
import os
import sys
import tempfile

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Array, Bool, Float32, Float64, Int32, Int64, String, UnixTimestamp

port = sys.argv[1]
tmp = tempfile.mkdtemp(dir=os.getcwd())
path = os.path.join(tmp, "rows.parquet")
pd.DataFrame({"origin": ["x"], "slot": [1], "at": pd.to_datetime(["2026-01-01"], utc=True), "temp": [1.0], "count": [1], "note": ["x"], "busy": [True], "seen": pd.to_datetime(["2026-01-01"], utc=True)}).to_parquet(path)
store = FeatureStore(config=RepoConfig(
    project="flights", provider="local", registry=os.path.join(tmp, "registry.db"), entity_key_serialization_version=3,
    offline_store={"type": "file"}, online_store={"type": "redis", "connection_string": f"127.0.0.1:{port}"},
))
FEATURES = {
    "temp": Float64, "count": Int64, "note": String, "busy": Bool, "seen": UnixTimestamp, "small": Int32, "ratio": Float32,
    "smalls": Array(Int32), "counts": Array(Int64), "ratios": Array(Float32), "temps": Array(Float64), "notes": Array(String), "flags": Array(Bool), "times": Array(UnixTimestamp), "vector": Array(Float32),
}  # fmt: skip
origin = Entity(name="origin", join_keys=["origin"], value_type=ValueType.STRING)
slot = Entity(name="slot", join_keys=["slot"], value_type=ValueType.INT64)
gate = Entity(name="gate", join_keys=["gate"], value_type=ValueType.INT32)
view = FeatureView(
    name="weather", entities=[origin, slot], ttl=None, source=FileSource(path=path, timestamp_field="at"),
    schema=[Field(name="origin", dtype=String), Field(name="slot", dtype=Int64)] + [Field(name=n, dtype=t) for n, t in FEATURES.items()],
)
delays = FeatureView(
    name="delays", entities=[gate], ttl=None, source=FileSource(path=path, timestamp_field="at"),
    schema=[Field(name="gate", dtype=Int32), Field(name="late", dtype=Int32)],
)  # fmt: skip
store.apply([origin, slot, gate, view, delays])
for line in sys.stdin:
    rows = json.loads(line)
    features = ["delays:late"] if "gate" in rows[0] else [f"weather:{f}" for f in FEATURES]
    got = store.get_online_features(features=features, entity_rows=rows).to_dict()
    print(json.dumps(got, default=str), flush=True)
