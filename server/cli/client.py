"""HTTP client of the operator commands, for the operator endpoints of a running gateway.

The standard library is enough, so these commands start fast.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TIMEOUT_S = 600.0
"""Long enough for a large draft, which is inspected and copied before it is loaded."""


class CallFailed(Exception):
    """The gateway refused the call or could not be reached. The message says why."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; None if there was no answer."""


def add_gateway_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``, ``--json`` and ``--key`` to a command that calls a running gateway."""
    parser.add_argument(
        "--url",
        type=complete_url,
        default="http://127.0.0.1:8000",
        help="operator address (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--key",
        default=os.environ.get("EAGLEGATE_ADMIN_API_KEY"),
        help="an admin's API key [EAGLEGATE_ADMIN_API_KEY]",
    )


def complete_url(address: str) -> str:
    """Return an address with its scheme, http:// by default, and without a slash at the end."""
    return (address if "://" in address else f"http://{address}").rstrip("/")


def send(
    url: str,
    body: Mapping[str, Any] | None,
    key: str | None,
    method: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Send a request and return its JSON answer. The method defaults to POST with a body, else GET.

    Raises CallFailed.
    """
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = Request(url, data, headers, method=method)
        return dict(json.loads(_fetch(request, timeout_s)))
    except ValueError as error:
        raise CallFailed(f"{url} does not answer: {error}") from None


def _fetch(request: Request, timeout_s: float) -> bytes:
    """Return the body of the answer. Raises CallFailed."""
    try:
        with urlopen(request, timeout=timeout_s) as response:
            return bytes(response.read())
    except HTTPError as error:
        raise CallFailed(_read_message(error), error.code) from None
    except (URLError, OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CallFailed(f"{request.full_url} does not answer: {reason}") from None


def _read_message(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"
