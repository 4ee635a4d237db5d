"""Start-up probe of a vLLM worker: its tokenizer, and its speculation by generating.

vLLM reports the drafted and accepted tokens of its verify steps with the last chunk of an answer,
in order (``--per-request-spec-decode-metrics detailed``) or as a histogram (``summary``). It does
not report the places of steps without a draft, or the part of the last step that was cut. The
places follow from the chunk sizes, one chunk per engine step unless vLLM merged some. The cut part
is the remainder. D, P and A + cut are the worker's own numbers in every case.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import lt
from typing import Any

import httpx

from eaglegate.engine.advisories import Advisory, describe, list_advisories
from eaglegate.engine.errors import EngineDead, EngineError, EngineStartError
from eaglegate.engine.remote import wire
from eaglegate.engine.remote.connection import WorkerConnection
from eaglegate.engine.remote.driver import MOST_LENGTH
from eaglegate.engine.remote.reading import (
    WorkerProtocolError,
    compute_limits,
    read_integer,
    read_integers,
    read_json,
    read_object,
    read_optional_object,
)
from eaglegate.engine.remote.upstream import LocalModel
from eaglegate.engine.speculation.accounts.accounting import intern_step
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    DecodeStep,
    EngineRequest,
    Sampling,
    SpeculationInfo,
    UndraftedReason,
)

PROBE = "Was it 7 cafés, <b>naïve</b>?\n\n\tdef f(x): return {'π': [1, 2.5]}"
"""Text that distinguishes tokenizers: digits, accents, markup, white space, brackets."""
SPECULATES = re.compile(r"^vllm:spec_decode_num_drafts", re.MULTILINE)
POD = re.compile(
    r'^eaglegate_pod_info\{depth="(\w{1,8})",lookup="(\d{1,3})",version="([\w.+]{1,32})"',
    re.MULTILINE,
)
"""The series by which a worker tells that eaglegate runs inside it (docs/pod.md)."""


MOST_DEPTH = 256
SPARE = 16
"""Steps allowed beyond one per token, because vLLM pads some prompts with one."""
VerifiedStep = tuple[int, int]
"""Draft tokens of one step, as (drafted, accepted)."""


@dataclass(frozen=True, slots=True)
class SpeculationAccount:
    """The speculation metrics of one answer, as the worker reported them."""

    depth: int
    """K, as configured on the worker."""
    steps: tuple[VerifiedStep, ...]

    @classmethod
    def read(cls, value: Any, max_tokens: int) -> SpeculationAccount:
        """Read vLLM's ``metrics.speculative_decoding`` of an answer with ``max_tokens`` tokens or
        fewer.

        Raises WorkerProtocolError.
        """
        metrics, max_tokens = read_object(value, "speculative_decoding"), max_tokens + SPARE
        depth = read_integer(metrics.get("num_spec_tokens"), "num_spec_tokens", 0, MOST_DEPTH)
        if metrics.get("per_step_drafted") is None or metrics.get("per_step_accepted") is None:
            return cls(depth, _read_histogram(metrics, depth, max_tokens))
        draft_counts = read_integers(
            metrics["per_step_drafted"], "per_step_drafted", 0, depth + 1, max_tokens
        )
        accepted_counts = read_integers(
            metrics["per_step_accepted"], "per_step_accepted", 0, depth + 1, max_tokens
        )
        if len(draft_counts) != len(accepted_counts) or any(map(lt, draft_counts, accepted_counts)):
            raise WorkerProtocolError("per_step_accepted does not fit per_step_drafted")
        return cls(depth, tuple(zip(draft_counts, accepted_counts, strict=True)))


def _read_histogram(
    metrics: Mapping[str, Any], depth: int, max_tokens: int
) -> tuple[VerifiedStep, ...]:
    """Return steps with the histogram's accepted counts, and spread all drafted tokens over
    them."""
    counts = read_integers(
        metrics.get("acceptance_histogram"), "histogram", 0, max_tokens + 1, depth + 1
    )
    if sum(counts) > max_tokens:
        raise WorkerProtocolError(
            f"the histogram has {sum(counts)} steps for at most {max_tokens} tokens"
        )
    lengths = [length for length, count in enumerate(counts) for _ in range(count)]
    num_drafted = read_integer(
        metrics.get("num_draft_tokens"), "num_draft_tokens", 0, depth * len(lengths)
    )
    return tuple(_spread_drafts(lengths, depth, num_drafted - sum(lengths)))


def _spread_drafts(lengths: Sequence[int], depth: int, num_rejected: int) -> Iterator[VerifiedStep]:
    for length in lengths:
        share = max(0, min(depth - length, num_rejected))
        num_rejected -= share
        yield length + share, length


def lay_decode_steps(
    sizes: Sequence[int],
    account: SpeculationAccount,
    reason: UndraftedReason = UndraftedReason.REFUSED,
) -> tuple[DecodeStep, ...]:
    """Return the decode steps of chunks of these sizes; ``reason`` applies to steps without a
    draft."""
    if not sizes:
        return ()
    if not _is_padded(sizes, account.steps):
        sizes = [sizes[0] - 1, *sizes[1:]]
    return tuple(_StepLayout(list(sizes), list(account.steps), reason).lay())


def _is_padded(sizes: Sequence[int], steps: Sequence[VerifiedStep]) -> bool:
    """Return True if the first token came from a verify step as well.

    When all but one token of a prompt is cached, vLLM's own scheduler pads the prompt with empty
    drafts and counts them.
    """
    return (
        len(steps) == len(sizes)
        and steps[0][1] == 0
        and all(size == step[1] + 1 for size, step in zip(sizes[:-1], steps, strict=False))
        and sizes[-1] <= steps[-1][1] + 1
    )


class _StepLayout:
    """Assigns steps to chunks. Chunks hold whole steps; the last step may be truncated."""

    def __init__(
        self, sizes: list[int], steps: list[VerifiedStep], reason: UndraftedReason
    ) -> None:
        self._sizes = sizes
        self._steps = steps
        self._reason = reason
        num_tokens = sum(accepted + 1 for _, accepted in steps)
        chunks = sum(1 for size in sizes if size)
        self._plain = max(0, sum(sizes) - num_tokens, chunks - len(steps))
        """Steps without a draft that are not placed yet."""

    def lay(self) -> Iterator[DecodeStep]:
        room = 0
        for index, size in enumerate(self._sizes):
            room += size
            is_last = index == len(self._sizes) - 1
            while room > 0 and (step := self._next_step(room, is_last)) is not None:
                room -= step.delivered
                yield step
        yield from (self._make_step(step, 0) for step in self._steps)

    def _next_step(self, room: int, is_last: bool) -> DecodeStep | None:
        """Return the next step; None if it reaches into the next chunk."""
        if self._steps and (self._steps[0][1] < room or (is_last and not self._plain)):
            return self._make_step(self._steps.pop(0), room)
        if self._plain or is_last:
            self._plain -= 1
            return intern_step(0, 0, 1, 0, self._reason)
        return None

    def _make_step(self, step: VerifiedStep, room: int) -> DecodeStep:
        num_drafted, length = step
        num_delivered = min(length + 1, room)
        if not num_drafted:
            return intern_step(0, 0, num_delivered, 0, self._reason)
        num_accepted = min(length, num_delivered)
        return intern_step(num_drafted, num_accepted, num_delivered, length - num_accepted, None)


SAMPLE = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"(?:_total)?(?:\{(.{0,2000})\})? (\S{1,32})$",
    re.MULTILINE,
)
CACHE_HITS = re.compile(
    r"^vllm:prefix_cache_hits(?:_total)?(?:\{.{0,2000}\})? (\S{1,32})$", re.MULTILINE
)
PREFIX_CACHE_OFF = re.compile(
    r'^vllm:cache_config_info\{.{0,4000}enable_prefix_caching="False"', re.MULTILINE
)
SERVER_INFO = "/server_info?config_format=json"
MOST_PROBED = 1 << 14
"""Limit on the tokens in an answer of ``/tokenize`` to a text of the gateway."""
POSITION = re.compile(r'position="(\d{1,4})"')
MOST_POSITIONS = 64


def parse_totals(exposition: str) -> Totals | None:
    """Return the sums over the worker's engines; None without speculation.

    Raises WorkerProtocolError.
    """
    sums: Counter[str] = Counter()
    positions: Counter[int] = Counter()
    for name, labels, value in SAMPLE.findall(exposition):
        if name == "accepted_tokens_per_pos":
            position = POSITION.search(labels)
            if position is not None and int(position[1]) < MOST_POSITIONS:
                positions[int(position[1])] += _read_count(value)
        else:
            sums[name] += _read_count(value)
    if "drafts" not in sums:
        return None
    return Totals(
        verify_steps=sums["drafts"],
        proposed=sums["draft_tokens"],
        accepted=sums["accepted_tokens"],
        accepted_at=tuple(positions[index] for index in range(max(positions, default=-1) + 1)),
    )


def _read_count(value: str) -> int:
    """Return a counter's value. Raises WorkerProtocolError."""
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        raise WorkerProtocolError(
            f"a counter of the worker is not a finite number: {value}"
        ) from None


@dataclass(frozen=True, slots=True)
class WorkerSpeculation:
    """A worker's speculation. If ``reported``, every answer ends with its metrics. ``depth`` is
    None if unknown."""

    active: bool
    reported: bool
    depth: int | None = None
    per_request: bool = False
    """True if the worker honours a request's own depth."""


async def check_vocabulary(connection: WorkerConnection, model: LocalModel, name: str) -> None:
    """Check that a text has the same tokens on both sides. Raises EngineStartError."""
    body = {"model": name, "prompt": PROBE, "add_special_tokens": False}
    answer = await connection.ask("/tokenize", body)
    if answer.status == httpx.codes.NOT_FOUND:
        return
    worker_ids = read_tokens(answer.body)
    if worker_ids is None:
        return
    local_ids = await asyncio.to_thread(model.codec.encode, PROBE, False)
    if worker_ids != list(local_ids):
        raise EngineStartError(
            f"The worker {connection.upstream} serves {name!r} with another tokenizer than "
            f"{model.name}: a probe of {len(PROBE)} characters is {len(worker_ids)} tokens there "
            f"and {len(local_ids)} here. Give the gateway the worker's model."
        )


def read_tokens(body: bytes) -> list[int] | None:
    """Return the tokens in an answer of ``/tokenize``; None if it has none.

    Raises WorkerProtocolError.
    """
    answer = read_object(read_json(body, "/tokenize"), "/tokenize").get("tokens")
    if answer is None:
        return None
    return list(read_integers(answer, "tokens", 0, MOST_LENGTH, MOST_PROBED))


def has_cache_hits(exposition: str) -> bool:
    """Return True if the metrics count a prefix cache hit. Raises WorkerProtocolError."""
    return any(_read_count(value) for value in CACHE_HITS.findall(exposition))


async def probe_speculation(connection: WorkerConnection, model: LocalModel) -> WorkerSpeculation:
    """Find the worker's speculation by generating, so that a draft that crashes its engine does so
    now."""
    account = await _generate(connection, model, None)
    if account is None:
        metrics = await connection.ask("/metrics")
        is_active = SPECULATES.search(metrics.text) is not None
        return WorkerSpeculation(
            active=is_active, reported=not is_active, depth=None if is_active else 0
        )
    plain_account = await _generate(connection, model, 0)
    honours_depth = plain_account is not None and not any(
        num_drafted for num_drafted, _ in plain_account.steps
    )
    return WorkerSpeculation(
        active=True, reported=True, depth=account.depth, per_request=honours_depth
    )


async def read_metrics(connection: WorkerConnection) -> str:
    """Return a worker's metrics; empty if they cannot be read."""
    try:
        return (await connection.ask("/metrics")).text
    except EngineError:
        return ""


def describe_pod(exposition: str) -> str | None:
    """Describe eaglegate inside a worker, by its metrics; None without it."""
    if (match := POD.search(exposition)) is None:
        return None
    lookups = f", lookups of up to {match[2]} tokens" if match[2] != "0" else ""
    return f"eaglegate {match[3]}, depth {match[1]}{lookups}"


async def find_advisories(
    connection: WorkerConnection, exposition: str, version: str, recurrent: bool
) -> tuple[Advisory, ...]:
    """Find the advisories for a worker that speculates; ``exposition`` are its metrics.

    A worker in vLLM's development mode tells its whole configuration, another one that of its
    cache. What it does not tell, or not in time, is assumed to be vLLM's default.
    """
    config: dict[str, Any] = {"speculative_config": {"method": "unknown"}}
    with suppress(EngineDead, TypeError):
        if (reply := await connection.ask(SERVER_INFO)).ok:
            server = read_object(read_json(reply.body, SERVER_INFO), SERVER_INFO)
            settings = read_object(server.get("vllm_config"), "vllm_config")
            environment = read_optional_object(server.get("vllm_env"), "vllm_env")
            runner = environment.get("VLLM_USE_V2_MODEL_RUNNER")
            return list_advisories(
                describe(settings, version, recurrent=recurrent, second_runner=runner)
            )
        is_cached = PREFIX_CACHE_OFF.search(exposition) is None
        config["cache_config"] = {"enable_prefix_caching": is_cached}
    return list_advisories(describe(config, version, recurrent=recurrent))


async def _generate(
    connection: WorkerConnection, model: LocalModel, depth: int | None
) -> SpeculationAccount | None:
    """Generate a few tokens at this depth and return their metrics. Raises EngineStartError."""
    request = EngineRequest(
        id=f"probe-{'any' if depth is None else depth}",
        prompt=tuple(min(token, model.vocab_size - 1) for token in (1, 2, 3, 4)),
        sampling=Sampling(max_tokens=10, temperature=0.0, ignore_eos=True),
        depth=depth,
    )
    body = wire.build_body(request, stream=False, depth=True)
    try:
        answer = await connection.fetch(wire.GENERATE, body, {}, compute_limits(request))
        metrics = read_optional_object(read_object(answer, "the answer").get("metrics"), "metrics")
        account = metrics.get("speculative_decoding")
        return (
            None
            if account is None
            else SpeculationAccount.read(account, request.sampling.max_tokens)
        )
    except EngineError as error:
        raise EngineStartError(
            f"The worker {connection.upstream} does not generate from token ids: "
            f"{str(error).removesuffix('.')}. Start it "
            "with `vllm serve ... --enable-scale-out`, or give text+URL for a server that has no "
            f"{wire.GENERATE}."
        ) from error


def describe_speculation(spec: WorkerSpeculation) -> SpeculationInfo:
    if not spec.active:
        return SpeculationInfo("none", 0, summary="no speculation in the worker")
    if not spec.reported:
        return SpeculationInfo(
            "unknown",
            0,
            summary="the worker speculates and does not account for it: start it with "
            "--per-request-spec-decode-metrics detailed",
            lossy=None,
        )
    per_request = "" if spec.per_request else "; a request's own depth is not honoured"
    return SpeculationInfo(
        "unknown",
        spec.depth or 0,
        summary=f"K = {spec.depth}, in the worker; method and draft unknown{per_request}",
        per_request=spec.per_request,
        lossy=None,
    )
