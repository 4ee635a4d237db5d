"""One vLLM worker, or another server's, driven over HTTP: ``remote_engine`` makes the Engine."""

from engine.remote.access import ConnectionSettings, Upstream, WireProtocol
from engine.remote.engine import RemoteEngine, remote_engine
from engine.remote.model import Codec, LocalModel

__all__ = [
    "Codec",
    "ConnectionSettings",
    "LocalModel",
    "RemoteEngine",
    "Upstream",
    "WireProtocol",
    "remote_engine",
]
