"""Asks Falaj and Feast's own server the same, and uses Falaj through the SDK.

The repository in the working directory has the same views in both. Prints nothing
but what went wrong, and ends with 1 then.
"""

import asyncio
import datetime
import json
import os
import sys
import urllib.error
import urllib.request

import pandas as pd
import pyarrow as pa
from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource, PushSource, RepoConfig, ValueType
from feast.errors import FeastError, FeatureServiceNotFoundException, FeatureViewNotFoundException, PushSourceNotFoundException
from feast.feature_server import get_app
from feast.types import Array, Bool, Float32, Float64, Int32, Int64, String, UnixTimestamp

URL, TOKEN = os.environ["FALAJ_URL"], os.environ["FALAJ_TOKEN"]
UTC = datetime.timezone.utc
failed = []


def check(what, got, want):
    if got != want:
        failed.append(f"{what}\n   got: {got!r}\n  want: {want!r}")


def raises(what, kind, do, *says):
    try:
        failed.append(f"{what}: no error but {do()!r}")
    except kind as e:
        for s in says:
            if s not in str(e):
                failed.append(f"{what}: {e} does not say {s!r}")


# What both know.

at = lambda *a: pd.Timestamp(datetime.datetime(2013, 1, *a), tz="UTC")
pd.DataFrame({
    "origin": ["EWR", "JFK", "LGA"], "time_hour": [at(1, 10), at(1, 11), at(1, 12)], "temp": [1.5, None, 3.0],
    "station": [9007199254740993, -9007199254740995, 7], "sky": ["clear", "snow \u2603", None], "rain": [True, False, None],
    "seen": [at(1, 9), at(1, 10), at(1, 11)],
}).to_parquet("weather.parquet")
pd.DataFrame({"origin": ["EWR", "JFK"], "plane_id": [1, 9007199254740993], "departed": [at(1, 10)] * 2, "distance": [500, 700]}).to_parquet("legs.parquet")

pd.DataFrame({
    "origin": ["EWR", "JFK"], "at": [at(1, 10)] * 2, "gates": pd.Series([2147483647, -2147483648], dtype="int32"), "wind": pd.Series([0.1, 16777216], dtype="float32"),
    "tags": [["a", "\u2603"], [""]], "delays": [[9007199254740993], [1, 2, 3]], "embedding": [[0.1, -2.0, 3.5], [0.0, 0.0, 0.0]],
}).to_parquet("typed.parquet", schema=pa.schema({
    "origin": pa.string(), "at": pa.timestamp("us", "UTC"), "gates": pa.int32(), "wind": pa.float32(), "tags": pa.list_(pa.string()),
    "delays": pa.list_(pa.int64()), "embedding": pa.list_(pa.float32())}))

origin = Entity(name="origin", join_keys=["origin"], value_type=ValueType.STRING)
plane = Entity(name="plane", join_keys=["plane_id"], value_type=ValueType.INT64)
weather = FeatureView(
    name="weather", entities=[origin], ttl=datetime.timedelta(0),
    source=PushSource(name="weather", batch_source=FileSource(name="weather_rows", path="weather.parquet", timestamp_field="time_hour")),
    schema=[Field(name="origin", dtype=String), Field(name="temp", dtype=Float64), Field(name="station", dtype=Int64),
            Field(name="sky", dtype=String), Field(name="rain", dtype=Bool), Field(name="seen", dtype=UnixTimestamp)])
legs = FeatureView(
    name="legs", entities=[origin, plane], ttl=datetime.timedelta(0), source=FileSource(name="legs_rows", path="legs.parquet", timestamp_field="departed"),
    schema=[Field(name="origin", dtype=String), Field(name="plane_id", dtype=Int64), Field(name="distance", dtype=Int64)])
typed = FeatureView(
    name="typed", entities=[origin], ttl=datetime.timedelta(0),
    source=PushSource(name="typed", batch_source=FileSource(name="typed_rows", path="typed.parquet", timestamp_field="at")),
    schema=[Field(name="origin", dtype=String), Field(name="gates", dtype=Int32), Field(name="wind", dtype=Float32), Field(name="tags", dtype=Array(String)),
            Field(name="delays", dtype=Array(Int64)), Field(name="embedding", dtype=Array(Float32))])
delay = FeatureService(name="delay", features=[weather[["temp", "station"]], legs])


def repository(name, online, auth):
    store = FeatureStore(config=RepoConfig(
        project="flights", provider="local", registry=name + ".registry", online_store=online, offline_store={"type": "file"},
        entity_key_serialization_version=3, auth=auth))
    store.apply([origin, plane, weather, legs, typed, delay])
    return store


own = repository("own", {"type": "sqlite", "path": "online.db"}, {"type": "no_auth"})
own.materialize(datetime.datetime(2012, 1, 1, tzinfo=UTC), datetime.datetime(2014, 1, 1, tzinfo=UTC))
app = get_app(own)


def theirs(path, body):
    """Feast's server, without a socket."""
    said = {"body": b""}

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(m):
        said["status"] = m.get("status", said.get("status"))
        said["body"] += m.get("body", b"")

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(),
             "query_string": b"", "headers": [(b"content-type", b"application/json")], "scheme": "http", "server": ("x", 80), "client": ("x", 1), "root_path": ""}
    try:
        asyncio.run(app(scope, receive, send))
    except Exception:
        pass  # it has answered 500 before
    return said["status"], json.loads(said["body"])


def ours(path, body, token=TOKEN):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def columns(answer):
    """By name: Feast's server gives the features of a view in the order of a set."""
    status, body = answer
    out = {}
    for name, r in zip(body["metadata"]["feature_names"], body["results"]):
        # The difference that is meant: there a null is PRESENT.
        r["statuses"] = ["PRESENT" if s == "NULL_VALUE" else s for s in r["statuses"]]
        out[name] = r
    return status, out, sorted(body), body["metadata"].get("feature_view_metadata") is not None


# 1. Materialised from what Falaj has; then the same answers.
check("materialize", ours("/materialize", {"start_ts": "2012-01-01T00:00:00", "end_ts": "2014-01-01T00:00:00", "feature_views": ["weather"]}), (200, None))
check("incremental", ours("/materialize-incremental", {"end_ts": "2014-01-01T00:00:00"}), (200, None))
check("again", ours("/materialize-incremental", {"end_ts": "2014-01-01T00:00:00+00:00", "feature_views": ["legs"]}), (200, None))
started, body = ours("/materialize?async=true&force=true", {"disable_event_timestamp": True, "feature_views": ["legs"]})
check("async", (started, body), (202, {"status": "accepted", "feature_views": ["legs"]}))

ALL = ["weather:temp", "weather:station", "weather:sky", "weather:rain", "weather:seen"]
for body in (
    {"features": ALL, "entities": {"origin": ["EWR", "JFK", "LGA", "XXX"]}},
    {"features": ["weather:sky"], "entities": {"origin": ["LGA"]}, "full_feature_names": True},
    {"features": ["legs:distance", "weather:station"], "entities": {"origin": ["EWR", "JFK", "JFK"], "plane_id": [1, 9007199254740993, 5]}, "full_feature_names": True},
    {"feature_service": "delay", "entities": {"plane_id": [1], "origin": ["EWR"]}, "include_feature_view_version_metadata": True},
    {"features": ["weather:temp"], "entities": {"origin": ["EWR", "EWR"], "tail": ["N1", "N2"]}},
):
    check(f"as Feast's server: {body}", columns(ours("/get-online-features", body)), columns(theirs("/get-online-features", body)))
for path, body in (
    ("/get-online-features", {"features": ["nosuch:temp"], "entities": {"origin": ["EWR"]}}),
    ("/get-online-features", {"feature_service": "nosuch", "entities": {"origin": ["EWR"]}}),
    ("/push", {"push_source_name": "nosuch", "df": {"origin": ["EWR"]}}),
    ("/write-to-online-store", {"feature_view_name": "nosuch", "df": {"origin": ["EWR"]}}),
):
    (status, text), (meant, other) = ours(path, body), theirs(path, body)
    classes = {json.loads(text)["class"], json.loads(other)["class"]}
    if "PushSourceNotFoundException" in classes:
        meant = 404  # what is not there is 404
    check(f"class of {path} {body}", (status, len(classes - {"FeastObjectNotFoundException", "FeatureViewNotFoundException"}) < 2), (meant, True))

# 2. Through the SDK, with a token as its configuration takes one.
os.environ["FALAJ_FEAST_TOKEN"] = TOKEN
for auth in ({"type": "kubernetes", "user_token": TOKEN}, {"type": "oidc", "token": TOKEN}, {"type": "oidc", "token_env_var": "FALAJ_FEAST_TOKEN"}):
    store = repository("remote", {"type": "remote", "path": URL}, auth)
    got = store.get_online_features(ALL, [{"origin": "EWR"}, {"origin": "JFK"}, {"origin": "XXX"}]).to_dict()
    check(f"by list, {auth['type']}", got, {
        "origin": ["EWR", "JFK", "XXX"], "temp": [1.5, None, None], "station": [9007199254740993, -9007199254740995, None],
        "sky": ["clear", "snow \u2603", None], "rain": [True, False, None], "seen": [1357030800, 1357034400, None]})
check("by service", store.get_online_features(store.get_feature_service("delay"), [{"origin": "JFK", "plane_id": 9007199254740993}]).to_dict(), {
    "origin": ["JFK"], "plane_id": [9007199254740993], "temp": [None], "station": [-9007199254740995], "distance": [700]})
check("pandas", store.get_online_features(["legs:distance"], [{"origin": "EWR", "plane_id": 1}]).to_df().to_dict("records"), [{"origin": "EWR", "plane_id": 1, "distance": 500}])

check("typed is materialised", ours("/materialize", {"disable_event_timestamp": True, "feature_views": ["typed"]}), (200, None))
TYPED = ["typed:" + f for f in ("gates", "wind", "tags", "delays", "embedding")]
single = lambda *x: [pa.scalar(v, pa.float32()).as_py() for v in x]
known = {"origin": ["EWR", "XXX"], "gates": [2147483647, None], "wind": [*single(0.1), None], "tags": [["a", "\u2603"], None], "delays": [[9007199254740993], None],
         "embedding": [single(0.1, -2, 3.5), None]}
answer = store.get_online_features(TYPED, [{"origin": "EWR"}, {"origin": "XXX"}])
# The SDK takes JSON's numbers for 64 bits, whatever the field's type: they are those that the float32 is written with.
check("typed", answer.to_dict(), {**known, "wind": [0.1, None], "embedding": [[0.1, -2.0, 3.5], None]})
check("typed, as the file store has it", own.get_online_features(TYPED, [{"origin": "EWR"}, {"origin": "XXX"}]).to_dict(), known)
kinds = {n: r.values[0].WhichOneof("val") for n, r in zip(answer.proto.metadata.feature_names.val, answer.proto.results)}
check("Feast's types", {k: v for k, v in kinds.items() if k != "origin"}, {"gates": "int64_val", "wind": "double_val", "tags": "string_list_val", "delays": "int64_list_val", "embedding": "double_list_val"})
news = {"origin": ["EWR"], "at": ["2013-01-05T00:00:00"], "gates": [7], "wind": [0.5], "tags": [[]], "delays": [[1, 2]], "embedding": [[1, 2, 3]]}
check("typed rows pushed", ours("/push", {"push_source_name": "typed", "df": news})[0], 200)
check("what was pushed", ours("/get-online-features", {"features": TYPED, "entities": {"origin": ["EWR"]}, "full_feature_names": False})[1]["results"][1:],
      [{**r, "values": [v]} for r, v in zip(ours("/get-online-features", {"features": TYPED, "entities": {"origin": ["EWR"]}})[1]["results"][1:], [7, 0.5, [], [1, 2], [1.0, 2.0, 3.0]])])
for what, change in (("a dimension", {"embedding": [[1, 2]]}), ("an int64", {"gates": [2**31]}), ("a long list", {"tags": [["x"] * 5]}), ("a null in a list", {"delays": [[None]]})):
    check(what, ours("/push", {"push_source_name": "typed", "df": {**news, **change}})[0], 422)

row = lambda t, temp, **more: pd.DataFrame([{"origin": "EWR", "event_timestamp": t, "time_hour": t, "temp": temp, "station": 2**63 - 1, "sky": "\u2603", "rain": False, "seen": at(2, 1), **more}])
store.push("weather", row(at(3, 1), 20.5))
seen = lambda *f: store.get_online_features(["weather:" + x for x in f], [{"origin": "EWR"}]).to_dict()
check("pushed", seen("temp", "station", "sky", "seen"), {"origin": ["EWR"], "temp": [20.5], "station": [2**63 - 1], "sky": ["\u2603"], "seen": [int(at(2, 1).timestamp())]})
store.push("weather", row(at(2, 1), -1.0))
check("a late row hides nothing", seen("temp"), {"origin": ["EWR"], "temp": [20.5]})
store.write_to_online_store("weather", row(at(3, 2), 21.5))
check("written", seen("temp"), {"origin": ["EWR"], "temp": [21.5]})
check("materialised again", ours("/materialize", {"disable_event_timestamp": True, "feature_views": ["weather"]}), (200, None))
check("what was pushed stays", seen("temp"), {"origin": ["EWR"], "temp": [21.5]})
store.materialize(datetime.datetime(2012, 1, 1, tzinfo=UTC), datetime.datetime(2014, 1, 1, tzinfo=UTC), ["legs"])
check("the SDK's own materialisation", store.get_online_features(["legs:distance"], [{"origin": "EWR", "plane_id": 1}]).to_dict(), {"origin": ["EWR"], "plane_id": [1], "distance": [500]})

raises("a future", FeastError, lambda: store.push("weather", row(pd.Timestamp("2999-01-01", tz="UTC"), 1.0)), "in the future")
raises("no view", FeatureViewNotFoundException, lambda: store.get_online_features(["nosuch:x"], [{"origin": "EWR"}]), "nosuch")
missing = FeatureService(name="missing", features=[weather])
raises("no service", FeatureServiceNotFoundException, lambda: store.get_online_features(missing, [{"origin": "EWR"}]), "missing")
raises("a key of another type", FeastError, lambda: store.get_online_features(["legs:distance"], [{"origin": "EWR", "plane_id": "x"}]), "plane_id")
raises("a key that is missing", FeastError, lambda: store.get_online_features(["legs:distance"], [{"origin": "EWR"}]), "plane_id")

# 3. What a client does wrong is its error, in Feast's form.
good = {"origin": ["EWR"], "time_hour": ["2013-01-04T00:00:00"], "temp": [1], "station": [1], "sky": [None], "rain": [None], "seen": [None]}
for what, path, body, status in (
    ("offline", "/push", {"push_source_name": "weather", "df": good, "to": "offline"}, 422),
    ("nowhere", "/push", {"push_source_name": "weather", "df": good, "to": "x"}, 422),
    ("type", "/push", {"push_source_name": "weather", "df": {**good, "station": [1.5]}}, 422),
    ("text", "/push", {"push_source_name": "weather", "df": {**good, "temp": ["1"]}}, 422),
    ("column", "/push", {"push_source_name": "weather", "df": {**good, "x": [1]}}, 422),
    ("lengths", "/push", {"push_source_name": "weather", "df": {**good, "temp": []}}, 422),
    ("null key", "/push", {"push_source_name": "weather", "df": {**good, "origin": [None]}}, 422),
    ("field", "/push", {"push_source_name": "weather", "df": good, "x": 1}, 422),
    ("nothing", "/get-online-features", {}, 422),
    ("range", "/materialize", {"start_ts": "2014-01-01", "end_ts": "2013-01-01"}, 422),
):
    got, text = ours(path, body)
    check(what, (got, json.loads(text)["class"]), (status, "FeastError"))
check("nothing was written", seen("temp"), {"origin": ["EWR"], "temp": [21.5]})
check("null key", ours("/get-online-features", {"features": ["weather:temp"], "entities": {"origin": [None]}})[1]["results"][1]["statuses"], ["NOT_FOUND"])
got, text = ours("/get-online-features", {"features": ALL, "entities": {"origin": ["EWR"]}}, token="wrong")
check("a wrong token", (got, json.loads(text)["class"]), (401, "FeastPermissionError"))

print("\n".join(failed))
sys.exit(1 if failed else 0)
