"""Client of a gateway's operator endpoints for drafts and canaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglegate.server.cli.client import CallFailed, send


class GatewayClient:
    """Client of one gateway's operator endpoints. Every method raises CallFailed."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, self._key = url.rstrip("/"), key

    def find_promoted(self) -> Mapping[str, Any]:
        """Return the promoted draft: ``fingerprint``, ``path``, ``source``."""
        draft = send(f"{self.url}/admin/draft", None, self._key)["promoted"]
        if not draft:
            raise CallFailed(f"{self.url} serves no draft that can be exchanged.", 409)
        return dict(draft)

    def find_canary(self) -> Mapping[str, Any] | None:
        """Return the running canary or the last one; None before the first."""
        canary = send(f"{self.url}/admin/canary", None, self._key)["canary"]
        return None if canary is None else dict(canary)

    def start_canary(self, path: str, rules: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"path": path, **rules}
        return dict(send(f"{self.url}/admin/canary", body, self._key)["canary"])

    def stop_canary(self) -> None:
        send(f"{self.url}/admin/canary", None, self._key, "DELETE")
