"""Asks Falaj and Triton the same and writes what differs, a line each. Words of errors
are never compared, nor the order of members, nor the names and versions of the servers, nor whether 3.0 is
written as 3."""

import gzip
import http.client
import json
import os
import struct
import zlib

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

TOKEN = os.environ["FALAJ_TOKEN"]
SERVERS = {"falaj": (os.environ["FALAJ_HTTP"], os.environ["FALAJ_GRPC"]), "triton": (os.environ["TRITON_HTTP"], os.environ["TRITON_GRPC"])}
LENGTH = "Inference-Header-Content-Length"


def ask(server, method, path, body, headers):
    c = http.client.HTTPConnection(SERVERS[server][0], timeout=20)
    if server == "falaj":
        headers = {**headers, "Authorization": "Bearer " + TOKEN}
    c.request(method, path, body, headers)
    try:
        r = c.getresponse()
        b = r.read()
    except TimeoutError:
        return {"status": "no answer"}
    out = {"status": r.status, "encoding": r.getheader("Content-Encoding")}
    if out["encoding"] == "gzip":
        b = gzip.decompress(b)
    elif out["encoding"] == "deflate":
        b = zlib.decompress(b)
    size = r.getheader(LENGTH)
    head, raw = (b, b"") if size is None else (b[: int(size)], b[int(size) :])
    out["type"] = r.getheader("Content-Type")
    out["raw"] = raw.hex()
    out["body"] = "empty" if not head else parsed(head)
    c.close()
    return out


def parsed(head):
    try:
        v = json.loads(head)
    except ValueError:
        return "no JSON"
    if isinstance(v, dict) and set(v) == {"error"}:
        return {"error": "words"}
    return v


def in_order(out):
    """Triton answers outputs in the order of its model, which is compared once."""
    body = out.get("body")
    if not isinstance(body, dict) or "outputs" not in body:
        return out
    raw, parts = bytes.fromhex(out["raw"]), {}
    for o in body["outputs"]:
        size = o.get("parameters", {}).get("binary_data_size", 0)
        parts[o["name"]], raw = raw[:size].hex(), raw[size:]
    body["outputs"].sort(key=lambda o: o["name"])
    return {**out, "raw": [parts[o["name"]] for o in body["outputs"]], "rest": raw.hex()}


def short(v):
    text = json.dumps(v, sort_keys=True, ensure_ascii=False)
    return text if len(text) < 120 else text[:117] + "..."


NOTHING = object()
TIMES = ("ns", "last_inference")  # they are there, and not the same


def differ(name, at, ours, theirs):
    if at.endswith(".id") and isinstance(ours, str) and ours.startswith("prd_"):
        ours = "prd_…"
    if name in ("server metadata", "grpc server metadata") and at in (".body.version", ".body.name", ".name", ".version"):
        return
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for k in sorted({*ours, *theirs}):
            if k in TIMES and k in ours and k in theirs:
                continue
            differ(name, f"{at}.{k}", ours.get(k, NOTHING), theirs.get(k, NOTHING))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            differ(name, f"{at}[{i}]", a, b)
    elif ours is NOTHING or theirs is NOTHING or ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool):
        a, b = ("—" if v is NOTHING else short(v) for v in (ours, theirs))
        print(f"{name}: {at[1:]}: {a} | {b}")


def rest(name, method, path, body=None, headers={}):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    ours, theirs = (ask(s, method, path, body, headers) for s in ("falaj", "triton"))
    if name != "outputs turned":
        ours, theirs = in_order(ours), in_order(theirs)
    differ(name, "", ours, theirs)


def x(**more):
    return {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 9, 8, -7], **more}


def without(d, *keys):
    return {k: v for k, v in d.items() if k not in keys}


RAW = struct.pack("<6f", 1, 2, 3, 9, 8, -7)
INFER = "/v2/models/linear/infer"


def binary(request, raw, size=None):
    head = json.dumps(request).encode()
    return head + raw, {LENGTH: str(len(head) if size is None else size)}


def all_rest():
    for name, path in {
        "live": "/v2/health/live", "ready": "/v2/health/ready", "server metadata": "/v2", "model ready": "/v2/models/linear/ready", "version ready": "/v2/models/linear/versions/1/ready",
        "unknown model ready": "/v2/models/nothing/ready", "unknown version ready": "/v2/models/linear/versions/9/ready", "no version ready": "/v2/models/linear/versions/x/ready",
        "metadata": "/v2/models/linear", "metadata of types": "/v2/models/types", "metadata of a version": "/v2/models/linear/versions/1", "unknown model": "/v2/models/nothing", "unknown version": "/v2/models/linear/versions/9",
        "config": "/v2/models/linear/config", "unknown config": "/v2/models/nothing/config", "statistics": "/v2/models/linear/stats", "all statistics": "/v2/models/stats", "unknown statistics": "/v2/models/nothing/stats",
        "trace": "/v2/trace/setting", "trace of a model": "/v2/models/linear/trace/setting", "logging": "/v2/logging",
        "shared memory": "/v2/systemsharedmemory/status", "cuda memory": "/v2/cudasharedmemory/status", "no path": "/v2/nothing", "get infer": INFER,
    }.items():
        rest(name, "GET", path)
    rest("index", "POST", "/v2/repository/index", b"")
    rest("index of ready ones", "POST", "/v2/repository/index", {"ready": True})
    rest("load", "POST", "/v2/repository/models/linear/load", {})
    rest("load unknown", "POST", "/v2/repository/models/nothing/load", {})
    rest("logging changed", "POST", "/v2/logging", {"log_verbose_level": 1})
    ask("triton", "POST", "/v2/logging", b'{"log_verbose_level": 0}', {})
    rest("logging unknown", "POST", "/v2/logging", {"nothing": 1})
    rest("trace unknown", "POST", "/v2/trace/setting", {"nothing": "1"})

    def infer(name, request, path=INFER, headers={}):
        rest(name, "POST", path, request, headers)

    infer("infer", {"id": "7", "inputs": [x()]})
    rest("statistics of one request", "GET", "/v2/models/linear/stats")
    rest("statistics of a version", "GET", "/v2/models/linear/versions/1/stats")
    rest("statistics of no version", "GET", "/v2/models/linear/versions/x/stats")
    infer("infer of a version", {"id": "7", "inputs": [x()]}, "/v2/models/linear/versions/1/infer")
    infer("infer without id", {"inputs": [x()]})
    infer("nested", {"id": "7", "inputs": [x(data=[[1, 2, 3], [9, 8, -7]])]})
    infer("one output", {"id": "7", "inputs": [x()], "outputs": [{"name": "largest"}]})
    infer("outputs turned", {"id": "7", "inputs": [x()], "outputs": [{"name": "largest"}, {"name": "y"}]})
    infer("no rows", {"id": "7", "inputs": [x(shape=[0, 3], data=[])]})
    infer("priority and timeout", {"id": "7", "parameters": {"priority": 1, "timeout": 5000000}, "inputs": [x()]})
    infer("other parameters", {"id": "7", "parameters": {"mine": "a", "n": 7, "b": True, "f": 1.5}, "inputs": [x()]})
    infer("unknown members", {"id": "7", "mine": {"a": 1}, "inputs": [x(mine=1)]})
    infer("binary output", {"id": "7", "inputs": [x()], "outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "largest"}]})
    infer("binary outputs", {"id": "7", "parameters": {"binary_data_output": True}, "inputs": [x()]})
    infer("binary but one", {"id": "7", "parameters": {"binary_data_output": True}, "inputs": [x()], "outputs": [{"name": "y"}, {"name": "largest", "parameters": {"binary_data": False}}]})
    infer("classes", {"id": "7", "inputs": [x(shape=[1, 3], data=[1, 3, 2])], "outputs": [{"name": "y", "parameters": {"classification": 2}}]})
    infer("classes of rows", {"id": "7", "inputs": [x()], "outputs": [{"name": "y", "parameters": {"classification": 2}}]})
    infer("classes of whole numbers", {"id": "7", "inputs": [x()], "outputs": [{"name": "largest", "parameters": {"classification": 1}}]})
    infer("classes raw", {"id": "7", "inputs": [x()], "outputs": [{"name": "largest", "parameters": {"classification": 9, "binary_data": True}}]})
    for name, request in {
        "no JSON": b"inputs", "no body": b"", "empty object": {}, "no inputs": {"inputs": []}, "unknown input": {"inputs": [x(name="z")]}, "input twice": {"inputs": [x(), x()]}, "no name": {"inputs": [without(x(), "name")]},
        "no shape": {"inputs": [without(x(), "shape")]}, "no datatype": {"inputs": [without(x(), "datatype")]}, "no data": {"inputs": [without(x(), "data")]}, "other datatype": {"inputs": [x(datatype="FP64")]},
        "unknown datatype": {"inputs": [x(datatype="FLOAT")]}, "half": {"inputs": [x(datatype="FP16")]}, "other shape": {"inputs": [x(shape=[3, 2])]}, "other rank": {"inputs": [x(shape=[6])]}, "negative shape": {"inputs": [x(shape=[-1, 3])]},
        "too few": {"inputs": [x(data=[1, 2])]}, "too many": {"inputs": [x(data=[1] * 7)]}, "text for a number": {"inputs": [x(data=["a"] * 6)]}, "ragged": {"inputs": [x(data=[[1, 2], [3, 4, 5, 6]])]},
        "unknown output": {"inputs": [x()], "outputs": [{"name": "z"}]}, "output twice": {"inputs": [x()], "outputs": [{"name": "y"}, {"name": "y"}]}, "number as id": {"id": 7, "inputs": [x()]}, "text as priority": {"parameters": {"priority": "a"}, "inputs": [x()]},
        "negative timeout": {"parameters": {"timeout": -1}, "inputs": [x()]}, "shared region": {"inputs": [x(data=None, parameters={"shared_memory_region": "r", "shared_memory_byte_size": 24})]}, "no classes": {"inputs": [x()], "outputs": [{"name": "y", "parameters": {"classification": 0}}]},
        "sequence": {"id": "7", "parameters": {"sequence_id": 5, "sequence_start": True, "sequence_end": True}, "inputs": [x()]},
    }.items():
        infer(name, request)
    for kind in ("generate", "generate_stream"):
        infer(kind, {"x": [1, 2, 3]}, "/v2/models/linear/" + kind)
    infer("infer of unknown model", {"inputs": [x()]}, "/v2/models/nothing/infer")
    infer("infer of unknown version", {"inputs": [x()]}, "/v2/models/linear/versions/9/infer")
    infer("infer of no version", {"inputs": [x()]}, "/v2/models/linear/versions/x/infer")
    infer("missing input of types", {"inputs": [{"name": "in_BOOL", "shape": [1], "datatype": "BOOL", "data": [True]}]}, "/v2/models/types/infer")

    sized = without(x(parameters={"binary_data_size": 24}), "data")
    for name, (body, headers) in {
        "binary input": binary({"id": "7", "inputs": [sized]}, RAW),
        "binary in and out": binary({"id": "7", "parameters": {"binary_data_output": True}, "inputs": [sized]}, RAW),
        "binary too short": binary({"inputs": [sized]}, RAW[:-1]), "binary too long": binary({"inputs": [sized]}, RAW + b"\0"),
        "binary of other size": binary({"inputs": [without(x(parameters={"binary_data_size": 20}), "data")]}, RAW[:20]),
        "binary and data": binary({"inputs": [x(parameters={"binary_data_size": 24})]}, RAW),
        "header too long": binary({"inputs": [sized]}, RAW, 9999), "header too short": binary({"inputs": [sized]}, RAW, 10), "header of letters": binary({"inputs": [sized]}, RAW, "a"), "header below zero": binary({"inputs": [sized]}, RAW, -1),
        "raw alone": (RAW, {LENGTH: "0"}), "raw alone, one row": (RAW[:12], {LENGTH: "0"}), "raw alone, half": (RAW[:10], {LENGTH: "0"}), "raw alone, nothing": (b"", {LENGTH: "0"}),
    }.items():
        infer(name, body, headers=headers)
    plain = json.dumps({"id": "7", "inputs": [x()]}).encode()
    infer("gzip", gzip.compress(plain), headers={"Content-Encoding": "gzip"})
    infer("deflate", zlib.compress(plain), headers={"Content-Encoding": "deflate"})
    infer("no gzip", plain, headers={"Content-Encoding": "gzip"})
    infer("brotli", plain, headers={"Content-Encoding": "br"})
    large = {"id": "7", "inputs": [x(shape=[400, 3], data=[1, 2, 3] * 400)]}
    for kind in ("gzip", "deflate", "gzip, deflate", "deflate, gzip", "br", "identity", "gzip;q=0"):
        infer("answer accepted as " + kind, large, headers={"Accept-Encoding": kind})
    infer("small answer accepted as gzip", {"id": "7", "inputs": [x()]}, headers={"Accept-Encoding": "gzip"})
    values = {
        "BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1], "UINT64": [0, 2**64 - 1], "INT8": [-128, 127], "INT16": [-(2**15), 2**15 - 1],
        "INT32": [-(2**31), 2**31 - 1], "INT64": [-(2**63), 2**63 - 1], "FP32": [-1.5, 0.25], "FP64": [-1.5, 0.1], "BYTES": ["", "نخلة \"\\ \n <&>"],
    }

    def types(**other):
        return {"id": "7", "inputs": [{"name": "in_" + t, "shape": [len(v)], "datatype": t, "data": v} for t, v in {**values, **other}.items()]}

    infer("types", types(), "/v2/models/types/infer")
    infer("types, raw", {**types(), "parameters": {"binary_data_output": True}}, "/v2/models/types/infer")
    for name, other in {
        "bool as number": {"BOOL": [1, 0]}, "number as bool": {"INT8": [True, False]}, "int8 too large": {"INT8": [200, 0]}, "uint8 below zero": {"UINT8": [-1, 0]}, "float for int": {"INT32": [1.5, 0]}, "whole float for int": {"INT32": [1.0, 0]},
        "int64 too large": {"INT64": [2**63, 0]}, "fp32 too large": {"FP32": [1e39, 0]}, "number as text": {"BYTES": [1, 2]}, "null for fp32": {"FP32": [None, 0]},
    }.items():
        infer(name, types(**other), "/v2/models/types/infer")


def all_grpc():
    stubs = {s: service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(a[1])) for s, a in SERVERS.items()}
    meta = {"falaj": [("authorization", "Bearer " + TOKEN)], "triton": []}

    def call(name, method, request, stream=False):
        out = []
        for s in ("falaj", "triton"):
            try:
                if stream:
                    answers = [MessageToDict(m, preserving_proto_field_name=True) for m in getattr(stubs[s], method)(iter(request), metadata=meta[s], timeout=60)]
                    for a in answers:
                        if "error_message" in a:
                            a["error_message"] = "words"
                    out.append({"code": "OK", "answers": answers})
                else:
                    m = getattr(stubs[s], method)(request, metadata=meta[s], timeout=60)
                    out.append({"code": "OK", **MessageToDict(m, preserving_proto_field_name=True)})
            except grpc.RpcError as e:
                out.append({"code": e.code().name})
        differ("grpc " + name, "", *out)

    call("live", "ServerLive", pb.ServerLiveRequest())
    call("ready", "ServerReady", pb.ServerReadyRequest())
    call("server metadata", "ServerMetadata", pb.ServerMetadataRequest())
    for name, model, version in (("", "linear", ""), (" of version", "linear", "1"), (" of unknown model", "nothing", ""), (" of unknown version", "linear", "9"), (" of no version", "linear", "x"), (" of no name", "", "")):
        call("model ready" + name, "ModelReady", pb.ModelReadyRequest(name=model, version=version))
        call("model metadata" + name, "ModelMetadata", pb.ModelMetadataRequest(name=model, version=version))
        call("model config" + name, "ModelConfig", pb.ModelConfigRequest(name=model, version=version))
        if name not in ("", " of version", " of no name"):  # what there is to count differs
            call("statistics" + name, "ModelStatistics", pb.ModelStatisticsRequest(name=model, version=version))
    call("index", "RepositoryIndex", pb.RepositoryIndexRequest())
    call("load", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="linear"))
    call("load unknown", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nothing"))
    call("trace", "TraceSetting", pb.TraceSettingRequest())
    call("log", "LogSettings", pb.LogSettingsRequest())
    call("shared memory", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())

    Tensor, Output = pb.ModelInferRequest.InferInputTensor, pb.ModelInferRequest.InferRequestedOutputTensor

    def request(contents=None, raw=(RAW,), outputs=(), **tensor):
        t = Tensor(**{"name": "x", "datatype": "FP32", "shape": [2, 3], **tensor})
        if contents is not None:
            t.contents.CopyFrom(pb.InferTensorContents(**contents))
        return pb.ModelInferRequest(model_name="linear", id="7", inputs=[t], raw_input_contents=raw, outputs=[Output(name=o) for o in outputs])

    def of(r, **fields):
        for k, v in fields.items():
            setattr(r, k, v)
        return r

    floats = [1, 2, 3, 9, 8, -7]
    for name, r in {
        "infer": request(), "infer of contents": request({"fp32_contents": floats}, ()), "one output": request(outputs=["largest"]), "outputs turned": request(outputs=["largest", "y"]), "no rows": request(raw=[b""], shape=[0, 3]),
        "raw too short": request(raw=[RAW[:-1]]), "raw too long": request(raw=[RAW + b"\0"]), "two raw": request(raw=[RAW, RAW]), "no data": request(raw=()), "raw and contents": request({"fp32_contents": floats}),
        "other list": request({"fp64_contents": floats}, ()), "too few contents": request({"fp32_contents": [1]}, ()), "unknown input": request(name="z"), "unknown output": request(outputs=["z"]), "output twice": request(outputs=["y", "y"]), "other datatype": request(datatype="INT32"),
        "unknown datatype": request(datatype="FLOAT"), "other shape": request(shape=[3, 2]), "negative shape": request(shape=[-1, 3]), "no inputs": pb.ModelInferRequest(model_name="linear"), "no model": of(request(), model_name="nothing"), "no version": of(request(), model_version="9"),
    }.items():
        call(name, "ModelInfer", r)
    classes = request(outputs=["y"])
    classes.outputs[0].parameters["classification"].int64_param = 2
    call("classes", "ModelInfer", classes)
    without_id = request()
    without_id.id = ""
    call("infer without id", "ModelInfer", without_id)
    call("stream", "ModelStreamInfer", [request()], stream=True)
    call("stream of an error", "ModelStreamInfer", [request(name="z")], stream=True)


all_rest()
all_grpc()
