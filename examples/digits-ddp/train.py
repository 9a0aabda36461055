"""Learns scikit-learn's digits on any number of workers, with the same losses.

PyTorch DistributedDataParallel over gloo (nccl where every process has a GPU).
The samples of a step depend on the seed and the step only, and each process
takes its share of them, so the loss of a step does not depend on how many there
are. Every --every steps, and after SIGTERM, the first process saves: a directory
below FALAJ_CHECKPOINT_DIR that gets its final name by a rename. The next attempt
goes on from it, with more processes or fewer, here or elsewhere.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

SAVED = 75  # "I saved, run me again"

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--batch", type=int, default=240, help="samples of a step, of all processes together")
parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
parser.add_argument("--keep", type=int, default=2, help="checkpoints")
parser.add_argument("--pause", type=float, default=0, help="seconds that a step takes longer")
parser.add_argument("--seed", type=int, default=7)
args = parser.parse_args()

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
local = int(os.environ.get("LOCAL_RANK", 0))
if args.batch % world:
    sys.exit(f"a step of {args.batch} samples does not divide among {world} processes")
gpu = torch.cuda.is_available() and torch.cuda.device_count() > local
device = torch.device("cuda", local) if gpu else torch.device("cpu")

stopping = False


def stop(*_):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
if world > 1:
    dist.init_process_group("nccl" if gpu else "gloo")

torch.manual_seed(args.seed)
digits = load_digits()
pixels = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
loss_of = torch.nn.CrossEntropyLoss()


def samples(step):
    """The samples of a step: a new order each epoch, from the seed alone."""
    epoch, at = divmod(step * args.batch, len(labels))
    order = numpy.concatenate([numpy.random.RandomState(args.seed + epoch + e).permutation(len(labels)) for e in (0, 1)])
    return order[at : at + args.batch][rank :: world]


places = Path(os.environ.get("FALAJ_CHECKPOINT_DIR", "checkpoints"))


def saved():
    """The finished checkpoints, oldest first."""
    return sorted(p for p in places.glob("step-*") if p.is_dir() and not p.name.endswith(".tmp"))


def save(step):
    if rank == 0:
        final = places / f"step-{step:06}"
        if not final.exists():
            writing = final.with_name(final.name + ".tmp")
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses, "waiting": waiting}
            torch.save(state, writing / "state.pt")
            writing.rename(final)
        for old in saved()[: -args.keep]:
            shutil.rmtree(old)
    if world > 1:
        dist.barrier()  # nobody leaves before it is there


# The first process knows the newest checkpoint; the others get it from there.
states = [torch.load(saved()[-1] / "state.pt", map_location="cpu")] if rank == 0 and saved() else [None]
if world > 1:
    dist.broadcast_object_list(states)
first, losses, waiting = 0, [], []  # waiting to be logged
if states[0]:
    first, losses, waiting = (states[0][k] for k in ("step", "losses", "waiting"))
    model.load_state_dict(states[0]["model"])
    optimizer.load_state_dict(states[0]["optimizer"])
print(f"process {rank} of {world} goes on from step {first} on {device}", flush=True)


def log(step, loss, now):
    """Tells the run of the losses, ten at a time, and before a checkpoint: a run ends with its attempt."""
    print(f"step {step} loss {loss:.6f}", flush=True)
    waiting.append({"key": "loss", "value": loss, "step": step, "timestamp": int(time.time() * 1000)})
    if "MLFLOW_TRACKING_URI" not in os.environ or not now and len(waiting) < 10:
        return
    body = json.dumps({"run_id": os.environ["MLFLOW_RUN_ID"], "metrics": waiting[:1000]}).encode()
    request = urllib.request.Request(
        os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/log-batch", body,
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]},
    )
    try:
        urllib.request.urlopen(request, timeout=10).close()
        del waiting[:1000]
    except OSError as e:
        print(f"the losses could not be logged: {e}", flush=True)  # and are next time


parallel = DistributedDataParallel(model) if world > 1 else model
for step in range(first, args.steps):
    mine = samples(step)
    optimizer.zero_grad()
    loss = loss_of(parallel(pixels[mine].to(device)), labels[mine].to(device))
    loss.backward()
    optimizer.step()
    # One exchange: the loss of all, and whether anybody was asked to stop.
    told = torch.tensor([loss.item() / world, float(stopping)], device=device, dtype=torch.float64)
    if world > 1:
        dist.all_reduce(told)
    losses.append(told[0].item())
    leaving = told[1].item() > 0 and step + 1 < args.steps
    saving = leaving or (step + 1) % args.every == 0
    if rank == 0:
        log(step + 1, losses[-1], now=saving or step + 1 == args.steps)
    if saving:
        save(step + 1)
    if leaving:
        print(f"process {rank} saved step {step + 1} and leaves", flush=True)
        sys.exit(SAVED)
    time.sleep(args.pause)

if rank == 0:
    with torch.no_grad():
        right = (model(pixels.to(device)).argmax(1).cpu() == labels).float().mean().item()
    out = Path(os.environ.get("FALAJ_OUTPUT_DIR", "."))
    (out / "model").mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), out / "model" / "digits.pt")
    (out / "losses.csv").write_text("step,loss\n" + "".join(f"{i + 1},{v!r}\n" for i, v in enumerate(losses)))
    print(f"done: {args.steps} steps, loss {losses[-1]:.6f}, {right:.1%} of the digits right", flush=True)
