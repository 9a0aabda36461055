"""Triton's core with its Python backend, by PyTriton: each model is a function that
Triton calls in this process with batches. Usage: serve.py DIR PORT
"""

import sys

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

import models

directory, port = sys.argv[1], int(sys.argv[2])


def bind(triton, m):
    @batch
    def infer(x):
        return [m(x)]

    answer = m.session.get_outputs()[0].shape[1:]
    triton.bind(
        model_name=m.name, infer_func=infer, inputs=[Tensor(name="x", dtype=m.dtype.type, shape=tuple(m.shape))],
        outputs=[Tensor(name="y", dtype=models.np.float32, shape=tuple(d if isinstance(d, int) else -1 for d in answer))],
        config=ModelConfig(max_batch_size=256, batcher=DynamicBatcher(max_queue_delay_microseconds=0)))


with Triton(config=TritonConfig(http_address="127.0.0.1", http_port=port, allow_grpc=False, allow_metrics=False, log_verbose=0)) as triton:
    for m in models.load(directory):
        bind(triton, m)
    print(f"ready at http://127.0.0.1:{port}", flush=True)
    triton.serve()
