"""Reads and writes open datasets with unmodified PySpark and Iceberg's runtime."""

import os

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", os.environ["ICEBERG_JAR"])
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.falaj", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.falaj.type", "rest")
    .config("spark.sql.catalog.falaj.uri", os.environ["CATALOG_URI"])
    .config("spark.sql.catalog.falaj.token", os.environ["CATALOG_TOKEN"])
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")


def sql(text):
    return [tuple(r) for r in spark.sql(text).collect()]


def raises(text, *words):
    try:
        sql(text)
    except Exception as e:
        said = str(e)
        for w in words:
            assert w in said, f"{said} does not say {w!r}"
    else:
        raise AssertionError(f"no error: {text}")


assert sql("SHOW NAMESPACES IN falaj") == [("nyc",)]
assert [r[1] for r in sql("SHOW TABLES IN falaj.nyc")] == ["blank", "weather"]
got = sql("SELECT origin, temp, n, wet, cast(day AS string), cast(seen AS string) FROM falaj.nyc.weather ORDER BY seen")
assert got[0] == ("EWR", 1.5, 9007199254740993, True, "2013-01-01", "2013-01-01 00:00:00"), got
assert len(got) == 3 and got[2][0] is None
assert sql("SELECT count(*) FROM falaj.nyc.weather VERSION AS OF 'v1'") == [(1,)]
assert len(sql("SELECT * FROM falaj.nyc.weather.files")) == 1
assert [r[0] for r in sql("SELECT name FROM falaj.nyc.weather.refs ORDER BY name")] == ["main", "v1", "v3"]
raises("SELECT * FROM falaj.nyc.secret", "is sealed", "falaj dataset query")
raises("SELECT * FROM falaj.nyc.absent", "TABLE_OR_VIEW_NOT_FOUND")

sql("CREATE TABLE falaj.nyc.trips (id BIGINT NOT NULL, zone STRING, at TIMESTAMP, fare FLOAT, n INT) USING iceberg")
sql("INSERT INTO falaj.nyc.trips VALUES (1, 'a', TIMESTAMP '2013-01-01 00:00:00', 1.5, 1), (2, 'b', NULL, 2.5, 2)")  # trips@1
sql("INSERT INTO falaj.nyc.trips VALUES (3, 'c', NULL, NULL, 3)")  # trips@2
assert sql("SELECT id, zone, fare, n FROM falaj.nyc.trips ORDER BY id") == [(1, "a", 1.5, 1), (2, "b", 2.5, 2), (3, "c", None, 3)]
sql("UPDATE falaj.nyc.trips SET zone = 'z' WHERE id = 2")  # trips@3
sql("DELETE FROM falaj.nyc.trips WHERE id = 1")  # trips@4
sql("MERGE INTO falaj.nyc.trips t USING (SELECT 3 AS id, 'm' AS zone) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET zone = s.zone")  # trips@5
assert sql("SELECT id, zone FROM falaj.nyc.trips ORDER BY id") == [(2, "z"), (3, "m")]
sql("ALTER TABLE falaj.nyc.trips ADD COLUMN tip DOUBLE")
sql("INSERT INTO falaj.nyc.trips VALUES (4, 'd', NULL, 1.0, 4, 0.5)")  # trips@6
assert sql("SELECT id, tip FROM falaj.nyc.trips ORDER BY id") == [(2, None), (3, None), (4, 0.5)]
sql("INSERT OVERWRITE falaj.nyc.trips SELECT * FROM falaj.nyc.trips WHERE id = 4")  # trips@7
assert sql("SELECT id FROM falaj.nyc.trips") == [(4,)]
sql("CREATE TABLE falaj.nyc.hot USING iceberg AS SELECT origin, temp FROM falaj.nyc.weather WHERE temp > 0")  # hot@1
assert sql("SELECT * FROM falaj.nyc.hot") == [("EWR", 1.5)]
sql("CREATE OR REPLACE TABLE falaj.nyc.hot USING iceberg AS SELECT origin FROM falaj.nyc.weather")  # hot@2
assert len(sql("SELECT origin FROM falaj.nyc.hot")) == 3
raises("INSERT INTO falaj.nyc.weather SELECT origin, seen, -300D, n, wet, day FROM falaj.nyc.weather", "weather@4 is rejected")
assert sql("SELECT count(*) FROM falaj.nyc.weather") == [(3,)]
raises("CREATE TABLE falaj.nyc.parts (id BIGINT) USING iceberg PARTITIONED BY (id)", "partitioned")
raises("ALTER TABLE falaj.nyc.trips SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')", "copy-on-write")

# Every type that tables keep, one by one and in lists: with the ends of its range, nulls, and
# what is no number.
KINDS = "i INT, l BIGINT, f FLOAT, d DOUBLE, b BOOLEAN, s STRING, at TIMESTAMP, day DATE"
LISTS = "li ARRAY<INT>, ll ARRAY<BIGINT>, lf ARRAY<FLOAT>, ld ARRAY<DOUBLE>, lb ARRAY<BOOLEAN>, ls ARRAY<STRING>, lat ARRAY<TIMESTAMP>"
sql(f"CREATE TABLE falaj.nyc.kinds (id INT, {KINDS}, {LISTS}) USING iceberg")
sql(
    "INSERT INTO falaj.nyc.kinds VALUES (1, -2147483648, -9223372036854775808L, float('0.1'), 0.1D, true, 'Falaj \u0641\u0644\u062c', TIMESTAMP '2013-01-01 00:00:00.123456', DATE '1500-03-01',"
    " array(2147483647, 0), array(9223372036854775807L), array(float('0.1'), float('-Infinity')), array(0.1D), array(true, false), array('', 'x'), array(TIMESTAMP '1969-12-31 23:59:59.999999')),"
    " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
)  # kinds@1
sql(
    "INSERT INTO falaj.nyc.kinds VALUES (3, 3, 3, float('NaN'), double('NaN'), false, '', NULL, NULL, array(), array(), array(float('NaN')), array(), array(), array(), array())"
)  # kinds@2
sql("UPDATE falaj.nyc.kinds SET li = array(3, 2, 1), f = float('-0.5') WHERE id = 3")  # kinds@3
got = [str(r[1:7]) for r in sql("SELECT * FROM falaj.nyc.kinds ORDER BY id")]
assert got[0] == str((-2147483648, -9223372036854775808, 0.10000000149011612, 0.1, True, "Falaj \u0641\u0644\u062c")), got
assert got[2] == str((3, 3, -0.5, float("nan"), False, "")), got
got = sql("SELECT li, ll, lf, ld, lb, ls, size(lat) FROM falaj.nyc.kinds ORDER BY id")
assert got[0] == ([2147483647, 0], [9223372036854775807], [0.10000000149011612, float("-inf")], [0.1], [True, False], ["", "x"], 1), got
assert got[1][:6] == (None,) * 6 and str(got[2]) == str(([3, 2, 1], [], [float("nan")], [], [], [], 0)), got
assert sql("SELECT CAST(at AS STRING), CAST(lat[0] AS STRING), CAST(day AS STRING) FROM falaj.nyc.kinds WHERE id = 1") == [
    ("2013-01-01 00:00:00.123456", "1969-12-31 23:59:59.999999", "1500-03-01")
]
sql("CREATE TABLE falaj.nyc.kinds2 USING iceberg AS SELECT * FROM falaj.nyc.kinds WHERE id < 3")  # kinds2@1
assert [f.dataType.simpleString() for f in spark.table("falaj.nyc.kinds2").schema] == [f.dataType.simpleString() for f in spark.table("falaj.nyc.kinds").schema]
raises("UPDATE falaj.nyc.kinds SET li = array(1, CAST(NULL AS INT)) WHERE id = 3", "an element of the list is null")
raises("CREATE TABLE falaj.nyc.days (l ARRAY<DATE>) USING iceberg", "The types are")
raises("CREATE TABLE falaj.nyc.walls (at TIMESTAMP_NTZ) USING iceberg", "timestamptz")
raises("CREATE TABLE falaj.nyc.deep (l ARRAY<ARRAY<INT>>) USING iceberg", "The types are")
spark.stop()
print("spark")
