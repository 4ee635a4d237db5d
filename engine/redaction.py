"""Credentials out of text that people will see."""

from __future__ import annotations

import re

USERINFO = re.compile(r"//\S*@")
"""Greedy: a password may hold a slash or another @ that should have been encoded."""


def redact(text: str) -> str:
    """Without the credentials of any URL in it."""
    return USERINFO.sub("//***@", text)
