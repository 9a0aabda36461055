"""Reads with unmodified pyiceberg and Polars what Spark wrote of every type."""

import math
import os
import warnings

import polars as pl
from pyiceberg.catalog import load_catalog

warnings.simplefilter("ignore")
catalog = load_catalog("falaj", type="rest", uri=os.environ["CATALOG_URI"], token=os.environ["CATALOG_TOKEN"])
SCALARS = {"id": "int", "i": "int", "l": "long", "f": "float", "d": "double", "b": "boolean", "s": "string", "at": "timestamptz", "day": "date"}
LISTS = {"li": "list<int>", "ll": "list<long>", "lf": "list<float>", "ld": "list<double>", "lb": "list<boolean>", "ls": "list<string>", "lat": "list<timestamptz>"}
of_polars = {
    "int": pl.Int32, "long": pl.Int64, "float": pl.Float32, "double": pl.Float64, "boolean": pl.Boolean, "string": pl.String,
    "timestamptz": pl.Datetime("us", "UTC"), "date": pl.Date,
}  # fmt: skip


def same(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return a == b


def check(rows, reader):
    rows = {r["id"]: r for r in rows}
    one, two, three = rows[1], rows[2], rows[3]
    want = {
        "i": -(2**31), "l": -(2**63), "f": 0.10000000149011612, "d": 0.1, "b": True, "s": "Falaj \u0641\u0644\u062c", "li": [2**31 - 1, 0], "ll": [2**63 - 1],
        "lf": [0.10000000149011612, -math.inf], "ld": [0.1], "lb": [True, False], "ls": ["", "x"],
    }  # fmt: skip
    for name, value in want.items():
        assert same(one[name], value), (reader, name, one[name])
    assert one["at"].isoformat() == "2013-01-01T00:00:00.123456+00:00" and one["day"].isoformat() == "1500-03-01", (reader, one)
    assert [t.isoformat() for t in one["lat"]] == ["1969-12-31T23:59:59.999999+00:00"], (reader, one)
    assert all(two[name] is None for name in two if name != "id"), (reader, two)
    want = {"i": 3, "l": 3, "f": -0.5, "d": math.nan, "b": False, "s": "", "at": None, "day": None, "li": [3, 2, 1], "lf": [math.nan]}
    want |= dict.fromkeys(("ll", "ld", "lb", "ls", "lat"), [])
    for name, value in want.items():
        assert same(three[name], value), (reader, name, three[name])


kinds = catalog.load_table("nyc.kinds")
assert {f.name: str(f.field_type) for f in kinds.schema().fields} == SCALARS | LISTS, kinds.schema()
check(kinds.scan().to_arrow().to_pylist(), "pyiceberg")
frame = pl.scan_iceberg(kinds).collect()
for name, kind in SCALARS.items():
    assert frame.schema[name] == of_polars[kind], (name, frame.schema[name])
for name, kind in LISTS.items():
    assert frame.schema[name] == pl.List(of_polars[kind[5:-1]]), (name, frame.schema[name])
check(frame.to_dicts(), "Polars")
print("kinds")
