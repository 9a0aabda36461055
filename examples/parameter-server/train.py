"""A trainer: it asks the parameter servers for the weights and tells them its
gradients, without waiting for the others (asynchronous SGD)."""

import argparse
import json
import os
import random
import socket
import time

args = argparse.ArgumentParser()
args.add_argument("--steps", type=int, default=200)
steps = args.parse_args().steps

role, index = os.environ["FALAJ_ROLE"], int(os.environ["FALAJ_ROLE_INDEX"])
truth = [i - 4.0 for i in range(9)]
draw = random.Random(f"{role} {index}")


def connect(peer):
    host, port = peer.rsplit(":", 1)
    while True:  # it may be slower to begin
        try:
            return socket.create_connection((host, int(port))).makefile("rw")
        except ConnectionRefusedError:
            time.sleep(0.1)


servers = [connect(p) for p in os.environ["FALAJ_PEERS_PS"].split(",")]


def exchange(change):
    """Adds to the weights and gives them as they are then."""
    weights = [0.0] * len(truth)
    for i, s in enumerate(servers):
        print(json.dumps(change[i :: len(servers)]), file=s, flush=True)
        weights[i :: len(servers)] = json.loads(s.readline())
    return weights


weights = exchange([0.0] * len(truth))
for step in range(steps):
    change = [0.0] * len(truth)
    for _ in range(16):
        x = [draw.gauss(0, 1) for _ in truth]
        error = sum((w - t) * v for w, t, v in zip(weights, truth, x))
        change = [c - 0.02 / 16 * error * v for c, v in zip(change, x)]
    weights = exchange(change)

loss = sum((w - t) ** 2 for w, t in zip(weights, truth))
print(f"{role} {index} ends after {steps} steps, loss {loss:.6f}", flush=True)
if role == "chief":
    while loss > 0.01:  # the others have not pushed all of theirs
        time.sleep(0.1)
        weights = exchange([0.0] * len(truth))
        loss = sum((w - t) ** 2 for w, t in zip(weights, truth))
    with open(os.path.join(os.environ["FALAJ_OUTPUT_DIR"], "weights.json"), "w") as f:
        json.dump(weights, f)
    print("chief has the weights", flush=True)
