"""The promise of ``strict: true``: every answer matches its schema.

A keyword that cannot be enforced is therefore refused by name, in the same way as OpenAI refuses
unsupported keywords.
"""

from __future__ import annotations

from typing import Any

from eaglegate.server.errors import InvalidRequest


def check_strict(schema: Any, param: str) -> None:
    """Raise InvalidRequest, naming the first keyword that would not be enforced."""
    # Imported with the first strict schema in a request.
    from eaglegate.text.grammars.enforcement import find_unenforced

    for location, keyword in find_unenforced(schema):
        raise InvalidRequest(
            f"Invalid schema in '{param}': '{keyword}' at {location} cannot be enforced, and "
            "'strict' is true. Remove it, rewrite it, or set 'strict' to false.",
            param=param,
            code="invalid_schema",
        )
