"""Writes the model beside this file, with onnx (any version of 1.12 or later): what
skl2onnx makes of a StandardScaler of two columns."""

import sys
from pathlib import Path

from onnx import TensorProto, helper

here = Path(sys.argv[0]).parent
node = helper.make_node("Scaler", ["X"], ["variable"], domain="ai.onnx.ml", offset=[5.0, 0.0], scale=[0.2, 1.0])
graph = helper.make_graph(
    [node], "standardise",
    [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])],
    [helper.make_tensor_value_info("variable", TensorProto.FLOAT, [None, 2])],
)
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
(here / "standardise.onnx").write_bytes(model.SerializeToString())
