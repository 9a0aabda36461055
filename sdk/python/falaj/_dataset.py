"""Datasets as streams of columns: to pyarrow, pandas, Polars and PyTorch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._client import Client, Error, missing
from ._flight import PATIENCE, Connection, arrow, stream

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from ._torch import TorchRows


class Dataset:
    """One version of a dataset, whose rows are streamed whenever they are read.

    ``version`` is its own name ("weather@3"), ``digest`` that of its rows, ``rows``
    how many there are, ``schema`` its columns as a pyarrow Schema. All reads are of
    this version, whatever is imported later.

    A read that loses its server looks for it for ``patience`` seconds and goes on
    after the last row that came.
    """

    def __init__(self, name: str, client: Client | None = None, *, patience: float = PATIENCE) -> None:
        self._client, self._patience = client or Client(), patience
        arrow()
        connection = Connection(self._client)
        try:
            info = connection.describe({"dataset": name}, self._client.timeout)
        finally:
            connection.close()
        about = json.loads(info.app_metadata)
        self.version: str = about["dataset"]
        self.digest: str = about["digest"]
        self.rows: int = about["rows"]
        self.schema: pyarrow.Schema = info.schema
        self._groups: list[int] = about.get("row_groups") or []  # the rows at which row groups begin; empty if not known

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Dataset({self.version!r}, rows={self.rows}, columns={self.schema.names})"

    def batches(
        self, columns: Sequence[str] | None = None, batch_size: int | None = None, *, shard: tuple[int, int] = (0, 1), skip: int = 0, take: int | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows as record batches, in order.

        ``batch_size`` is how many rows each has, but for the last; None takes them
        as they come. ``shard`` (i, n) reads part i of n parts of equal size, ``skip``
        leaves out the first rows of it, ``take`` stops after so many. Whoever keeps
        the version, the shard and how many rows it had can go on anywhere.
        """
        ticket, rows = self._ticket(columns, shard, skip, take)
        if rows == 0:
            return iter(())
        batches = stream(self._client, ticket, rows, self._patience)
        return batches if batch_size is None else _sized(batches, batch_size)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """All rows as a pyarrow Table."""
        pa = arrow()
        batches = list(self.batches(columns))
        return pa.Table.from_batches(batches, schema=_part(self.schema, columns))

    def to_pandas(self, columns: Sequence[str] | None = None, **options: Any) -> pandas.DataFrame:
        """All rows as a pandas DataFrame; ``options`` are those of pyarrow's to_pandas."""
        try:
            import pandas  # noqa: F401
        except ImportError as e:
            raise missing("pandas", e, "pip install 'falaj[pandas]', or use to_arrow().") from e
        frame: pandas.DataFrame = self.to_arrow(columns).to_pandas(**options)
        return frame

    def to_polars(self, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """All rows as a Polars DataFrame."""
        try:
            import polars
        except ImportError as e:
            raise missing("polars", e, "pip install 'falaj[polars]', or use to_arrow().") from e
        frame = polars.from_arrow(self.to_arrow(columns))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def torch(
        self, columns: Sequence[str] | None = None, batch_size: int = 1024, *, rank: int | None = None, world_size: int | None = None,
        shuffle: int = 0, seed: int = 0, even: bool = False, fill: Mapping[str, Any] | None = None,
    ) -> TorchRows:
        """A PyTorch IterableDataset of batches: a dict of tensors by column.

        Each rank reads its own part; ``rank`` and ``world_size`` come from
        torch.distributed, else from RANK and WORLD_SIZE, when they are left out.
        ``state_dict`` and ``load_state_dict`` go on after any batch, with nothing
        lost and nothing twice; with workers, use ``loader(num_workers)``.

        ``shuffle`` is how many rows are mixed at once, 0 for none: as many whole row
        groups as fit in it, and at least one, so that each is read once. The order is
        that of ``seed`` and the epoch. ``even`` gives every rank and worker equally many
        rows, by leaving out the last few. ``fill`` has, by column, what stands for
        null in whole numbers and booleans; in floats it is NaN. Times are whole
        microseconds since 1970 in UTC, dates whole days, text a list.
        """
        try:
            import torch  # noqa: F401
        except ImportError as e:
            raise missing("torch", e, "pip install 'falaj[torch]', or use batches().") from e
        from ._torch import TorchRows

        return TorchRows(self, columns, batch_size, rank, world_size, shuffle, seed, even, fill)

    def _ticket(self, columns: Sequence[str] | None, shard: tuple[int, int], skip: int, take: int | None) -> tuple[dict[str, Any], int]:
        """What to ask for, and how many rows it is."""
        index, count = shard
        if not 0 <= index < count:
            raise Error("invalid", f"there is no shard {index} of {count}", "Shards count from 0.")
        if skip < 0 or take is not None and take < 0:
            raise Error("invalid", "rows to skip and to take cannot be negative")
        _part(self.schema, columns)
        rows = max(shard_rows(self.rows, index, count) - skip, 0)
        ticket: dict[str, Any] = {"dataset": self.version, "digest": self.digest, "shard": {"index": index, "count": count}, "skip": skip}
        if columns is not None:
            ticket["columns"] = list(columns)
        if take is not None:
            rows = min(rows, take)
            ticket["take"] = take
        return ticket, rows


def shard_rows(rows: int, index: int, count: int) -> int:
    """How many rows part index of count has; the rule is the server's."""
    return shard_start(rows, index + 1, count) - shard_start(rows, index, count)


def shard_start(rows: int, index: int, count: int) -> int:
    """The row at which part index of count begins; the rule is the server's."""
    return rows * index // count


def _part(schema: pyarrow.Schema, columns: Sequence[str] | None) -> pyarrow.Schema:
    if columns is None:
        return schema
    if isinstance(columns, str) or not columns:
        raise Error("invalid", f"columns are {columns!r}", 'Write them as a list: ["temp", "wind"].')
    if missing := [c for c in columns if c not in schema.names]:
        raise Error("invalid", f"there is no column {missing[0]!r}", f"The columns are {', '.join(schema.names)}.")
    return arrow().schema([schema.field(c) for c in columns])


def _sized(batches: Iterator[pyarrow.RecordBatch], size: int) -> Iterator[pyarrow.RecordBatch]:
    """The same rows in batches of a size."""
    if size < 1:
        raise Error("invalid", f"a batch of {size} rows")
    pa = arrow()
    held: list[Any] = []
    have = 0
    for batch in batches:
        held.append(batch)
        have += batch.num_rows
        if have < size:
            continue
        rest = pa.Table.from_batches(held).combine_chunks().to_batches()[0]
        whole = have // size * size
        for at in range(0, whole, size):
            yield rest.slice(at, size)
        have -= whole
        held = [rest.slice(whole)] if have else []
    if have:
        yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]


def dataset(name: str, client: Client | None = None, *, patience: float = PATIENCE) -> Dataset:
    """A dataset to stream: "weather@3", or "weather" for its newest accepted version.

    Inside a job an input goes by the name that the job's specification gives it, and
    is the version that was pinned when the job was submitted.
    """
    pinned = os.environ.get("FALAJ_DATASET_" + name.upper().replace("-", "_"))
    return Dataset(pinned or name, client, patience=patience)
