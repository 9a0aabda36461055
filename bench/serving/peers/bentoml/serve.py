"""BentoML: a service of one worker with a method for each model, whose inputs are
annotated NumPy arrays; BATCHED is there a second time as `batchable`. Its API has no
form for a tensor's bytes. Usage: serve.py DIR PORT
"""

import os
import sys
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType, Shape

import models

directory = os.environ.get("BENCH_MODELS") or sys.argv[1]


def method(about, batch):
    array = Annotated[np.ndarray, DType("int64" if about["datatype"] == "INT64" else "float32"), Shape((-1, *about["shape"]))]
    name = about["name"]

    def infer(self, x):
        return self.models[name](x)

    infer.__name__ = name.replace("-", "_") + ("_batched" if batch else "")
    infer.__annotations__ = {"x": array, "return": np.ndarray}
    route = "/" + name + (models.SUFFIX if batch else "")
    return infer.__name__, bentoml.api(infer, route=route, **({"batchable": True, "max_batch_size": 64} if batch else {}))


def init(self):
    self.models = {m.name: m for m in models.load(directory)}


members = dict(method(m, False) for m in models.about(directory))
members.update(method(m, True) for m in models.about(directory) if m["name"] == models.BATCHED)
Models = bentoml.service(
    type("Models", (), {"__init__": init, "__module__": __name__, **members}), workers=1, traffic={"timeout": 60}, logging={"access": {"enabled": False}})

if __name__ == "__main__":
    os.environ["BENCH_MODELS"], os.environ["BENTOML_DO_NOT_TRACK"] = directory, "1"
    port = sys.argv[2]
    print(f"ready at http://127.0.0.1:{port}", flush=True)
    here = os.path.dirname(os.path.abspath(__file__))
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", "serve", "serve:Models", "--working-dir", here, "--host", "127.0.0.1", "--port", port])
