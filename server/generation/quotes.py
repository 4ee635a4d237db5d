"""Text that an answer may quote, for an engine with lookups (``--lookup``)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from eaglegate.engine.types import EngineRequest
from eaglegate.engine.vllm_fields import MAX_QUOTES
from eaglegate.server.generation.job import Conversation, Job
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.prompt import encode
from eaglegate.server.generation.twins import write_twins
from eaglegate.text.rendering.encoding import RenderLimits


async def add_quotes(
    requests: list[EngineRequest], job: Job, pipeline: Pipeline
) -> list[EngineRequest]:
    """Add the twins of each conversation to its requests, if the engine looks them up. At most
    ``MAX_QUOTES``, the newest ones."""
    if not pipeline.info.speculation.takes_quotes or 0 in (
        job.placement.depth,
        job.placement.lookup,
    ):
        return requests
    num_choices, quoting_requests = job.question.n, []
    quotes: Sequence[int] = ()
    for index, request in enumerate(requests):
        if index % num_choices == 0:
            quotes = await _encode_twins(job, pipeline, index // num_choices)
        quoting_requests.append(replace(request, quotes=tuple(quotes)) if quotes else request)
    return quoting_requests


async def _encode_twins(job: Job, pipeline: Pipeline, index: int) -> Sequence[int]:
    source, charge = job.question.prompts[index], job.caller.charge
    if not isinstance(source, Conversation):
        return ()
    # A prompt that is cut to its newest part may come from a conversation of any size.
    twins = await charge.parse(lambda: write_twins(source.messages))
    if not twins:
        return ()
    limits = RenderLimits(keep=MAX_QUOTES)
    tokens = await encode(twins, pipeline.renderer, False, charge, limits)
    return tokens[-MAX_QUOTES:]
