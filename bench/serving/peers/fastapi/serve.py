"""FastAPI with ONNX Runtime under uvicorn: what is often written by hand. orjson reads
and writes JSON; /raw/NAME takes and gives the tensor's bytes. Usage: serve.py DIR PORT
"""

import sys

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

import models

directory, port = sys.argv[1], int(sys.argv[2])
loaded = {m.name: m for m in models.load(directory)}
app = FastAPI()


@app.post("/json/{name}")
async def text(name: str, request: Request):
    m = loaded[name]
    y = m(m.array(orjson.loads(await request.body())["x"]))
    return Response(orjson.dumps({"y": y}, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


@app.post("/raw/{name}")
async def raw(name: str, request: Request):
    m = loaded[name]
    return Response(m(m.raw(await request.body())).tobytes(), media_type="application/octet-stream")


print(f"ready at http://127.0.0.1:{port}", flush=True)
uvicorn.run(app, host="127.0.0.1", port=port, workers=1, access_log=False, log_level="warning")
