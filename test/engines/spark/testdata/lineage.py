"""A job of Spark whose listener tells Falaj what it reads and writes."""

import os, sys
from pyspark.sql import SparkSession
jar, url, token, src, out = sys.argv[1:]
s = (SparkSession.builder.master("local[1]").appName("nightly").config("spark.jars", jar).config("spark.driver.extraClassPath", jar)
     .config("spark.extraListeners", "io.openlineage.spark.agent.OpenLineageSparkListener")
     .config("spark.openlineage.transport.type", "http").config("spark.openlineage.transport.url", url)
     .config("spark.openlineage.transport.auth.type", "api_key").config("spark.openlineage.transport.auth.apiKey", token)
     .config("spark.openlineage.namespace", "lake").config("spark.ui.enabled", "false").getOrCreate())
s.read.parquet(src).selectExpr("id", "temp * 2 AS double").filter("id > 0").write.mode("overwrite").parquet(out)
s.stop()
