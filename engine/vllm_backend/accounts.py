"""Reads the account of a decode step off an output of the engine core.

The scheduler puts each step's account on its output (``scheduler.py``); vLLM itself reports per
request, and only at a natural end.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.engine import EngineCoreOutput

from engine.speculation.accounting import intern_step
from engine.types import DecodeStep, EngineInfo, UndraftedReason

AccountReader = Callable[[EngineCoreOutput, bool], DecodeStep | None]
"""Finds the decode step behind an output; the flag marks a request's first output."""


def choose_reader(info: EngineInfo) -> AccountReader:
    if not info.reports_decode_steps:
        return read_nothing
    return read_decode_step if info.speculation.depth else read_plain_step


def read_nothing(_output: EngineCoreOutput, _first: bool) -> DecodeStep | None:
    """Speculation under another scheduler, which reports no decode steps."""
    return None


def read_plain_step(output: EngineCoreOutput, first: bool) -> DecodeStep | None:
    """A step of an engine without speculation."""
    tokens = len(output.new_token_ids)
    return None if first or not tokens else intern_step(0, 0, tokens, 0, UndraftedReason.OFF)


def read_decode_step(output: EngineCoreOutput, first: bool) -> DecodeStep | None:
    """None for the token that comes from prefill, and for an end without tokens."""
    account = output.spec_decode_metrics
    delivered = len(output.new_token_ids)
    if account is None or not delivered or (first and not account.num_draft_tokens):
        return None
    drafted, (reached,) = account.num_draft_tokens, account.histogram
    if not drafted:
        reason = UndraftedReason.REFUSED if account.num_spec_tokens else UndraftedReason.OFF
        return intern_step(0, 0, delivered, 0, reason)
    accepted = min(reached, delivered)
    return intern_step(drafted, accepted, delivered, reached - accepted, None)
