"""Falaj as the storage of Optuna's studies.

    study = optuna.create_study(storage=falaj.optuna.storage(), study_name="delay", load_if_exists=True)

Takes Optuna 4.2 or newer and grpcio. The calls are those of Optuna's own
``GrpcStorageProxy``, with the token and the project, and over TLS where the server has
it. A study is a sweep of the project, and many processes, threads and jobs may work on
one at a time.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from ._client import LOOPBACK, Client, Error
from ._flight import _roots

try:
    import grpc
    from optuna.storages import GrpcStorageProxy
    from optuna.storages._grpc.auto_generated import api_pb2_grpc
    from optuna.storages._grpc.client import GrpcClientCache
except ImportError as e:
    raise Error(
        "unsupported", f"Optuna's gRPC storage is not installed: {e}",
        "pip install 'falaj[optuna]', or optuna>=4.2 and grpcio; in a job add them to the environment.",
    ) from e

PATIENCE = 300.0
"""How long calls go on asking while the server is away, in seconds."""

_TRY = 60.0
_LONGEST_PAUSE = 2.0


def storage(client: Client | None = None, *, patience: float = PATIENCE) -> Storage:
    """The storage of a project's studies, for ``optuna.create_study`` and others.

    ``client`` defaults to the server of FALAJ_URL and the project of FALAJ_PROJECT: in
    a job, its own.
    """
    return Storage(client or Client(), patience)


class _Details(grpc.ClientCallDetails):  # type: ignore[misc]
    def __init__(self, of: Any, metadata: list[tuple[str, str]], timeout: float) -> None:
        self.method, self.metadata, self.timeout = of.method, metadata, timeout
        self.credentials, self.wait_for_ready, self.compression = of.credentials, None, None


class _Calls(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Sends calls with the token, and again while nobody answers; by its key the server
    knows a repetition, which takes no effect twice."""

    def __init__(self, client: Client, patience: float) -> None:
        self._client, self._patience = client, patience
        self.last = threading.local()  # whether the thread's last call was repeated

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        metadata = [("authorization", f"Bearer {self._client._token}"), ("falaj-project", self._client.project), ("idempotency-key", uuid.uuid4().hex)]
        begun, tries = time.monotonic(), 0
        while True:
            call = continuation(_Details(details, metadata, _TRY), request)
            code = call.code()
            self.last.repeated = tries > 0
            left = begun + self._patience - time.monotonic()
            if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) or left <= 0:
                return call
            time.sleep(min(left, _LONGEST_PAUSE, 0.05 * 2 ** min(tries, 10)) * random.uniform(0.5, 1))
            tries += 1


class Storage(GrpcStorageProxy):  # type: ignore[misc]
    """Optuna's client of a gRPC storage, to a Falaj server. It can be pickled, and then
    holds the token: give it to your own processes only."""

    def __init__(self, client: Client, patience: float = PATIENCE) -> None:
        if not client._token:
            raise Error("unauthenticated", "there is no token", "Set FALAJ_TOKEN, or make one with `falaj token create`.")
        if not client.project:
            raise Error("invalid", "project is required", "Set FALAJ_PROJECT, or pass project to Client.")
        self._client, self._patience = client, patience
        parts = urlsplit(client.url)
        super().__init__(host=parts.hostname or "", port=parts.port or (443 if parts.scheme == "https" else 80))

    def _open(self) -> Any:
        host = f"[{self._host}]" if ":" in self._host else self._host
        options = [
            ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.enable_http_proxy", 0 if self._host in LOOPBACK else 1),
        ]
        if urlsplit(self._client.url).scheme == "https":
            credentials = grpc.ssl_channel_credentials(_roots(self._client._ca) or None)
            return grpc.secure_channel(f"{host}:{self._port}", credentials, options)
        return grpc.insecure_channel(f"{host}:{self._port}", options)

    def _setup(self) -> None:  # Optuna's, with our channel
        self._channel = self._open()
        self._calls = _Calls(self._client, self._patience)
        self._stub = api_pb2_grpc.StorageServiceStub(grpc.intercept_channel(self._channel, self._calls))
        self._cache = GrpcClientCache(self._stub)

    def __getstate__(self) -> dict[Any, Any]:
        state: dict[Any, Any] = super().__getstate__()
        del state["_calls"]
        return state

    def wait_server_ready(self, timeout: float | None = None) -> None:
        """Wait until the server answers."""
        try:
            with self._open() as channel:
                grpc.channel_ready_future(channel).result(timeout=timeout)
        except grpc.FutureTimeoutError as e:
            raise ConnectionError(f"{self._client.url} does not answer") from e

    def delete_study(self, study_id: int) -> None:
        """Delete a study and its trials."""
        try:
            super().delete_study(study_id)
        except KeyError:
            if not self._calls.last.repeated:
                raise
            self._cache.delete_study_cache(study_id)  # one of the tries deleted it

    def __repr__(self) -> str:  # never the token
        return f"falaj.optuna.storage({self._client!r})"
