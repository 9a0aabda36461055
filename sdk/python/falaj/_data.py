"""The rows that a program was given, or that a dataset has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._client import MAX_ROWS, Client, Error, Rows, missing, sql_name

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Data:
    """One input of a job, or one dataset outside of a job."""

    def __init__(self, name: str, directory: Path | None, client: Client | None) -> None:
        self.name, self._directory, self._client = name, directory, client

    @property
    def paths(self) -> list[Path]:
        """The Parquet files, in order of their names; none outside of a job.

        They are private to the attempt and gone when it ends.
        """
        if self._directory is None:
            return []
        try:
            return sorted(p for p in self._directory.iterdir() if p.suffix == ".parquet" and p.is_file())
        except OSError as e:
            raise Error("not_found", f"the files of {self.name} cannot be listed: {e}") from e

    def read(self) -> pyarrow.Table:
        """All rows as a pyarrow Table. Needs pyarrow.

        Outside of a job timestamps are text, and there are at most MAX_ROWS rows.
        """
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as e:
            raise missing("pyarrow", e, "Add pyarrow to the environment's requirements, or use `paths` or `rows()`.") from e
        if self._directory is None:
            found = self._query()
            columns = zip(*found.rows) if found.rows else [() for _ in found.columns]
            return pyarrow.table({name: list(values) for name, values in zip(found.columns, columns)})
        paths = self.paths
        if not paths:
            raise Error("not_found", f"{self.name} has no Parquet files in {self._directory}")
        return pyarrow.concat_tables([pyarrow.parquet.read_table(p) for p in paths], promote_options="default")

    def pandas(self) -> pandas.DataFrame:
        """All rows as a pandas DataFrame. Needs pandas, and inside of a job pyarrow.

        Outside of a job timestamps are text, and there are at most MAX_ROWS rows.
        """
        try:
            import pandas
        except ImportError as e:
            raise missing("pandas", e, "Add pandas to the environment's requirements, or use `read()` or `rows()`.") from e
        if self._directory is None:
            found = self._query()
            return pandas.DataFrame(found.rows, columns=list(found.columns))
        frame: pandas.DataFrame = self.read().to_pandas()
        return frame

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row by column name. Inside of a job this needs pyarrow."""
        if self._directory is None:
            yield from self._query().dicts()
            return
        for batch in self.read().to_batches():
            yield from batch.to_pylist()

    def _query(self) -> Rows:
        client = self._client or Client()
        table = sql_name(self.name)
        found = client.query(f"SELECT * FROM {table}", limit=MAX_ROWS)
        if found.truncated:
            n = client.query(f"SELECT count(*) FROM {table}").rows[0][0]
            raise Error(
                "too_large", f"{self.name} has {n} rows; outside of a job at most {MAX_ROWS} are read",
                "Ask for a part with Client().query(sql), or read it in a job.",
            )
        return found


def data(name: str, client: Client | None = None) -> Data:
    """An input by the name that the job's specification gives it.

    Where FALAJ_DATA_<NAME> is set, that is inside of a job, these are its files.
    Elsewhere it is the dataset of that name ("weather", "weather@1"), asked by
    query through ``client``.
    """
    directory = os.environ.get("FALAJ_DATA_" + name.upper().replace("-", "_"))
    if directory:
        return Data(name, Path(directory), None)
    if os.environ.get("FALAJ_JOB"):
        given = sorted(k.removeprefix("FALAJ_DATA_").lower() for k in os.environ if k.startswith("FALAJ_DATA_"))
        raise Error("not_found", f"the job has no input {name!r}", f"Inputs: {', '.join(given) or 'none'}. Add it to `data:` of the job.")
    return Data(name, None, client)
