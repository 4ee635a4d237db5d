"""A server for tests that gives one answer and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Asked = list[tuple[str, bytes]]
"""Paths and bodies of requests."""


@contextmanager
def answering(status: int = 200, body: bytes = b"") -> Iterator[tuple[str, Asked]]:
    """The URL of a server that runs until the block ends, and its requests."""
    asked: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.rfile.read(int(self.headers["content-length"] or 0))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
