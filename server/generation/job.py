"""Job: a validated request. It is frozen, and every field has a value and a meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from eaglegate.engine.types import (
    CLASS_PRIORITIES,
    Arm,
    Constraint,
    EngineRequest,
    Sampling,
)
from eaglegate.server.access.caller import Caller
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.errors import context_overflow
from eaglegate.text.events import Phase
from eaglegate.text.media.image import Image
from eaglegate.text.media.source import ImageSource
from eaglegate.text.rendering.template import count_images

if TYPE_CHECKING:
    from eaglegate.text.grammars.text_grammar import TextGrammar


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    """The request's own template, if the operator allows one."""
    images: tuple[ImageSource, ...] = ()
    """Images of all messages. Each has a part ``{"type": "image"}`` in its message, in this order.
    """

    def __post_init__(self) -> None:
        """Put parallel tool results in the order of their calls: many templates show no ids."""
        order = _order_results(self.messages)
        if order == sorted(order):
            return
        images = iter(self.images)
        by_message = [[*islice(images, count_images(message))] for message in self.messages]
        object.__setattr__(self, "messages", tuple(self.messages[index] for index in order))
        object.__setattr__(
            self, "images", tuple(image for index in order for image in by_message[index])
        )

    @property
    def continued_text(self) -> str:
        """Text of the message that the answer continues; empty if it begins one."""
        content = self.messages[-1].get("content") if self.continue_final_message else ""
        if isinstance(content, str):
            return content
        return "".join(part.get("text", "") for part in content or ())


def _order_results(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of messages, with adjacent tool results in the order of their calls.

    Results of unknown calls come last, in their own order.
    """
    places: dict[Any, tuple[int, int]] = {}
    order: list[int] = []

    def find_place(index: int) -> tuple[int, int]:
        return places.get(messages[index].get("tool_call_id"), (len(messages), 0))

    for are_results, indices in groupby(range(len(messages)), lambda i: is_result(messages[i])):
        if are_results:
            order += sorted(indices, key=find_place)
            continue
        for index in indices:
            order.append(index)
            for position, call in enumerate(messages[index].get("tool_calls") or ()):
                places[call.get("id")] = index, position
    return order


def is_result(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "tool")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt, and the phase in which the answer begins.

    Each image has one placeholder token, which the engine replaces by the tokens of the image.
    """

    token_ids: tuple[int, ...]
    starts_in: Phase = Phase.CONTENT
    reasoned: bool = False
    """True if the prompt ends with closed reasoning, as templates write it when thinking is off."""
    images: tuple[Image, ...] = ()
    expanded_length: int = 0
    """Tokens of a prompt with images after the replacement; 0 without images."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the engine computes for the prompt."""
        return self.expanded_length or len(self.token_ids)

    @property
    def num_image_tokens(self) -> int:
        return self.num_tokens - len(self.token_ids) + len(self.images)


Side = Literal["left", "right"]
LEAST = 1
"""Tokens of the context reserved for the answer."""


def fit(
    api: str,
    num_prompt: int,
    max_tokens: int,
    at_least: int,
    max_model_len: int,
    num_image_tokens: int = 0,
) -> int:
    """Return the answer's limit in tokens: the smaller of ``max_tokens`` and the room that the
    prompt leaves.

    ``max_tokens`` of 0 means no limit; ``at_least`` is the request's minimum. Raises InvalidRequest
    if the minimum or the prompt does not fit.
    """
    room = max_model_len - num_prompt
    if room < max(LEAST, at_least):
        raise context_overflow(
            api,
            num_prompt,
            at_least or max_tokens,
            max_model_len,
            num_image_tokens=num_image_tokens,
        )
    return min(max_tokens, room) if max_tokens else room


PromptSource = Conversation | str | tuple[int, ...]
"""Source of a prompt: the input of a chat template, text, or token ids."""

Namespaced = tuple[str, str]
"""A namespace, and a tool's own name in it."""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Offered tools, and the calls that the client wants."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions in the format of chat completions."""
    choice: str = "none"
    """Tool choice: none, auto or required."""
    only: frozenset[str] = frozenset()
    """Functions that may be called; empty for all."""
    parallel: bool = True
    custom: Mapping[str, TextGrammar | None] = field(default_factory=dict)
    """Grammars of custom tools by name; None for free text."""
    namespaces: Mapping[str, Namespaced] = field(default_factory=dict)
    """Namespace and own name of tools with a flat name."""
    defined: frozenset[str] = frozenset()
    """Tools that the API defines and the client runs. Their calls have their own kinds of items."""

    @property
    def callable(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that may be called."""
        if self.choice == "none":
            return ()
        if not self.only:
            return self.tools
        return tuple(t for t in self.tools if t["function"]["name"] in self.only)


class Question(Struct, frozen=True):
    """What is asked: the prompts, the tools, and the rules of the answers.

    Choice ``i`` of the answer is the ``i % n``-th answer to prompt ``i // n``.
    """

    prompts: tuple[PromptSource, ...]
    sampling: Sampling
    """Sampling parameters. ``max_tokens`` of 0 means as many as fit."""
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    parses: bool = True
    """True if reasoning and tool calls are parsed. Completions deliver the plain text."""
    add_special_tokens: bool = True
    """The tokenizer adds its special tokens to text prompts."""
    drops_oldest: bool = False
    """Leave out the oldest messages of a conversation that does not fit."""
    truncate_prompt: int | None = None
    """Maximum number of prompt tokens to keep; ``prompt.AS_FITS`` for as many as fit."""
    truncation_side: Side = "left"
    """Side on which the prompt is cut."""
    tool_policy: ToolPolicy = ToolPolicy()
    constraint: Constraint | None = None
    """Constraint on the content. Reasoning and tool calls are exempt."""
    grammar_param: str = "tools"
    """The request field that the engine's grammar comes from."""

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n


class Display(Struct, frozen=True):
    """How the answer is shown."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    """Every chunk of a stream carries its choice's usage so far."""
    include_reasoning: bool = True
    wants_prompt: bool = False
    """True if the events begin with the prompt."""
    wants_prompt_logprobs: bool = False
    """The answer includes the prompt's log probabilities as vLLM's ``prompt_logprobs``."""
    echo: bool = False
    """The answer begins with the prompt (completions only)."""
    echo_only: bool = False
    """The answer is only the prompt; generated tokens are dropped."""
    spec_metrics: str = "none"
    """Speculation metrics in the answer: none, summary or detailed."""
    obfuscates: bool = False
    """Streamed frames are padded, so that their sizes do not reveal the number of tokens."""
    return_token_ids: bool = False
    return_steps: bool = False
    """The answer includes its engine steps, token by token."""
    returns_prompt_text: bool = False
    """The answer includes the prompt as the chat template wrote it."""
    token_names: str = "text"
    """Names of tokens in log probabilities: text or ids."""
    repeated: Mapping[str, Any] = {}
    """Members of the answer that come from the request, such as its service tier."""


class Placement(Struct, frozen=True):
    """Where and how the answer is generated: the client's wishes, then the policy's decision."""

    depth: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    affinity: str | None = None
    """The session according to the body. A session in a header takes precedence."""
    adapter: str | None = None
    """The LoRA adapter named by the job's model."""
    lane: str = "default"
    arm: Arm | None = None
    """Arm of the running canary that serves the request."""
    lookup: int | None = None
    """Longest lookup; None leaves it to the engine."""


class Job(Struct, frozen=True):
    """One request to any of the APIs."""

    id: str
    api: str
    """API of the request: chat, completions, responses or messages."""
    model: str
    created: int
    """Unix time in seconds."""
    question: Question
    display: Display
    caller: Caller
    placement: Placement
    workload: str
    template: str
    """Fingerprint of system prompt and tool schemas, used as a metrics slice."""

    @property
    def session(self) -> str | None:
        return self.caller.session or self.placement.affinity

    @property
    def _engine_priority(self) -> int:
        """Priority in the engine: the key's class, and the client's number within that class. A
        client with a key can put its requests back, never ahead of another key's."""
        key, limit = self.caller.key, CLASS_PRIORITIES // 2 - 1
        level = Priority.NORMAL if key is None else key.priority
        minimum = -limit if key is None else 0
        in_class = max(minimum, min(self.placement.priority, limit))
        return (level - Priority.NORMAL) * CLASS_PRIORITIES + in_class

    def engine_request(
        self, prompt: Prompt, choice: int, max_model_len: int, constraint: Constraint | None
    ) -> EngineRequest:
        """Return the engine request of one choice. Raises InvalidRequest if it does not fit."""
        sampling, placement, key = self.question.sampling, self.placement, self.caller.key
        requested_tokens = sampling.max_tokens
        max_tokens = fit(
            self.api,
            prompt.num_tokens,
            requested_tokens,
            sampling.min_tokens,
            max_model_len,
            prompt.num_image_tokens,
        )
        answer = choice % self.question.n
        seed = None if sampling.seed is None else derive_seed(sampling.seed, answer)
        if max_tokens != requested_tokens or seed != sampling.seed:
            sampling = replace(sampling, max_tokens=max_tokens, seed=seed)
        return EngineRequest(
            id=f"{self.id}-{choice}",
            prompt=prompt.token_ids,
            sampling=sampling,
            constraint=constraint,
            adapter=placement.adapter,
            depth=placement.depth,
            priority=self._engine_priority,
            lane=placement.lane,
            workload=self.workload,
            tenant=self.caller.name or "",
            latency_ms=None if key is None else key.latency_ms,
            weight=1.0 if key is None else key.step_weight,
            cache_salt=placement.cache_salt,
            affinity=self.session,
            arm=placement.arm,
            traced=self.display.return_steps,
            images=prompt.images,
            expanded_length=prompt.expanded_length,
            lookup=placement.lookup,
        )


def derive_seed(seed: int, choice: int) -> int:
    """Return the seed of one choice: the request's for the first, and a derived one for the others.

    Requests with neighbouring seeds share no derived seeds.
    """
    if not choice:
        return seed
    digest = hashlib.blake2b(f"{seed}:{choice}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
