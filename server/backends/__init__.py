"""Where a gateway's tokens come from: an engine of its own process, or workers elsewhere."""

from server.backends.base import Backend, open_backend

__all__ = ["Backend", "open_backend"]
