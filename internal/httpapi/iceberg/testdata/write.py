"""Writes open datasets with unmodified pyiceberg. What became of it, client_test.go
looks at."""

import os
import warnings

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError, RESTError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestampType

warnings.simplefilter("ignore")
URI, TOKEN = os.environ["CATALOG_URI"], os.environ["CATALOG_TOKEN"]


def raises(kind, act, *words):
    try:
        act()
    except kind as e:
        for w in words:
            assert w in str(e), f"{e!r} does not say {w!r}"
    else:
        raise AssertionError(f"no {kind}")


def rows(*values):
    return pa.table({"id": pa.array([v[0] for v in values], pa.int64()), "name": pa.array([v[1] for v in values], pa.string())})


catalog = load_catalog("falaj", type="rest", uri=URI, token=TOKEN)
people = catalog.create_table("nyc.people", schema=rows().schema, properties={"comment": "made by pyiceberg", "owner": "amal"})
assert people.properties["owner"] == "amal" and catalog.table_exists("nyc.people")
raises(TableAlreadyExistsError, lambda: catalog.create_table("nyc.people", schema=rows().schema))

people.append(rows((1, "a"), (2, "b")))  # people@1
assert people.scan().to_arrow().num_rows == 2
stale = catalog.load_table("nyc.people")
people.append(rows((3, "c")))  # people@2
assert sorted(people.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
stale.append(rows((4, "d")))  # people@3: refused, so the client reads again and repeats
people = catalog.load_table("nyc.people")
assert sorted(people.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]

people.delete("id = 2")  # people@4
assert sorted(people.scan().to_arrow()["id"].to_pylist()) == [1, 3, 4]
people.overwrite(rows((7, "g"), (8, None)))  # people@5, two snapshots in one commit
assert people.scan().to_arrow().sort_by("id").to_pydict() == {"id": [7, 8], "name": ["g", None]}

# Columns may be added; rows before have none.
with people.update_schema() as update:
    update.add_column("age", LongType())
assert catalog.load_table("nyc.people").schema().column_names == ["id", "name", "age"]
people.append(pa.table({"id": [9], "name": ["i"], "age": [42]}))  # people@6
got = catalog.load_table("nyc.people").scan().to_arrow().sort_by("id")
assert got.to_pydict() == {"id": [7, 8, 9], "name": ["g", None, "i"], "age": [None, None, 42]}, got.to_pydict()
old = people.scan(snapshot_id=people.snapshot_by_name("v2").snapshot_id).to_arrow()
assert sorted(old["id"].to_pylist()) == [1, 2, 3]


def rename():
    with catalog.load_table("nyc.people").update_schema() as update:
        update.rename_column("name", "called")


raises(RESTError, rename, "renamed, changed or dropped")
with catalog.load_table("nyc.people").transaction() as tx:
    tx.set_properties(owner="basim")
assert catalog.load_table("nyc.people").properties["owner"] == "basim"
raises(RESTError, lambda: catalog.load_table("nyc.people").transaction().set_properties({"write.delete.mode": "merge-on-read"}).commit_transaction(), "copy-on-write")

# An expectation that fails: the version is kept as rejected, the table stays.
weather = catalog.load_table("nyc.weather")
before = weather.scan().to_arrow()
bad = before.slice(0, 1).set_column(2, "temp", pa.array([-300.0]))
assert before.schema.field(2).name == "temp", before.schema
raises(BadRequestError, lambda: weather.append(bad), "weather@4 is rejected", "between(temp", "falaj dataset preview weather@4")
assert catalog.load_table("nyc.weather").scan().to_arrow().num_rows == before.num_rows
weather = catalog.load_table("nyc.weather")
weather.append(before.slice(0, 1))  # weather@5
assert catalog.load_table("nyc.weather").scan().to_arrow().num_rows == before.num_rows + 1

# A table that is made together with its first rows.
with catalog.create_table_transaction("nyc.made", schema=Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))) as tx:
    tx.append(pa.table({"id": pa.array([5], pa.int64()), "name": ["x"]}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])))
assert catalog.load_table("nyc.made").scan().to_arrow()["id"].to_pylist() == [5]

# What tables here are not.
two = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="id"))
raises(RESTError, lambda: catalog.create_table("nyc.parts", schema=two, partition_spec=spec), "partitioned")
raises(RESTError, lambda: catalog.create_table("nyc.zoneless", schema=Schema(NestedField(1, "t", TimestampType()))), "timestamptz")
raises(RESTError, lambda: catalog.create_table("nyc.money", schema=Schema(NestedField(1, "m", DecimalType(9, 2)))), "decimal")
raises(BadRequestError, lambda: catalog.create_table("nyc.elsewhere", schema=two, location="file:///tmp/elsewhere"), "location")
raises(ForbiddenError, lambda: load_catalog("falaj", type="rest", uri=URI, token="reader").create_table("nyc.no", schema=two), "dataset.import")
raises(BadRequestError, lambda: catalog.create_table("nyc.No", schema=two), "name")
print("written")
