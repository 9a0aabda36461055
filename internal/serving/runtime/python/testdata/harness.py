"""Hands what Go's fuzzer makes up to the worker's readers: 4 bytes of length, a byte that
says to which, and the rest. The answer is a length and what went wrong, if anything did."""

import importlib.util
import io
import struct
import sys
import traceback

spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


def messages(data):
    reader = worker.Reader(io.BufferedReader(io.BytesIO(data)))
    while True:
        kind = reader.exactly(1)
        if kind == b"L":
            reader.file.seek(-1, io.SEEK_CUR)
            reader.load()
            continue
        reader.number(1 << 63)
        if kind != b"C":
            wanted, inputs = reader.infer()
            for value in inputs.values():
                assert isinstance(value, worker.np.ndarray)


def mlmodel(data):
    worker.yaml_of(data.decode("utf-8", "replace"))


def main(i, o):
    while True:
        head = i.read(5)
        if len(head) < 5:
            return
        (n,) = struct.unpack("=I", head[:4])
        data = i.read(n)
        said = b""
        try:
            (messages if head[4] == 0 else mlmodel)(data)
        except (worker.Broken, worker.Refused, EOFError, ValueError):
            pass
        except BaseException:
            said = traceback.format_exc().encode()
        o.write(struct.pack("=I", len(said)) + said)
        o.flush()


main(sys.stdin.buffer, sys.stdout.buffer)
