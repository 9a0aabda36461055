"""MLServer: a custom runtime with its NumPy codec for each model, without parallel
workers, which are processes more than there are cores; BATCHED is there a second time
with adaptive batching. Usage: serve.py DIR PORT
"""

import json
import os
import socket
import sys
from pathlib import Path

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

import models


class Onnx(MLModel):
    async def load(self) -> bool:
        extra = self.settings.parameters.extra
        self.model = models.Model(extra["directory"], extra["about"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        y = self.model(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])


def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    directory, port = sys.argv[1], int(sys.argv[2])
    own = Path(directory) / f"mlserver-{port}"
    settings = {
        "host": "127.0.0.1", "http_port": port, "grpc_port": free(), "metrics_port": free(), "parallel_workers": 0,
        "debug": False, "use_structured_logging": False,
    }
    own.mkdir(parents=True)
    (own / "settings.json").write_text(json.dumps(settings))
    for m in models.about(directory):
        for suffix, batching in [("", {}), (models.SUFFIX, {"max_batch_size": 64, "max_batch_time": 0.005})]:
            if suffix and m["name"] != models.BATCHED:
                continue
            (own / (m["name"] + suffix)).mkdir()
            (own / (m["name"] + suffix) / "model-settings.json").write_text(json.dumps({
                "name": m["name"] + suffix, "implementation": "serve.Onnx",
                "parameters": {"extra": {"directory": directory, "about": m}}, **batching}))
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = here + os.pathsep + os.environ.get("PYTHONPATH", "")
    print(f"ready at http://127.0.0.1:{port}", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "mlserver.cli.main", "start", str(own)])
