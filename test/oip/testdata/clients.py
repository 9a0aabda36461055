"""Asks a Falaj with the unmodified clients of Triton and KServe, and by reflection."""

import asyncio
import os
import sys

import grpc
import httpx
import numpy as np
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

which = sys.argv[1]
if which != "kserve":  # both register messages of these names
    import tritonclient.grpc as tg
    import tritonclient.grpc.aio as tga
    import tritonclient.http as th
    import tritonclient.http.aio as tha
    from tritonclient.utils import InferenceServerException

HTTP, GRPC, TOKEN, WITHOUT = (os.environ[k] for k in ("FALAJ_HTTP", "FALAJ_GRPC", "FALAJ_TOKEN", "FALAJ_VIEWER"))
# gRPC's metadata are in small letters. The clients write into what they are given.
H = {"authorization": "Bearer " + TOKEN}
X = np.array([[1, 2, 3], [9, 8, -7]], dtype=np.float32)
Y = X * 2 + 1
TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "FP64": np.float64,
}


def same(got, want):
    assert np.array_equal(got, want), (got, want)
    assert got.dtype == want.dtype or want.dtype == object, (got.dtype, want.dtype)


def fails(do, *words):
    try:
        do()
    except (InferenceServerException, grpc.RpcError) as e:
        text = str(e)
        assert all(w in text for w in words), text
        return
    raise AssertionError("it did not fail")


def inputs(module, **how):
    i = module.InferInput("x", X.shape, "FP32")
    i.set_data_from_numpy(X, **how)
    return [i]


def values():
    for t, d in TYPES.items():
        low, high = (0, 1) if t == "BOOL" else (-1.5, 1e30) if t.startswith("FP") else (np.iinfo(d).min, np.iinfo(d).max)
        yield t, np.array([low, high], dtype=d)
    yield "BYTES", np.array(["", "نخلة"], dtype=object)


def each_type(module, **how):
    out = []
    for t, v in values():
        i = module.InferInput("in_" + t, v.shape, t)
        i.set_data_from_numpy(v, **how)
        out.append(i)
    return out


def each_is_same(r):
    for t, v in values():
        got = r.as_numpy("out_" + t)
        same(got, np.array([s.encode() for s in v], dtype=object) if t == "BYTES" and isinstance(got[0], bytes) else v)


def http():
    c = th.InferenceServerClient(HTTP, concurrency=4)
    assert c.is_server_live(headers=dict(H)) and c.is_server_ready(headers=dict(H)) and c.is_model_ready("linear", headers=dict(H)) and c.is_model_ready("linear", "1", headers=dict(H))
    assert not c.is_model_ready("nothing", headers=dict(H))
    assert "binary_tensor_data" in c.get_server_metadata(headers=dict(H))["extensions"]
    m = c.get_model_metadata("linear", headers=dict(H))
    assert m["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}], m
    assert c.get_model_config("linear", headers=dict(H))["input"][0]["data_type"] == "TYPE_FP32"
    assert {r["name"]: r["state"] for r in c.get_model_repository_index(headers=dict(H))} == {"linear": "READY", "types": "READY"}
    c.load_model("linear", headers=dict(H))
    fails(lambda: c.load_model("nothing", headers=dict(H)), "404")
    fails(lambda: c.unload_model("linear", headers=dict(H)), "manifest")
    assert c.get_trace_settings(headers=dict(H))["trace_level"] == ["OFF"] and c.get_log_settings(headers=dict(H))["log_info"] is True
    fails(lambda: c.update_log_settings({"log_verbose_level": 2}, headers=dict(H)), "501")
    fails(lambda: c.register_system_shared_memory("r", "/r", 8, headers=dict(H)), "501", "shared memory")
    for binary in (True, False):
        for packed in (None, "gzip", "deflate"):
            for q in (None, [th.InferRequestedOutput("y", binary_data=binary), th.InferRequestedOutput("largest", binary_data=not binary)]):
                r = c.infer("linear", inputs(th, binary_data=binary), outputs=q, request_id="é7", headers=dict(H), request_compression_algorithm=packed, response_compression_algorithm=packed, priority=1, timeout=5_000_000)
                same(r.as_numpy("y"), Y)
                same(r.as_numpy("largest"), np.array([2, 0]))
                assert r.get_response()["id"] == "é7"
        each_is_same(c.infer("types", each_type(th, binary_data=binary), headers=dict(H), outputs=[th.InferRequestedOutput("out_" + t, binary_data=binary) for t, _ in values()]))
    each_is_same(c.infer("types", each_type(th), headers=dict(H)))
    r = c.infer("linear", inputs(th), outputs=[th.InferRequestedOutput("y", class_count=2)], headers=dict(H))
    assert r.as_numpy("y").tolist() == [[b"7.000000:2", b"5.000000:1"], [b"19.000000:0", b"17.000000:1"]], r.as_numpy("y")
    body, size = th.InferenceServerClient.generate_request_body(inputs(th), outputs=[th.InferRequestedOutput("y")])
    r = httpx.post(f"http://{HTTP}/v2/models/linear/infer", content=body, headers={**H, "Inference-Header-Content-Length": str(size)})
    same(th.InferenceServerClient.parse_response_body(r.content, header_length=int(r.headers["Inference-Header-Content-Length"])).as_numpy("y"), Y)
    r = httpx.post(f"http://{HTTP}/v2/models/linear/infer", content=X.tobytes(), headers={**H, "Inference-Header-Content-Length": "0"})
    same(th.InferenceServerClient.parse_response_body(r.content, header_length=int(r.headers["Inference-Header-Content-Length"])).as_numpy("y"), Y)
    waiting = [c.async_infer("linear", inputs(th), headers=dict(H)) for _ in range(20)]
    for w in waiting:
        same(w.get_result().as_numpy("y"), Y)
    fails(lambda: c.infer("nothing", inputs(th), headers=dict(H)), "404", "not deployed")
    fails(lambda: c.infer("linear", inputs(th), outputs=[th.InferRequestedOutput("z")], headers=dict(H)), "400")
    fails(lambda: c.infer("linear", inputs(th)), "401")
    fails(lambda: c.load_model("linear", headers={"authorization": "Bearer " + WITHOUT}), "403")


def grpc_client():
    c = tg.InferenceServerClient(GRPC)
    assert c.is_server_live(headers=dict(H)) and c.is_server_ready(headers=dict(H)) and c.is_model_ready("linear", headers=dict(H))
    assert "binary_tensor_data" in c.get_server_metadata(headers=dict(H)).extensions
    assert list(c.get_model_metadata("linear", headers=dict(H)).inputs[0].shape) == [-1, 3]
    assert c.get_model_config("linear", headers=dict(H)).config.input[0].name == "x"
    assert sorted(m.name for m in c.get_model_repository_index(headers=dict(H)).models) == ["linear", "types"]
    c.load_model("linear", headers=dict(H))
    fails(lambda: c.unload_model("linear", headers=dict(H)), "UNIMPLEMENTED")
    assert c.get_trace_settings(headers=dict(H)).settings["trace_level"].value == ["OFF"] and c.get_log_settings(headers=dict(H)).settings["log_info"].bool_param
    fails(lambda: c.register_system_shared_memory("r", "/r", 8, headers=dict(H)), "UNIMPLEMENTED", "shared memory")
    fails(lambda: c.get_cuda_shared_memory_status(headers=dict(H)), "UNIMPLEMENTED")
    for packed in (None, "gzip", "deflate"):
        r = c.infer("linear", inputs(tg), request_id="7", headers=dict(H), compression_algorithm=packed, priority=1, timeout=5_000_000, client_timeout=60)
        same(r.as_numpy("y"), Y)
        same(r.as_numpy("largest"), np.array([2, 0]))
        assert r.get_response().id == "7" and r.get_response().model_version == "1"
    each_is_same(c.infer("types", each_type(tg), headers=dict(H)))
    r = c.infer("linear", inputs(tg), outputs=[tg.InferRequestedOutput("y", class_count=1)], headers=dict(H))
    assert r.as_numpy("y").tolist() == [[b"7.000000:2"], [b"19.000000:0"]]
    fails(lambda: c.infer("nothing", inputs(tg), headers=dict(H)), "NOT_FOUND")
    fails(lambda: c.infer("linear", inputs(tg)), "UNAUTHENTICATED")
    fails(lambda: c.load_model("linear", headers={"authorization": "Bearer " + WITHOUT}), "PERMISSION_DENIED")
    import queue

    answers = queue.Queue()
    c.start_stream(callback=lambda result, error: answers.put((result, error)), headers=dict(H))
    for n in range(50):
        c.async_stream_infer("linear" if n != 7 else "nothing", inputs(tg), request_id=str(n))
    for n in range(50):
        result, error = answers.get(timeout=60)
        assert (error is not None) == (n == 7), (n, error)
        if n != 7:
            assert result.get_response().id == str(n)
            same(result.as_numpy("y"), Y)
    c.stop_stream()


async def aio():
    c = tha.InferenceServerClient(HTTP)
    for r in await asyncio.gather(*(c.infer("linear", inputs(th), headers=dict(H)) for _ in range(20))):
        same(r.as_numpy("y"), Y)
    each_is_same(await c.infer("types", each_type(th), headers=dict(H), response_compression_algorithm="gzip"))
    await c.close()
    c = tga.InferenceServerClient(GRPC)
    for r in await asyncio.gather(*(c.infer("linear", inputs(tg), headers=dict(H)) for _ in range(20))):
        same(r.as_numpy("y"), Y)

    async def requests():
        for n in range(10):
            yield {"model_name": "linear", "inputs": inputs(tg), "request_id": str(n)}

    n = 0
    async for result, error in c.stream_infer(requests(), headers=dict(H)):
        assert error is None, error
        same(result.as_numpy("y"), Y)
        n += 1
        if n == 10:
            break
    assert n == 10
    await c.close()


async def kserve():
    from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

    def request(binary):
        i = InferInput("x", list(X.shape), "FP32")
        i.set_data_from_numpy(X, binary_data=binary)
        return InferRequest(model_name="linear", request_id="7", infer_inputs=[i])

    def answered(r):
        got = {o.name: o.as_numpy() for o in r.outputs}
        same(got["y"], Y)
        assert r.id == "7", r.id

    c = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    base = "http://" + HTTP
    assert await c.is_server_live(base, headers=dict(H)) and await c.is_server_ready(base, headers=dict(H)) and await c.is_model_ready(base, "linear", headers=dict(H))
    for binary in (True, False):
        answered(await c.infer(base, request(binary), model_name="linear", headers=dict(H)))
    c = InferenceGRPCClient(GRPC)
    m = [("authorization", "Bearer " + TOKEN)]
    assert await c.is_server_live(headers=m) and await c.is_server_ready(headers=m) and await c.is_model_ready("linear", headers=m)
    for binary in (True, False):
        answered(await c.infer(request(binary), headers=m))


def reflected():
    """What grpcurl does: it asks the server for the calls, and makes messages of that."""
    channel = grpc.intercept_channel(grpc.insecure_channel(GRPC), Token())
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "inference.GRPCInferenceService" in database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    method = service.FindMethodByName("ModelInfer")
    ask = message_factory.GetMessageClass(method.input_type)(model_name="linear", id="7", inputs=[{"name": "x", "datatype": "FP32", "shape": X.shape, "contents": {"fp32_contents": X.ravel()}}])
    call = channel.unary_unary(f"/{service.full_name}/{method.name}", type(ask).SerializeToString, message_factory.GetMessageClass(method.output_type).FromString)
    r = call(ask)
    same(np.frombuffer(r.raw_output_contents[0], np.float32).reshape(2, 3), Y)


class Token(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    def intercept_unary_unary(self, go_on, details, request):
        return go_on(details._replace(metadata=[("authorization", "Bearer " + TOKEN)]), request)

    intercept_stream_stream = intercept_unary_unary


if which in ("aio", "kserve"):
    asyncio.run({"aio": aio, "kserve": kserve}[which]())
else:
    {"http": http, "grpc": grpc_client, "reflected": reflected}[which]()
