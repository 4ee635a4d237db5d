"""Detection of chat templates that may take much time or memory in a single operation.

A loop can be interrupted (``watchdog.py``). One operation that makes a huge string or number
cannot, so a template with such an operation always runs in a process with limits.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import nodes

GROWING = frozenset((
    "center", "expandtabs", "format", "format_map", "indent", "lipsum", "ljust", "rjust",
    "wordwrap", "xmlattr", "zfill",
))  # fmt: skip
"""Filters, methods and functions that make a text of a given length."""
LARGE = 100_000
LARGE_IN_TEXT = re.compile(r"\d{6}")
MAX_ITEMS = 1 << 20
MAX_BITS = 4096
WIDTH = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)")
"""Width of a number in a ``%`` format, of four digits or more."""


def is_suspect(tree: nodes.Template) -> bool:
    """Return True if a single operation may take much time or memory. Loops are not considered."""
    return any(map(_may_grow, tree.find_all(nodes.Expr)))


def _may_grow(node: nodes.Expr) -> bool:
    match node:
        case nodes.Pow():
            return True
        case nodes.Const(value=int() as value):
            return abs(value) > LARGE
        case nodes.Const(value=str() as value):
            return LARGE_IN_TEXT.search(value) is not None or value in GROWING
        case nodes.Filter(name=name) | nodes.Name(name=name) | nodes.Getattr(attr=name):
            return name in GROWING
    return False


def check_product(operator: str, left_operand: Any, right_operand: Any) -> None:
    """Raise OverflowError if the result would be a huge number or text."""
    if operator == "%":
        too_large = isinstance(left_operand, str) and WIDTH.search(left_operand) is not None
    elif operator == "**":
        too_large = (
            _count_bits(left_operand) * abs(right_operand if isinstance(right_operand, int) else 1)
            > MAX_BITS
        )
    else:
        too_large = _measure_product(left_operand, right_operand)
    if too_large:
        raise OverflowError(f"the result of {operator!r} would be too large")


def _measure_product(left_operand: Any, right_operand: Any) -> bool:
    if isinstance(left_operand, int) and isinstance(right_operand, int):
        return _count_bits(left_operand) + _count_bits(right_operand) > MAX_BITS
    for sequence, times in ((left_operand, right_operand), (right_operand, left_operand)):
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            return len(sequence) * times > MAX_ITEMS
    return False


def _count_bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64
