"""The start-up probe of a worker, asked of engines that are wrong in one way each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from eaglegate.engine.base import Engine, SupportsInspection
from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.fleet.types import FindingKind
from eaglegate.engine.speculation.accounts.accounting import intern_step
from eaglegate.engine.steps import put
from eaglegate.engine.types import EngineInfo, EngineRequest, SpeculationInfo, Step, StepSink
from eaglegate.server.backends.worker_probe import WorkerProbe
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.text.events import FinishReason
from eaglegate.text.parsing.registry import reasoning_format
from eaglegate.text.parsing.vocabulary import Vocabulary
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.server.apis.shared.test_opened_thinking import OpeningRenderer
from tests.workers import MODEL

FILES = ModelFiles.find(MODEL, None, None)
RENDERER = TemplateRenderer(FILES)
OTHER_TEMPLATE = TemplateRenderer(FILES, "{{ messages[0].content }}")
PARSERS = ParserFactory(Vocabulary.from_directory(FILES.tokenizer_json), "hermes", "qwen3")
DEPTH = 3
INFO = EngineInfo("demo", 4096, 2048, SpeculationInfo("unknown", DEPTH))
THOUGHT = "<think>\nA word.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@dataclass
class Worker(Engine, SupportsInspection):
    """An engine whose answers are as they should be, but for what a test changes."""

    accepted: int = 2
    accepted_sampled: int = 2
    """Accepted draft tokens of a step at a temperature."""
    waits: bool = True
    """Whether it leaves the reasoning free where the grammar is to wait for the reasoning's end."""
    structured: str = THOUGHT + '{"answer": "yes"}'
    called: str = THOUGHT + CALL
    cached: int | None = 16
    renderer: TemplateRenderer = RENDERER
    encoder: Any = RENDERER
    pause_s: float = 0.0
    failure: Exception | None = None
    asked: list[EngineRequest] = field(default_factory=list)

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        self.asked.append(request)
        await asyncio.sleep(self.pause_s)
        if request.constraint is not None and self.failure is not None:
            raise self.failure
        text = self.write(request)
        tokens = self.encoder.encode(text, False)[: request.sampling.max_tokens]
        accepted = self.accepted_sampled if request.sampling.temperature else self.accepted
        steps = (intern_step(DEPTH, accepted, accepted + 1, 0, None),) * 8
        whole = request.sampling.max_tokens > len(tokens)
        finish = FinishReason.STOP if whole else FinishReason.LENGTH
        step = Step(tuple(tokens), decode=steps, cached_tokens=self.cached, finish=finish)
        await put(step, sink)

    def write(self, request: EngineRequest) -> str:
        if request.constraint is None:
            return THOUGHT + "Blue."
        if request.constraint.after_reasoning:
            return THOUGHT if self.waits else '{"answer": "yes"}'
        return self.called if "get_weather" in request.constraint.value else self.structured

    async def render_chat(self, messages, tools) -> list[int] | None:
        return self.renderer.render_chat(messages, tools)

    async def has_cache_hits(self) -> bool:
        return True


async def inspect(worker: Worker, deadline_s: float = 5.0, info: EngineInfo = INFO):
    findings = await WorkerProbe(RENDERER, PARSERS, deadline_s)(worker, info)
    return {finding.kind: finding.text for finding in findings}


async def test_a_sound_worker_has_no_findings_and_is_asked_little():
    worker = Worker()
    assert await inspect(worker) == {}
    assert len(worker.asked) < 20
    assert sum(request.sampling.max_tokens for request in worker.asked) < 900


@pytest.mark.parametrize(
    ("name", "value", "kind", "flag"),
    [
        ("accepted", 0, FindingKind.ACCEPTANCE, "draft made for"),
        ("accepted_sampled", 0, FindingKind.SAMPLING, "--worker-extension-cls"),
        ("waits", False, FindingKind.REASONING, "--reasoning-parser qwen3"),
        ("structured", "yes", FindingKind.GRAMMAR, "schema"),
        ("called", THOUGHT + "sunny", FindingKind.TOOLS, "hermes"),
        ("cached", None, FindingKind.ACCOUNT, "--enable-prompt-tokens"),
        ("renderer", OTHER_TEMPLATE, FindingKind.TEMPLATE, "--chat-template"),
    ],
)
async def test_one_fault_is_one_finding_that_names_its_flag(name, value, kind, flag):
    found = await inspect(Worker(**{name: value}))
    assert found.keys() == {kind}
    assert flag in found[kind]


class ChannelWorker(Worker):
    """gpt-oss: a header opens its thoughts, and another one its answer."""

    def write(self, request: EngineRequest) -> str:
        waits = request.constraint is None or (request.constraint.after_reasoning and self.waits)
        return "<|channel|>analysis<|message|>A word." if waits else '{"answer": "yes"}'


async def test_a_missing_reasoning_parser_is_reported_by_format():
    """The gateway's grammar reads over the reasoning, except where only headers tell its end."""
    found = await inspect(Worker(waits=False))
    assert "own are right" in found[FindingKind.REASONING]
    markers = reasoning_format("openai_gptoss").markers
    renderer = OpeningRenderer("<|start|>assistant", markers)
    vocabulary = Vocabulary.from_tokenizers(renderer.tokenizer)
    probe = WorkerProbe(renderer, ParserFactory(vocabulary, None, "openai_gptoss"), 5.0)
    for waits in (True, False):
        findings = await probe(ChannelWorker(waits=waits, encoder=renderer), INFO)
        texts = [finding.text for finding in findings if finding.kind is FindingKind.REASONING]
        held = "it applies the grammar of structured answers to their reasoning, too"
        assert texts == (
            [] if waits else [f"{held}: start it with --reasoning-parser openai_gptoss"]
        )


async def test_a_worker_that_fails_on_grammars_is_found():
    found = await inspect(Worker(failure=EngineFailed("The worker failed on this request.")))
    assert found.keys() == {FindingKind.GRAMMAR, FindingKind.TOOLS}


async def test_a_worker_that_does_not_answer_in_time_is_not_judged():
    assert await inspect(Worker(accepted=0, pause_s=30.0), deadline_s=0.05) == {}


async def test_a_worker_without_speculation_has_no_acceptance_to_judge():
    info = EngineInfo("demo", 4096, 2048, SpeculationInfo("none", 0))
    assert await inspect(Worker(accepted=0), info=info) == {}


async def test_an_engine_that_cannot_be_inspected_is_not_asked():
    class Text(Engine):
        asked = 0

        async def generate(self, request, sink):
            self.asked += 1

    engine = Text()
    assert await WorkerProbe(RENDERER, PARSERS, 5.0)(engine, INFO) == ()
    assert engine.asked == 0
