"""Makes net.onnx: two hidden layers that learned whether sin(3a) + b*c - d is above 0.

Run with onnx==1.18.0 and scikit-learn 1.7.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.neural_network import MLPClassifier

x = np.random.default_rng(1).uniform(-1, 1, (6000, 4)).astype(np.float32)
y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] - x[:, 3] > 0
net = MLPClassifier((64, 64), max_iter=40, random_state=1).fit(x, y)
steps, weights, at = [], [], "x"
for n, (w, b) in enumerate(zip(net.coefs_, net.intercepts_)):
    weights += [numpy_helper.from_array(w.astype(np.float32), f"w{n}"), numpy_helper.from_array(b.astype(np.float32), f"b{n}")]
    steps.append(helper.make_node("Gemm", [at, f"w{n}", f"b{n}"], [f"l{n}"]))
    at = "late" if n == 2 else f"h{n}"
    steps.append(helper.make_node("Sigmoid" if n == 2 else "Relu", [f"l{n}"], [at]))
graph = helper.make_graph(steps, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
                          [helper.make_tensor_value_info("late", TensorProto.FLOAT, ["n", 1])], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")

# export.onnx is the same net as PyTorch exports some: weights in a file of their own, transposed,
# beside shapes from before.
model = onnx.load("net.onnx")
for node in model.graph.node:
    if node.op_type == "Gemm":
        w = next(i for i in model.graph.initializer if i.name == node.input[1])
        model.graph.value_info.append(helper.make_tensor_value_info(w.name, TensorProto.FLOAT, list(w.dims)))
        w.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(w).T), w.name))
        node.attribute.append(helper.make_attribute("transB", 1))
onnx.save(model, "export.onnx", save_as_external_data=True, location="export.onnx.data", size_threshold=0)
