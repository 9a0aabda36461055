"""A model server of KServe with the functions of make.py's models."""

import numpy as np
from kserve import InferOutput, InferResponse, Model, ModelServer


class Linear(Model):
    def __init__(self):
        super().__init__("linear")
        self.load()

    def load(self):
        self.ready = True

    def answer(self, request, outputs):
        wanted = [o.name for o in request.request_outputs or []] or list(outputs)
        tensors = []
        for name in wanted:
            value, datatype = outputs[name]
            tensor = InferOutput(name, list(value.shape), datatype)
            tensor.set_data_from_numpy(value, binary_data=True)
            tensors.append(tensor)
        return InferResponse(request.id, self.name, tensors)

    def predict(self, payload, headers=None, response_headers=None):
        y = payload.inputs[0].as_numpy() * np.float32(2) + np.float32(1)
        if y.shape[1:] != (3,):
            raise ValueError("three columns are wanted")
        return self.answer(payload, {"y": (y, "FP32"), "largest": (np.argmax(y, axis=1).astype(np.int64), "INT64")})


class Types(Linear):
    def __init__(self):
        Model.__init__(self, "types")
        self.load()

    def predict(self, payload, headers=None, response_headers=None):
        return self.answer(payload, {"out_" + i.name[3:]: (i.as_numpy(), i.datatype) for i in payload.inputs})


if __name__ == "__main__":
    from kserve.model_server import parser

    args, _ = parser.parse_known_args()
    ModelServer(http_port=args.http_port, grpc_port=args.grpc_port, enable_grpc=True, enable_latency_logging=False).start([Linear(), Types()])
