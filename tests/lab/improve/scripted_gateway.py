"""A gateway's draft and canary endpoints with scripted verdicts, for tests of the loop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eaglegate.engine.speculation.drafts.files import fingerprint_draft


@dataclass
class ScriptedGateway:
    """One canary at a time; ``verdict`` ends it, None leaves it running."""

    draft: Path
    verdict: str | None = "promote"
    refusal: tuple[int, str] | None = None
    """Status and message of ``POST /admin/canary`` instead of an answer."""
    canary: dict[str, Any] | None = None
    served: list[str] = field(default_factory=list)
    """Every draft that was promoted."""
    started: int = 0
    stopped: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self.promote(self.draft)

    def promote(self, path: Path) -> None:
        self.draft = path
        self.served.append(fingerprint_draft(path))

    @property
    def promoted(self) -> str:
        return self.served[-1]

    def answer(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/admin/draft":
            known = {"fingerprint": self.promoted, "path": str(self.draft), "source": "demo"}
            return 200, {"promoted": known}
        if method == "POST":
            if self.refusal is not None:
                return self.refusal[0], {"error": {"message": self.refusal[1]}}
            self.canary = {
                "path": body["path"],
                "candidate": fingerprint_draft(Path(body["path"])),
                "started_at": time.time(),
                "running": True,
                "ended": False,
                "verdict": None,
                "reason": None,
                "evidence": [],
            }
            self.started += 1
        elif method == "DELETE" and self.canary is not None:
            self.stopped += 1
            self.canary["running"] = False
        elif self.canary is not None and self.canary["running"] and self.verdict:
            self._end()
        return 200, {"canary": self.canary}

    def _end(self) -> None:
        assert self.canary is not None
        self.canary |= {"running": False, "ended": True, "verdict": self.verdict, "reason": "why"}
        if self.verdict == "promote":
            self.promote(Path(self.canary["path"]))

    def restart(self) -> None:
        """The canary is gone, the promoted draft serves."""
        self.canary = None

    @contextmanager
    def serving(self) -> Iterator[ScriptedGateway]:
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(size) or b"{}")
                status, answer = gateway.answer(self.command, self.path, body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            do_GET = do_POST = do_DELETE = do

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
