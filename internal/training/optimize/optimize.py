"""Makes variants of an ONNX model, measures what each costs and loses, and keeps the best.

Its one argument says what is wanted (told in optimize.go). The model's files are in
FALAJ_DATA_MODEL, the rows in FALAJ_DATA_ROWS. It leaves optimization.json, candidates/NAME.onnx
and, when one is chosen, model/: the files of the model with another model.onnx, and without those
that had its weights. Before it stands
onnxjob's rows.py, which feeds the model.
"""

import json
import os
import random
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pyarrow.dataset as pads
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

ALL = ["fused", "int8-dynamic", "int8-static", "int8-static-all", "fp16", "pruned", "distilled"]
CALIBRATION = 256  # rows; half of those there are, at most
JUDGE_BATCH = 128
SLOT = 0.05  # seconds that a candidate runs in a round
SEED = 7


class Skip(Exception):
    """Why a candidate cannot be made of this model."""


# --- the rows and the answers --------------------------------------------------------------


def read_rows(told, inputs):
    """Reads a sample of the rows: what each input of the model is fed, and the labels."""
    rows = pads.dataset(os.environ["FALAJ_DATA_ROWS"], format="parquet")
    names = rows.schema.names
    label = told.get("label")
    if label and label not in names:
        fail(f"the dataset has no column {label}; it has {', '.join(names[:50])}")
    columns = columns_of(told, inputs, rows.schema, label)
    wanted = sorted({c for of in columns.values() for c in of} | ({label} if label else set()))
    n = rows.count_rows()
    if n < 20:
        fail(f"the dataset has {n} rows; at least 20 are needed to measure by")
    take = np.sort(np.random.default_rng(SEED).choice(n, min(n, told["rows"]), replace=False))
    table = rows.take(take, columns=wanted)
    if label:  # a row without its answer says nothing
        known = np.flatnonzero(table[label].is_valid().to_numpy())
        if len(known) < 20:
            fail(f"only {len(known)} of {len(take)} sampled rows have a {label}; at least 20 are needed")
        table = table.take(known)
    feeds = {}
    for i in inputs:
        feeds[i.name] = feed(i, table, columns[i.name], (told.get("shapes") or {}).get(i.name))
    y = table[label].to_numpy() if label else None
    return feeds, y


def answer(s, feeds, size):
    """Gives all outputs of all rows, by name."""
    out = {o.name: [] for o in s.get_outputs()}
    for n, one in batches(feeds, size):
        for o, v in zip(s.get_outputs(), s.run(None, one)):
            if isinstance(v, list):  # a map of probabilities: the label beside it says as much
                continue
            out[o.name].append(np.asarray(v)[:n])
    try:
        return {k: np.concatenate(v) for k, v in out.items() if v and v[0].ndim}
    except ValueError:
        fail("the model answers rows of different shapes; they cannot be compared")


# --- how good answers are ------------------------------------------------------------------


class Metric:
    """Compares answers with labels, or with those of the model as it was."""

    def __init__(self, told, first, y):
        self.labels, self.score, self.choice, self.y = None, None, None, y
        for name, v in first.items():
            if v.dtype.kind in "iuUOb" and v.ndim <= 2 and self.choice is None:
                self.choice = name
            elif v.dtype.kind == "f" and self.score is None:
                self.score = name
        if self.score is None and self.choice is None:
            fail("the model has no output that can be compared")
        score = first.get(self.score)
        wide = score is not None and score.ndim == 2 and score.shape[1] > 1
        self.first = first
        if y is None:
            self.name = "agreement" if wide or self.choice else "r2"
        else:
            numbers = y.dtype.kind in "iufb"
            if not numbers:
                self.name = "accuracy"
            elif y.dtype.kind == "f" and not np.array_equal(y, np.round(y)):
                self.name = "rmse"
            elif len(np.unique(y)) == 2 and set(np.unique(y).astype(int)) <= {0, 1} and score is not None and score.ndim <= 2 and score.size // len(score) <= 2:
                self.name = "auc"
            elif self.choice or wide:
                self.name = "accuracy"
            else:
                self.name = "rmse"
        self.name = told.get("metric") or self.name
        if y is None and self.name in ("accuracy", "auc", "rmse"):
            fail(f"{self.name} needs the right answers: name their column with --label, or compare answers by agreement or r2")
        if self.name in ("accuracy", "agreement") and not self.choice and not wide:
            fail(f"{self.name} is of classes, and the model answers with one number a row: take rmse, auc or r2")
        if self.name in ("auc", "rmse", "r2") and score is None:
            fail(f"{self.name} is of numbers, and the model answers with classes alone: take accuracy or agreement")
        if self.name == "auc" and set(np.unique(y).astype(int)) != {0, 1}:
            fail("auc needs a label of 0 and 1")
        self.lower = self.name == "rmse"

    def classes(self, out):
        """Prefers what the model itself says is the class; a variant's scores say it as well."""
        if self.choice:
            return out[self.choice].reshape(len(out[self.choice]), -1)
        return out[self.score].argmax(1).reshape(-1, 1)

    def number(self, out):
        v = out[self.score].astype(np.float64).reshape(len(out[self.score]), -1)
        return v[:, -1] if self.name in ("auc", "rmse") else v

    def rows(self, out):
        """What of the answers the metric needs, row by row, so that rows can be drawn again."""
        if self.name == "accuracy":
            got = self.classes(out)[:, 0]
            return (got.astype(str) == self.y.astype(str)) if got.dtype.kind in "UO" or self.y.dtype.kind in "UO" else got == self.y
        if self.name == "agreement":
            return (self.classes(out) == self.classes(self.first)).all(1)
        if self.name == "r2":
            a, b = self.number(out), self.number(self.first)
            return np.stack([((a - b) ** 2).sum(1), ((b - b.mean(0)) ** 2).sum(1)], 1)
        if self.name == "rmse":
            return (self.number(out) - self.y) ** 2
        return self.number(out)

    def value(self, rows, pick=slice(None)):
        rows = rows[pick]
        if not np.isfinite(rows.astype(np.float64)).all():
            return None
        if self.name in ("accuracy", "agreement"):
            return float(rows.mean())
        if self.name == "r2":
            apart, spread = rows.sum(0)
            return 1.0 if apart == 0 else float(1 - apart / max(spread, 1e-30))
        if self.name == "rmse":
            return float(np.sqrt(rows.mean()))
        y = self.y[pick].astype(int)
        ones = y.sum()
        if ones == 0 or ones == len(y):
            return None
        values, at, counts = np.unique(rows, return_inverse=True, return_counts=True)
        rank = (np.cumsum(counts) - (counts - 1) / 2)[at]
        return float((rank[y == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones)))

    def loss(self, was, now):
        """In points; of rmse, by which part it is larger."""
        if was is None or now is None:
            return None
        return (now - was) / max(was, 1e-12) if self.lower else was - now

    def error(self, was, now):
        """Half of where 95 of 100 losses lie when the rows are drawn again, both models' alike."""
        rng, found = np.random.default_rng(SEED), []
        for _ in range(200):
            pick = rng.integers(0, len(was), len(was))
            loss = self.loss(self.value(was, pick), self.value(now, pick))
            if loss is not None:
                found.append(loss)
        return float((np.percentile(found, 97.5) - np.percentile(found, 2.5)) / 2) if found else None


# --- the candidates ------------------------------------------------------------------------


class Made:
    """What candidates are made of."""

    def __init__(self, told, path, scratch, feeds, y, size, base):
        self.told, self.scratch, self.feeds, self.y, self.size, self.base = told, scratch, feeds, y, size, base
        self.graph = onnx.load(path)
        self.path = scratch / "whole.onnx"
        forget_shapes(self.graph)
        try:
            onnx.save(self.graph, self.path)  # in one file: the tools look for external data beside their own output
        except Exception as e:
            fail(f"the model cannot be written as one file, which has at most 2 GiB: {str(e)[:300]}")
        self.ops = {n.op_type for n in nodes(self.graph.graph)}
        self.prepared_path = None

    def prepared(self):
        """The model with shapes, as quantisation wants it."""
        if self.prepared_path is None:
            from onnxruntime.quantization.shape_inference import quant_pre_process
            out = self.scratch / "prepared.onnx"
            try:
                quant_pre_process(str(self.path), str(out), skip_symbolic_shape=True)
            except Exception:  # without shapes it may still work
                shutil.copy(self.path, out)
            self.prepared_path = out
        return self.prepared_path

    def weighty(self, ops, what):
        """Refuses a model without operators that have weights to change."""
        if not self.ops & set(ops):
            has = ", ".join(sorted(self.ops)[:8])
            raise Skip(f"{what} changes {', '.join(ops)}, and the model has none of them (it has {has})")


def graphs(graph):
    """The graph and those within its nodes."""
    yield graph
    for n in graph.node:
        for a in n.attribute:
            for g in ([a.g] if a.HasField("g") else []) + list(a.graphs):
                yield from graphs(g)


def nodes(graph):
    for g in graphs(graph):
        yield from g.node


def forget_shapes(model):
    """Removes the shapes of values within the graph. Exporters leave some from before they transposed
    a weight, which shape inference refuses; it finds all of them again. Element types stay."""
    for g in graphs(model.graph):
        weights = {i.name for i in g.initializer}
        kept = [v for v in g.value_info if v.name not in weights]
        for v in kept:
            if v.type.HasField("tensor_type"):
                v.type.tensor_type.ClearField("shape")
        del g.value_info[:]
        g.value_info.extend(kept)


def external_files(path):
    """The files beside a model that have the data of its tensors."""
    found = set()
    for g in graphs(onnx.load(path, load_external_data=False).graph):
        inside = [t for n in g.node for a in n.attribute for t in ([a.t] if a.HasField("t") else []) + list(a.tensors)]
        for t in list(g.initializer) + inside:
            if uses_external_data(t):
                found.add(path.parent / ExternalDataInfo(t).location)
    return sorted(found)


def fused(m, out):
    """Operators joined ahead of time, attention and normalisation too where they are found."""
    source = m.path
    if "Softmax" in m.ops and m.ops & {"MatMul", "Gemm"} and m.ops & {"LayerNormalization", "ReduceMean"}:
        from onnxruntime.transformers import optimizer
        try:
            o = optimizer.optimize_model(str(m.path), model_type="bert", num_heads=0, hidden_size=0, opt_level=0)
            source = m.scratch / "attention.onnx"
            o.save_model_to_file(str(source))
            session(source, 1)
        except Exception as e:
            print(f"fused: attention is not joined: {str(e)[:200]}", flush=True)
            source = m.path
    o = ort.SessionOptions()
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # what is beyond is of this machine
    o.optimized_model_filepath, o.log_severity_level = str(out), 4
    ort.InferenceSession(str(source), o, providers=["CPUExecutionProvider"])
    if [n.op_type for n in nodes(onnx.load(out).graph)] == [n.op_type for n in nodes(m.graph.graph)]:
        raise Skip("nothing in the model can be joined")


def int8_dynamic(m, out):
    """Weights in 8 bits, and what they are multiplied with as it comes."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    ops = ["MatMul", "Gemm", "LSTM", "GRU", "Attention", "Gather", "EmbedLayerNormalization"]
    m.weighty(["MatMul", "Gemm", "LSTM", "GRU"], "int8-dynamic")
    quantize_dynamic(str(m.prepared()), str(out), op_types_to_quantize=[o for o in ops if o != "GRU"], weight_type=QuantType.QInt8,
                     per_channel=True, reduce_range=not vnni())
    changed(m, out)


DENSE = ["Conv", "MatMul", "Gemm"]
# What stands between dense operators and costs a conversion to 32 bits and back otherwise.
BETWEEN = ["Add", "Mul", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Reshape", "Transpose", "Clip", "Relu", "HardSigmoid", "Sigmoid"]


def int8_static(m, out, ops=DENSE):
    """Weights and what they are multiplied with in 8 bits, by the ranges that the calibration rows show."""
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
    m.weighty(["MatMul", "Gemm", "Conv"], "int8-static")

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.rows = batches(m.feeds, min(m.size, 16))

        def get_next(self):
            return next((one for _, one in self.rows), None)

    quantize_static(str(m.prepared()), str(out), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, reduce_range=not vnni(),
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
                    op_types_to_quantize=ops)
    changed(m, out)


def int8_static_all(m, out):
    """What stands between the dense operators in 8 bits, too."""
    if not m.ops & set(BETWEEN):
        raise Skip("it is int8-static: nothing stands between the dense operators that could be in 8 bits")
    int8_static(m, out, DENSE + BETWEEN)


def vnni():
    """Without it, products of full 8 bits overflow the sums of two."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def changed(m, out):
    """Refuses a variant in which nothing became 8 bits."""
    if not {n.op_type for n in nodes(onnx.load(out).graph)} - m.ops:
        raise Skip("no weight of the model could be put into 8 bits")


def fp16(m, out):
    """Half as many bits for each number; inputs and outputs stay as they are."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    m.weighty(["MatMul", "Gemm", "Conv", "LSTM", "GRU", "Attention"], "fp16")
    graph = shape_inference.infer_shapes(onnx.load(m.path))
    onnx.save(convert_float_to_float16(graph, keep_io_types=True, disable_shape_infer=True), out)


# Between two dense layers, what acts on each unit alone, if all else it reads is one number.
ALONE = {"Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Gelu", "Softplus", "Clip", "Identity", "HardSwish", "HardSigmoid", "Erf",
         "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Abs", "Neg", "Exp"}


def pruned(share):
    def make(m, out):
        """Hidden units that say least leave; the layer behind them is fitted anew."""
        m.weighty(["MatMul", "Gemm"], "pruned")
        graph = onnx.load(m.path)
        pairs = dense_pairs(graph.graph)
        if not pairs:
            raise Skip("no two dense layers follow each other with nothing between them but an activation")
        if not sum(shrink(m, graph, p, share) for p in pairs):
            raise Skip("no hidden layer has eight units")
        del graph.graph.value_info[:]
        onnx.checker.check_model(graph)
        onnx.save(graph, out)
    return make


def dense_pairs(graph):
    """Finds (first layer, what the second reads, second layer); a layer is (weight, transposed, bias, last node)."""
    weights = {i.name: i for i in graph.initializer}
    readers, uses = {}, {}
    for n in graph.node:
        for i in n.input:
            readers.setdefault(i, []).append(n)
            uses[i] = uses.get(i, 0) + 1
    outputs = {o.name for o in graph.output}

    def alone(name):
        return readers[name][0] if len(readers.get(name, [])) == 1 and name not in outputs else None

    def layer(n):
        """(weight, bias, last node) of a dense layer, or None; a bias may be added after it."""
        if n.op_type == "Gemm":
            a = {x.name: helper.get_attribute_value(x) for x in n.attribute}
            if a.get("alpha", 1) != 1 or a.get("beta", 1) != 1 or a.get("transA") or n.input[1] not in weights or uses[n.input[1]] > 1:
                return None
            bias = n.input[2] if len(n.input) > 2 and n.input[2] else None
            if bias and (bias not in weights or uses[bias] > 1 or list(weights[bias].dims)[:-1] not in ([], [1])):
                return None
            return n.input[1], bool(a.get("transB")), bias, n
        if n.op_type == "MatMul" and n.input[1] in weights and len(weights[n.input[1]].dims) == 2 and uses[n.input[1]] == 1:
            add = alone(n.output[0])
            if add is not None and add.op_type == "Add":
                bias = next((i for i in add.input if i in weights and uses[i] == 1 and list(weights[i].dims)[:-1] in ([], [1])), None)
                if bias:
                    return n.input[1], False, bias, add
            return n.input[1], False, None, n
        return None

    single = {i.name for i in graph.initializer if int(np.prod(i.dims)) == 1}
    for n in graph.node:
        if n.op_type == "Constant" and any(a.name in ("value_float", "value_int") or a.name == "value" and int(np.prod(a.t.dims)) == 1 for a in n.attribute):
            single.add(n.output[0])

    def beyond(name):
        """The one layer that reads a value, or what is made of it unit by unit; and what it reads."""
        inside, exits = {name}, []
        for n in graph.node:
            if not inside & set(n.input):
                continue
            if n.op_type in ALONE and all(i in inside or i in single for i in n.input if i):
                inside.add(n.output[0])
            else:
                exits.append(n)
        if len(exits) != 1 or inside & outputs or len(inside & set(exits[0].input)) != 1 or exits[0].input[0] not in inside:
            return None, None
        return layer(exits[0]), exits[0].input[0]

    found = []
    for n in graph.node:
        first = layer(n)
        if first is not None:
            second, hidden = beyond(first[3].output[0])
            if second is not None:
                found.append((first, hidden, second))
    return found


def shrink(m, graph, pair, share):
    (w1, t1, b1, _), hidden, (w2, t2, b2, last) = pair
    weights = {i.name: i for i in graph.graph.initializer}
    first, second = numpy_helper.to_array(weights[w1]), numpy_helper.to_array(weights[w2])
    first, second = (first.T if t1 else first), (second.T if t2 else second)
    units = first.shape[1]
    keep = max(int(round(units * (1 - share))), 1)
    if units < 8 or keep == units:
        return False
    seen = activations(m, graph, hidden)
    keep = np.sort(np.argsort(-(seen.std(0) * np.linalg.norm(second, axis=1)))[:keep])
    # least squares: what stays says as much as it can of what the layer said
    some = np.concatenate([seen[:, keep], np.ones((len(seen), 1))], 1)
    full = seen @ second
    ridge = 1e-4 * len(some) * max(float((some ** 2).mean()), 1e-12)
    prior = np.concatenate([second[keep], np.zeros((1, second.shape[1]))])
    fitted = prior + np.linalg.solve(some.T @ some + ridge * np.eye(some.shape[1]), some.T @ (full - some @ prior))
    put(weights[w1], first[:, keep].T if t1 else first[:, keep])
    if b1:
        put(weights[b1], numpy_helper.to_array(weights[b1])[..., keep])
    put(weights[w2], fitted[:-1].T if t2 else fitted[:-1])
    if b2:
        put(weights[b2], numpy_helper.to_array(weights[b2]) + fitted[-1])
    return True


def put(tensor, values):
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values, kind), tensor.name))


def activations(m, graph, name):
    """What a value inside the graph is for the calibration rows: a row a unit vector."""
    probe = onnx.ModelProto()
    probe.CopyFrom(graph)
    probe.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    s = ort.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    out = [s.run([name], one)[0][:n] for n, one in batches(m.feeds, m.size)]
    out = np.concatenate([v.reshape(-1, v.shape[-1]) for v in out]).astype(np.float64)
    return out[np.random.default_rng(SEED).permutation(len(out))[:8192]]


def distilled(m, out):
    """A small network that learned the model's answers to the rows that are not judged by."""
    from sklearn.neural_network import MLPRegressor
    inputs = m.base.get_inputs()
    if any(TYPES.get(i.type) not in (np.float32, np.float64, np.int64) or len(i.shape) > 2 or m.feeds[i.name].ndim != 2 for i in inputs):
        raise Skip("a student is trained for models whose inputs are columns of numbers")
    said = answer(m.base, m.teach, m.size)
    choice = next((o for o in m.base.get_outputs() if said.get(o.name) is not None and said[o.name].dtype.kind in "iU"), None)
    score = next((o for o in m.base.get_outputs() if said.get(o.name) is not None and said[o.name].dtype.kind == "f"), None)
    if len(m.base.get_outputs()) > (choice is not None) + (score is not None):
        raise Skip("a student has one output of numbers and one of classes at most, and the model has others")
    if score is None or said[score.name].ndim > 2:
        raise Skip("a student learns from numbers, and the model answers with none a row")
    if choice is not None and (said[choice.name].dtype.kind != "i" or said[score.name].ndim != 2):
        raise Skip("a student has classes that are numbers, each with its probability")
    x = np.concatenate([m.teach[i.name].astype(np.float64) for i in inputs], 1)
    holes = np.isnan(x)
    mean = np.where(holes.all(0), 0, np.nanmean(np.where(holes.all(0), 0, x), 0))
    x = np.where(holes, mean, x)
    spread = x.std(0)
    spread[spread == 0] = 1
    marked = np.flatnonzero(holes.any(0))
    z = np.concatenate([np.clip((x - mean) / spread, -8, 8), holes[:, marked]], 1)
    target = said[score.name].astype(np.float64)
    wide = target.ndim == 2
    target = target.reshape(len(target), -1)
    share = bool((target >= 0).all() and (target <= 1).all() and wide and target.shape[1] > 1 and np.allclose(target.sum(1), 1, atol=1e-3))
    goal = np.log(np.clip(target, 1e-4, 1)) if share else target
    if share:
        goal = goal - goal.mean(1, keepdims=True)
    shift, scale = goal.mean(0), np.where(goal.std(0) > 1e-9, goal.std(0), 1)
    student = MLPRegressor(hidden_layer_sizes=(64, 32), max_iter=200, early_stopping=True, n_iter_no_change=12, random_state=SEED)
    student.fit(z, ((goal - shift) / scale) if goal.shape[1] > 1 else ((goal - shift) / scale)[:, 0])
    onnx.save(network(inputs, choice, score, student, mean, spread, marked, shift, scale, share, wide, m), out)


def network(inputs, choice, score, student, mean, spread, marked, shift, scale, share, wide, m):
    """Writes the student with the names and types of the model's inputs and outputs."""
    steps, consts = [], []

    def const(name, values, kind=np.float32):
        consts.append(numpy_helper.from_array(np.ascontiguousarray(values, kind), name))
        return name

    def step(op, ins, out, **how):
        steps.append(helper.make_node(op, ins, [out], **how))
        return out

    cast = []
    for n, i in enumerate(inputs):
        cast.append(step("Cast", [i.name], f"in{n}", to=TensorProto.FLOAT))
    x = step("Concat", cast, "x", axis=1) if len(cast) > 1 else cast[0]
    hole = step("IsNaN", [x], "hole")
    x = step("Where", [hole, const("mean", mean), x], "filled")
    x = step("Div", [step("Sub", [x, "mean"], "centred"), const("spread", spread)], "scaled")
    x = step("Clip", [x, const("low", -8), const("high", 8)], "clipped")
    if len(marked):
        marks = step("Gather", [step("Cast", [hole], "holes", to=TensorProto.FLOAT), const("marked", marked, np.int64)], "marks", axis=1)
        x = step("Concat", [x, marks], "known", axis=1)
    last = len(student.coefs_) - 1
    for n, (w, b) in enumerate(zip(student.coefs_, student.intercepts_)):
        if n == last:  # the scale of the answers goes into the layer
            w, b = w * scale, b * scale + shift
        x = step("Gemm", [x, const(f"w{n}", w), const(f"b{n}", b)], f"layer{n}")
        if n < last:
            x = step("Relu", [x], f"unit{n}")
    if share:
        x = step("Softmax", [x], "shares", axis=1)
    if not wide:
        x = step("Reshape", [x, const("flat", [-1], np.int64)], "flattened")
    kind = {"tensor(float)": TensorProto.FLOAT, "tensor(double)": TensorProto.DOUBLE, "tensor(int64)": TensorProto.INT64, "tensor(int32)": TensorProto.INT32}
    step("Cast", [x], score.name, to=kind[score.type])
    outs = {score.name: helper.make_tensor_value_info(score.name, kind[score.type], [None, len(shift)] if wide else [None])}
    if choice is not None:
        classes = sorted_classes(m, choice, score)
        at = step("ArgMax", [x], "best", axis=1, keepdims=0)
        step("Cast", [step("Gather", [const("classes", classes, np.int64), at], "class")], choice.name, to=kind[choice.type])
        outs[choice.name] = helper.make_tensor_value_info(choice.name, kind[choice.type], [None])
    kinds = {"tensor(float)": TensorProto.FLOAT, "tensor(double)": TensorProto.DOUBLE, "tensor(int64)": TensorProto.INT64}
    ins = [helper.make_tensor_value_info(i.name, kinds[i.type], [None, d if fixed(d := i.shape[1]) else m.feeds[i.name].shape[1]]) for i in inputs]
    graph = helper.make_graph(steps, "student", ins, [outs[o.name] for o in m.base.get_outputs()], consts)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def sorted_classes(m, choice, score):
    """Which class each column of the probabilities is, as the model's own answers show."""
    said = answer(m.base, m.teach, m.size)
    best, named = said[score.name].argmax(1), said[choice.name].reshape(-1)
    classes = []
    for k in range(said[score.name].shape[1]):
        names, counts = np.unique(named[best == k], return_counts=True)
        if not len(names):
            raise Skip(f"the rows have none that the model takes for class {k}: a student cannot learn it")
        classes.append(names[counts.argmax()])
    return np.array(classes)


MAKERS = {
    "fused": fused, "int8-dynamic": int8_dynamic, "int8-static": int8_static, "int8-static-all": int8_static_all, "fp16": fp16,
    "pruned-25": pruned(0.25), "pruned-50": pruned(0.5), "pruned-75": pruned(0.75), "distilled": distilled,
}


def makers(told):
    wanted = told.get("try") or ALL
    unknown = [w for w in wanted if w not in ALL and w not in MAKERS]
    if unknown:
        fail(f"there is no candidate {unknown[0]}: the candidates are {', '.join(ALL)}")
    return {k: v for k, v in MAKERS.items() if k in wanted or k.split("-")[0] in wanted and k.startswith("pruned")}


# --- measuring -----------------------------------------------------------------------------


def measure(sessions, feeds, sizes, rounds):
    """Times all models in turns, so that what else the machine does falls on all alike."""
    found = {name: {} for name in sessions}
    for size in sizes:
        n = len(next(iter(feeds.values())))
        inputs = [part(feeds, (np.arange(size) + k * size) % n) for k in range(min(max(n // size, 1), 8))]
        count, times = {}, {name: [] for name in sessions}
        for name, s in sessions.items():
            s.run(None, inputs[0])
            begin = time.perf_counter()
            s.run(None, inputs[0])
            count[name] = int(min(max(SLOT / max(time.perf_counter() - begin, 1e-6), 3), 2000))
        order = list(sessions)
        for r in range(rounds):
            random.Random(r).shuffle(order)
            for name in order:
                s, took = sessions[name], []
                for k in range(count[name]):
                    one = inputs[k % len(inputs)]
                    begin = time.perf_counter()
                    s.run(None, one)
                    took.append(time.perf_counter() - begin)
                times[name].append(took)
            if os.environ.get("FALAJ_JOB"):
                print(f"measured round {r + 1} of {rounds} in batches of {size}", flush=True)
        base = np.array([np.median(t) for t in times["fp32"]])
        for name, t in times.items():
            mid, every = np.array([np.median(x) for x in t]), np.concatenate(t)
            ratio = base / mid
            found[name][size] = {
                "batch": size, "p50_ms": float(np.median(every) * 1e3), "p99_ms": float(np.percentile(every, 99) * 1e3),
                "rows_per_s": float(size / np.median(every)), "runs": len(every),
                "speedup": float(np.median(ratio)), "speedup_low": float(ratio.min()), "speedup_high": float(ratio.max()),
            }
    return {name: list(v.values()) for name, v in found.items()}


def choose(told, candidates):
    """Says which candidate becomes the new version, or why none does, and whether that is a refusal."""
    most, wanted, least = told["max_loss"], told.get("choose"), told["min_speedup"]
    by = {c["name"]: c for c in candidates}
    if wanted:
        c = by.get(wanted)
        if c is None or not c.get("measured"):
            return None, f"{wanted} was not made: {c['reason'] if c else 'it was not tried'}", True
        if c["loss"] is None:
            return None, f"{wanted} is refused: its answers are no numbers", True
        if c["loss"] > most:
            return None, f"{wanted} is refused: it loses {c['loss']:.4g}, and {most:.4g} is allowed", True
        return wanted, f"{wanted} was asked for; it loses {c['loss']:.4g} and is {c['measured'][0]['speedup']:.2f} times as fast", False
    others = [c for c in candidates if c["name"] != "fp32" and c.get("measured")]
    sound = [c for c in others if c["loss"] is not None and c["loss"] <= most]
    fast = [c for c in sound if c["measured"][0]["speedup"] >= least]
    if fast:
        best = max(fast, key=lambda c: c["measured"][0]["speedup"])
        return best["name"], f"{best['name']} is {best['measured'][0]['speedup']:.2f} times as fast and loses {best['loss']:.4g} of {most:.4g} allowed", False
    lost = [c for c in others if c not in sound and c["measured"][0]["speedup"] >= least]
    if lost:
        near = min(lost, key=lambda c: c["loss"] if c["loss"] is not None else np.inf)
        by_how = "gives answers that are no numbers" if near["loss"] is None else f"loses {near['loss']:.4g}"
        return None, f"every candidate that is faster loses more than {most:.4g}: {near['name']}, which loses least, {by_how}", True
    if not others:
        return None, "no candidate could be made of this model", False
    best = max(others, key=lambda c: c["measured"][0]["speedup"])
    return None, f"no candidate is {least:.2f} times as fast as fp32; the fastest, {best['name']}, is {best['measured'][0]['speedup']:.2f} times", False


def main():
    told = json.loads(sys.argv[1])
    root, out = Path(os.environ["FALAJ_DATA_MODEL"]), Path(os.environ["FALAJ_OUTPUT_DIR"])
    scratch = Path(os.environ["FALAJ_SCRATCH_DIR"])
    path = root / "model.onnx"
    if not path.exists():
        fail("the model version has no file model.onnx: only ONNX models are optimised")
    kinds, threads = makers(told), told["threads"]
    try:
        base = session(path, threads)
    except Exception as e:
        fail(f"ONNX Runtime does not load the model: {str(e)[:300]}")
    feeds, y = read_rows(told, base.get_inputs())
    n = len(next(iter(feeds.values())))
    heads = [i.shape[0] for i in base.get_inputs() if len(i.shape)]
    one = next((h for h in heads if fixed(h)), None)
    size, sizes = (one, [one]) if one else (JUDGE_BATCH, told["batches"])
    mixed = np.random.default_rng(SEED).permutation(n)
    judged = np.sort(mixed[: n // 2])
    rest = mixed[n // 2:]
    calibrating = np.sort(rest[:CALIBRATION])
    print(f"{n} rows: {len(judged)} to judge by, {len(calibrating)} of the others to calibrate by", flush=True)

    made = Made(told, path, scratch, part(feeds, calibrating), None, size, base)
    made.teach = part(feeds, rest)
    test = part(feeds, judged)
    kept = out / "candidates"
    kept.mkdir(parents=True, exist_ok=True)
    beside = external_files(path)
    sessions, candidates = {"fp32": base}, [{"name": "fp32", "bytes": sum(f.stat().st_size for f in [path, *beside])}]
    for k, (name, make) in enumerate(kinds.items()):
        c, file = {"name": name}, kept / f"{name}.onnx"
        candidates.append(c)
        print(f"[{k + 1}/{len(kinds) + 2}] {name}", flush=True)
        begin = time.perf_counter()
        try:
            make(made, file)
            s = session(file, threads)
            same(base, s)
            s.run(None, part(test, np.resize(np.arange(len(judged)), size)))
            sessions[name], c["bytes"] = s, file.stat().st_size
        except Skip as e:
            c["reason"] = str(e)
        except Exception as e:  # a library that cannot do it with this model: its words say why
            c["reason"] = "it cannot be made: " + re.sub(r"\s+", " ", str(e) or type(e).__name__)[:300]
        c["made_s"] = round(time.perf_counter() - begin, 3)
        if c.get("reason"):
            file.unlink(missing_ok=True)
            print(f"{name}: {c['reason']}", flush=True)

    print(f"[{len(kinds) + 1}/{len(kinds) + 2}] comparing answers", flush=True)
    first = answer(base, test, size)
    metric = Metric(told, first, y[judged] if y is not None else None)
    was = metric.rows(first)
    for c in candidates:
        if c["name"] in sessions:
            now = was if c["name"] == "fp32" else metric.rows(answer(sessions[c["name"]], test, size))
            c["value"] = metric.value(now)
            c["loss"] = metric.loss(metric.value(was), c["value"])
            c["loss_error"] = metric.error(was, now) if c["loss"] is not None else None
    if candidates[0]["value"] is None:
        fail(f"{metric.name} of the model itself is not defined on these rows: its answers are no numbers, or the labels are all the same")

    print(f"[{len(kinds) + 2}/{len(kinds) + 2}] measuring", flush=True)
    for name, found in measure(sessions, test, sizes, told["rounds"]).items():
        next(c for c in candidates if c["name"] == name)["measured"] = found
    chosen, reason, refused = choose(told, candidates)
    if told.get("dry_run"):
        refused = False
    report = {
        "metric": metric.name, "labelled": y is not None, "rows": int(len(judged)), "calibration_rows": int(len(calibrating)),
        "threads": threads, "max_loss": told["max_loss"], "min_speedup": told["min_speedup"], "runtime": "onnxruntime " + ort.__version__,
        "candidates": candidates, "chosen": chosen or "", "reason": reason, "dry_run": bool(told.get("dry_run")),
    }
    (out / "optimization.json").write_text(json.dumps(report, indent=1, allow_nan=False))
    show(report)
    if refused:
        fail(reason)
    if told.get("dry_run"):
        return
    if not chosen:
        (out / "no-model.txt").write_text(reason + "\n")
    else:
        shutil.copytree(root, out / "model", dirs_exist_ok=True)
        for f in beside:  # the chosen candidate has its weights inside
            (out / "model" / f.relative_to(root)).unlink()
        target = out / "model" / "model.onnx"
        target.unlink()
        shutil.copy(kept / f"{chosen}.onnx", target)


def same(a, b):
    """Refuses a variant whose inputs or outputs are called or typed otherwise: requests would fail."""
    for was, now in ((a.get_inputs(), b.get_inputs()), (a.get_outputs(), b.get_outputs())):
        if [(i.name, i.type) for i in was] != [(i.name, i.type) for i in now]:
            raise Skip(f"it would have other inputs or outputs: {', '.join(i.name + ' ' + i.type for i in now)}")


def show(report):
    print(f"{'':14}{'KiB':>9}{report['metric']:>11}{'loss':>10}{'batch':>7}{'p50 ms':>10}{'p99 ms':>10}{'rows/s':>11}{'times':>7}")
    for c in report["candidates"]:
        if not c.get("measured"):
            print(f"{c['name']:14}{c['reason']}")
            continue
        value, loss = ("-" if v is None else f"{v:.4f}" for v in (c["value"], c["loss"]))
        for k, x in enumerate(c["measured"]):
            head = f"{c['name']:14}{c['bytes'] / 1024:9.0f}{value:>11}{loss:>10}" if k == 0 else " " * 44
            print(f"{head}{x['batch']:7}{x['p50_ms']:10.3f}{x['p99_ms']:10.3f}{x['rows_per_s']:11.0f}{x['speedup']:7.2f}")
    print(report["reason"], flush=True)


if __name__ == "__main__":
    main()
