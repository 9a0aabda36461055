"""A trial of the benchmark: a small network, trained in plain Python.

It learns to tell two spirals apart, and logs the loss on points that it was not
trained on after each epoch.
"""

import json
import math
import os
import random
import time
import urllib.request

p = json.loads(os.environ["FALAJ_PARAMS"])
epochs, points = int(os.environ["EPOCHS"]), int(os.environ["POINTS"])
lr, units, momentum, decay = p["lr"], p["units"], p["momentum"], p["decay"]


def spirals(n, seed):
    r = random.Random(seed)
    out = []
    for i in range(n):
        t, side = r.random() * 3.5 + 0.25, i % 2
        a = t * math.pi / 2 + side * math.pi
        out.append(((t * math.cos(a) / 4 + r.gauss(0, 0.03), t * math.sin(a) / 4 + r.gauss(0, 0.03)), side))
    return out


def log(value, step):
    body = {"run_id": os.environ["MLFLOW_RUN_ID"], "key": "loss", "value": value, "timestamp": int(time.time() * 1000), "step": step}
    urllib.request.urlopen(urllib.request.Request(
        os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/log-metric", json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"})).read()


train, held = spirals(points, 1), spirals(points // 4, 2)
r = random.Random(3)
w = [[r.gauss(0, 2), r.gauss(0, 2), r.gauss(0, 1), r.gauss(0, 1 / math.sqrt(units))] for _ in range(units)]
v = [[0.0] * 4 for _ in range(units)]
bias, bias_v = 0.0, 0.0


def forward(x):
    h = [math.tanh(a * x[0] + b * x[1] + c) for a, b, c, _ in w]
    s = bias + sum(o[3] * y for o, y in zip(w, h))
    return h, 1 / (1 + math.exp(-min(max(s, -30), 30)))


for epoch in range(1, epochs + 1):
    r.shuffle(train)
    for x, y in train:
        h, q = forward(x)
        d = q - y
        bias_v = momentum * bias_v - lr * d
        bias += bias_v
        for o, m, z in zip(w, v, h):
            back = d * o[3] * (1 - z * z)
            for i, g in enumerate((back * x[0], back * x[1], back, d * z)):
                m[i] = momentum * m[i] - lr * (g + decay * o[i])
                o[i] += m[i]
    loss = 0.0
    for x, y in held:
        q = min(max(forward(x)[1], 1e-9), 1 - 1e-9)
        loss -= math.log(q if y else 1 - q) / len(held)
    log(loss if math.isfinite(loss) else 1e6, epoch)
