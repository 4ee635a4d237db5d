"""Words in the names of tools."""

from __future__ import annotations

import re


def words(text: str) -> set[str]:
    """The words of a name or a sentence, in singular: `deleteRooms` and `Delete a room.` both hold
    delete and room."""
    found = re.findall("[a-z]+", re.sub("([A-Z])", r" \1", text).lower())
    return {word.rstrip("s") for word in found}
