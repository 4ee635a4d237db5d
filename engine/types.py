"""Engine requests and steps. They are immutable, and every default is neutral."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from msgspec import Struct

from eaglegate.engine.advisories import Advisory
from eaglegate.text.events import FinishReason
from eaglegate.text.media.image import Image

CHAT, TOOLS, STRUCTURED, REASONING = WORKLOADS = ("chat", "tools", "structured", "reasoning")
"""Workloads under which requests are counted that name no workload of their own."""
CLASS_PRIORITIES = 1 << 16
"""Number of priorities in a class (``find_class``)."""
LAST_PRIORITY = 1 << 20
"""Priority of the gateway's own requests: after every request of a user."""
VERSION = "version"
"""Name in ``EngineInfo.details`` of the version that a worker's server gives itself."""
STEP_TOKENS = 8192
"""Assumed maximum number of tokens in a step of an engine that does not report it."""


def find_class(priority: int) -> int:
    """Return the class that an engine request's priority belongs to; lower classes run earlier."""
    return (priority + CLASS_PRIORITIES // 2) // CLASS_PRIORITIES


class Arm(StrEnum):
    """A request's side of a canary."""

    CONTROL = "control"
    CANDIDATE = "candidate"


class DepthReason(StrEnum):
    """Reason for the depth of a step."""

    COST = "cost"
    """The depth has the highest expected rate."""
    PROBE = "probe"
    """The depth is chosen to learn from it."""
    COLD = "cold"
    """The depth is chosen to learn about unknown requests."""
    DRIFT = "drift"
    """Acceptance falls with the position, so the depth is less than the first positions suggest."""
    BOUND = "bound"
    """A request, key, workload or operator bounds the depth."""
    PINNED = "pinned"
    """A request, or a rule for its key or workload, fixes the depth."""
    FROZEN = "frozen"
    """An operator fixed the depth."""


class Drafter(StrEnum):
    """Source of the draft tokens that a step verified."""

    DRAFT = "draft"
    """The draft model, or another method of vLLM."""
    LOOKUP = "lookup"
    """A lookup in the request's own text, beside a draft (``--lookup``)."""


class UndraftedReason(StrEnum):
    """Why a decode step verified no draft token (docs/metrics.md, fallback ratio)."""

    OFF = "off"
    """Speculation was off for this request: policy, request field or lane."""
    PLANNED = "planned"
    """The planner chose no draft for this step: ``DecodeStep.planned`` has its reason."""
    REFUSED = "undrafted"
    """The engine proposed nothing: grammar, near the length limit, draft refused."""


@dataclass(frozen=True, slots=True)
class RepetitionStop:
    """A stop after ``min_count`` repetitions of a pattern of ``min_pattern_size`` to
    ``max_pattern_size`` tokens."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


class Sampling(Struct, frozen=True):
    """Rules for choosing the next token. Every field has a neutral value that switches it off."""

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
    logit_bias: Mapping[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()
    """Token ids that may be generated; empty allows all."""
    bad_words: tuple[str, ...] = ()
    """Texts whose token sequences must not be generated."""
    thinking_token_budget: int | None = None
    """Reasoning tokens after which the reasoning is ended; None sets no limit."""
    repetition: RepetitionStop | None = None
    """Rule that stops an output that repeats itself; None never stops it."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Alternatives per output token; 0 reports the chosen token alone, None reports nothing."""
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """Constraint on the output. ``value`` is JSON text for json_schema and structural_tag."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
    value: str = ""
    choices: tuple[str, ...] = ()
    after_reasoning: bool = False
    """Leave the reasoning free and constrain what follows it."""


class EngineRequest(Struct, frozen=True):
    """One sequence to generate. ``prompt`` holds token ids.

    A prompt with images has one placeholder token for each of them, in their order. The engine
    replaces each placeholder by the tokens of its image.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    constraint: Constraint | None = None
    depth: int | None = None
    """Draft tokens per step, 0..K; None leaves it to the lane's default."""
    priority: int = 0
    """Lower runs earlier."""
    lane: str = "default"
    workload: str = "chat"
    tenant: str = ""
    """Public name of the API key. Its traffic teaches the planner about this key alone."""
    latency_ms: float | None = None
    """Objective of the request's latency class in milliseconds per output token; 0 if the class has
    none, None if the request has no latency class.
    """
    weight: float = 1.0
    """Share of the request's key in steps that also run a latency class."""
    cache_salt: str | None = None
    adapter: str | None = None
    """The LoRA adapter to generate with, by its name; None for the model itself."""
    affinity: str | None = None
    """Requests with the same value share a cache, for example a session or a conversation."""
    arm: Arm | None = None
    """Side of the running canary that serves the request."""
    trace_headers: Mapping[str, str] = {}
    teaches: bool = True
    """True if the planner learns from its steps, and chooses its depth if it has none."""
    traced: bool = False
    """True if the engine should add ``traces`` to the request's steps where it can."""
    quotes: tuple[int, ...] = ()
    """Tokens of text that the answer may quote, beside those of the prompt, for lookups."""
    lookup: int | None = None
    """Longest lookup beside a draft, 0..N; None leaves it to the engine."""
    scoring: Mapping[str, Any] | None = None
    """Rules for scoring the answer at the end of the prompt; None except for audits.
    """
    images: tuple[Image, ...] = ()
    expanded_length: int = 0
    """Tokens of a prompt with images after the engine has replaced the placeholders; 0 without
    images."""

    @property
    def num_prompt(self) -> int:
        """Number of tokens that the engine computes for the prompt."""
        return self.expanded_length or len(self.prompt)


class StepSink(Protocol):
    """Receiver of one request's steps. One call carries a step from the engine to the client.

    While ``is_open`` is true, an engine pushes each step at once, from any callback of the event
    loop. Otherwise it holds its steps back until ``drain`` returns, and pushes them joined into
    one. An exception of ``push`` or ``drain`` ends the request, and ``Engine.generate`` raises it.

    A sink around another sink passes on the other's ``is_open`` and ``drain``.
    """

    def is_open(self) -> bool:
        """Return True if the client keeps up and another step may be pushed without waiting."""
        ...

    def push(self, step: Step) -> None: ...

    async def drain(self) -> None:
        """Wait until all pushed steps were sent to the client. Only one task may wait at a time."""
        ...


class SinkTap:
    """A sink that shows each step to ``observe`` before it passes it on."""

    __slots__ = ("_observe", "_push", "drain", "is_open")

    def __init__(self, sink: StepSink, observe: Callable[[Step], object]) -> None:
        self.is_open, self.drain = sink.is_open, sink.drain
        self._push = sink.push
        self._observe = observe

    def push(self, step: Step) -> None:
        self._observe(step)
        self._push(step)


class TokenLogprob(Struct, frozen=True):
    """The log probability (natural log) of one token."""

    token_id: int
    logprob: float
    rank: int | None = None


class PositionLogprobs(Struct, frozen=True):
    """Log-probabilities at one output position: the chosen token, then the alternatives, most
    likely first.
    """

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


class DecodeStep(Struct, frozen=True):
    """One forward pass of the target for one request after its prefill.

    ``accepted`` counts accepted draft tokens that were delivered; ``cut`` counts accepted ones that
    a stop or a token limit removed. A step delivers ``accepted`` draft tokens and, unless it was
    cut, one bonus token. ``undrafted`` is set exactly when ``drafted`` is 0.
    """

    drafted: int
    accepted: int
    delivered: int
    cut: int = 0
    undrafted: UndraftedReason | None = None
    planned: DepthReason | None = None
    """The planner's reason for the depth; None if it planned nothing for the request."""
    drafter: Drafter = Drafter.DRAFT
    """Source of the drafted tokens."""

    @property
    def lookup(self) -> int:
        """1 if the drafted tokens came from a lookup, else 0."""
        return int(self.drafter is Drafter.LOOKUP)


class StepTrace(Struct, frozen=True):
    """Details of one engine step that brought tokens, for a request that is ``traced``."""

    at: float
    """Time of the engine's clock at the end of the step, in seconds."""
    drafts: tuple[int, ...] = ()
    """Draft tokens that the step verified, in order; empty where the engine does not know them."""
    rates: tuple[float, ...] = ()
    """Tokens per second that the planner expected at depths 0 .. K, 0 where a depth was not open;
    empty if it planned nothing for the request."""
    token_price: float = 0.0
    """The least survival at which the planner verifies a draft token."""


class Step(Struct, frozen=True):
    """Output of an engine: the tokens of one engine step, or of several merged ones.

    ``decode`` is the engine's own account of the decode steps that produced ``token_ids``, in
    order. It is empty for the token that comes from prefill and for engines that report no account.
    An engine that learns the account only at the end reports the whole answer's with the last step.
    ``logprobs`` has one entry per token when asked for, else none.
    """

    token_ids: tuple[int, ...]
    decode: tuple[DecodeStep, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    cached_tokens: int | None = None
    """Prompt tokens served from the prefix cache; on one step only."""
    recomputed_tokens: int | None = None
    """Prompt tokens in the prefix cache that were computed again because of the draft, with the
    first step; None if unknown."""
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The stop token id that ended the request; it is the last of ``token_ids``."""
    queued_s: float | None = None
    """Seconds the request waited in the engine's queue, with its first step; None if unknown."""
    preemptions: int = 0
    """Number of times the engine preempted the request to free memory, with its last step."""
    traces: tuple[StepTrace, ...] = ()
    """One trace for each engine step that made ``token_ids``, for requests that are traced."""


@dataclass(frozen=True, slots=True)
class SpeculationInfo:
    """Description of a lane's speculation. ``summary`` explains it in one line."""

    method: str
    """none, eagle, eagle3, eagle3.1, mtp, medusa, ngram, suffix, draft_model, ..."""
    depth: int
    """K, the greatest depth of the draft; 0 when there is no speculation."""
    draft: str | None = None
    summary: str = ""
    per_request: bool = True
    """True if the engine honours the depth of a request."""
    lookup: int = 0
    """Longest lookup that a step may verify in place of drafts; 0 without lookups."""
    lossy: tuple[str, ...] | None = ()
    """One sentence for each setting that may change text; None if unknown."""
    takes_quotes: bool = False
    """True if lookups also search ``EngineRequest.quotes``."""

    @property
    def width(self) -> int:
        """The most tokens that a step may verify for a request: drafts, or a lookup."""
        return max(self.depth, self.lookup)


TEXT_ONLY = "text only"
TEXT_AND_IMAGES = "text and images"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How a model takes images."""

    placeholder: int
    """Id of the token that stands for one image in ``EngineRequest.prompt``."""
    max_images: int
    """Maximum number of images in a prompt."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts about an engine, known once it has started."""

    model: str
    max_model_len: int
    vocab_size: int
    speculation: SpeculationInfo
    reports_decode_steps: bool = True
    thinking_budget: bool | None = None
    """True if the engine can end reasoning after a number of tokens; None if unknown."""
    accounts_at_end: bool = False
    """True if the last step brings all decode steps; an aborted answer then has none."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """The model's own defaults by the names of ``Sampling``, from its generation config."""
    details: Mapping[str, str] = field(default_factory=dict)
    advisories: tuple[Advisory, ...] = ()
    """Known faults of its version with its settings."""
    start_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the engine's start took, by part."""
    plans_depth: bool = False
    """True if the engine chooses a depth at every step for requests without their own."""
    step_tokens: int = STEP_TOKENS
    """Maximum number of tokens that the engine computes in a step."""
    image_input: ImageInput | None = None
    """How the model takes images; None if it reads text only."""

    @property
    def input_summary(self) -> str:
        return TEXT_ONLY if self.image_input is None else TEXT_AND_IMAGES


@dataclass(frozen=True, slots=True)
class WorkerExecution:
    """Execution mode of one worker."""

    runner: int
    """1 or 2, for vLLM's first or second model runner."""
    attention: tuple[str, ...]
    """Attention backends in use."""
    compilation: str
    graphs: str
    """The graph mode after the worker has checked which modes its layers support."""
    captured: int
    """Graphs captured."""
    compiled_parts: int
    """Parts of the target that run compiled."""
    compilable_parts: int


@dataclass(frozen=True, slots=True)
class Execution:
    """Execution mode of an engine: the arguments' request, and each worker's own report."""

    eager: bool
    """True if the arguments ask for eager execution."""
    compilation: str
    graphs: str
    dtype: str
    asynchronous: bool
    workers: tuple[WorkerExecution, ...]
    steps: Mapping[str, int]
    """Steps by the graph mode they ran with; empty if the engine does not report it."""


@dataclass(frozen=True, slots=True)
class Health:
    """Health of an engine. ``live`` means that it can generate tokens; ``reason`` explains why
    not."""

    live: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PostMortem:
    """Report on an engine's end for operators, bounded and without prompts."""

    ended_by: str = ""
    """A signal's name or an exit status."""
    error: str = ""
    """The last line of the traceback that ended it."""
    log: tuple[str, ...] = ()
    """The last lines that its processes wrote."""
