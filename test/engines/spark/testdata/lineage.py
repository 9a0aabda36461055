"""A job of Spark whose unmodified listener tells Falaj what it reads and writes."""

import sys

from pyspark.sql import SparkSession

jar, url, token, rows, out = sys.argv[1:]
settings = {
    "spark.jars": jar,
    "spark.driver.extraClassPath": jar,
    "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
    "spark.openlineage.transport.type": "http",
    "spark.openlineage.transport.url": url,
    "spark.openlineage.transport.auth.type": "api_key",
    "spark.openlineage.transport.auth.apiKey": token,
    "spark.openlineage.namespace": "lake",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
builder = SparkSession.builder.master("local[1]").appName("nightly")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.read.parquet(rows).selectExpr("id", "temp * 2 AS double").where("id > 0").write.parquet(out)
spark.stop()
