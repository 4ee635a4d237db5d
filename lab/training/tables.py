"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(part: int, total: int) -> str:
    """Format `97.5 % (39/40)`, or "none asked"."""
    return f"{100 * part / total:.1f} % ({part}/{total})" if total else "none asked"
