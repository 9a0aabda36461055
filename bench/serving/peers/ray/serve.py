"""Ray Serve: an HTTP proxy and one replica that holds the models, on a Ray of one
core. Usage: serve.py DIR PORT
"""

import os
import signal
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

directory, port = sys.argv[1], int(sys.argv[2])


@serve.deployment(num_replicas=1, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.5})
class Models:
    def __init__(self, directory):
        import models

        self.models = {m.name: m for m in models.load(directory)}

    async def __call__(self, request: Request):
        _, kind, name = request.url.path.split("/")
        m = self.models[name]
        if kind == "raw":
            return Response(m(m.raw(await request.body())).tobytes(), media_type="application/octet-stream")
        return {"y": m(m.array((await request.json())["x"])).tolist()}


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"enable_access_log": False})
serve.run(Models.bind(directory))
print(f"ready at http://127.0.0.1:{port}", flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
serve.shutdown()
ray.shutdown()
