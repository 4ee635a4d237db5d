"""Probe a vLLM worker at start: its tokenizer, and its speculation by generating."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import httpx

from engine.errors import EngineError, EngineStartError
from engine.remote import wire
from engine.remote.connection import WorkerConnection
from engine.remote.driver import MOST_LENGTH
from engine.remote.reading import (
    compute_limits,
    read_integers,
    read_json,
    read_object,
    read_optional_object,
)
from engine.remote.speculation import SpeculationAccount
from engine.remote.upstream import LocalModel
from engine.types import EngineInfo, EngineRequest, Sampling, SpeculationInfo

PROBE = "Was it 7 cafés, <b>naïve</b>?\n\n\tdef f(x): return {'π': [1, 2.5]}"
"""Text that distinguishes tokenizers: digits, accents, markup, white space, brackets."""
SPECULATES = re.compile(r"^vllm:spec_decode_num_drafts", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WorkerSpeculation:
    """``reported``: every answer ends with its metrics. ``depth`` is None where unknown."""

    active: bool
    reported: bool
    depth: int | None = None
    per_request: bool = False
    """A request's own depth is honoured."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the probe found out about a worker."""

    name: str
    """The name under which it serves the model."""
    max_model_len: int
    speculation: WorkerSpeculation


async def check_vocabulary(connection: WorkerConnection, model: LocalModel, name: str) -> None:
    """Check that a text has the same tokens on both sides. Raises EngineStartError."""
    asked = {"model": name, "prompt": PROBE, "add_special_tokens": False}
    answer = await connection.ask("/tokenize", asked)
    if answer.status == httpx.codes.NOT_FOUND:
        return
    answered = read_object(read_json(answer.body, "/tokenize"), "/tokenize").get("tokens")
    if answered is None:
        return
    theirs = read_integers(answered, "tokens", 0, MOST_LENGTH, 100 * len(PROBE))
    ours = await asyncio.to_thread(model.codec.encode, PROBE, False)
    if list(theirs) != list(ours):
        raise EngineStartError(
            f"The worker {connection.upstream} serves {name!r} with another tokenizer than "
            f"{model.name}: a probe of {len(PROBE)} characters is {len(theirs)} tokens there and "
            f"{len(ours)} here. Give the gateway the model the worker has."
        )


async def probe_speculation(connection: WorkerConnection, model: LocalModel) -> WorkerSpeculation:
    """Found by generating, so that a draft that crashes its engine does so now."""
    reported = await _generate(connection, model, None)
    if reported is None:
        metrics = await connection.ask("/metrics")
        active = SPECULATES.search(metrics.text) is not None
        return WorkerSpeculation(active=active, reported=not active, depth=None if active else 0)
    without = await _generate(connection, model, 0)
    honours = without is not None and not any(drafted for drafted, _ in without.steps)
    return WorkerSpeculation(active=True, reported=True, depth=reported.depth, per_request=honours)


async def _generate(
    connection: WorkerConnection, model: LocalModel, depth: int | None
) -> SpeculationAccount | None:
    """Generate a few tokens at this depth; return their metrics. Raises EngineStartError."""
    request = EngineRequest(
        id=f"probe-{'any' if depth is None else depth}",
        prompt=tuple(min(token, model.vocab_size - 1) for token in (1, 2, 3, 4)),
        sampling=Sampling(max_tokens=10, temperature=0.0, ignore_eos=True),
        depth=depth,
    )
    body = wire.build_body(request, stream=False, depth=True)
    try:
        answered = await connection.fetch(wire.GENERATE, body, {}, compute_limits(request))
        metrics = read_optional_object(
            read_object(answered, "the answer").get("metrics"), "metrics"
        )
        reported = metrics.get("speculative_decoding")
        return (
            None
            if reported is None
            else SpeculationAccount.read(reported, request.sampling.max_tokens)
        )
    except EngineError as error:
        raise EngineStartError(
            f"The worker {connection.upstream} does not generate from token ids: {error}. Start it "
            "with `vllm serve ... --enable-scale-out`, or give text+URL for a server that has no "
            f"{wire.GENERATE}."
        ) from error


def build_info(found: WorkerFacts, model: LocalModel, connection: WorkerConnection) -> EngineInfo:
    """The worker's facts as EngineInfo; what is not known is called unknown."""
    spec = found.speculation
    return EngineInfo(
        model=found.name,
        max_model_len=found.max_model_len,
        vocab_size=model.vocab_size,
        speculation=describe_speculation(spec),
        reports_decode_steps=spec.reported,
        accounts_at_end=spec.active and spec.reported,
        default_sampling=model.default_sampling,
        details={"worker": str(connection.upstream)},
    )


def describe_speculation(spec: WorkerSpeculation) -> SpeculationInfo:
    if not spec.active:
        return SpeculationInfo("none", 0, summary="no speculation in the worker")
    if not spec.reported:
        return SpeculationInfo(
            "unknown",
            0,
            summary="the worker speculates and does not account for it: start it with "
            "--per-request-spec-decode-metrics detailed",
        )
    per_request = "" if spec.per_request else "; a request's own depth is not honoured"
    return SpeculationInfo(
        "unknown",
        spec.depth or 0,
        summary=f"K = {spec.depth}, in the worker; method and draft unknown{per_request}",
        per_request=spec.per_request,
    )
