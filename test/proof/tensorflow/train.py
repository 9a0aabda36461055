# Fits a line by gradient descent, each worker on its half of the rows, with one
# model mirrored on all; then alone on all rows, which must give the same, and alone
# on its half, which must not.
import json
import os

import numpy as np
import tensorflow as tf

x = np.sort(np.random.default_rng(1).random((1000, 1)).astype("float32"), axis=0)
y = 3 * x + x**2  # a half of the rows has another line than the whole


def gradient(w, rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x[rows] * w[0] + w[1] - y[rows]) ** 2)
    return tape.gradient(loss, w)


def alone(rows):
    w = tf.Variable([0.0, 0.0])
    for _ in range(200):
        w.assign_sub(0.5 * gradient(w, rows))
    return w


strategy = tf.distribute.MultiWorkerMirroredStrategy()
size, rank = strategy.num_replicas_in_sync, int(os.environ["RANK"])
half = slice(rank * len(x) // size, (rank + 1) * len(x) // size)
with strategy.scope():
    together = tf.Variable([0.0, 0.0])


def replica():
    mean = tf.distribute.get_replica_context().all_reduce("MEAN", gradient(together, half))
    together.assign_sub(0.5 * mean)


@tf.function
def step():
    strategy.run(replica)


for _ in range(200):
    step()
models = {"together": together, "whole": alone(slice(None)), "part": alone(half)}
print("RESULT", json.dumps({"workers": size, **{k: w.numpy().tolist() for k, w in models.items()}}), flush=True)
