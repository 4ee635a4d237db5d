"""Words in the names of tools."""

from __future__ import annotations

import re


def words(text: str) -> set[str]:
    """Of `deleteRooms` as of `Delete a room.`: delete and room are among them."""
    found = re.findall("[a-z]+", re.sub("([A-Z])", r" \1", text).lower())
    return {word.rstrip("s") for word in found}
