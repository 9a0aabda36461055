"""Rows over Arrow Flight: one connection, its errors in Falaj's words, and streams
that go on where they broke."""

from __future__ import annotations

import json
import os
import random
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._client import LOOPBACK, Client, Error, missing

if TYPE_CHECKING:
    import pyarrow

PATIENCE = 120.0
"""How long a stream looks for a server that is away, in seconds."""

_LONGEST_PAUSE = 5.0
_AWAY = ("unavailable", "timeout")

_speaks: int | None = None  # the process that gRPC was begun in, here or in the one this was forked from


def arrow() -> Any:
    """pyarrow with its Flight, or an error that says how to get it."""
    try:
        import pyarrow
        import pyarrow.flight
    except ImportError as e:
        raise missing("pyarrow", e, "pip install 'falaj[arrow]', or pyarrow; in a job add it to the environment.") from e
    return pyarrow


class Connection:
    """Calls of one thread at a time to the server of a Client, which answers Flight
    at its own address. Close it."""

    def __init__(self, client: Client) -> None:
        self._pa = arrow()
        self._client = client
        self._open: Any = None
        self._problem: dict[str, Any] | None = None

    def _flight(self) -> Any:
        global _speaks
        if self._open is None:
            if _speaks not in (None, os.getpid()):  # its locks and threads did not come along: a call may wait for ever
                raise Error(
                    "unsupported", "this process was forked from one that had already read from the server, and gRPC does not outlive a fork",
                    "Use rows.loader(num_workers), or multiprocessing_context='forkserver' of a DataLoader.",
                )
            _speaks = os.getpid()
            parts = urllib.parse.urlsplit(self._client.url)
            secure, loopback = parts.scheme == "https", parts.hostname in LOOPBACK
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            options: dict[str, Any] = {
                "middleware": [_factory(self)],
                "generic_options": [
                    ("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 20_000), ("grpc.http2.max_pings_without_data", 0),
                    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 2_000),
                    ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0 if loopback else 1),
                ],
            }
            if secure and (roots := _roots(self._client._ca)):
                options["tls_root_certs"] = roots
            self._open = self._pa.flight.FlightClient(f"grpc+{'tls' if secure else 'tcp'}://{host}:{parts.port or (443 if secure else 80)}", **options)
        return self._open

    def headers(self) -> dict[str, str]:
        if not self._client._token:
            raise Error("unauthenticated", "there is no token", "Set FALAJ_TOKEN, or make one with `falaj token create`.")
        headers = {"authorization": f"Bearer {self._client._token}"}
        if self._client.project:
            headers["falaj-project"] = self._client.project
        return headers

    def describe(self, ask: Mapping[str, Any], timeout: float) -> Any:
        """The FlightInfo of a command."""
        flight = self._pa.flight
        descriptor = flight.FlightDescriptor.for_command(json.dumps(ask))
        return self._call(lambda c: c.get_flight_info(descriptor, flight.FlightCallOptions(timeout=timeout)))

    def read(self, ticket: Mapping[str, Any]) -> Iterator[pyarrow.RecordBatch]:
        """The batches of a ticket."""
        reader = self._call(lambda c: c.do_get(self._pa.flight.Ticket(json.dumps(ticket))))
        try:
            while True:
                try:
                    chunk = self._call(lambda _: reader.read_chunk())
                except StopIteration:
                    return
                if chunk.data is not None and chunk.data.num_rows:
                    yield chunk.data
        finally:
            reader.cancel()

    def _call(self, call: Callable[[Any], Any]) -> Any:
        self._problem = None
        try:
            return call(self._flight())
        except (self._pa.ArrowException, self._pa.flight.FlightError, OSError) as e:
            raise self._refusal(e) from e

    def _refusal(self, e: Exception) -> Error:
        if p := self._problem:
            return Error(str(p.get("kind") or "internal"), str(p.get("detail") or e), str(p.get("hint") or ""))
        if isinstance(e, self._pa.ArrowNotImplementedError):
            return Error("unsupported", f"{self._client.url} does not speak Arrow Flight", "Is it a Falaj server, and as new as this package?")
        # What Falaj did not say came from the connection.
        return Error("unavailable", f"the connection to {self._client.url} broke: {str(e).splitlines()[0][:300]}", "Is the server up? Check FALAJ_URL.")

    def heard(self, headers: Mapping[str, Any]) -> None:
        """What came beside an answer: the kind of a refusal, and its hint."""
        for value in headers.get("falaj-problem-bin", ()):
            try:
                self._problem = json.loads(value)
            except ValueError:
                pass

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def _factory(connection: Connection) -> Any:
    flight = connection._pa.flight

    class Middleware(flight.ClientMiddleware):  # type: ignore[misc]
        def sending_headers(self) -> dict[str, str]:
            return connection.headers()

        def received_headers(self, headers: Mapping[str, Any]) -> None:
            connection.heard(headers)

    class Factory(flight.ClientMiddlewareFactory):  # type: ignore[misc]
        def start_call(self, info: Any) -> Any:
            return Middleware()

    return Factory()


def _roots(ca: str | None) -> bytes:
    """The certificates to trust: the Client's, else the system's."""
    path = ca or ssl.get_default_verify_paths().cafile
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as e:
        raise Error("invalid", f"the certificates in {path} cannot be read: {e}") from e


def stream(client: Client, ticket: Mapping[str, Any], rows: int, patience: float = PATIENCE) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a ticket, of which there are so many, each once.

    When the connection breaks or the server is away, it goes on after the last row
    that came; when no row comes for ``patience`` seconds of trying, it raises.
    """
    given, tries = 0, 0
    deadline = 0.0
    connection = Connection(client)
    try:
        while True:
            ask = dict(ticket, skip=ticket.get("skip", 0) + given)
            if ticket.get("take"):
                ask["take"] = ticket["take"] - given
            try:
                for batch in connection.read(ask):
                    given, tries = given + batch.num_rows, 0
                    yield batch
                    if given >= rows:
                        return
                if given < rows:
                    raise Error("internal", f"{ticket['dataset']} ended after {given} of {rows} rows", "Report it.")
                return
            except Error as e:
                if e.kind not in _AWAY:
                    raise
                now = time.monotonic()
                if tries == 0:
                    deadline = now + patience
                if now >= deadline:
                    raise
                connection.close()
                time.sleep(min(deadline - now, _LONGEST_PAUSE, 0.1 * 2 ** min(tries, 10)) * random.uniform(0.5, 1))
                tries += 1
    finally:
        connection.close()
