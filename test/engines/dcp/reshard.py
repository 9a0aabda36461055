"""One rank of a program whose model and optimizer are sharded over all ranks.

It goes on from the newest checkpoint in FALAJ_CHECKPOINT_DIR, whatever number of
ranks wrote it, compares every number with what it must be after that many
steps, does one more step, and saves. RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT are set as for every job of several workers.
"""

import os
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._tensor import DeviceMesh, Shard, distribute_tensor

SHAPES = {"embed": (37, 8), "head": (13, 5), "bias": (7,)}  # divided by neither 2, 3 nor 4


def at(name, step):
    """The full tensor after a step: Adam-like, with every number in its own place."""
    torch.manual_seed(len(name))
    return torch.rand(SHAPES[name]) + 0.125 * step + torch.arange(SHAPES[name][0]).reshape(-1, *[1] * (len(SHAPES[name]) - 1))


def state(mesh, step):
    """Parameters and moments, sharded over the mesh's ranks."""
    full = {}
    for name in SHAPES:
        full[f"model.{name}"] = at(name, step)
        full[f"optim.{name}.exp_avg"] = at(name, step) * 0.1
        full[f"optim.{name}.exp_avg_sq"] = at(name, step) ** 2
    return {k: distribute_tensor(v, mesh, [Shard(0)]) for k, v in full.items()}


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = DeviceMesh("cpu", list(range(size)))
    root = pathlib.Path(os.environ["FALAJ_CHECKPOINT_DIR"])
    done = sorted(int(p.name.removeprefix("step-")) for p in root.glob("step-*") if not p.name.endswith(".tmp"))
    step = 0
    if done:
        step = done[-1]
        have, want = state(mesh, -1), state(mesh, step)  # -1: what must not survive the loading
        dcp.load_state_dict(have, dcp.FileSystemReader(root / f"step-{step}"))
        for k in want:
            if not torch.equal(have[k].to_local(), want[k].to_local()):
                raise SystemExit(f"rank {rank} of {size}: {k} is not what was saved at step {step}")
        local = sum(v.to_local().numel() for v in have.values())
        print(f"rank {rank} of {size}: {len(want)} tensors of step {step} are equal, {local} numbers of them here", flush=True)
    step += 1
    tmp = root / f"step-{step}.tmp"
    if rank == 0:
        tmp.mkdir()
    dist.barrier()
    dcp.save_state_dict(state(mesh, step), dcp.FileSystemWriter(tmp))
    dist.barrier()
    if rank == 0:
        tmp.rename(root / f"step-{step}")
    dist.barrier()


main()
