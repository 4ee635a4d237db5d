"""Patches of vLLM's workers: one file for each fault or gap, whose docstring begins with the fault.

``patch(wrap)`` of a file replaces parts of vLLM. ``THREAD`` is the number of a public issue or pull
request of vLLM, if one is known. ``UNTIL`` is the first version of vLLM that does not need the
patch, and does not get it; it is empty while every tested version needs it.

``python -m scripts.vllm_parts docs/upstream/README.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from enum import StrEnum
from importlib import import_module
from types import ModuleType
from typing import Any

from eaglegate.engine.vllm_contract import is_vllm_since
from eaglegate.engine.vllm_parts import Promise

Original = Callable[..., Any]
Wrap = Callable[[Any, str, Callable[..., Any]], None]


class Place(StrEnum):
    """Where a patch is applied. vLLM uses its second model runner wherever Triton works."""

    FIRST_RUNNER = "first runner"
    SECOND_RUNNER = "second runner"
    CPU = "CPU"


PATCHES: tuple[tuple[Promise | None, Place, str], ...] = (
    (Promise.TEXT, Place.FIRST_RUNNER, "draft_pass shared_embedding image_slots bias_and_min_p"),
    (Promise.TEXT, Place.FIRST_RUNNER, "min_tokens thinking_budgets"),
    (Promise.TEXT, Place.SECOND_RUNNER, "second_draft_pass second_adapter_rows"),
    (Promise.TEXT, Place.CPU, "empty_constraints token_values"),
    (Promise.SEEDS, Place.FIRST_RUNNER, "seeds"),
    (Promise.SEEDS, Place.SECOND_RUNNER, "second_seeds"),
    (Promise.TEXT, Place.FIRST_RUNNER, "plain_steps"),  # first of those around a runner's sampling
    (Promise.AUDITS, Place.FIRST_RUNNER, "prompt_adapters"),
    (Promise.AUDITS, Place.SECOND_RUNNER, "second_prompt_adapters"),
    (None, Place.CPU, "amx base_model_rows"),
)
"""Files in the order in which they are applied, and the promise that needs them. Those of a promise
that is left out are not imported, because with another vLLM they may not load."""


def load_patches(places: Container[Place], left_out: Container[Any]) -> Iterator[ModuleType]:
    """Import the patches that this vLLM needs in these places, save those of promises that are left
    out."""
    for promise, place, names in PATCHES:
        for name in names.split() if place in places and promise not in left_out else ():
            module = import_module(f"{__name__}.{name}")
            if not module.UNTIL or not is_vllm_since(*map(int, module.UNTIL.split("."))):
                yield module
