"""The connection to a server, over urllib."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

MAX_ROWS = 10_000
"""The most rows that one query answers."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that no proxy leads to."""

MAX_ANSWER = 256 << 20
"""The most bytes that an answer may have."""

_KINDS = {
    400: "invalid", 401: "unauthenticated", 403: "permission_denied", 404: "not_found", 409: "conflict",
    410: "gone", 413: "too_large", 429: "exhausted", 501: "unsupported", 503: "unavailable", 504: "timeout",
}


class Error(Exception):
    """Something was refused or did not work.

    ``kind`` says what the caller can do about it: invalid, unauthenticated,
    permission_denied, not_found, conflict, gone, too_large, exhausted,
    unsupported, unavailable, timeout or internal. ``hint`` says what to do next
    and may be empty. ``status`` is the HTTP status, 0 when there was no answer.
    """

    def __init__(self, kind: str, detail: str, hint: str = "", status: int = 0) -> None:
        super().__init__(detail, hint)
        self.kind, self.detail, self.hint, self.status = kind, detail, hint, status

    def __str__(self) -> str:
        return f"{self.detail} → {self.hint}" if self.hint else self.detail


def missing(package: str, error: ImportError, hint: str) -> Error:
    """What an import that failed means: the package is not there, or it is and does not work with the others."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package:
        return Error("unsupported", f"{package} is not installed", hint)
    return Error(
        "unsupported", f"{package} is installed and cannot be imported: {error}",
        "Require versions that work together, such as pyarrow<21 beside NumPy 1.",
    )


@dataclass(frozen=True)
class Rows:
    """Rows of a query. Timestamps and dates are text (RFC 3339)."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    truncated: bool = False
    """There are more rows than were asked for."""

    def dicts(self) -> list[dict[str, Any]]:
        """Each row by column name."""
        return [dict(zip(self.columns, row)) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)


class Prediction(dict[str, Any]):
    """Each output of an answer by name, as nested lists of its shape.

    ``id`` is what a label names it by; ``version`` is the model version that answered.
    """

    id: str
    version: str


@dataclass
class Labelled:
    """What became of labels.

    ``statuses`` says it for each id: accepted, duplicate, contradicts (another
    label came first, and stays), unknown (of no prediction known yet: it waits),
    too_late or wrong_rows. ``counts`` has how many of each there were.
    """

    statuses: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the token to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Client:
    """A connection to one server with one token.

    ``url``, ``token`` and ``project`` default to FALAJ_URL, FALAJ_TOKEN and
    FALAJ_PROJECT. ``timeout`` is how long to wait for the server, in seconds.
    ``ca`` is a PEM file with certificates to trust instead of the system's.
    A Client may be used by many threads. Every method raises Error.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, project: str | None = None,
        *, timeout: float = 60.0, ca: str | None = None,
    ) -> None:
        url = url or os.environ.get("FALAJ_URL") or "http://127.0.0.1:7070"
        self.url = url.rstrip("/")
        self.project = project or os.environ.get("FALAJ_PROJECT") or ""
        self.timeout = timeout
        self._token = token or os.environ.get("FALAJ_TOKEN") or ""
        self._ca = ca
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Error("invalid", f"{url!r} is not the URL of a server", "Write it as http://127.0.0.1:7070.")
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if parts.hostname in LOOPBACK:
            handlers.append(urllib.request.ProxyHandler({}))
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=ca)
            except OSError as e:
                raise Error("invalid", f"the certificates in {ca} cannot be read: {e}") from e
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def __repr__(self) -> str:  # never the token
        return f"Client(url={self.url!r}, project={self.project!r})"

    def __reduce__(self) -> tuple[Any, ...]:  # workers of a DataLoader get a copy
        return _again, (self.url, self._token, self.project, self.timeout, self._ca)

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """Send a request and return the decoded JSON answer, None if it is empty.

        ``body`` is sent as it is when it is bytes, otherwise as JSON.
        """
        if not self._token:
            raise Error("unauthenticated", "there is no token", "Set FALAJ_TOKEN, or make one with `falaj token create`.")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if self.project:
            headers["Falaj-Project"] = self.project
        content: bytes | None = None
        if body is not None:
            headers["Content-Type"] = content_type
            content = body if isinstance(body, bytes) else _encode(body)
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                return _decode(_limited(answer))
        except urllib.error.HTTPError as e:
            with e:
                raise _refusal(e.code, _limited(e)) from None
        except urllib.error.URLError as e:
            if isinstance(e.reason, TimeoutError):
                raise self._late() from e
            raise Error("unavailable", f"{self.url} does not answer: {e.reason}", "Is the server up? Check FALAJ_URL.") from e
        except TimeoutError as e:
            raise self._late() from e
        except (OSError, http.client.HTTPException) as e:
            raise Error("unavailable", f"the connection to {self.url} broke: {e!r}", "Try again.") from e

    def _late(self) -> Error:
        return Error("timeout", f"{self.url} did not answer in {self.timeout:g} s", "Give Client a longer timeout.")

    def _in_project(self, path: str) -> str:
        if not self.project:
            raise Error("invalid", "project is required", "Set FALAJ_PROJECT, or pass project to Client.")
        return f"/api/v1/projects/{_quote(self.project)}{path}"

    def query(self, sql: str, inputs: Mapping[str, str] | None = None, *, limit: int | None = None) -> Rows:
        """Run one SELECT in DuckDB's dialect; a table is a dataset, or "name@3".

        ``inputs`` names datasets by table name when they differ. Gives all rows, and
        raises an Error of kind too_large where there are more than MAX_ROWS. With
        ``limit`` it gives the first ones; ``truncated`` says that there are more.
        """
        body: dict[str, Any] = {"sql": sql, "limit": MAX_ROWS if limit is None else limit}
        if inputs:
            body["inputs"] = dict(inputs)
        found = _rows(self.request("POST", self._in_project("/query"), body))
        if found.truncated and limit is None:
            raise Error(
                "too_large", f"the query returns more than {MAX_ROWS} rows",
                "Ask for fewer by the SQL, or take the first ones by limit=.",
            )
        return found

    def preview(self, dataset: str, rows: int = 20) -> Rows:
        """The first rows of a version ("weather@1") or of the newest accepted one."""
        return _rows(self.request("GET", self._in_project(f"/datasets/{_quote(dataset)}/preview?rows={int(rows)}")))

    def apply(self, manifests: str, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Apply manifests in YAML; says for each object what became of it."""
        query = {"project": self.project} if self.project else {}
        if dry_run:
            query["dry_run"] = "true"
        path = "/api/v1/apply" + ("?" + urllib.parse.urlencode(query) if query else "")
        answer = self.request("POST", path, manifests.encode(), content_type="application/yaml")
        items: list[dict[str, Any]] = answer["items"]
        return items

    def predict(
        self, deployment: str, inputs: Mapping[str, Any], outputs: Iterable[str] = (), *,
        id: str = "", as_of: datetime | str | None = None, route_key: str = "",
    ) -> Prediction:
        """Ask a deployed model; gives each output as nested lists of its shape.

        ``inputs`` has a tensor for each input: nested lists, or an array with
        ``tolist`` (NumPy). The datatypes are those that the model declares; of
        the keys of a deployment with features, those of the values: text,
        whole numbers, or numbers. A key has one value for each row:
        ``{"origin": ["JFK"], "distance": [1020]}``. None and NaN are missing
        values; a missing value comes back as None. Texts may be ``bytes``, such
        as an image; an output that is no text comes back as ``bytes``.

        ``id`` names the answer for labels; one is made when it is empty.
        ``as_of`` asks with the features of a past time, which takes the
        permission feature.history. Requests with the same ``route_key`` meet
        the same version.
        """
        model = f"/v2/models/{_quote(deployment)}"
        declared = {i["name"]: i["datatype"] for i in self.request("GET", model)["inputs"]}
        tensors = []
        for name, value in inputs.items():
            shape, flat = _flatten(name, value)
            tensor = {"name": name, "shape": shape, "datatype": declared.get(name) or _datatype(name, flat), "data": flat}
            if any(isinstance(v, bytes) for v in flat):
                tensor["data"] = [b64encode(v.encode() if isinstance(v, str) else v).decode() if isinstance(v, (str, bytes)) else v for v in flat]
                tensor["parameters"] = {"content_type": "base64"}
            tensors.append(tensor)
        body: dict[str, Any] = {"inputs": tensors}
        if wanted := [{"name": name} for name in outputs]:
            body["outputs"] = wanted
        if id:
            body["id"] = id
        parameters = {"as_of": _instant("as_of", as_of), "route_key": route_key}
        if parameters := {k: v for k, v in parameters.items() if v}:
            body["parameters"] = parameters
        answer = self.request("POST", model + "/infer", body)
        found = Prediction((o["name"], _nest(_elements(o), o["shape"])) for o in answer["outputs"])
        found.id, found.version = answer.get("id", ""), answer.get("model_version", "")
        return found

    def label(self, deployment: str, labels: Mapping[str, Any], *, at: datetime | str | None = None) -> Labelled:
        """Send labels (ground truth) for predictions, by their IDs.

        A value is a number, true or false, or a class as text; for an answer of
        several rows a list, with a value for each, None or NaN where it is not known. ``at`` is when it became known, now when
        left out. Sending a label again changes nothing.
        """
        path, known = self._in_project(f"/deployments/{_quote(deployment)}/labels"), _instant("at", at)
        out, rest = Labelled(), iter(labels.items())
        while part := list(islice(rest, _LABELS)):
            batch = []
            for id, value in part:
                if hasattr(value, "tolist"):
                    value = value.tolist()
                one = isinstance(value, str) or not isinstance(value, Sequence)
                if not one:
                    value = [None if v != v else v for v in value]  # NaN is not itself
                batch.append({"id": id, "value" if one else "values": value, **({"at": known} if known else {})})
            for result in self.request("POST", path, {"labels": batch})["results"]:
                out.statuses[result["id"]] = result["status"]
                out.counts[result["status"]] = out.counts.get(result["status"], 0) + 1
        return out

    def deployment_status(self, deployment: str) -> dict[str, Any]:
        """The status of a deployment: its ``versions`` with requests, failures and
        latencies, the running ``rollout``, ``history``, the automatic ``acts``,
        each with its reason, and ``automation``.
        """
        status: dict[str, Any] = self.request("GET", self._in_project(f"/deployments/{_quote(deployment)}/status"))
        return status

    def rollout(self, deployment: str) -> dict[str, Any]:
        """The progress of the newest rollout: the evidence for both versions, and the
        ``decision`` with its ``outcome`` and ``reason``.
        """
        progress: dict[str, Any] = self.request("GET", self._in_project(f"/deployments/{_quote(deployment)}/rollout"))
        return progress

    def advice(self, job: str) -> dict[str, Any]:
        """A job's resource use and right-sizing recommendations.

        ``sentence`` summarises them and is missing when nothing is known.
        ``options`` has places with ``time`` and ``price`` relative to where the job
        ran, and how each is ``known``; ``explore`` what is worth trying. Nothing is
        started by it.
        """
        found: dict[str, Any] = self.request("GET", self._in_project(f"/jobs/{_quote(job)}/advice"))
        return found

    def monitor(self, name: str) -> dict[str, Any]:
        """A monitor with its ``state``: waiting, ok, unjudged, drifted or degraded, and why."""
        found: dict[str, Any] = self.request("GET", self._in_project(f"/monitors/{_quote(name)}"))
        return found

    def windows(self, monitor: str, *, version: int = 0) -> Iterator[dict[str, Any]]:
        """The windows of a monitor, newest first, of one model version or of all.

        Each has ``from``, ``to``, ``rows``, ``drifted``, its ``features`` with
        statistic and threshold, ``score`` and ``performance``. Pages are fetched
        as they are needed.
        """
        query: dict[str, Any] = {"page_size": 200, "version": version}
        path = self._in_project(f"/monitors/{_quote(monitor)}/windows")
        while True:
            page = self.request("GET", f"{path}?{urllib.parse.urlencode(query)}")
            yield from page["items"]
            if not page.get("next_page_token"):
                return
            query["page_token"] = page["next_page_token"]


def _again(url: str, token: str, project: str, timeout: float, ca: str | None) -> Client:
    return Client(url, token, project, timeout=timeout, ca=ca)


def predict(
    deployment: str, inputs: Mapping[str, Any], outputs: Iterable[str] = (), *,
    id: str = "", as_of: datetime | str | None = None, route_key: str = "",
) -> Prediction:
    """Ask a deployed model with the client of the environment; see Client.predict."""
    return Client().predict(deployment, inputs, outputs, id=id, as_of=as_of, route_key=route_key)


def label(deployment: str, labels: Mapping[str, Any], *, at: datetime | str | None = None) -> Labelled:
    """Label predictions with the client of the environment; see Client.label."""
    return Client().label(deployment, labels, at=at)


_LABELS = 5000  # in one request


def _instant(what: str, at: datetime | str | None) -> str:
    if not isinstance(at, datetime):
        return at or ""
    if at.tzinfo is None:
        raise Error("invalid", f"{what} has no time zone: {at}", "Write datetime(2013, 7, 4, 12, tzinfo=timezone.utc).")
    return at.isoformat()


def _datatype(name: str, flat: Sequence[Any]) -> str:
    """The datatype of an input that the model does not declare: a key, or a
    column that features are beside."""
    kinds = {type(v) for v in flat if v is not None}
    if kinds and kinds <= {str, bytes} and None not in flat:
        return "BYTES"
    if kinds == {bool} and None not in flat:
        return "BOOL"
    if kinds == {int} and None not in flat:
        return "INT64"
    if kinds <= {int, float}:
        return "FP64"
    raise Error("invalid", f"input {name!r} holds {', '.join(sorted(k.__name__ for k in kinds))}", "Give it text or numbers.")


def _quote(name: str) -> str:
    if name in ("", ".", ".."):
        raise Error("invalid", f"{name!r} is not a name")
    return urllib.parse.quote(name, safe="")


def _encode(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as e:
        raise Error("invalid", f"the request cannot be written as JSON: {e}") from e


def _limited(answer: Any) -> bytes:
    content: bytes = answer.read(MAX_ANSWER + 1)
    if len(content) > MAX_ANSWER:
        raise Error("too_large", f"the answer has more than {MAX_ANSWER} bytes", "Ask for less.")
    return content


def _decode(content: bytes) -> Any:
    if not content:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as e:
        raise Error("internal", f"the answer is not JSON: {e}", "Is FALAJ_URL a Falaj server?") from e


def _refusal(status: int, content: bytes) -> Error:
    """The error of a problem document, or of the inference protocol's form."""
    kind = _KINDS.get(status, "internal")
    try:
        problem = json.loads(content)
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict):
        return Error(kind, f"the server answered {status}", "Is FALAJ_URL a Falaj server?", status)
    if isinstance(problem.get("error"), str):
        return Error(kind, problem["error"], "", status)
    detail = problem.get("detail") or problem.get("title") or f"the server answered {status}"
    return Error(str(problem.get("kind") or kind), str(detail), str(problem.get("hint") or ""), status)


_ODD = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}


def _rows(answer: Any) -> Rows:
    """Rows of an answer. JSON has no NaN: beside numbers, its text is one."""
    rows: list[list[Any]] = answer["rows"]
    for c in range(len(answer["columns"])):
        odd = [row for row in rows if isinstance(row[c], str) and row[c] in _ODD]
        if odd and all(isinstance(row[c], (int, float)) or row[c] is None or row[c] in _ODD for row in rows):
            for row in odd:
                row[c] = _ODD[row[c]]
    return Rows(tuple(answer["columns"]), rows, bool(answer.get("truncated")))


def _flatten(name: str, value: Any) -> tuple[list[int], list[Any]]:
    """The shape and the elements, row by row."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    shape: list[int] = []
    level: list[Any] = [value]
    while level and isinstance(level[0], Sequence) and not isinstance(level[0], (str, bytes)):
        n = len(level[0])
        if any(not isinstance(v, Sequence) or isinstance(v, (str, bytes)) or len(v) != n for v in level):
            raise Error("invalid", f"input {name!r} is ragged at depth {len(shape)}", "Give every row the same length.")
        shape.append(n)
        level = [element for row in level for element in row]
    if not shape:
        raise Error("invalid", f"input {name!r} is not a list", "Write [[…]]: one row for each thing to ask about.")
    return shape, [None if isinstance(v, float) and math.isnan(v) else v for v in level]


def _elements(output: Mapping[str, Any]) -> list[Any]:
    """The elements of an output: bytes where the answer has them in base64."""
    data: list[Any] = output["data"]
    if output.get("parameters", {}).get("content_type") == "base64":
        return [b64decode(v) for v in data]
    return data


def _nest(data: list[Any], shape: Sequence[int]) -> list[Any]:
    for n in reversed(list(shape)[1:]):
        data = [data[i:i + n] for i in range(0, len(data), n)] if n else data
    return data


def sql_name(name: str) -> str:
    """A dataset's name ("weather", "weather@1") as a quoted table of SQL."""
    if not re.fullmatch(r"[A-Za-z0-9_.@-]+", name):
        raise Error("invalid", f"{name!r} is not the name of a dataset", "Write it as weather or weather@1.")
    return f'"{name}"'
