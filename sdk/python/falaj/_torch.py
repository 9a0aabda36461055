"""Rows of a dataset for PyTorch; imported when ``Dataset.torch`` is called."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ._client import Error
from ._dataset import _part, _sized, shard_rows, shard_start
from ._flight import arrow

if TYPE_CHECKING:
    import pyarrow

    from ._dataset import Dataset


class TorchRows(IterableDataset):  # type: ignore[misc]
    """Batches of one rank: make it with Dataset.torch.

    The rows of the rank are cut into a lane for each worker of its DataLoader. The
    state is how many rows of each lane were given, and whose turn is next; with the
    version, the seed and the epoch, that is everything.
    """

    def __init__(
        self, dataset: Dataset, columns: Sequence[str] | None, batch_size: int, rank: int | None, world_size: int | None,
        shuffle: int, seed: int, even: bool, fill: Mapping[str, Any] | None,
    ) -> None:
        super().__init__()
        self.rank, self.world_size = _place(rank, world_size)
        if batch_size < 1 or shuffle < 0:
            raise Error("invalid", f"a batch of {batch_size} rows, {shuffle} rows mixed at once")
        self.dataset, self.columns, self.batch_size, self.even = dataset, list(columns) if columns is not None else None, batch_size, even
        self.shuffle, self.seed, self.fill = shuffle, seed, dict(fill or {})
        self.epoch = 0
        self._schema = _part(dataset.schema, columns)
        self._layout = hashlib.sha256(repr(dataset._groups).encode()).hexdigest()[:16]  # of row groups, which the order of shuffle follows
        self._given: dict[int, int] = {}  # rows by lane, so far
        self._start = _Start()  # where the next round begins
        self._elsewhere = torch.zeros(1, dtype=torch.int64).share_memory_()  # whether workers read

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _, _, batch in self.counted():
            yield batch

    def counted(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Each batch with its lane and how many rows of it are then given."""
        info = get_worker_info()
        worker, lanes = (info.id, info.num_workers) if info else (0, 1)
        self._elsewhere[0] = 1 if info else 0
        start, self._start = self._start, _Start()
        start.check(lanes)
        self._given = dict(start.given)
        lane = (worker + start.turn) % lanes
        for batch in self._batches(lane, lanes, self._given.get(lane, 0)):
            self._given[lane] = self._given.get(lane, 0) + batch.num_rows
            yield lane, self._given[lane], self._tensors(batch)
        if not info:
            self.set_epoch(self.epoch + 1)

    def loader(self, num_workers: int = 0, **options: Any) -> Loader:
        """A DataLoader of these batches with ``state_dict`` and ``load_state_dict``.

        ``options`` are DataLoader's, but for those about batches and sampling. Workers
        come from a ``forkserver``, as gRPC does not outlive a fork: a script that asks for
        them needs ``if __name__ == "__main__":``.
        """
        return Loader(self, num_workers, options)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch; its number goes into the order of ``shuffle``."""
        self.epoch, self._given, self._start = epoch, {}, _Start()

    def state_dict(self) -> dict[str, Any]:
        """Where the reading is, for ``load_state_dict``."""
        if self._elsewhere[0] and get_worker_info() is None:
            raise Error("invalid", "workers read the rows, and this process does not know how far they are", "Use loader(num_workers), and its state_dict().")
        info = get_worker_info()
        return self._state(info.num_workers if info else self._start.lanes or 1, self._start.turn)

    def _state(self, lanes: int, turn: int) -> dict[str, Any]:
        return {
            **self._identity(), "epoch": self.epoch, "lanes": lanes, "turn": turn,
            "given": {str(lane): n for lane, n in sorted(self._given.items())},
        }

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a state to mean the same rows."""
        return {
            "version": self.dataset.version, "digest": self.dataset.digest, "rank": self.rank, "world_size": self.world_size,
            "shuffle": self.shuffle, "seed": self.seed, "even": self.even, "row_groups": self._layout if self.shuffle else "",
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise Error("invalid", f"the state is of {name} {state.get(name)!r}, not {mine!r}", "Make the rows as they were made then.")
        self.epoch, self._given = int(state["epoch"]), {int(lane): int(n) for lane, n in state["given"].items()}
        self._start = _Start(self._given, int(state["lanes"]), int(state["turn"]))

    def lane_rows(self, lane: int, lanes: int) -> int:
        """How many rows a lane of this rank has."""
        count = self.world_size * lanes
        if self.even:
            return self.dataset.rows // count
        return shard_rows(self.dataset.rows, self.rank * lanes + lane, count)

    def _batches(self, lane: int, lanes: int, skip: int) -> Iterator[pyarrow.RecordBatch]:
        shard, rows = (self.rank * lanes + lane, self.world_size * lanes), self.lane_rows(lane, lanes)
        if skip >= rows:
            return iter(())
        if not self.shuffle:
            return self.dataset.batches(self.columns, self.batch_size, shard=shard, skip=skip, take=rows - skip)
        return _sized(self._mixed(shard, rows, skip), self.batch_size)

    def _mixed(self, shard: tuple[int, int], rows: int, skip: int) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a shard in blocks in another order, each with its rows in
        another order. A block is read whole, so going on reads one block again."""
        pa = arrow()
        starts = self._blocks(shard, rows)
        for block in self._permutation(len(starts) - 1, shard, "blocks").tolist():
            first = starts[block]
            size = starts[block + 1] - first
            if skip >= size:
                skip -= size
                continue
            batches = list(self.dataset.batches(self.columns, shard=shard, skip=first, take=size))
            order = self._permutation(size, shard, f"block {block}")[skip:]
            table = pa.Table.from_batches(batches).combine_chunks().take(pa.array(order.numpy()))
            yield table.combine_chunks().to_batches()[0]
            skip = 0

    def _blocks(self, shard: tuple[int, int], rows: int) -> list[int]:
        """The rows of a shard at which blocks begin, and the row after the last. Blocks
        begin where row groups do, as the server decodes a group from its start. The groups
        at both ends of the shard are in part another shard's."""
        groups = self.dataset._groups
        if not groups:
            return [*range(0, rows, self.shuffle), rows]
        before = shard_start(self.dataset.rows, *shard)
        edges = [0, *(g - before for g in groups[bisect_right(groups, before):bisect_left(groups, before + rows)]), rows]
        starts = [0]
        for edge, after in zip(edges[1:], [*edges[2:], rows]):
            if edge == rows or after - starts[-1] > self.shuffle:
                starts.append(edge)
        return starts

    def _permutation(self, n: int, shard: tuple[int, int], what: str) -> torch.Tensor:
        name = f"{self.seed} {self.epoch} {shard} {what}".encode()
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:8], "little") >> 1)
        return torch.randperm(n, generator=generator)

    def _tensors(self, batch: pyarrow.RecordBatch) -> dict[str, Any]:
        return {name: self._tensor(name, batch.column(i)) for i, name in enumerate(self._schema.names)}

    def _tensor(self, name: str, values: pyarrow.Array) -> Any:
        pa = arrow()
        kind = values.type
        if pa.types.is_string(kind):
            return values.to_pylist()
        if pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
        elif pa.types.is_date(kind):
            values = values.view(pa.int32()).cast(pa.int64())
        if pa.types.is_list(kind):
            return self._matrix(name, values)
        if values.null_count and not pa.types.is_floating(values.type):
            if name not in self.fill:
                raise Error("invalid", f"column {name} has nulls, and tensors of {kind} have none", f"Say what stands for them: torch(fill={{{name!r}: …}}).")
            values = values.fill_null(self.fill[name])
        return torch.tensor(values.to_numpy(zero_copy_only=False))


    def _matrix(self, name: str, values: pyarrow.ListArray) -> Any:
        """Lists of one length, as embeddings are, are the rows of a matrix; lists of text stay lists."""
        pa = arrow()
        if pa.types.is_string(values.type.value_type):
            return values.to_pylist()
        lengths = values.value_lengths().unique().to_pylist()
        if len(lengths) > 1 or None in lengths:
            why = "nulls" if None in lengths else "lists of different lengths"
            raise Error("invalid", f"column {name} has {why}, and tensors have none", "Leave the column out, or pad the lists in the SQL of the view.")
        return self._tensor(name, values.flatten()).reshape(len(values), *lengths)


@dataclass(frozen=True)
class _Start:
    """Where a round begins: that of a new epoch, or of a state that was loaded."""

    given: Mapping[int, int] = field(default_factory=dict)
    lanes: int = 0  # 0 takes any number of workers
    turn: int = 0  # the lane that the first worker takes

    def check(self, lanes: int) -> None:
        if self.lanes not in (0, lanes):
            raise Error("invalid", f"the state is of {self.lanes} workers, not of {lanes}", "Go on with as many workers as before.")


class Loader:
    """A DataLoader that knows how far its workers are: make it with
    TorchRows.loader. Going round it again is the next epoch."""

    def __init__(self, rows: TorchRows, num_workers: int, options: dict[str, Any]) -> None:
        if wrong := {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn", "persistent_workers"} & set(options):
            raise Error("invalid", f"loader takes no {', '.join(sorted(wrong))}", "Give them to Dataset.torch, where it has them.")
        self.rows, self.num_workers, self._options = rows, num_workers, options
        if num_workers:
            options.setdefault("multiprocessing_context", _forkserver())
        self._lanes = max(num_workers, 1)
        self._next = 0  # the lane whose turn it is

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows, start = self.rows, self.rows._start
        start.check(self._lanes)
        self._next = start.turn
        source = iter(DataLoader(_Counted(rows), batch_size=None, num_workers=self.num_workers, collate_fn=_same, **self._options))
        if self.num_workers:  # they have what this process knew when they began
            rows._given, rows._start = dict(start.given), _Start()
        for lane, n, batch in source:
            if self.num_workers:
                rows._given[lane] = n
            self._next = (lane + 1) % self._lanes
            yield batch
        if self.num_workers:
            rows.set_epoch(rows.epoch + 1)
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the reading is: after the batch that was given last."""
        return self.rows._state(self._lanes, self._next)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken, with as many workers."""
        _Start({}, int(state.get("lanes") or 0)).check(self._lanes)
        self.rows.load_state_dict(state)
        self._next = self.rows._start.turn


class _Counted(IterableDataset):  # type: ignore[misc]
    def __init__(self, rows: TorchRows) -> None:
        super().__init__()
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        return self._rows.counted()


PRELOAD = ["__main__", "numpy", "torch", "torch.utils.data", "torch.multiprocessing", "pyarrow", "pyarrow.flight", "falaj._torch"]
"""Modules of the process that workers are forked from."""


def _forkserver() -> Any:
    """The context of workers: forked from a process that read nothing yet, and has
    imported what they need. That process does not have this one's sys.path before
    Python 3.12.8, and passes in silence over what it cannot import: so what takes long is
    named by itself, and not only by what imports it here. Otherwise each worker of each
    epoch would import it anew, which takes longer than most epochs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _same(batch: Any) -> Any:
    return batch


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Which process this is, of how many."""
    if (rank is None) != (world_size is None):
        raise Error("invalid", "rank and world_size belong together", "Give both, or neither.")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world_size:
        raise Error("invalid", f"there is no rank {rank} of {world_size}")
    return rank, world_size
