"""One vLLM worker, or another server's, driven over HTTP: ``remote_engine`` makes the Engine."""

from engine.remote.access import Access, Speaks, Upstream
from engine.remote.engine import RemoteEngine, remote_engine
from engine.remote.model import Codec, LocalModel

__all__ = [
    "Access",
    "Codec",
    "LocalModel",
    "RemoteEngine",
    "Speaks",
    "Upstream",
    "remote_engine",
]
