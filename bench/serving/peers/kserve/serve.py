"""KServe's Python server: a kserve.Model for each model, without the log line of each
request. Usage: serve.py DIR PORT
"""

import sys

directory, port = sys.argv[1], int(sys.argv[2])
sys.argv[1:] = ["--http_port", str(port), "--enable_grpc", "false", "--enable_latency_logging", "false"]

import kserve
import kserve.protocol.rest.server as rest
from kserve.utils.utils import generate_uuid

import models


class Onnx(kserve.Model):
    def __init__(self, model):
        super().__init__(model.name)
        self.model, self.ready = model, True

    def predict(self, payload: kserve.InferRequest, headers=None, response_headers=None) -> kserve.InferResponse:
        y = self.model(payload.inputs[0].as_numpy())
        out = kserve.InferOutput(name="y", shape=list(y.shape), datatype="FP32")
        out.set_data_from_numpy(y, binary_data=True)
        return kserve.InferResponse(
            response_id=payload.id or generate_uuid(), model_name=self.name, infer_outputs=[out],
            use_binary_outputs=payload.use_binary_outputs, requested_outputs=payload.request_outputs)


class Loopback(rest.uvicorn.Config):
    def __init__(self, app, host, **more):
        super().__init__(app, host="127.0.0.1", **more)


rest.uvicorn.Config = Loopback
loaded = [Onnx(m) for m in models.load(directory)]
print(f"ready at http://127.0.0.1:{port}", flush=True)
kserve.ModelServer().start(loaded)
