"""The gateway on the scripted engine with the demo's own template, as a process of its own.

Says its URL when it is ready; ends when standard input does.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace

from eaglegate.engine.scripted import steps
from eaglegate.engine.types import EngineRequest, Step
from eaglegate.server.store.base import Retention
from eaglegate.server.store.sql import SqlResponseStore
from eaglegate.text.events import FinishReason
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.server.conftest import DEMO, EOS, Lab, on_a_port

CONTEXT = 32_768


ANSWERS = (
    "one two three", "", "<think>so</think>yes", "<think>so", '{"a": 1}',
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    'hm <tool_call>\n{"name": "g", "arguments": {"a": [1',
    '<tool_call>\n{"name": "nobody"}\n</tool_call><tool_call>', "x</think>y</tool_call>", "漢字 😀",
)  # fmt: skip


def _script(lab: Lab) -> Callable[[EngineRequest], list[Step]]:
    """One answer after another, in steps of one to four tokens."""
    turns = itertools.count()
    answers = [lab.renderer.encode(text + EOS, False) for text in ANSWERS]

    def script(_: EngineRequest) -> list[Step]:
        turn = next(turns)
        ids = answers[turn % len(answers)]
        return steps(ids, range(1, len(ids), 1 + turn % 4), FinishReason.STOP)

    return script


def main() -> None:
    lab = Lab(renderer=TemplateRenderer(ModelFiles.find(str(DEMO), None, None)))
    lab.engine.script = _script(lab)
    pipeline = lab.gateway.pipeline
    lab.gateway.open(replace(pipeline, info=replace(pipeline.info, max_model_len=CONTEXT)))
    with tempfile.TemporaryDirectory() as folder:
        lab.gateway.store = SqlResponseStore(f"sqlite:///{folder}/responses.db", Retention(3600))
        with on_a_port(lab.app) as url:
            print(url, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
