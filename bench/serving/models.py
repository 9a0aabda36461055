"""Makes the models of the measurements: fitted on data of scikit-learn or drawn from
a seed, the same each time. Each is DIR/NAME.onnx with one input "x" and one output
"y"; DIR/models.json says what they are. Usage: models.py DIR
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from skl2onnx import to_onnx
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
OPSET, IR = 17, 8
FP32, INT64 = TensorProto.FLOAT, TensorProto.INT64
made = []


def keep(name, title, model, shape, datatype="FP32", classes=0):
    """Writes a model of rows of a shape; classes is the range of whole numbers."""
    model.ir_version = IR
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, out / f"{name}.onnx")
    weights = sum(math.prod(t.dims) for t in model.graph.initializer)
    made.append({"name": name, "title": title, "file": f"{name}.onnx", "datatype": datatype, "shape": shape, "classes": classes, "weights": weights})


def fitted(estimator, x):
    """A fitted classifier whose only output is its probabilities."""
    model = to_onnx(estimator, x[:1], target_opset={"": OPSET, "ai.onnx.ml": 3}, options={"zipmap": False})
    answers = [o for o in model.graph.output if o.name == "probabilities"]
    del model.graph.output[:]
    model.graph.output.extend(answers)
    rename(model, model.graph.input[0].name, "x")
    rename(model, "probabilities", "y")
    return model


def rename(model, old, new):
    for values in (model.graph.input, model.graph.output):
        for v in values:
            v.name = new if v.name == old else v.name
    for node in model.graph.node:
        node.input[:] = [new if n == old else n for n in node.input]
        node.output[:] = [new if n == old else n for n in node.output]


class Graph:
    """A graph of nodes whose weights are drawn from a seed."""

    def __init__(self, seed):
        self.draw, self.nodes, self.constants, self.at = np.random.default_rng(seed), [], [], 0

    def constant(self, array):
        self.at += 1
        self.constants.append(numpy_helper.from_array(array, f"w{self.at}"))
        return f"w{self.at}"

    def weights(self, *shape, fan):
        return self.constant((self.draw.standard_normal(shape) * math.sqrt(2 / fan)).astype(np.float32))

    def zeros(self, n):
        return self.constant(np.zeros(n, np.float32))

    def add(self, op, *inputs, to=None, **attributes):
        self.at += 1
        to = to or f"t{self.at}"
        self.nodes.append(helper.make_node(op, list(inputs), [to], **attributes))
        return to

    def dense(self, x, rows, columns, to=None):
        return self.add("Gemm", x, self.weights(rows, columns, fan=rows), self.zeros(columns), to=to)

    def model(self, name, shape, answer, kind=FP32):
        graph = helper.make_graph(
            self.nodes, name, [helper.make_tensor_value_info("x", kind, ["n", *shape])],
            [helper.make_tensor_value_info("y", FP32, ["n", *answer])], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


def mlp(seed, *sizes):
    g, x = Graph(seed), "x"
    for rows, columns in zip(sizes[:-2], sizes[1:-1]):
        x = g.add("Relu", g.dense(x, rows, columns))
    g.dense(x, sizes[-2], sizes[-1], to="y")
    return g.model("mlp", [sizes[0]], [sizes[-1]])


def mobilenet(seed):
    """MobileNetV2 (Sandler et al. 2018), 224 × 224, width 1, batch normalisation folded."""
    g = Graph(seed)

    def convolution(x, i, o, size=1, stride=1, groups=1, relu=True):
        x = g.add(
            "Conv", x, g.weights(o, i // groups, size, size, fan=i // groups * size * size), g.zeros(o),
            kernel_shape=[size, size], strides=[stride, stride], pads=[size // 2] * 4, group=groups)
        return g.add("Clip", x, low, high) if relu else x

    low, high = g.constant(np.float32(0)), g.constant(np.float32(6))
    x, width = convolution("x", 3, 32, 3, 2), 32
    for expand, o, repeat, stride in [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
        for r in range(repeat):
            inner, before = width * expand, x
            if expand > 1:
                x = convolution(x, width, inner)
            x = convolution(x, inner, inner, 3, stride if r == 0 else 1, inner)
            x = convolution(x, inner, o, relu=False)
            if o == width and (r > 0 or stride == 1):
                x = g.add("Add", x, before)
            width = o
    x = g.add("Flatten", g.add("GlobalAveragePool", convolution(x, width, 1280)))
    g.dense(x, 1280, 1000, to="y")
    return g.model("mobilenet", [3, 224, 224], [1000])


def encoder(seed, layers=4, width=256, heads=4, length=64, words=8000):
    """A transformer encoder (Vaswani et al. 2017) that puts a text into two classes."""
    g, size = Graph(seed), width // heads

    def norm(x):
        return g.add("LayerNormalization", x, g.constant(np.ones(width, np.float32)), g.zeros(width), axis=-1, epsilon=1e-5)

    def linear(x, i, o):
        return g.add("Add", g.add("MatMul", x, g.weights(i, o, fan=2 * i)), g.zeros(o))

    split, join = g.constant(np.array([0, length, heads, size])), g.constant(np.array([0, length, width]))
    scale = g.constant(np.float32(1 / math.sqrt(size)))
    x = g.add("Add", g.add("Gather", g.weights(words, width, fan=2), "x"), g.weights(length, width, fan=2))
    for _ in range(layers):
        q, k, v = (g.add("Reshape", linear(x, width, width), split) for _ in range(3))
        scores = g.add("MatMul", g.add("Transpose", q, perm=[0, 2, 1, 3]), g.add("Transpose", k, perm=[0, 2, 3, 1]))
        seen = g.add("MatMul", g.add("Softmax", g.add("Mul", scores, scale), axis=-1), g.add("Transpose", v, perm=[0, 2, 1, 3]))
        seen = g.add("Reshape", g.add("Transpose", seen, perm=[0, 2, 1, 3]), join)
        x = norm(g.add("Add", x, linear(seen, width, width)))
        x = norm(g.add("Add", x, linear(g.add("Relu", linear(x, width, 4 * width)), 4 * width, width)))
    g.dense(g.add("ReduceMean", x, axes=[1], keepdims=0), width, 2, to="y")
    return g.model("encoder", [length], [2], INT64)


class Normal(CalibrationDataReader):
    def __init__(self, columns):
        draw = np.random.default_rng(9)
        self.batches = iter([{"x": draw.random((64, columns), np.float32)} for _ in range(8)])

    def get_next(self):
        return next(self.batches, None)


iris = load_iris()
flowers = iris.data.astype(np.float32)
keep("iris", "iris random forest", fitted(RandomForestClassifier(100, random_state=1).fit(flowers, iris.target), flowers), [4])
table, label = make_classification(5000, 28, n_informative=20, random_state=1)
table = table.astype(np.float32)
keep("boosting", "tabular boosting", fitted(GradientBoostingClassifier(n_estimators=100, max_depth=5, random_state=1).fit(table, label), table), [28])
keep("mlp", "MLP 0.5 M", mlp(2, 256, 512, 576, 128), [256])
large = mlp(3, 1024, 2048, 2048, 2560, 384)
keep("mlp-large", "MLP 12.5 M", large, [1024])
onnx.save(large, out / "float.onnx")
quant_pre_process(str(out / "float.onnx"), str(out / "prepared.onnx"))
quantize_static(
    str(out / "prepared.onnx"), str(out / "quantized.onnx"), Normal(1024), quant_format=QuantFormat.QDQ,
    per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
keep("mlp-int8", "MLP 12.5 M in int8", onnx.load(out / "quantized.onnx"), [1024])
for name in ("float", "prepared", "quantized"):
    (out / f"{name}.onnx").unlink()
keep("mobilenet", "MobileNetV2", mobilenet(4), [3, 224, 224])
keep("encoder", "transformer encoder", encoder(5), [64], "INT64", 8000)

for m in made:  # each takes one row and several
    session = ort.InferenceSession(out / m["file"], providers=["CPUExecutionProvider"])
    for n in (1, 3):
        x = np.zeros((n, *m["shape"]), np.int64 if m["classes"] else np.float32)
        (y,) = session.run(["y"], {"x": x})
        assert len(y) == n and np.isfinite(y).all(), m["name"]
(out / "models.json").write_text(json.dumps(made, indent=1))
print(json.dumps(made))
