"""Reads open datasets with unmodified pyiceberg and Polars. The data is what
client_test.go made; the catalog's address and a token are in the environment."""

import os
import warnings

import polars as pl
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, OAuthError, UnauthorizedError

warnings.simplefilter("ignore", DeprecationWarning)
URI, TOKEN = os.environ["CATALOG_URI"], os.environ["CATALOG_TOKEN"]


def raises(kind, act, *words):
    try:
        act()
    except kind as e:
        for w in words:
            assert w in str(e), f"{e!r} does not say {w!r}"
    else:
        raise AssertionError(f"no {kind.__name__}")


catalog = load_catalog("falaj", type="rest", uri=URI, token=TOKEN)
assert catalog.list_namespaces() == [("nyc",)], catalog.list_namespaces()
assert catalog.namespace_exists("nyc") and not catalog.namespace_exists("other")
assert catalog.list_tables("nyc") == [("nyc", "blank"), ("nyc", "weather")], catalog.list_tables("nyc")

weather = catalog.load_table("nyc.weather")
rows = weather.scan().to_arrow().to_pylist()
assert [r["origin"] for r in rows] == ["EWR", "JFK", None], rows
assert [r["temp"] for r in rows] == [1.5, None, -3.0], rows
assert [r["seen"].isoformat() for r in rows][0] == "2013-01-01T00:00:00+00:00", rows
assert [r["wet"] for r in rows] == [True, False, None] and rows[0]["day"].isoformat() == "2013-01-01"
assert [r["n"] for r in rows] == [9007199254740993, 2, 3], rows
assert weather.scan(row_filter="temp > 0", selected_fields=("origin",)).to_arrow().to_pydict() == {"origin": ["EWR"]}

# The first version is still there; the second was rejected and is nowhere.
tags = sorted(n for n, r in weather.metadata.refs.items() if r.snapshot_ref_type == "tag")
assert tags == ["v1", "v3"], tags
first = weather.scan(snapshot_id=weather.snapshot_by_name("v1").snapshot_id).to_arrow()
assert first["origin"].to_pylist() == ["EWR"], first

assert pl.scan_iceberg(weather).filter(pl.col("n") > 2).select("n").collect()["n"].to_list() == [9007199254740993, 3]

blank = catalog.load_table("nyc.blank")
assert blank.scan().to_arrow().num_rows == 0 and blank.schema().column_names == ["a", "b"]

raises(ForbiddenError, lambda: catalog.load_table("nyc.secret"), "is sealed", "falaj dataset query", "protection: open")
raises(NoSuchTableError, lambda: catalog.load_table("nyc.absent"), "absent")
raises(NoSuchTableError, lambda: catalog.load_table("nyc.weather.files"))
raises(NoSuchNamespaceError, lambda: catalog.list_tables("other"))
assert catalog.table_exists("nyc.weather") and not catalog.table_exists("nyc.absent")
raises(ForbiddenError, lambda: load_catalog("falaj", type="rest", uri=URI, token="reader").load_table("nyc.weather"), "dataset.query")

# The OAuth2 shape: the secret is the token.
again = load_catalog("falaj", type="rest", uri=URI, credential="anybody:" + TOKEN)
assert again.load_table("nyc.weather").scan().to_arrow().num_rows == 3
raises((OAuthError, UnauthorizedError), lambda: load_catalog("falaj", type="rest", uri=URI, credential="anybody:wrong"))
print("read")
