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
