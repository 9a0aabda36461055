"""Answers every row of a dataset with an ONNX model, and leaves the rows with the answers beside them.

Its one argument says what is wanted (told in score.go). The model's files are in FALAJ_DATA_MODEL,
the rows in FALAJ_DATA_ROWS. It leaves rows/part-00000.parquet: the columns that are kept and one for
each output, in the order of the rows. Before it stands onnxjob's rows.py, which feeds the model.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

WRITE_ROWS = 1 << 16  # of a row group that is written, at most, and
WRITE_BYTES = 64 << 20
ALONE = 16  # rows by which a batch is compared with each row alone
TOLERANCE = 1e-4  # of the largest number of an output's column, as a deployment compares them

# What a column of a dataset can hold of each output.
COLUMN = {
    "tensor(float)": pa.float32(), "tensor(double)": pa.float64(), "tensor(float16)": pa.float32(), "tensor(int64)": pa.int64(),
    "tensor(int32)": pa.int32(), "tensor(int16)": pa.int32(), "tensor(int8)": pa.int32(), "tensor(uint8)": pa.int32(),
    "tensor(uint16)": pa.int32(), "tensor(uint32)": pa.int64(), "tensor(bool)": pa.bool_(), "tensor(string)": pa.string(),
}


# --- the rows ------------------------------------------------------------------------------


class Rows:
    """The files of a dataset version, read a batch at a time."""

    def __init__(self):
        self.files = [pq.ParquetFile(f) for f in sorted(Path(os.environ["FALAJ_DATA_ROWS"]).rglob("*.parquet"))]
        self.total = sum(f.metadata.num_rows for f in self.files)
        if not self.total:
            fail("the dataset has no rows, so there is nothing to answer: name a version that has some, such as --dataset NAME@3")
        self.schema = self.files[0].schema_arrow

    def batches(self, columns, size):
        """The number of the first row, and the rows."""
        at = 0
        for f in self.files:
            for b in f.iter_batches(batch_size=size, columns=columns):
                if b.num_rows:
                    yield at, pa.Table.from_batches([b])
                at += b.num_rows


def plain(kind):
    return pa.list_(kind.value_type) if kinds.is_list(kind) else kind


def kept(told, schema):
    """The columns that are kept, as they are but for the numbers that their files give them."""
    keep = told.get("keep") or schema.names
    missing = [c for c in keep if c not in schema.names]
    if missing:
        fail(f"the dataset has no column {missing[0]} to keep; it has {', '.join(schema.names[:50])}")
    return [pa.field(c, plain(schema.field(c).type)) for c in keep]


# --- what the model is fed -----------------------------------------------------------------


def whole(i, table, columns, at, nulls):
    """Refuses nulls that the model cannot be told, and numbers that are not what they are for an input of integers."""
    kind = np.dtype(TYPES[i.type])
    for c in columns:
        values = table[c].combine_chunks()
        values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
        flat = values.flatten() if kinds.is_list(values.type) else values
        if values.null_count and (kind.kind != "f" or flat is not values or nulls != "nan"):
            row = at + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            how = "fill it in a dataset that is made of this one"
            if kind.kind == "f" and flat is values:
                how += ", or answer with --nulls nan, which is what a request's null is to the model"
            fail(f"column {c} is null in row {row} (counted from 0), and input {i.name} takes {i.type}: {how}")
        if flat is not values and flat.null_count:
            fail(f"column {c} has lists with nulls, and input {i.name} takes {i.type}: fill them in a dataset that is made of this one")
        if kind.kind in "iu" and len(flat):
            numbers = flat.to_numpy(zero_copy_only=False)
            low, high = np.iinfo(kind).min, np.iinfo(kind).max
            if numbers.dtype.kind == "f" and not np.array_equal(numbers, np.round(numbers)) or numbers.min() < low or numbers.max() > high:
                fail(f"column {c} has numbers that input {i.name} of {i.type} does not hold: cast it in a dataset that is made of this one")
        if kind.kind == "b" and not kinds.is_boolean(flat.type):
            fail(f"column {c} is {table[c].type}, and input {i.name} takes truths: cast it in a dataset that is made of this one")


def alike(table, inputs, columns):
    """Parts a batch where lists change their length: none is filled up, since a request's is not."""
    cuts = np.zeros(table.num_rows, bool)
    for i in inputs:
        for c in columns[i.name]:
            if kinds.is_list(table[c].type):
                lengths = pc.list_value_length(table[c]).to_numpy()
                cuts[1:] |= lengths[1:] != lengths[:-1]
    edges = [0, *np.flatnonzero(cuts), table.num_rows]
    for a, b in zip(edges, edges[1:]):
        yield table.slice(a, b - a)


def fed(told, inputs, columns, table):
    feeds = {}
    for i in inputs:
        v = feeds[i.name] = feed(i, table, columns[i.name], (told.get("shapes") or {}).get(i.name))
        first = table[columns[i.name][0]]
        if kinds.is_list(first.type) and v.size != pc.sum(pc.list_value_length(first)).as_py():
            fail(f"lists of column {columns[i.name][0]} fill no rows of the shape that input {i.name} has: {i.shape}")
    return feeds


# --- what it answers -----------------------------------------------------------------------


class Model:
    """Answers rows as a deployment does: each as it would be answered alone."""

    def __init__(self, path, threads, size):
        try:
            self.session = session(path, threads)
        except Exception as e:
            fail(f"ONNX Runtime does not load the model: {' '.join(str(e).split())[:300]}")
        self.inputs, self.outputs = self.session.get_inputs(), self.session.get_outputs()
        heads = [i.shape[0] for i in self.inputs if len(i.shape)]
        self.fixed = next((h for h in heads if fixed(h)), None)
        self.size, self.compared = self.fixed or size, bool(self.fixed)
        for o in self.outputs:
            if not o.type.startswith("tensor("):
                fail(f"output {o.name} is a {o.type} and no tensor: convert the model anew, a classifier of scikit-learn with options={{'zipmap': False}}")
            if o.type not in COLUMN:
                fail(f"output {o.name} is a {o.type}, which no column of a dataset holds: add a Cast to the model")

    def run(self, feeds):
        """All outputs of the rows, one beside the other."""
        parts = []
        for n, one in batches(feeds, self.size):
            given = n if self.fixed is None else self.fixed
            one = one if self.fixed else part(one, slice(0, n))  # only a fixed batch is filled up
            try:
                answers = self.session.run(None, one)
            except Exception as e:
                fail(f"the model does not take these rows: {' '.join(str(e).split())[:300]}: name the columns in the model's order with --columns")
            for o, v in zip(self.outputs, answers):
                if np.ndim(v) == 0 or len(v) != given:
                    fail(f"output {o.name} has not one answer for each row, but the shape {list(np.shape(v))} for {given} rows")
            parts.append([v[:n] for v in answers])
        if len(parts) == 1:
            return parts[0]
        try:
            return [np.concatenate(v) for v in zip(*parts)]
        except ValueError:
            fail("the model answers rows with lists of different lengths, which is not supported")

    def answer(self, feeds):
        if not self.compared:
            self.compare(feeds)
        return self.run(feeds)

    def compare(self, feeds):
        """Goes on row by row where a batch answers otherwise, as models do whose scales are found over the whole of it."""
        n = len(next(iter(feeds.values())))
        if n == 1 or self.size == 1:
            return
        self.compared = True
        rows = np.unique(np.linspace(0, n - 1, ALONE).astype(int))
        together, size = [v[rows] for v in self.run(feeds)], self.size
        self.size = 1
        if not all(close(a, b) for a, b in zip(self.run(part(feeds, rows)), together)):
            print("rows are answered one by one: in a batch this model answers otherwise", flush=True)
            return
        self.size = size


def close(a, b):
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    most = np.nanmax(np.abs(np.where(np.isfinite(a), a, 0)), axis=0, initial=0)
    return bool((np.isclose(a, b, rtol=0, atol=1e-30, equal_nan=True) | (np.abs(a - b) <= TOLERANCE * most)).all())


class Column:
    """What becomes of an output: a column of numbers or texts, or of lists."""

    def __init__(self, o, prefix):
        self.o, self.name, self.kind = o, prefix + o.name, COLUMN[o.type]
        self.listed = None  # known with the first answers

    def of(self, v):
        if v.ndim > 2:
            fail(f"a row of output {self.o.name} has the shape {list(v.shape[1:])}, and a column holds a number or a list: add a Flatten to the model")
        if self.listed is None:
            shape = self.o.shape
            self.listed = v.ndim == 2 and (len(shape) == 2 and not fixed(shape[1]) or v.shape[1] != 1)
        if not self.listed and v.ndim == 2 and v.shape[1] != 1:
            fail(f"output {self.o.name} has {v.shape[1]} numbers for some rows, and one for others")
        flat = pa.array(v.reshape(-1).astype(np.float32 if v.dtype == np.float16 else v.dtype)).cast(self.kind)
        if not self.listed:
            return flat
        ends = np.arange(len(v) + 1, dtype=np.int32) * (v.shape[1] if v.ndim == 2 else 1)
        return pa.ListArray.from_arrays(pa.array(ends), flat)

    def field(self):
        return pa.field(self.name, pa.list_(self.kind) if self.listed else self.kind)


def apart(fields, columns):
    """Refuses names that are there twice, also in another case, by which SQL could not tell them apart."""
    seen = {f.name.lower(): f.name for f in fields}
    for c in columns:
        if c.name.lower() in seen:
            fail(f"output {c.o.name} would be called as the column {seen[c.name.lower()]}: give the answers a prefix, such as --prefix predicted_, "
                 f"or keep other columns with --keep")
        seen[c.name.lower()] = c.name


class Writer:
    """Writes the rows, a row group when there are enough of them."""

    def __init__(self, path):
        self.path, self.file, self.held, self.rows, self.bytes = path, None, [], 0, 0

    def add(self, table):
        self.held.append(table)
        self.rows, self.bytes = self.rows + table.num_rows, self.bytes + table.nbytes
        if self.rows >= WRITE_ROWS or self.bytes >= WRITE_BYTES:
            self.flush()

    def flush(self):
        if not self.held:
            return
        table = pa.concat_tables(self.held)
        self.file = self.file or pq.ParquetWriter(self.path, table.schema)
        self.file.write_table(table, row_group_size=table.num_rows)
        self.held, self.rows, self.bytes = [], 0, 0

    def close(self):
        self.flush()
        self.file.close()


def main():
    told = json.loads(sys.argv[1])
    path = Path(os.environ["FALAJ_DATA_MODEL"]) / "model.onnx"
    if not path.exists():
        fail("the model version has no file model.onnx: only ONNX models answer here. Register the model as ONNX, and deploy that version")
    model = Model(path, told["threads"], told["batch_rows"])
    rows = Rows()
    columns = columns_of(told, model.inputs, rows.schema, None)
    fields = kept(told, rows.schema)
    answers = [Column(o, told.get("prefix") or "") for o in model.outputs]
    apart(fields, answers)
    for i in model.inputs:
        print(f"input {i.name}: {', '.join(columns[i.name])}", flush=True)

    out = Path(os.environ["FALAJ_OUTPUT_DIR"]) / "rows"
    out.mkdir(parents=True, exist_ok=True)
    writer, done, said = Writer(out / "part-00000.parquet"), 0, 0
    wanted = [c for c in rows.schema.names if c in {f.name for f in fields} | {c for of in columns.values() for c in of}]
    for at, table in rows.batches(wanted, model.fixed or told["batch_rows"]):
        for i in model.inputs:
            if i.type not in TYPES:
                fail(f"input {i.name} is a {i.type}, which no column of a dataset is")
            fits(i, table, columns[i.name])
            whole(i, table, columns[i.name], at, told["nulls"])
        for some in alike(table, model.inputs, columns):
            values = [c.of(v) for c, v in zip(answers, model.answer(fed(told, model.inputs, columns, some)))]
            schema = pa.schema(fields + [c.field() for c in answers])
            writer.add(pa.Table.from_arrays([some[f.name].cast(f.type) for f in fields] + values, schema=schema))
            done += some.num_rows
        if said < 100 * done // rows.total:
            said = 100 * done // rows.total
            print(f"[{said}/100] {done} of {rows.total} rows", flush=True)
    writer.close()


if __name__ == "__main__":
    main()
