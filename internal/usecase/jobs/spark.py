"""Runs the SQL of a transformation on Spark: its tables are Parquet files, and so are its rows."""

import json
import os
import re
import shutil
import sys

if not shutil.which("java"):
    sys.exit("Spark needs Java, and this node has none: install a JRE 17, or name pools that have one in spec.transform.pools")

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

step = json.loads(STEP)
scratch = os.environ["FALAJ_SCRATCH_DIR"]
settings = {
    "spark.driver.memory": f"{step['memory']}m",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.local.dir": scratch,
    "spark.sql.warehouse.dir": "file://" + os.path.join(scratch, "warehouse"),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",  # ${env:X} is a text, and no variable of this process
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # old days are of the same calendar as others
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
builder = SparkSession.builder.master(f"local[{step['cores']}]").appName("falaj")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for table, name in step["tables"].items():
    rows = spark.read.parquet("file://" + os.environ["FALAJ_DATA_" + name.upper()])
    rows.createOrReplaceTempView("`" + table.replace("`", "``") + "`")

# Texts and names are written as in DuckDB: for Spark two quotes end a text and begin another
# one, and a backslash escapes.
quoted = re.compile(r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*\"""", re.DOTALL)


def as_spark(token):
    said = token.group()
    if said[0] == "'":
        return "'" + said[1:-1].replace("\\", "\\\\").replace("''", "\\'") + "'"
    if said[0] == '"':
        return "`" + said[1:-1].replace('""', '"').replace("`", "``") + "`"
    return said  # a comment


# The names and types that DuckDB gives the columns: Spark's row_number() is an int, and its
# count(*) is called otherwise.
types = {"int32": "int", "int64": "bigint", "float32": "float", "float64": "double", "bool": "boolean"}


def spark_type(name):
    if name.startswith("list<"):
        return f"array<{spark_type(name[5:-1])}>"
    return types.get(name, name)


rows = spark.sql(quoted.sub(as_spark, step["sql"]))
columns = step["columns"]
if len(rows.columns) != len(columns):
    sys.exit(f"Spark makes {len(rows.columns)} columns of the SQL, and DuckDB {len(columns)}: name them instead of *")
rows = rows.toDF(*[f"c{i}" for i in range(len(columns))])
rows = rows.select([col(f"c{i}").cast(spark_type(c["type"])).alias(c["name"]) for i, c in enumerate(columns)])
rows.write.parquet("file://" + os.path.join(os.environ["FALAJ_OUTPUT_DIR"], "rows"))
spark.stop()
