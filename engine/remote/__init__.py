"""Remote engines: one worker driven over HTTP. ``remote_engine`` makes the engine for an upstream.

``connection.py`` speaks HTTP and bounds every answer; ``reading.py`` checks it. There is one engine
class per wire protocol: ``engine.py`` (token ids, vLLM) and ``text.py`` (any OpenAI-compatible
server). Called by ``server/backends/remote.py``, through a fleet. A new protocol is one more
subclass of ``RemoteEngineBase`` (``driver.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from engine.base import Engine
from engine.remote.driver import ignore_progress
from engine.remote.engine import RemoteEngine
from engine.remote.text import TextEngine
from engine.remote.upstream import Codec, ConnectionSettings, LocalModel, Upstream, WireProtocol

__all__ = [
    "Codec",
    "ConnectionSettings",
    "LocalModel",
    "RemoteEngine",
    "Upstream",
    "WireProtocol",
    "remote_engine",
]


def remote_engine(
    upstream: Upstream,
    model: LocalModel,
    access: ConnectionSettings,
    progress: Callable[[str], None] = ignore_progress,
) -> Engine:
    """The engine for the worker's wire protocol. Cheap to make; connects when started."""
    kind = TextEngine if upstream.protocol is WireProtocol.TEXT else RemoteEngine
    return kind(upstream, model, access, progress)
