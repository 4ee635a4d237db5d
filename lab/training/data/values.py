"""Parameters and their values, for tool calls and JSON answers."""

from __future__ import annotations

from typing import Any

from eaglegate.lab.training.data.source import DAYS, Source

VERBS = (
    "create delete update fetch get list send archive rename start stop resize tag lock scan "
    "export import merge assign close open add find book cancel check play read write set lookup "
    "query order pay move copy print track"
).split()
NOUNS = (
    "ticket order invoice report file server image user note task folder backup camera sensor "
    "playlist room parcel contract label job volume route badge token draft message song price "
    "stock flight hotel table event reminder account customer product document meeting light door "
    "recipe movie city country page log branch package"
).split()
TEXT_NAMES = (
    "name title owner label region color code path target source reason group to from subject "
    "body message text city location country date time day query id key user email symbol currency "
    "language category status topic unit address author item model mode filename url note tag "
    "channel room team"
).split()
INTEGER_NAMES = (
    "priority count size limit port year amount quantity minutes age level page width height "
    "number floor duration seats max_results days user_id order_id"
).split()
NUMBER_NAMES = "price rate weight distance temperature score total".split()
FLAG_NAMES = "force public urgent enabled dry_run verbose confirm".split()
COLORS = "red green blue black white amber violet silver yellow orange".split()
ENUMS = (
    ("low", "medium", "high"),
    ("celsius", "fahrenheit"),
    ("asc", "desc"),
    ("small", "large"),
    ("draft", "final"),
    ("km", "miles"),
)


Parameter = tuple[str, dict[str, Any]]
"""Name of a parameter, and its JSON schema."""


def format_value(value: Any) -> str:
    """Write a value the way a user would."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return (
            ", ".join(format_value(item) for item in value[:-1]) + " and " + format_value(value[-1])
        )
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {format_value(item)}" for key, item in value.items()) + ")"
    return str(value)


def parameter(source: Source, allows_nesting: bool = True) -> Parameter:
    draw = source.random.random()
    if draw < 0.55 or (not allows_nesting and draw >= 0.93):
        return text_name(source), {"type": "string"}
    if draw < 0.75:
        return _number(source, INTEGER_NAMES, "integer")
    if draw < 0.84:
        return _number(source, NUMBER_NAMES, "number")
    if draw < 0.89:
        return source.pick(FLAG_NAMES), {"type": "boolean"}
    if draw < 0.93:
        return _enum(source)
    if draw < 0.97:
        name = source.pick(["tags", "items", "names", "labels", source.plain_word()])
        return name, {"type": "array", "items": {"type": "string"}}
    return _object(source)


def text_name(source: Source) -> str:
    draw = source.random.random()
    if draw < 0.62:
        return source.pick(TEXT_NAMES)
    if draw < 0.85:
        return source.plain_word()
    tail = source.pick(["name", "id", "code", "type", source.plain_word()])
    return f"{source.pick(NOUNS)}_{tail}"


def _number(source: Source, names: list[str], kind: str) -> Parameter:
    draw = source.random.random()
    if draw < 0.55:
        name = source.pick(names)
    elif draw < 0.85:
        name = source.plain_word()
    else:
        name = f"{source.plain_word()}_{source.pick([*NOUNS, source.plain_word()])}"
    return name, {"type": kind}


def _enum(source: Source) -> Parameter:
    options = (
        list(source.pick(ENUMS))
        if source.chance(0.6)
        else [source.plain_word(), source.plain_word()]
    )
    name = source.pick(["unit", "mode", "level", "order", "size", "status", source.plain_word()])
    return name, {"type": "string", "enum": options}


def _object(source: Source) -> Parameter:
    inner: dict[str, Any] = {}
    while len(inner) < 2:
        key, schema = parameter(source, allows_nesting=False)
        inner[key] = schema
    name = source.pick(["address", "filter", "options", source.plain_word()])
    return name, {"type": "object", "properties": inner, "required": list(inner)}


def value(source: Source, name: str, schema: dict[str, Any]) -> Any:
    """Draw a random value that fits the schema and, for well-known names, the name."""
    if "enum" in schema:
        return source.pick(schema["enum"])
    kind = schema["type"]
    if kind == "integer":
        return source.number(1, source.pick([20, 20, 999, 999, 99999]))
    if kind == "number":
        return round(source.random.uniform(0.1, 500), source.pick([1, 2]))
    if kind == "boolean":
        return source.chance(0.6)
    if kind == "array":
        return [source.word() for _ in range(source.pick([2, 2, 3]))]
    if kind == "object":
        return {key: value(source, key, inner) for key, inner in schema["properties"].items()}
    return text_value(source, name)


def text_value(source: Source, name: str) -> str:
    if name in {"city", "location", "country", "region", "address"}:
        return source.city()
    if name in {"name", "owner", "author", "user"} and source.chance(0.7):
        return source.name()
    if name in {"email", "to"} and source.chance(0.6):
        return source.email()
    if name == "date":
        return source.date()
    if name == "time":
        return source.time()
    if name == "day":
        return source.pick(DAYS)
    if name == "color":
        return source.pick(COLORS)
    if name in {"path", "filename", "url"}:
        return source.path()
    if name in {"code", "id", "key", "symbol"} or source.chance(0.12):
        return source.code()
    return source.word() if source.chance(0.45) else source.phrase(2, 3)


def fields(source: Source, count: int, allows_nesting: bool = True) -> dict[str, dict[str, Any]]:
    """Return `count` different parameters as a mapping from name to schema."""
    schemas: dict[str, dict[str, Any]] = {}
    while len(schemas) < count:
        schemas.setdefault(*parameter(source, allows_nesting))
    return schemas


def outcome(source: Source) -> tuple[Any, str]:
    """Make a tool's result, and the sentence that reports it."""
    draw = source.random.random()
    text = source.phrase(2, 5)
    if draw < 0.1:
        return {"error": text}, f"The tool reported an error: {text}."
    if draw < 0.2:
        return text, f"The result is: {text}."
    result: dict[str, Any] = {}
    if source.chance(0.6):
        result["status"] = source.pick(["ok", "done", "created", "pending", "success"])
    for key, schema in fields(source, source.pick([1, 1, 2]), allows_nesting=False).items():
        result.setdefault(key, value(source, key, schema))
    facts = " and ".join(f"{key} is {format_value(item)}" for key, item in result.items())
    return result, f"Result: {facts}."
