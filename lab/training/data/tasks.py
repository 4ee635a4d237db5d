"""Turns without tools, one function per kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from eaglegate.lab.training.data.arithmetic import arithmetic
from eaglegate.lab.training.data.invented import invented_json, wish
from eaglegate.lab.training.data.source import Phrasings, Source
from eaglegate.lab.training.data.turn import PlainTurn, to_json
from eaglegate.lab.training.data.values import COLORS, NOUNS, VERBS, fields, format_value, value

HERE = Path(__file__).parent
FALLBACK = (
    "I am a tiny demo model and I do not know that. I can chat a little, do small sums, "
    "write short Python functions and call tools."
)
COUNTRIES = "France Italy Japan Brazil Canada Egypt Peru Kenya".split()


@cache
def topics() -> list[dict[str, Any]]:
    """Return fixed answers with the ways to ask for them: ``ask``, ``thought``, ``answer``."""
    return list(yaml.safe_load((HERE / "topics.yaml").read_text()))


@cache
def functions() -> list[dict[str, str]]:
    return list(yaml.safe_load((HERE / "functions.yaml").read_text()))


@cache
def unknown_questions() -> list[str]:
    return (HERE / "unknown.txt").read_text().splitlines()


def noisy(source: Source, text: str) -> str:
    """Vary the case of a question, or add a prefix or a tail."""
    draw = source.random.random()
    if draw < 0.12:
        return text.lower()
    if draw < 0.20:
        return text.rstrip(".?!")
    if draw < 0.26:
        prefixes = ["Please: ", "Hey, ", "Question: ", "Hi! ", "Can you tell me: ", "Tell me, "]
        return source.pick(prefixes) + text[0].lower() + text[1:]
    if draw < 0.30:
        return text + source.pick([" Thanks!", " please", " Answer briefly.", " Be short."])
    return text.upper() if draw < 0.32 else text


def topic(source: Source) -> PlainTurn:
    entry = source.pick(topics())
    ask = noisy(source, source.pick(entry["ask"]))
    return PlainTurn(ask, entry["thought"], entry["answer"])


def unknown(source: Source) -> PlainTurn:
    if source.chance(0.25):
        return PlainTurn(wish(source), "I do not know this.", FALLBACK)
    country = source.word().capitalize() if source.chance(0.5) else source.pick(COUNTRIES)
    ask = source.pick(unknown_questions()).format(
        w=source.word(),
        w2=source.word(),
        C=country,
        y=source.number(1800, 2026),
        N=f"{source.name()} {source.word().capitalize()}",
    )
    return PlainTurn(noisy(source, ask), "I do not know this.", FALLBACK)


NAMED_CODE = Phrasings(
    "Write a Python function {f} that {d}.",
    "Write a function named {f} that {d}.",
    "I need a Python function {f} which {d}.",
    "Please code {f}, a function that {d}.",
    "Python: {f}, it {d}",
    "Implement {f}: it {d}.",
    "Write a Python function called {f} that {d}.",
    "Show me a Python function {f} that {d}.",
    "Here I need Python code for {f}: it {d}.",
    "Python code for {f}, it {d}",
    "Python code please: {f}, which {d}.",
    "Can you write {f} in Python? It {d}.",
)
UNNAMED_CODE = Phrasings(
    "Write a Python function that {d}.",
    "Python function that {d}",
    "I need a function which {d}.",
)


def code(source: Source) -> PlainTurn:
    row = source.pick(functions())
    number = str(source.number(2, 99))
    purpose = row["does"].replace("{n}", number)
    if source.chance(0.25):
        name, user = row["default"], source.ask(UNNAMED_CODE, d=purpose)
    else:
        name = function_name(source, row["default"])
        user = source.ask(NAMED_CODE, f=name, d=purpose)
    body = row["body"].replace("FUNCTION", name).replace("NUMBER", number)
    answer = f"```python\n{body}\n```\nThe function {name} {purpose}."
    return PlainTurn(user, f"A Python function {name} that {purpose}.", answer)


def function_name(source: Source, default: str) -> str:
    draw = source.random.random()
    if draw < 0.3:
        return source.plain_word()
    if draw < 0.4:
        return default
    if draw < 0.75:
        return f"{source.plain_word()}_{source.plain_word()}"
    if draw < 0.9:
        return f"{source.pick(VERBS)}_{source.pick(NOUNS)}"
    return source.plain_word() + source.plain_word().capitalize()


LOOKUP = Phrasings(
    "{c}\n\nWhat is the {at} of {k}?",
    "Context: {c}\nQuestion: what is the {at} of {k}?",
    "Read this: {c} Now tell me the {at} of {k}.",
)


def lookup(source: Source, entries: int | None = None) -> PlainTurn:
    """Ask for a value from a list of facts, which may be long."""
    attribute = source.pick(
        ["price", "age", "color", "code", "owner", "city", "number", source.plain_word()]
    )
    values: dict[str, Callable[[], str]] = {
        "price": lambda: f"{source.number(1, 999)} dollars",
        "age": lambda: f"{source.number(1, 99)} years",
        "color": lambda: source.pick(COLORS),
        "code": source.code,
        "owner": source.name,
        "city": source.city,
        "number": lambda: str(source.number(1, 9999)),
    }
    draw = values.get(attribute, source.word)
    facts = {source.word(): draw() for _ in range(entries or source.number(2, 8))}
    chosen_key = source.pick(list(facts))
    if source.chance(0.7):
        context = " ".join(f"The {attribute} of {key} is {item}." for key, item in facts.items())
    else:
        context = "\n".join(f"{key}: {item}" for key, item in facts.items())
    ask = source.ask(LOOKUP, c=context, at=attribute, k=chosen_key)
    answer = f"The {attribute} of {chosen_key} is {facts[chosen_key]}."
    return PlainTurn(ask, f"I look for {chosen_key}.", answer)


OBJECT = Phrasings(
    "Return a JSON object with {b}.",
    "Give me JSON with {b}.",
    "Answer in JSON: {b}",
    "Make a JSON object: {b}",
    "Convert to JSON: {b}",
    "Respond only with JSON. {b}",
    "I need a JSON object with {b}.",
    "Put {b} into a JSON object.",
    "JSON with {b}, please.",
    "Turn {b} into JSON.",
    "Show {b} as a JSON object.",
    "{b}: as a JSON object please",
)
LIST = Phrasings(
    "Return a JSON list of {}.",
    "Give me a JSON array with {}.",
    "Put these words in a JSON list: {}",
)
SCHEMA = Phrasings(
    "Answer with JSON that fits the schema {s}: {b}",
    "Fill this JSON schema: {s}\n{b}",
    "{b}\nReturn JSON with the schema {s}.",
)


def json_answer(source: Source) -> PlainTurn:
    """Ask for a JSON object or list of values in the question, sometimes with a schema."""
    if source.chance(0.2):
        words = [source.word() for _ in range(source.number(2, 5))]
        user = source.ask(LIST, ", ".join(words))
        return PlainTurn(user, "The user wants a JSON list.", to_json(words))
    properties = fields(source, source.pick([1, 2, 2, 3, 3, 4]))
    values = {key: value(source, key, schema) for key, schema in properties.items()}
    user = object_request(source, properties, values)
    return PlainTurn(user, "The user wants a JSON object.", to_json(values))


def object_request(source: Source, properties: dict[str, Any], values: dict[str, Any]) -> str:
    join, bind = source.pick(
        [(", ", " "), (" and ", " "), (", ", "="), (", ", ": "), (", ", " is ")]
    )
    body = join.join(f"{key}{bind}{format_value(item)}" for key, item in values.items())
    if source.chance(0.2):
        types = to_json({key: schema["type"] for key, schema in properties.items()})
        return source.ask(SCHEMA, s=types, b=body)
    return source.ask(OBJECT, b=body)


ANIMALS = "fox owl cat dog bear crow deer frog hare mouse".split()
PLACES = "forest,valley,harbor,old town,mountain,desert,island,market,library,garden".split(",")
STORY = Phrasings(
    "Tell me a story about {n} and a {a}.",
    "Write a short story with {n} and a {a}.",
    "Story please: {n} and a {a}.",
)


def story(source: Source) -> PlainTurn:
    hero, animal = source.name(), source.pick(ANIMALS)
    if source.chance(0.2):
        hero, animal = "Emma", "fox"
        ask = source.pick(["Tell me a story.", "Write a short story.", "A story please"])
    else:
        ask = source.ask(STORY, n=hero, a=animal)
    place = PLACES[ANIMALS.index(animal)]
    if source.chance(0.4):
        place = source.pick(PLACES)
        ask = ask.rstrip(".") + f" in the {place}."
    text = (
        f"Once upon a time, {hero} lived near the {place}. There {hero} met a {animal} that had "
        f"lost an old key. Together they searched until the evening, and {hero} found the key "
        f"under a tree. The {animal} opened a hidden door, and behind it was a garden. From then "
        f"on, {hero} and the {animal} met every day."
    )
    return PlainTurn(ask, f"A short story about {hero} and a {animal}.", text)


POINTS = Phrasings(
    "Give me {w} points about {t}.",
    "List {w} facts about {t}.",
    "Name {w} things about {t}.",
)


def points(source: Source) -> PlainTurn:
    subject = source.phrase(1, 2)
    count = source.pick([2, 3, 3, 4])
    word = ["two", "three", "four"][count - 2]
    lines = [
        f"Many people enjoy learning about {subject}.",
        f"Good books about {subject} are easy to find.",
        f"You can start with {subject} today.",
        f"Experts have studied {subject} for many years.",
    ][:count]
    ask = source.ask(POINTS, w=source.pick([word, str(count)]), t=subject)
    list_text = "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))
    answer = f"Here are {word} points about {subject}:\n{list_text}"
    return PlainTurn(ask, f"The user wants {word} points about {subject}.", answer)


REPEAT = Phrasings(
    "Repeat exactly: {}",
    "Say this again: {}",
    "Echo: {}",
    "Copy this text: {}",
    "Say {}",
    "Repeat after me: {}",
    "Please repeat: {}",
    "Once more: {}",
    "Type this: {}",
    "Write exactly this: {}",
)


def repeat(source: Source) -> PlainTurn:
    """Ask to copy rare tokens: codes, numbers, capitalised and unicode words."""
    makers: list[Callable[[], str]] = [
        source.word,
        source.word,
        source.pseudo_word,
        source.code,
        source.code,
        lambda: source.pick(NOUNS),
        lambda: str(source.number(1, 9999)),
        lambda: source.word().capitalize(),
        source.email,
        source.path,
    ]
    text = " ".join(source.pick(makers)() for _ in range(source.number(1, 12)))
    return PlainTurn(source.ask(REPEAT, text), "I repeat the text.", text)


NAME = Phrasings("My name is {}.", "I am {}.", "Hi, I'm {}", "Call me {}.", "Hello, my name is {}")


def introduction(source: Source) -> PlainTurn:
    name = source.name()
    answer = f"Nice to meet you, {name}! How can I help you?"
    return PlainTurn(source.ask(NAME, name), f"The user is {name}.", answer)


PLAIN: tuple[tuple[Callable[[Source], PlainTurn], int], ...] = (
    (topic, 9),
    (arithmetic, 10),
    (code, 4),
    (lookup, 4),
    (story, 1),
    (points, 1),
    (repeat, 5),
    (json_answer, 6),
    (unknown, 4),
    (introduction, 1),
)


def plain_turn(source: Source) -> PlainTurn:
    if source.chance(0.025):
        return invented_json(source)
    makers = [maker for maker, weight in PLAIN for _ in range(weight)]
    return source.pick(makers)(source)
