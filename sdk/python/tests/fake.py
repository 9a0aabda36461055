"""A server for the tests: answers what a test put in, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Answer = tuple[int, Any]


@dataclass
class Fake:
    """``answers`` maps "METHOD /path" to an answer or to a function of the request."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, Answer | Callable[[Asked], Answer]] = field(default_factory=dict)


@contextlib.contextmanager
def serve() -> Iterator[Fake]:
    fake = Fake()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Asked(self.command, self.path, dict(self.headers), body)
            fake.asked.append(asked)
            answer = fake.answers.get(f"{self.command} {self.path}", (404, {"kind": "not_found", "detail": "nothing here"}))
            if callable(answer):
                answer = answer(asked)
            status, content = answer
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", fake.url + "/elsewhere")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client did not wait
                self.wfile.write(raw)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
