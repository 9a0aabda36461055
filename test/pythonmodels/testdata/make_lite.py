"""Writes lite.tflite: y [-1, 2] = x [-1, 3] times weights, plus a bias; and pool.tflite: means of the squares of two
by two of x [-1, -1, -1, 1], of whose y the file does not say what varies. Needs ai-edge-litert."""

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


def write(file, op, builtin, tensors, outputs, buffers):
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = 1
    graph = schema.SubGraphT()
    graph.name = "main"
    graph.tensors, graph.inputs, graph.outputs, graph.operators = tensors, [0], outputs, [op]
    model = schema.ModelT()
    model.version, model.description, model.operatorCodes, model.subgraphs, model.buffers = 3, file, [code], [graph], buffers
    b = flatbuffers.Builder(1024)
    b.Finish(model.Pack(b), b"TFL3")
    with open(file, "wb") as f:
        f.write(bytes(b.Output()))


line = schema.OperatorT()
line.opcodeIndex, line.inputs, line.outputs = 0, [0, 1, 2], [3]
line.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
line.builtinOptions = schema.FullyConnectedOptionsT()
write(
    "lite.tflite", line, schema.BuiltinOperator.FULLY_CONNECTED,
    [tensor("x", [1, 3], 1, [-1, 3]), tensor("weights", [2, 3], 2), tensor("bias", [2], 3), tensor("y", [1, 2], 4, [-1, 2])],
    [3], [buffer(), buffer(), buffer([1, 2, 3, 10, 20, 30]), buffer([0.5, -0.5]), buffer()],
)

pool = schema.OperatorT()
pool.opcodeIndex, pool.inputs, pool.outputs = 0, [0], [1]
pool.builtinOptionsType = schema.BuiltinOptions.Pool2DOptions
pool.builtinOptions = schema.Pool2DOptionsT()
pool.builtinOptions.padding, pool.builtinOptions.filterWidth, pool.builtinOptions.filterHeight = schema.Padding.VALID, 2, 2
pool.builtinOptions.strideW = pool.builtinOptions.strideH = 1
write("pool.tflite", pool, schema.BuiltinOperator.AVERAGE_POOL_2D, [tensor("x", [1, 1, 1, 1], 0, [-1, -1, -1, 1]), tensor("y", [1, 1, 1, 1], 0)], [1], [buffer()])
