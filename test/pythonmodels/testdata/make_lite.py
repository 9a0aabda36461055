"""Writes lite.tflite: y [-1, 2] = x [-1, 3] times weights, plus a bias. Needs ai-edge-litert."""

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema


def tensor(name, shape, buffer, signature=None):
    t = schema.TensorT()
    t.name, t.shape, t.type, t.buffer, t.shapeSignature = name, shape, schema.TensorType.FLOAT32, buffer, signature
    return t


def buffer(values=None):
    b = schema.BufferT()
    if values is not None:
        b.data = np.frombuffer(np.array(values, np.float32).tobytes(), np.uint8)
    return b


op = schema.OperatorT()
op.opcodeIndex, op.inputs, op.outputs = 0, [0, 1, 2], [3]
op.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
op.builtinOptions = schema.FullyConnectedOptionsT()
code = schema.OperatorCodeT()
code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FULLY_CONNECTED
code.version = 1
graph = schema.SubGraphT()
graph.name = "main"
graph.tensors = [tensor("x", [1, 3], 1, [-1, 3]), tensor("weights", [2, 3], 2), tensor("bias", [2], 3), tensor("y", [1, 2], 4, [-1, 2])]
graph.inputs, graph.outputs, graph.operators = [0], [3], [op]
model = schema.ModelT()
model.version, model.description, model.operatorCodes, model.subgraphs = 3, "line", [code], [graph]
model.buffers = [buffer(), buffer(), buffer([1, 2, 3, 10, 20, 30]), buffer([0.5, -0.5]), buffer()]
b = flatbuffers.Builder(1024)
b.Finish(model.Pack(b), b"TFL3")
with open("lite.tflite", "wb") as f:
    f.write(bytes(b.Output()))
