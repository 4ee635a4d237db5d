"""The greatest difference between two logits that rounding explains.

A pass that verifies several tokens sums in another order than a pass that makes a single token,
which changes the last bits of a logit. If the two best tokens are closer than that, either may win.
"""

from __future__ import annotations

TIES = {"float32": 0.01}
"""Greatest margin of a near tie in nats, by the data type of the model."""
HALF_TIE = 0.1
"""The same for all other types, about the resolution of bfloat16 at the size of usual logits."""


def find_tie(dtype: str) -> float:
    return TIES.get(dtype, HALF_TIE)
