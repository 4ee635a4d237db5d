"""Engine requests and steps. Frozen; no default hides a meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Literal, Protocol

CHAT, TOOLS, STRUCTURED, REASONING = WORKLOADS = ("chat", "tools", "structured", "reasoning")
"""The workloads a request is counted under when it names no other."""


class FinishReason(StrEnum):
    """Why an engine stopped producing tokens for a request."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class UndraftedReason(StrEnum):
    """Why a decode step verified no draft token (DESIGN.md, fallback ratio)."""

    OFF = "off"
    """Speculation was off for this request: policy, request field or lane."""
    REFUSED = "undrafted"
    """The engine proposed nothing: grammar, near the length limit, draft refused."""


@dataclass(frozen=True, slots=True)
class RepetitionStop:
    """``min_count`` times the same ``min_pattern_size`` to ``max_pattern_size`` tokens."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the next token; every field has a neutral value that switches it off."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    """Only these may be generated; empty allows all."""
    bad_words: tuple[str, ...] = ()
    """Texts whose token sequences must not be generated."""
    thinking_token_budget: int | None = None
    """Reasoning tokens after which the reasoning is ended; None sets no limit."""
    repetition: RepetitionStop | None = None
    """When to stop because the output repeats itself; None never stops for that."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Alternatives per output token; 0 reports the chosen token alone, None reports nothing."""
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must match. ``value`` is JSON text for json_schema and structural_tag."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
    value: str = ""
    choices: tuple[str, ...] = ()
    after_reasoning: bool = False
    """Leave the reasoning free and constrain what follows it."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate. ``prompt`` holds token ids."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    constraint: Constraint | None = None
    depth: int | None = None
    """Draft tokens per step, 0..K; None leaves it to the lane's default."""
    keeps_depth: bool = False
    """A later bound on depth does not change this request's: a seed's text depends on its depth."""
    priority: int = 0
    """Lower runs earlier."""
    lane: str = "default"
    workload: str = "chat"
    tenant: str = ""
    """The public name of the API key; its traffic teaches the planner about its traffic alone."""
    cache_salt: str | None = None
    adapter: str | None = None
    """The LoRA adapter to generate with, by its name; None for the model itself."""
    affinity: str | None = None
    """Requests with the same value share a cache: a session, a conversation."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    sink: StepSink | None = field(default=None, compare=False, repr=False)
    """Where the engine may put steps instead of yielding them."""


class StepSink(Protocol):
    """Takes steps at once, without waking the reader of ``Engine.generate``.

    An engine pushes only while the reader waits for its next step and ``is_open`` is true; the last
    step is always yielded. What ``push`` raises, the reader gets in place of its next step.
    """

    def is_open(self) -> bool: ...

    def push(self, step: Step) -> None: ...


@dataclass(slots=True)
class SinkTap:
    """A sink that shows each step to ``observe`` before it passes it on."""

    sink: StepSink
    observe: Callable[[Step], object]

    def is_open(self) -> bool:
        return self.sink.is_open()

    def push(self, step: Step) -> None:
        self.observe(step)
        self.sink.push(step)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability (natural log) of one token."""

    token_id: int
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """At one output position: the chosen token, then the alternatives, most likely first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One forward pass of the target for one request after its prefill.

    ``accepted`` counts draft tokens the target accepted and that were delivered; ``cut`` those it
    accepted but that fell to a stop or a token limit. A step delivers ``accepted`` draft tokens
    and, unless it was cut, one bonus token. ``undrafted`` is set exactly when ``drafted`` is 0.
    """

    drafted: int
    accepted: int
    delivered: int
    cut: int = 0
    undrafted: UndraftedReason | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What an engine yields: the tokens of one engine step, or of several merged ones.

    ``decode`` is the engine's own account of the decode steps that produced ``token_ids``, in
    order. It is empty for the token that comes from prefill and for engines that do not report. An
    engine that learns of it only at the end gives the whole answer's with the last step.
    ``logprobs`` has one entry per token when asked for, else none.
    """

    token_ids: tuple[int, ...]
    decode: tuple[DecodeStep, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    cached_tokens: int | None = None
    """Prompt tokens served from the prefix cache; on one step only."""
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The stop token id that ended the request; it is the last of ``token_ids``."""


@dataclass(frozen=True, slots=True)
class SpeculationInfo:
    """The speculation of a lane, for people: ``summary`` is one line that explains it."""

    method: str
    """none, eagle, eagle3, eagle3.1, mtp, medusa, ngram, suffix, draft_model, ..."""
    depth: int
    """K, the most draft tokens a step may verify; 0 when there is no speculation."""
    draft: str | None = None
    summary: str = ""
    per_request: bool = True
    """It honours the depth of a request."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts about an engine, known once it has started."""

    model: str
    max_model_len: int
    vocab_size: int
    speculation: SpeculationInfo
    reports_decode_steps: bool = True
    thinking_budget: bool | None = None
    """It can end a reasoning after a number of tokens; None where that is unknown."""
    accounts_at_end: bool = False
    """The decode steps of an answer come with its last step; an aborted answer has none."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """The model's own defaults by the names of ``Sampling``, from its generation config."""
    details: Mapping[str, str] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()
    """Parts of the gateway that this vLLM does not fit; vLLM's own do their work."""


@dataclass(frozen=True, slots=True)
class Health:
    """``live``: the engine can generate tokens. ``reason`` explains why not."""

    live: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over any number of requests; add them with ``+``. Ratios of no data are None.

    The letters are those of ``engine/speculation/accounting.py``.
    """

    requests: int = 0
    tokens: int = 0
    """N"""
    first_tokens: int = 0
    """Output tokens delivered that came from prefill: at most one per request."""
    verify_steps: int = 0
    """D"""
    proposed: int = 0
    """P"""
    accepted: int = 0
    """A: accepted and delivered."""
    cut: int = 0
    """Accepted by the target, taken away by a stop or a token limit."""
    lost_bonus: int = 0
    """Decode steps whose bonus token was taken away likewise."""
    rejected: int = 0
    """D_0: verify steps in which every draft was rejected."""
    undrafted: int = 0
    """F, reason ``undrafted``: the engine proposed nothing."""
    off: int = 0
    """F, reason ``off``: speculation was switched off."""
    accepted_at: tuple[int, ...] = ()
    """A_1, A_2, ...: verify steps that delivered the draft at this position."""
    proposed_at: tuple[int, ...] = ()
    """Verify steps that drafted this position: falls over i when depths differ."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            requests=self.requests + other.requests,
            tokens=self.tokens + other.tokens,
            first_tokens=self.first_tokens + other.first_tokens,
            verify_steps=self.verify_steps + other.verify_steps,
            proposed=self.proposed + other.proposed,
            accepted=self.accepted + other.accepted,
            cut=self.cut + other.cut,
            lost_bonus=self.lost_bonus + other.lost_bonus,
            rejected=self.rejected + other.rejected,
            undrafted=self.undrafted + other.undrafted,
            off=self.off + other.off,
            accepted_at=_add_columns(self.accepted_at, other.accepted_at),
            proposed_at=_add_columns(self.proposed_at, other.proposed_at),
        )

    @property
    def plain_steps(self) -> int:
        """F: decode steps without any draft."""
        return self.undrafted + self.off

    @property
    def decode_steps(self) -> int:
        """D + F"""
        return self.verify_steps + self.plain_steps

    @property
    def imbalance(self) -> int:
        """Delivered tokens no step explains; 0 when the account is exact."""
        explained = self.accepted + self.decode_steps - self.lost_bonus + self.first_tokens
        return self.tokens - explained

    @property
    def acceptance_length(self) -> float | None:
        """1 + A / D: tokens per verify step, bonus included."""
        return 1 + self.accepted / self.verify_steps if self.verify_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """A / P: falls as K grows, so never compare it across K."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """a_i = A_i / D"""
        return tuple(count / self.verify_steps for count in self.accepted_at)

    @property
    def conditional_acceptance(self) -> tuple[float | None, ...]:
        """c_i = A_i / A_(i-1), c_1 = a_1; None where the position before was never accepted."""
        before = (self.verify_steps, *self.accepted_at)
        return tuple(
            count / base if base else None
            for count, base in zip(self.accepted_at, before, strict=False)
        )

    @property
    def fallback_ratio(self) -> float | None:
        """(D_0 + F) / (D + F)"""
        steps = self.decode_steps
        return (self.rejected + self.plain_steps) / steps if steps else None

    @property
    def fallback_by_reason(self) -> dict[str, float]:
        """Each reason's part of the fallback ratio; they add up to it. Empty without steps."""
        steps = self.decode_steps
        if not steps:
            return {}
        counts = {"rejected": self.rejected, "undrafted": self.undrafted, "off": self.off}
        return {reason: count / steps for reason, count in counts.items()}

    @property
    def histogram(self) -> tuple[int, ...]:
        """Verify steps that delivered exactly 0, 1, 2, ... draft tokens; sums to D."""
        at_least = (self.verify_steps, *self.accepted_at, 0)
        return tuple(at_least[i] - at_least[i + 1] for i in range(len(at_least) - 1))


def _add_columns(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(left, right, fillvalue=0))
