"""Numbers of command lines, which a NaN or an infinity would make meaningless without an error."""

from __future__ import annotations

import argparse
import math


class NumberError(argparse.ArgumentTypeError, ValueError):
    """The text is not a finite number. argparse shows the message beside the flag."""


def parse_number(text: str) -> float:
    """Return a finite number. Raises NumberError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise NumberError(f"must be a finite number; given '{text}'")
    return number
