"""Turns that call tools: well-known ones, and random ones that teach copying as a skill."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eaglegate.lab.training.data.invented import invented_call
from eaglegate.lab.training.data.known_tools import KNOWN, draw_call_count
from eaglegate.lab.training.data.source import Phrasings, Source
from eaglegate.lab.training.data.turn import Tool, ToolTurn, listed, make_tool
from eaglegate.lab.training.data.values import NOUNS, VERBS, fields, format_value, outcome, value

NATURAL = {
    "city": ["in {v}"],
    "location": ["in {v}", "at {v}"],
    "country": ["in {v}"],
    "to": ["to {v}"],
    "from": ["from {v}"],
    "source": ["from {v}"],
    "target": ["to {v}"],
    "title": ["titled {v}", "called {v}", "with title {v}"],
    "name": ["named {v}", "called {v}", "with the name {v}"],
    "date": ["on {v}", "for {v}"],
    "time": ["at {v}"],
    "day": ["on {v}"],
    "owner": ["owned by {v}", "for {v}"],
    "subject": ["about {v}"],
    "topic": ["about {v}"],
    "message": ["saying {v}", "with message {v}"],
    "text": ["saying {v}", "with text {v}"],
    "reason": ["because of {v}", "with reason {v}"],
    "limit": ["with at most {v} results", "with limit {v}"],
    "quantity": ["with quantity {v}"],
    "minutes": ["for {v} minutes"],
    "days": ["for {v} days"],
    "seats": ["for {v} seats", "with {v} seats"],
    "email": ["with email {v}"],
    "language": ["in {v}"],
    "author": ["by {v}"],
    "channel": ["in channel {v}"],
    "unit": ["in {v}"],
    "priority": ["with priority {v}"],
}
ASK_RANDOM = Phrasings(
    "Please {v} the {n} {b}.",
    "{V} a {n} {b}.",
    "Can you {v} the {n} {b}?",
    "I want to {v} a {n} {b}.",
    "{V} {n} {b}",
    "Call {f} {b}.",
    "Use {f} {b}",
    "Could you {v} the {n} {b}?",
    "Now {v} a {n} {b}.",
)

ASK_AS_CODE = (
    "What is the value of {f}({b})? Use the tool.",
    "Run {f}({b}).",
    "{f}({b})",
    "What does {f}({b}) return?",
    "Please call {f}({b}).",
)

ASK_BY_VALUE = (
    "Using the tool, {v} a {b} {n}.",
    "{V} a {b} {n}.",
    "Please {v} the {b} {n} with the tool.",
    "Use the tool to {v} the {b} {n}.",
)


def random_tool(source: Source, verb: str = "", noun: str = "") -> tuple[Tool, str, str]:
    """Make a tool with random name and parameters. Return it with its verb and noun."""
    verb = verb or source.pick(VERBS)
    noun = noun or (source.pick(NOUNS) if source.chance(0.5) else source.plain_word())
    has_none = source.chance(0.03)
    properties = fields(source, 0 if has_none else source.pick([1, 1, 2, 2, 2, 3, 3]))
    first_key = next(iter(properties), noun)
    optional_keys = [key for key in properties if key != first_key and source.chance(0.2)]
    draw = source.random.random()
    if draw < 0.65:
        name = f"{verb}_{noun}"
    elif draw < 0.8:
        name = verb + noun.capitalize()
    else:
        name = noun if draw < 0.88 else f"{noun}_{source.plain_word()}"
    description = source.pick(
        [
            f"{verb.capitalize()} a {noun}.",
            f"{verb.capitalize()} the {noun}.",
            f"{verb.capitalize()}s a {noun} by {first_key}.",
            f"{noun.capitalize()} {verb}",
        ]
    )
    return make_tool(name, description, properties, optional_keys), verb, noun


def rival(source: Source, rival_of: Tool) -> Tool:
    """Make a tool that shares a word of another's name: its verb, or its noun with another verb."""
    name, description = rival_of["function"]["name"], rival_of["function"]["description"].lower()
    word = source.pick([word.lower() for word in re.findall("[A-Z]?[^A-Z_]+", name)])
    if word in VERBS:
        return random_tool(source, verb=word)[0]
    other_verbs = [verb for verb in VERBS if verb not in description]
    return random_tool(source, source.pick(other_verbs), word)[0]


def describe(source: Source, arguments: Mapping[str, Any], style: int) -> str:
    """Write the arguments the way a user would."""
    quote = source.pick(['"', '"', "'"]) if source.chance(0.2) else ""
    pairs = [
        (key, quote + item + quote if isinstance(item, str) else format_value(item))
        for key, item in arguments.items()
    ]
    if not pairs:
        return ""
    if len(pairs) == 1 and style > 3:
        return pairs[0][1]
    if style == 0:
        return "with " + listed([f"{key} {item}" for key, item in pairs])
    if style == 1:
        return ", ".join(f"{key}={item}" for key, item in pairs)
    if style == 2:
        return "where " + " and ".join(f"{key} is {item}" for key, item in pairs)
    if style == 3:
        return "using " + ", ".join(f"{item} as {key}" for key, item in pairs)
    if style == 4:
        return ", ".join(f"{key}: {item}" for key, item in pairs)
    return " ".join(natural(source, key, item) for key, item in pairs)


def request(source: Source, arguments: Sequence[Mapping[str, Any]]) -> tuple[str, str, int]:
    """Return a phrasing, the text that describes the arguments in it, and the number of calls."""
    style = source.number(0, 5)
    body = " and another ".join(describe(source, item, style) for item in arguments)
    phrasing = source.pick(ASK_RANDOM)
    if source.chance(0.07):
        return source.pick(ASK_AS_CODE), as_code(source, arguments[0]), 1
    if one_text(arguments[0]) and source.chance(0.1):
        return source.pick(ASK_BY_VALUE), format_value(next(iter(arguments[0].values()))), 1
    return phrasing, body, len(arguments)


def one_text(arguments: Mapping[str, Any]) -> bool:
    return [type(item) for item in arguments.values()] == [str]


def as_code(source: Source, arguments: Mapping[str, Any]) -> str:
    """Write the arguments as in the parentheses of a call."""
    has_names = source.chance(0.4)
    return ", ".join(
        f"{key}={format_value(v)}" if has_names else format_value(v) for key, v in arguments.items()
    )


def natural(source: Source, key: str, item: str) -> str:
    forms = NATURAL.get(key, [f"with {key} {{v}}", f"with the {key} {{v}}"])
    if "_" in key and source.chance(0.3):
        head, _, tail = key.partition("_")
        forms = [f"with {{v}} {head}", f"with {{v}} {tail}", f"with the {tail} {{v}}"]
    return source.pick(forms).replace("{v}", item)


def order(source: Source, keys: list[str]) -> list[str]:
    """Return the keys in the schema's order or a random one."""
    return source.random.sample(keys, len(keys)) if source.chance(0.3) else keys


def random_call(source: Source) -> ToolTurn:
    new_tool, verb, noun = random_tool(source)
    function = new_tool["function"]
    schema = function["parameters"]
    keys = [key for key in schema["properties"] if key in schema["required"] or source.chance(0.5)]
    # The user's order is the call's: the model copies from left to right.
    arguments = [
        {key: value(source, key, schema["properties"][key]) for key in order(source, keys)}
        for _ in range(draw_call_count(source, 0.25) if keys else 1)
    ]
    user, body, count = request(source, arguments)
    arguments = arguments[:count]
    slots = {"v": verb, "V": verb.capitalize(), "n": noun, "f": function["name"]}
    for key, text in slots.items():
        user = user.replace("{" + key + "}", text)
    user = user.replace("{b}", body) if body else user.replace(" {b}", "").replace("{b}", "")
    if source.chance(0.05):
        user += source.pick([" ({})", " - {}", "\n{}"]).format(source.phrase(2, 5))
    outcomes = [outcome(source) for _ in arguments]
    report = " ".join(text for _, text in outcomes)
    return ToolTurn(new_tool, user, arguments, [item for item, _ in outcomes], report)


def tool_turn(source: Source) -> ToolTurn:
    draw = source.random.random()
    if draw < 0.05:
        return invented_call(source)
    return random_call(source) if draw < 0.6 else source.pick(KNOWN)(source)
