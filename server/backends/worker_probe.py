"""Startup probe of a worker: a few small requests such as clients of this gateway would send.

A worker's configuration is only visible in its answers. Each check below judges one aspect and
returns a fault or None; a check without a timely answer judges nothing. Only engines that can
render and count for other clients (``SupportsInspection``: vLLM) are probed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson

from eaglegate.engine.base import Engine, SupportsInspection
from eaglegate.engine.errors import EngineError
from eaglegate.engine.fleet.types import FindingKind, WorkerFinding
from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.steps import read_steps
from eaglegate.engine.totals import WORTHLESS, Totals
from eaglegate.engine.types import Constraint, DecodeStep, EngineInfo, EngineRequest, Sampling, Step
from eaglegate.server.errors import GatewayError
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.generation.job import Prompt, Question, ToolPolicy
from eaglegate.text.events import FinishReason, Outcome, Phase
from eaglegate.text.parsing.fold import AnswerFold
from eaglegate.text.rendering.base import Renderer

log = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]
TEXTS = (
    "Write a Python function that adds two numbers.",
    "Count from one to thirty.",
    "What is the capital of France? Answer in one sentence.",
)
DRAFTED_TOKENS = 48
MIN_VERIFY_STEPS = 16
"""Minimum number of verify steps for judging a draft."""
ANSWER_TOKENS = 192
"""Maximum tokens of an answer with its reasoning. Longer answers are not judged."""
NEAR_GREEDY = 0.01
"""A temperature at which a sample is the most likely token, except for ties."""
OPENING_TOKENS = 3
LONG = "The quick brown fox jumps over the lazy dog. " * 40
"""Text of several prefix cache blocks, at 16 to 128 tokens per block."""
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


NO_TOOLS = ToolPolicy()
NUMBERS = count()
"""Numbers that make the probes' request ids unique."""


@dataclass(slots=True)
class ProbeAnswer:
    """The answer to one request, without its stop token."""

    token_ids: list[int] = field(default_factory=list)
    decode: list[DecodeStep] = field(default_factory=list)
    finish: FinishReason | None = None
    cached: int | None = None

    def add(self, step: Step) -> None:
        has_stop = step.stop_token is not None
        self.token_ids += step.token_ids[:-1] if has_stop else step.token_ids
        self.decode += step.decode
        self.finish = step.finish or self.finish
        self.cached = step.cached_tokens if self.cached is None else self.cached


@dataclass(frozen=True, slots=True)
class WorkerProbe:
    """Probe of a worker. See ``eaglegate.engine.fleet.worker.InspectWorker``."""

    renderer: Renderer
    parsers: ParserFactory
    deadline_s: float
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    async def __call__(self, engine: Engine, info: EngineInfo) -> Sequence[WorkerFinding]:
        if (inspected := engine.capability(SupportsInspection)) is None:
            return ()
        visit = Visit(self, engine, inspected, info)
        questions = {
            FindingKind.ACCEPTANCE: visit.judge_acceptance,
            FindingKind.SAMPLING: visit.judge_sampling,
            FindingKind.REASONING: visit.judge_reasoning,
            FindingKind.GRAMMAR: visit.judge_grammar,
            FindingKind.TOOLS: visit.judge_tools,
            FindingKind.TEMPLATE: visit.judge_template,
            FindingKind.ACCOUNT: visit.judge_account,
        }
        faults: dict[FindingKind, str | None] = {}
        deadline = asyncio.get_running_loop().time() + self.deadline_s

        async def ask(kind: FindingKind, judge: Callable[[], Awaitable[str | None]]) -> None:
            try:
                faults[kind] = await judge()
            except (EngineError, GatewayError, ValueError) as error:
                log.info(
                    "probe of worker %s: %s could not be checked: %s", visit.name, kind.value, error
                )

        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as group:
                for kind, judge in questions.items():
                    if kind is not FindingKind.SAMPLING:
                        group.create_task(ask(kind, judge))
            # Alone, since a worker that fails here also spoils the greedy answers of the others.
            async with asyncio.timeout_at(deadline):
                await ask(FindingKind.SAMPLING, visit.judge_sampling)
        return [WorkerFinding(kind, text) for kind in questions if (text := faults.get(kind))]

    def render(self, messages: Messages, tools: Messages | None = None) -> list[int]:
        """Render a conversation in the same way as a client's. Raises ValueError."""
        return self.renderer.render_chat(
            messages, tools, chat_template_kwargs=dict(self.template_kwargs)
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """Checks of one worker. Each check returns a fault as a sentence, or None."""

    probe: WorkerProbe
    engine: Engine
    inspected: SupportsInspection
    info: EngineInfo

    @property
    def name(self) -> str:
        return self.info.details.get("worker", "a worker")

    async def judge_acceptance(self) -> str | None:
        """Check that greedy drafts are worth their cost."""
        totals = await self._draft(temperature=0.0)
        if not is_worthless(totals):
            return None
        return (
            f"its draft is hardly ever right ({describe(totals)}): start it with a draft made for "
            "this model and chat template"
        )

    async def judge_sampling(self) -> str | None:
        """Check that drafts are also right near temperature 0, where a sample is the greedy
        token.
        """
        greedy_totals = await self._draft(temperature=0.0)
        sampled_totals = await self._draft(temperature=NEAR_GREEDY)
        if is_worthless(greedy_totals) or not is_worthless(sampled_totals):
            return None
        return (
            "its answers with a temperature are wrong when it drafts "
            f"({describe(sampled_totals)} at {NEAR_GREEDY:g}, "
            f"{greedy_totals.acceptance_length:.2f} without): on a CPU start it with "
            "--worker-extension-cls eaglegate.engine.DepthWorker, or without a draft"
        )

    async def _draft(self, temperature: float) -> Totals:
        """Return the decode steps of a few answers, summed."""
        if not self.info.speculation.depth:
            return Totals()
        answers = await asyncio.gather(
            *(
                self._ask(self._read(text), DRAFTED_TOKENS, temperature=temperature)
                for text in TEXTS
            )
        )
        return sum_steps(step for answer in answers for step in answer.decode)

    async def judge_reasoning(self) -> str | None:
        """Check that a grammar leaves the worker's reasoning unconstrained."""
        parser = self.probe.parsers.reasoning_parser
        prompt = self._read("Name one colour.")
        free_answer = await self._ask(prompt, OPENING_TOKENS)
        if parser is None or not self._reasons(prompt, free_answer):
            return None
        constraint = Constraint("json_schema", orjson.dumps(SCHEMA).decode(), after_reasoning=True)
        constrained_answer = await self._ask(prompt, OPENING_TOKENS, constraint)
        if not self._opens_json(constrained_answer) or self._opens_json(free_answer):
            return None
        fault = (
            "it applies the grammar of structured answers to their reasoning, too"
            if self._has_channels()
            else "it refuses thinking budgets, and applies the grammar of its direct clients' "
            "structured answers to their reasoning, too (this gateway's own are right)"
        )
        return f"{fault}: start it with --reasoning-parser {parser}"

    async def judge_grammar(self) -> str | None:
        """Check that a structured answer matches its schema."""
        schema = Constraint("json_schema", orjson.dumps(SCHEMA).decode())
        question = _ask(constraint=schema)
        prompt = self._read("Is water wet? Answer with a JSON object.")
        try:
            fold, finish = await self._answer(question, prompt)
        except EngineError as error:
            return f"it fails on structured answers ({error}): its log has the reason"
        if finish is not FinishReason.STOP:
            return None
        content = fold.text(Phase.CONTENT)
        with suppress(orjson.JSONDecodeError):
            if orjson.loads(content) in ({"answer": "yes"}, {"answer": "no"}):
                return None
        return (
            "its structured answers do not match their schema: start it with vLLM's default "
            "--structured-outputs-config"
        )

    async def judge_tools(self) -> str | None:
        """Check that a forced tool call can be parsed."""
        parser = self.probe.parsers.tool_parser
        if parser is None:
            return None
        question = _ask(tools=ToolPolicy((TOOL,), "required", parallel=False))
        prompt = self._read("What is the weather in Paris?", [TOOL])
        try:
            fold, finish = await self._answer(question, prompt)
        except EngineError as error:
            return f"it fails on forced tool calls ({error}): its log has the reason"
        outcomes = [call.outcome for call in fold.calls]
        if finish is not FinishReason.STOP or outcomes == [Outcome.VALID]:
            return None
        return (
            f"a forced tool call is not in the format of {parser}: give this gateway "
            "the --tool-call-parser of the worker's model"
        )

    async def judge_template(self) -> str | None:
        """Check that the worker renders its direct clients' prompts like this gateway."""
        for messages, tools in _list_conversations(self.probe.parsers.tool_parser is not None):
            with suppress(ValueError):  # the template may refuse a role
                local_ids = self.probe.render(messages, tools)
                worker_ids = await self.inspected.render_chat(messages, tools)
                if worker_ids is not None and worker_ids != local_ids:
                    return (
                        f"its chat template differs (a conversation of {len(messages)} messages "
                        f"is {len(worker_ids)} tokens there and {len(local_ids)} here): start both "
                        "with the same --chat-template and --default-chat-template-kwargs"
                    )
        return None

    async def judge_account(self) -> str | None:
        """Check that answers report everything that the gateway counts."""
        flags = (
            [] if self.info.reports_decode_steps else ["--per-request-spec-decode-metrics detailed"]
        )
        prompt = Prompt(tuple(self.probe.renderer.encode(LONG, True)))
        answers = [await self._ask(prompt, 1) for _ in range(2)]
        is_silent = all(answer.cached is None for answer in answers)
        if is_silent and await self.inspected.has_cache_hits():
            flags.append("--enable-prompt-tokens-details")
        if not flags:
            return None
        return f"its answers lack some counts: start it with {' '.join(flags)}"

    def _read(self, text: str, tools: Messages | None = None) -> Prompt:
        """Render and read a prompt. Raises ValueError if the model has no chat template."""
        messages = [{"role": "user", "content": text}]
        return self.probe.parsers.read(self.probe.render(messages, tools))

    def _reasons(self, prompt: Prompt, answer: ProbeAnswer) -> bool:
        """Return True if the answer to ``prompt`` begins with reasoning or a channel header."""
        if prompt.starts_in is Phase.REASONING or self._has_channels():
            return True
        text = self.probe.renderer.decode(answer.token_ids).lstrip()
        return text.startswith(self.probe.parsers.reasoning.starts or ("\0",))

    def _has_channels(self) -> bool:
        """Return True if only the worker can tell where content begins; otherwise the grammar
        can.
        """
        return self.probe.parsers.reasoning.channels is not None

    def _opens_json(self, answer: ProbeAnswer) -> bool:
        return self.probe.renderer.decode(answer.token_ids).lstrip().startswith("{")

    async def _answer(self, question: Question, prompt: Prompt) -> tuple[AnswerFold, FinishReason]:
        """Generate and parse an answer. Raises EngineError and GatewayError."""
        parsers = self.probe.parsers
        answer = await self._ask(prompt, ANSWER_TOKENS, parsers.constrain(question, prompt))
        parser, fold = parsers.make(question, prompt.starts_in), AnswerFold()
        finish = answer.finish or FinishReason.LENGTH
        for event in [*parser.feed(answer.token_ids), *parser.flush(finish)]:
            fold.add(event)
        return fold, finish

    async def _ask(
        self,
        prompt: Prompt,
        max_tokens: int,
        constraint: Constraint | None = None,
        temperature: float = 0.0,
    ) -> ProbeAnswer:
        """Send a request at the worker's own depth. Raises EngineError."""
        speculation = self.info.speculation
        request = EngineRequest(
            id=f"eaglegate-probe-{next(NUMBERS)}",
            prompt=prompt.token_ids,
            sampling=Sampling(max_tokens=max_tokens, temperature=temperature),
            constraint=constraint,
            depth=speculation.depth if speculation.per_request else None,
        )
        answer = ProbeAnswer()
        async with aclosing(read_steps(self.engine.generate, request)) as steps:
            async for step in steps:
                answer.add(step)
        return answer


def is_worthless(totals: Totals) -> bool:
    """Return True if enough steps were verified and hardly any draft token was accepted."""
    length = totals.acceptance_length
    return length is not None and totals.verify_steps >= MIN_VERIFY_STEPS and length < WORTHLESS


def describe(totals: Totals) -> str:
    return f"{totals.acceptance_length:.2f} tokens per verify step over {totals.verify_steps} steps"


def _ask(constraint: Constraint | None = None, tools: ToolPolicy = NO_TOOLS) -> Question:
    return Question(
        prompts=(),
        sampling=Sampling(max_tokens=ANSWER_TOKENS, temperature=0.0),
        constraint=constraint,
        tool_policy=tools,
    )


def _list_conversations(with_tools: bool) -> Iterator[tuple[Messages, Messages | None]]:
    question = {"role": "user", "content": "Name one colour."}
    exchange = [question, {"role": "assistant", "content": "Blue."}, question]
    yield [question], None
    yield exchange, None
    yield [{"role": "system", "content": "Answer in one word."}, *exchange], None
    if with_tools:
        yield [question], [TOOL]
