"""Writes the models beside this file, with onnx (any version of 1.12 or later), and
Triton's configuration of the same functions."""

import sys
from pathlib import Path

from onnx import TensorProto, helper

here = Path(sys.argv[0]).parent
TYPES = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32, "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32, "INT64": TensorProto.INT64,
    "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE, "BYTES": TensorProto.STRING,
}


def save(name, nodes, inputs, outputs, constants=()):
    def info(tensors):
        return [helper.make_tensor_value_info(n, TYPES[t], shape) for n, t, shape in tensors]

    graph = helper.make_graph(nodes, name, info(inputs), info(outputs), list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (here / f"{name}.onnx").write_bytes(model.SerializeToString())

    def config(kind, tensors):
        for n, t, shape in tensors:
            dims = ", ".join("-1" if d == "n" else str(d) for d in shape)
            yield f'{kind} [ {{ name: "{n}" data_type: TYPE_{"STRING" if t == "BYTES" else t} dims: [ {dims} ] }} ]\n'

    text = f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n' + "".join(config("input", inputs)) + "".join(config("output", outputs))
    (here / "triton" / name / "config.pbtxt").write_text(text)


# y is x doubled and one more, in each of three columns; largest says where the largest is.
save(
    "linear",
    [
        helper.make_node("Mul", ["x", "two"], ["double"]), helper.make_node("Add", ["double", "one"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["largest"], axis=1, keepdims=0),
    ],
    [("x", "FP32", ["n", 3])], [("y", "FP32", ["n", 3]), ("largest", "INT64", ["n"])],
    [helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]), helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])],
)
# Each datatype comes back as it is.
save(
    "types",
    [helper.make_node("Identity", [f"in_{t}"], [f"out_{t}"]) for t in TYPES],
    [(f"in_{t}", t, ["n"]) for t in TYPES], [(f"out_{t}", t, ["n"]) for t in TYPES],
)
