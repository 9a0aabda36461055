"""Writes the small models beside this file. Needs scikit-learn 1.9 and skl2onnx 1.20
(any versions that convert a logistic regression do)."""

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

here = Path(sys.argv[0]).parent
x = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [3, 3], [4, 3]], dtype=np.float32)
y = np.array([0, 0, 0, 0, 1, 1])
model = LogisticRegression().fit(x, y)
plain = to_onnx(model, x[:1], options={"zipmap": False}, target_opset=17)
(here / "logistic.onnx").write_bytes(plain.SerializeToString())
mapped = to_onnx(model, x[:1], target_opset=17)
(here / "zipmap.onnx").write_bytes(mapped.SerializeToString())
print(model.predict_proba(x)[:, 1].tolist())
