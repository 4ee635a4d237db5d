"""Whole conversations: system prompts, offered tools, several turns, unusual wrapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglegate.lab.training.data.invented import can_be_held, constrain_answer
from eaglegate.lab.training.data.known_tools import KNOWN, family
from eaglegate.lab.training.data.source import Phrasings, Source
from eaglegate.lab.training.data.tasks import lookup, plain_turn
from eaglegate.lab.training.data.tools import random_tool, rival, tool_turn
from eaglegate.lab.training.data.turn import Dialogue, Message, PlainTurn, Tool, ToolTurn
from eaglegate.lab.training.data.values import format_value


@dataclass(frozen=True)
class Shape:
    """Length of a conversation, and frequency of its tools."""

    turns: tuple[int, ...] = (1, 1, 1, 1, 1, 2, 2, 3)
    tools: float = 0.5
    more_tools: tuple[int, ...] = (0, 0, 1, 1, 2, 3, 5, 8)
    long_lookup: float = 0.0
    wrap_share: float = 0.06
    idle_share: float = 0.0
    """Share of conversations with tools whose last turn needs none."""
    grammar_share: float = 0.08
    """Share of plain answers in the form that a grammar enforces."""
    ragged_share: float = 0.0
    """Share of those answers that have white space wherever the grammar allows it."""
    rival_share: float = 0.0
    """Share of offers in which other tools' names share a word with the used names."""


SHORT = Shape()
LONG = Shape(turns=tuple(range(8, 27)), tools=0.7, more_tools=(0, 1, 3, 6, 12), long_lookup=0.3)
NO_TOOL = Phrasings("Can you {}?", "Please {}.", "I want you to {}.")
Turn = PlainTurn | ToolTurn


def conversation(source: Source, shape: Shape = SHORT) -> Dialogue:
    """Make a conversation up to and including the model's last turn."""
    turns, tools = plan(source, shape)
    messages: list[Message] = []
    system = system_prompt(source)
    if system:
        messages.append({"role": "system", "content": system})
    for turn in turns[:-1]:
        messages += history(source, turn)
    return ending(source, shape, messages, turns[-1], tools)


def plan(source: Source, shape: Shape) -> tuple[list[Turn], list[Tool] | None]:
    count = source.pick(shape.turns)
    with_tools = source.chance(shape.tools)
    turns: list[Turn] = [
        tool_turn(source) if with_tools and source.chance(0.75) else plain_turn(source)
        for _ in range(count)
    ]
    if source.chance(shape.long_lookup):
        turns[0] = lookup(source, source.number(15, 60))
    if not with_tools:
        return turns, None
    if shape.idle_share and source.chance(shape.idle_share):
        turns[-1] = plain_turn(source)
        return one_tool_per_family(source, shape, turns)
    if count == 1 and source.chance(0.05):
        return [without_tool(source)], offer_tools(source, shape, {})
    if not any(isinstance(turn, ToolTurn) for turn in turns):
        turns[-1] = tool_turn(source)
    return one_tool_per_family(source, shape, turns)


def one_tool_per_family(
    source: Source, shape: Shape, turns: list[Turn]
) -> tuple[list[Turn], list[Tool]]:
    """Offer only one tool per purpose: an earlier turn with another becomes plain."""
    tools_by_family: dict[str, Tool] = {}
    selection: list[Turn] = []
    for turn in reversed(turns):
        if isinstance(turn, ToolTurn):
            purpose = family(turn.tool)
            if tools_by_family.setdefault(purpose, turn.tool) != turn.tool:
                selection.append(plain_turn(source))
                continue
        selection.append(turn)
    return selection[::-1], offer_tools(source, shape, tools_by_family)


def offer_tools(source: Source, shape: Shape, used_tools: dict[str, Tool]) -> list[Tool]:
    """Return the used tools, by family, among others in random order."""
    candidates: list[Tool] = []
    if shape.rival_share and source.chance(shape.rival_share):
        for tool in used_tools.values():
            candidates += [rival(source, tool) for _ in range(source.number(1, 3))]
    for _ in range(max(source.pick(shape.more_tools), 0 if used_tools else 1)):
        is_random = source.chance(0.6)
        candidates.append(random_tool(source)[0] if is_random else source.pick(KNOWN)(source).tool)
    tools_by_family = dict(used_tools)
    for candidate in candidates:
        names = {tool["function"]["name"] for tool in tools_by_family.values()}
        if candidate["function"]["name"] not in names:
            tools_by_family.setdefault(family(candidate), candidate)
    tools = list(tools_by_family.values())
    source.random.shuffle(tools)
    return tools


def without_tool(source: Source) -> PlainTurn:
    wish = source.pick(
        [
            f"send a fax to {source.name()}",
            f"book a {source.word()} for me",
            f"turn on the {source.word()}",
            f"call {source.name()}",
            f"order a {source.word()}",
        ]
    )
    answer = "I am sorry, I have no tool for that."
    return PlainTurn(source.ask(NO_TOOL, wish), "There is no tool for that.", answer)


def history(source: Source, turn: Turn) -> list[Message]:
    """Return an earlier exchange. Without thinking, most sums show their steps in the answer."""
    if isinstance(turn, PlainTurn):
        steps = turn.direct_answer if source.chance(0.85) else None
        return [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": steps or turn.answer},
        ]
    return [*turn.messages, {"role": "assistant", "content": turn.report}]


def ending(
    source: Source,
    shape: Shape,
    messages: list[Message],
    turn: Turn,
    tools: list[Tool] | None,
) -> Dialogue:
    wrap = source.chance(shape.wrap_share)
    user = {"role": "user", "content": wrap_text(source, turn.user) if wrap else turn.user}
    messages = [*messages, user]
    if isinstance(turn, ToolTurn):
        if source.chance(0.7):
            return Dialogue(messages, tools, plan_of(turn.calls), "", turn.calls)
        thought = "I report the result of the tool."
        return Dialogue([*messages[:-1], *turn.messages], tools, thought, turn.report)
    if can_be_held(turn) and source.chance(shape.grammar_share):
        text, own_spans = constrain_answer(source, turn, tools, shape.ragged_share)
        return Dialogue(messages, tools, turn.thought, text, own_spans=own_spans)
    return Dialogue(messages, tools, turn.thought, turn.answer, direct_answer=turn.direct_answer)


def plan_of(calls: Sequence[Message]) -> str:
    """Describe the coming calls. Several are numbered, so that the model finds the next one."""
    if len(calls) == 1:
        return thought_of(calls[0])
    places = ("First", "Second", "Third")
    return " ".join(
        f"{place} {thought_of(call)}" for place, call in zip(places, calls, strict=False)
    )


def thought_of(call: Message) -> str:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    pairs = ", ".join(f"{key} = {format_value(item)}" for key, item in arguments.items())
    return f"I call {name} with {pairs}." if pairs else f"I call {name}."


def wrap_text(source: Source, text: str) -> str:
    """Wrap the user's text in markers."""
    draw = source.random.random()
    word = source.pick([source.plain_word(), source.pick(["input", "message", "request", "task"])])
    if draw < 0.2:
        return f"<{word}>{source.pick(['', chr(10)])}{text}{source.pick(['', chr(10)])}</{word}>"
    rule = source.pick("#=-*~|+:_") * source.number(2, 6)
    label = source.pick([word, word.upper(), f"{word.upper()} {source.number(1, 999)}", ""])
    if draw < 0.6:
        return f"{rule} {label} {rule}\n{text}\n{rule} {source.pick(['end', 'END', label])} {rule}"
    if draw < 0.8:
        return f"{rule}\n{text}\n{rule}"
    return source.pick([f"[{label}] {text}", f'"""{text}"""', f"{word}: {text}", f"({text})"])


def system_prompt(source: Source) -> str | None:
    if source.chance(0.45):
        return None
    return source.pick(
        [
            "You are a helpful assistant.",
            "You are a helpful assistant.",
            "You are a helpful assistant. Answer briefly.",
            f"You are {source.name()}, a friendly assistant.",
            f"You are the assistant of {source.name()}. Today is {source.date()}.",
            "You are a careful assistant. Think first, then answer.",
            f"You work for {source.word().capitalize()} Inc. Be polite and short.",
            "Be concise.",
            "You are an expert. Use the tools when they help.",
            f"You are a bot called {source.word().capitalize()}. "
            f"The user lives in {source.city()}.",
            f"{source.phrase(6, 18).capitalize()}. {source.phrase(5, 14).capitalize()}.",
            f"Rules: {source.phrase(3, 8)}; {source.phrase(3, 8)}. "
            f"{source.phrase(3, 6).capitalize()}.",
            f"### {source.phrase(1, 3).capitalize()}\n- {source.phrase(3, 8)}\n"
            f"- {source.phrase(3, 8)}",
            f"<{source.plain_word()}>{source.phrase(3, 9)}</{source.plain_word()}> "
            f"{source.phrase(4, 9)}.",
        ]
    )
