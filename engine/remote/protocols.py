"""The wire protocols of workers: an address names one of them, and each has an engine class."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from eaglegate.engine.base import Engine
from eaglegate.engine.remote.driver import RemoteEngineBase
from eaglegate.engine.remote.engine import RemoteEngine
from eaglegate.engine.remote.text import TextEngine
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel, Upstream

ENGINES: Mapping[str, type[RemoteEngineBase]] = {"": RemoteEngine, "text+": TextEngine}
"""The engine class that drives a worker, by the prefix of its address before the URL."""


def remote_engine(upstream: Upstream, model: LocalModel, access: ConnectionSettings) -> Engine:
    """Make the engine for the worker's wire protocol. It connects when it is started."""
    return ENGINES[upstream.prefix](upstream, model, access)


def parse_upstream(address: str) -> Upstream:
    """Parse ``http://host:port`` or ``text+http://host:port``. Raises ValueError."""
    prefix = max(filter(address.strip().startswith, ENGINES), key=len)
    url = address.strip().removeprefix(prefix).rstrip("/")
    if not _is_address(url):
        raise ValueError(
            "a worker's address must be http://HOST:PORT, or text+http://HOST:PORT for one "
            f"that speaks text only; given {_without_userinfo(address)!r}"
        )
    userinfo = urlsplit(url).netloc.rpartition("@")[0]
    bare_url = url.replace(f"//{userinfo}@", "//", 1).removesuffix("/v1")
    return Upstream(bare_url, prefix, _encode_basic_auth(userinfo) if userinfo else None)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not (parts.query or parts.fragment)
        )
    except ValueError:
        return False


def _without_userinfo(address: str) -> str:
    _, separator, host = address.rpartition("@")
    return f"***@{host}" if separator else host


def _encode_basic_auth(userinfo: str) -> str:
    """Return the HTTP Basic authentication value of a percent-encoded ``user:password``."""
    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
