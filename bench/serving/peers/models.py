"""What the peers have in common: the models, as ONNX Runtime sessions of one thread."""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort


class Model:
    def __init__(self, directory, about):
        self.name, self.shape = about["name"], about["shape"]
        self.datatype, self.dtype = about["datatype"], np.dtype({"FP32": "float32", "INT64": "int64"}[about["datatype"]])
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(Path(directory) / about["file"], options, providers=["CPUExecutionProvider"])

    def __call__(self, x):
        return self.session.run(["y"], {"x": x})[0]

    def array(self, rows):
        return np.asarray(rows, self.dtype)

    def raw(self, body):
        return np.frombuffer(body, self.dtype).reshape(-1, *self.shape)


def about(directory):
    return json.loads((Path(directory) / "models.json").read_text())


def load(directory):
    return [Model(directory, m) for m in about(directory)]


# The model that is served a second time, with the peer's own batching.
BATCHED, SUFFIX = "mlp-large", "-batched"
