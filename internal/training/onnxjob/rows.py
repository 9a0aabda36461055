"""Feeds the rows of a dataset to an ONNX model. It stands before the scripts of the jobs that do.

A job fails by fail(): what it says is the job's last word.
"""

import logging
import sys

import numpy as np
import onnxruntime as ort
import pyarrow.types as kinds

logging.disable(logging.WARNING)


def fail(text):
    sys.exit(text)


TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(int16)": np.int16, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


def session(path, threads, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
    """As a deployment runs it."""
    o = ort.SessionOptions()
    o.intra_op_num_threads, o.inter_op_num_threads, o.log_severity_level = threads, 1, 4
    o.graph_optimization_level = level
    o.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), o, providers=["CPUExecutionProvider"])


def fixed(dim):
    return isinstance(dim, int) and dim > 0


def columns_of(told, inputs, schema, label):
    """Says which columns are each input: those that are told, that of its name, or all numbers."""
    given = told.get("columns") or {}
    for name in given:
        if name not in {i.name for i in inputs} and name != "":
            fail(f"the model has no input {name}; it has {', '.join(i.name for i in inputs)}")
    out = {}
    for i in inputs:
        of = given.get(i.name) or (given.get("") if len(inputs) == 1 else None)
        if of:
            missing = [c for c in of if c not in schema.names]
            if missing:
                fail(f"the dataset has no column {missing[0]}, which input {i.name} is to be; it has {', '.join(schema.names[:50])}. "
                     f"Name the columns in the model's order with --columns")
        elif i.name in schema.names:
            of = [i.name]
        elif len(inputs) == 1 and len(i.shape) == 2:
            of = [f.name for f in schema if f.name != label and number(f.type)]
            if fixed(i.shape[1]) and len(of) != i.shape[1]:
                fail(f"input {i.name} of the model has {i.shape[1]} columns, and the dataset has {len(of)} of numbers{' beside the label' if label else ''} (of {', '.join(schema.names[:50])}): "
                     f"name them in the model's order with --columns")
        else:
            fail(f"the dataset has no column {i.name}, as the model's input is called: name the column with --columns {i.name}=COLUMN")
        out[i.name] = of
    return out


def number(kind):
    return kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)


def element(kind):
    """The type of a column's values, or of their elements where they are lists."""
    return kind.value_type if kinds.is_list(kind) else kind


def fits(i, table, columns):
    """Refuses values that would become others without a word: times that are numbers, digits in a text."""
    for c in columns:
        is_text, text = kinds.is_string(element(table[c].type)), TYPES[i.type] is np.object_
        if text != is_text or not text and not number(element(table[c].type)):
            fail(f"column {c} is {table[c].type}, and input {i.name} takes {'texts' if text else 'numbers'} ({i.type}): "
                 f"cast it in a dataset that is made of this one, or name another column with --columns")


def feed(i, table, columns, shape):
    shape = [None] + shape if shape else i.shape
    if i.type not in TYPES:
        fail(f"input {i.name} is a {i.type}, which no column of a dataset is")
    kind = TYPES[i.type]
    fits(i, table, columns)
    try:
        if len(columns) > 1 or (len(shape) == 2 and not kinds.is_list(table[columns[0]].type)):
            return np.column_stack([table[c].to_numpy() for c in columns]).astype(kind)
        values = table[columns[0]].to_pylist()
        if not isinstance(values[0], list):
            return np.array(values, dtype=kind).reshape([-1] + [1] * max(len(shape) - 1, 0))
        inner = list(shape[1:])
        widest = max(len(v) for v in values)
        size = int(np.prod([d for d in inner if fixed(d)], dtype=np.int64))
        free = [k for k, d in enumerate(inner) if not fixed(d)]
        if len(free) > 1:
            fail(f"input {i.name} has the shape {shape}: say what a row of it is, such as --shape {i.name}=3,224,224")
        if free:
            widest = -(-widest // size)
            inner[free[0]] = widest
        full = int(np.prod(inner, dtype=np.int64))
        out = np.zeros((len(values), full), kind)  # shorter lists are filled with zeros
        for n, v in enumerate(values):
            if len(v) > full or (not free and len(v) != full):
                fail(f"a row of {columns[0]} has {len(v)} values, and input {i.name} takes {full}")
            out[n, :len(v)] = v
        return out.reshape([len(values)] + inner)
    except (ValueError, TypeError) as e:
        fail(f"column {', '.join(columns[:5])} does not fit input {i.name} of {i.type}: {str(e)[:200]}")


def part(feeds, rows):
    return {k: v[rows] for k, v in feeds.items()}


def batches(feeds, size):
    n = len(next(iter(feeds.values())))
    for at in range(0, n, size):
        rows = np.arange(at, min(at + size, n))
        yield len(rows), part(feeds, np.resize(rows, size) if len(rows) < size else rows)
