"""A worker that plays a scripted agent: it calls the tools a test tells it to.

A test registers a *play*, a list of turns, and puts ``play:NAME`` into the user's message. The
brain reads the rendered prompt, as a model would, and answers with the turn that is due: the
number of assistant messages behind the last marker. Without a marker it says ``IDLE``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from eaglegate.engine.remote.probe import PROBE
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests import workers
from tests.engine.remote.stand_in_worker import StandIn, chunk, end

IDLE = "one two three four five six"
MARKER = re.compile(r"play:([\w-]+)")
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
TOOLS = re.compile(r".*<tools>\n(.*?)</tools>\nTo call a tool", re.DOTALL)
"""The template's; a client's own instructions may have such a section before it."""
TOOL = re.compile(r"^([\w.:-]+)\((.*)$", re.MULTILINE)
PER_STEP = 4
RENDERER = TemplateRenderer(ModelFiles.find(workers.MODEL, None, None))
END = RENDERER.encode("<|im_end|>", False)[0]


@dataclass(frozen=True)
class Seen:
    """A prompt as the model gets it."""

    text: str
    num_tokens: int

    @property
    def turns(self) -> list[tuple[str, str]]:
        """Role and text of every message; the open one of the assistant is left out."""
        return [(role, text) for role, text in TURN.findall(self.text)][:-1]

    @property
    def tools(self) -> dict[str, str]:
        """Names and signatures of the tools that are offered."""
        section = TOOLS.search(self.text)
        return dict(TOOL.findall(section[1])) if section else {}

    @property
    def last(self) -> str:
        """Text of the newest message."""
        return self.turns[-1][1] if self.turns else ""

    @property
    def play(self) -> tuple[str, int] | None:
        """Name of the play that is on, and the number of the turn that is due."""
        for at in range(len(self.turns) - 1, -1, -1):
            role, text = self.turns[at]
            marker = MARKER.search(text) if role == "user" else None
            if marker:
                behind = self.turns[at + 1 :]
                return marker[1], sum(said == "assistant" for said, _ in behind)
        return None


@dataclass(frozen=True)
class Call:
    """A tool call; ``name`` is a pattern that one offered tool must match."""

    name: str
    arguments: dict[str, Any]

    def write(self, seen: Seen) -> str:
        found = [tool for tool in seen.tools if re.fullmatch(self.name, tool)]
        if not found:
            return f"NO TOOL {self.name} AMONG {sorted(seen.tools)}"
        call = {"name": found[0], "arguments": self.arguments}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


Turn = str | Call | tuple[Any, ...] | Callable[[Seen], Any]
"""Text, a call, several of them, or a function of the prompt that makes one."""


def call(name: str, /, **arguments: Any) -> Call:
    return Call(name, arguments)


@dataclass
class Brain:
    """Plays and what they saw. ``rules`` come first: a text in the newest message, and the turn."""

    plays: dict[str, list[Turn]] = field(default_factory=dict)
    rules: dict[str, Turn] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)

    def worker(self, max_model_len: int) -> StandIn:
        tokens = RENDERER.encode(PROBE, False)
        return Worker(self.generate, models={"demo": max_model_len}, tokens=tokens)

    def generate(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        seen = Seen(RENDERER.decode(body["token_ids"]), len(body["token_ids"]))
        self.seen.append(seen)
        text = self.answer(seen)
        sampling = body["sampling_params"]
        token_ids = RENDERER.encode(text, False)
        if sampling.get("ignore_eos"):
            token_ids = (token_ids * (sampling["max_tokens"] // len(token_ids) + 1))[:-1]
        return stream(token_ids, sampling["max_tokens"])

    def answer(self, seen: Seen) -> str:
        for text, turn in self.rules.items():
            if text in seen.last:
                return write(turn, seen)
        if seen.play is None:
            return IDLE
        name, at = seen.play
        turns = self.plays.get(name, [])
        return write(turns[at], seen) if at < len(turns) else f"END OF PLAY {name}"

    def during(self, name: str) -> list[Seen]:
        """The prompts that belong to a play."""
        return [seen for seen in self.seen if seen.play and seen.play[0] == name]


class Worker(StandIn):
    """A worker that gives each token of a prompt the log probability -1, and then one token."""

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        said = super()._whole(body)
        if body["sampling_params"].get("prompt_logprobs") is None:
            return said
        likely = {"token_id": END, "logprob": -1.0, "rank": 1}
        logprobs = {"content": [likely | {"top_logprobs": [likely]}]}
        choices = chunk(END, finish="length", logprobs=logprobs)["choices"]
        return said | end() | {"choices": choices}


def write(turn: Turn, seen: Seen) -> str:
    if isinstance(turn, str):
        return turn
    if isinstance(turn, Call):
        return turn.write(seen)
    if callable(turn):
        return write(turn(seen), seen)
    return "\n".join(write(part, seen) for part in turn)


def stream(token_ids: list[int], most: int) -> Iterator[dict[str, Any]]:
    """The tokens in steps of a few, cut at ``most``, with the account of the steps."""
    finish = "stop" if len(token_ids) < most else "length"
    token_ids = [*token_ids, END][:most]
    pieces = list(cut(token_ids))
    for at, piece in enumerate(pieces):
        yield chunk(*piece, finish=finish if at == len(pieces) - 1 else None)
    yield end(*((3, len(piece) - 1) for piece in pieces[1:]), cached=0)


def cut(token_ids: list[int]) -> Iterable[list[int]]:
    yield token_ids[:1]
    for at in range(1, len(token_ids), PER_STEP):
        yield token_ids[at : at + PER_STEP]
