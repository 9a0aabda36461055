"""A model that does what it is told, and says what came of it."""

import os
import socket
import sys
import time

import numpy as np


def load(path):
    with open(os.path.join(path, "weights", "w.txt")) as f:
        return np.array([float(w) for w in f.read().split()], np.float32)


def signature(model):
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}, {"name": "act", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}, {"name": "said", "datatype": "BYTES", "shape": [-1]}],
    }


def did(model, act):
    what, _, argument = act.partition(" ")
    if what == "read":
        with open(argument) as f:
            return f.read()
    if what == "list":
        return " ".join(os.listdir(argument))
    if what == "write":
        with open(argument, "w") as f:
            f.write("x")
        return "written"
    if what == "connect":
        host, _, port = argument.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=2):
            return "connected"
    if what == "environ":
        return " ".join(sorted(os.environ)) + " threads " + os.environ["OMP_NUM_THREADS"]
    if what == "sleep":
        time.sleep(3600)
    if what == "pause":
        time.sleep(0.05)
    if what == "fill":
        held = []
        while True:
            held.append(np.ones(1 << 22))
    if what == "fork":
        for _ in range(100000):
            if os.fork() == 0:
                time.sleep(3600)
    if what == "print":
        print("garbage" * 100000)
        sys.stderr.write("garbage\n" * 100000)
        sys.stdout.flush()
    if what == "speak":
        for fd in range(3, 50):
            try:
                os.write(fd, b"A" + b"\xff" * 100)
            except OSError:
                pass
    if what == "raise":
        return model.nothing
    if what == "abort":
        os.abort()
    return "done"


def predict(model, inputs):
    said = []
    for act in inputs["act"]:
        try:
            said.append(did(model, act.decode()))
        except OSError as e:
            said.append("%s: %s" % (type(e).__name__, e.strerror))
    return {"y": inputs["x"] @ model, "said": said}
