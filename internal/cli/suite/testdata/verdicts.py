"""What Great Expectations itself says: reads rows as CSV, prints its suite and the
verdict on each expectation, as JSON."""
import io
import json
import logging
import sys

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd

logging.disable(logging.CRITICAL)

rows = pd.read_csv(io.StringIO(sys.stdin.read()), keep_default_na=False, na_values=["", "NA"])
E = []
for mostly in (1, 0.75, 0.8, 0.6):
    for column in rows.columns:
        E.append(gxe.ExpectColumnValuesToNotBeNull(column=column, mostly=mostly))
    for column in ("n", "x"):
        for lo, hi, strict in ((0, 5, False), (0, 5, True), (None, 3, False), (2, None, True), (-1.5, 2.5, False)):
            E.append(gxe.ExpectColumnValuesToBeBetween(
                column=column, min_value=lo, max_value=hi, strict_min=strict and lo is not None, strict_max=strict and hi is not None, mostly=mostly))
    for values in (["a", "b"], ["a", "b", "zz", "ünder"], ["nothing"]):
        E.append(gxe.ExpectColumnValuesToBeInSet(column="name", value_set=values, mostly=mostly))
    E.append(gxe.ExpectColumnValuesToBeInSet(column="n", value_set=[1, 2, 3, 5], mostly=mostly))
    # Texts, numbers and truth are not each other, however they are written.
    for column, values in (("code", ["1", "2"]), ("code", [1, 2]), ("code", [1, 2, "x"]), ("n", ["1", "2", "3", "5"]), ("n", [1, 5, "3"]), ("name", [True, "a"])):
        E.append(gxe.ExpectColumnValuesToBeInSet(column=column, value_set=values, mostly=mostly))
    for regex in ("^a", "b", "^[a-zü]+$", "z{2}|a", "."):
        E.append(gxe.ExpectColumnValuesToMatchRegex(column="name", regex=regex, mostly=mostly))
    for lo, hi in ((1, 1), (None, 2), (2, None), (1, 5)):
        E.append(gxe.ExpectColumnValueLengthsToBeBetween(column="name", min_value=lo, max_value=hi, mostly=mostly))
    E.append(gxe.ExpectColumnValueLengthsToEqual(column="name", value=1, mostly=mostly))
for column in rows.columns:
    E.append(gxe.ExpectColumnValuesToBeUnique(column=column))
    E.append(gxe.ExpectColumnToExist(column=column))
E.append(gxe.ExpectColumnToExist(column="absent"))
for columns in (["id", "n"], ["n", "name"], ["n", "x"], ["name", "x", "n"]):
    E.append(gxe.ExpectCompoundColumnsToBeUnique(column_list=columns, ignore_row_if="any_value_is_missing"))
for lo, hi in ((1, 3), (None, len(rows)), (len(rows), None), (len(rows) + 1, None)):
    E.append(gxe.ExpectTableRowCountToBeBetween(min_value=lo, max_value=hi))
E.append(gxe.ExpectTableRowCountToEqual(value=len(rows)))
E.append(gxe.ExpectColumnMeanToBeBetween(column="n", min_value=0))

context = gx.get_context(mode="ephemeral")
context.variables.progress_bars = {"globally": False}
batch = context.data_sources.add_pandas("p").add_dataframe_asset("a").add_batch_definition_whole_dataframe("b").get_batch({"dataframe": rows})
suite = context.suites.add(gx.ExpectationSuite(name="everything", expectations=E))
found = {r.expectation_config.id: bool(r.success) for r in batch.validate(suite).results}
print(json.dumps({"suite": suite.to_json_dict(), "verdicts": [found[e.id] for e in suite.expectations]}))
