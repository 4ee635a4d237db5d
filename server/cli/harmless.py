"""Escapes foreign text for a terminal.

Model output and request ids may contain escape sequences that move the cursor, change the title or
fill the clipboard, and characters that reverse or hide neighbouring text.
"""

from __future__ import annotations

import re

HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, except tab and line feed
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # surrogates, and invisible tags
)
"""Control characters, line separators, and invisible or reversing characters. Joiners of emoji are
kept.
"""


def make_harmless(text: str) -> str:
    """Write every harmful character as a Python escape: ``\\x1b``, ``\\u202e``.

    Works on any piece of a stream, because each character is judged alone. Carriage returns are
    removed: some systems use them in line ends, and on a terminal they would overwrite the line.
    """
    return HARMFUL.sub(_spell, text.replace("\r", ""))


def make_line_harmless(text: str) -> str:
    """Escape text that must stay on one line, including its tabs and line feeds."""
    return make_harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
