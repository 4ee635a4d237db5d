"""Random text that fills frames up to a size."""

from __future__ import annotations

import secrets


def make_filling(size: int) -> bytes:
    """Return random letters, which cannot be compressed."""
    return secrets.token_urlsafe(size)[:size].encode()
