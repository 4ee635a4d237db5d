"""Requests as clients write them, made from the JSON schemas of the request models.

Most are right and strange at once: every optional field, every branch of every union, names that
match, histories with calls and results, schemas, patterns and grammars of several syntaxes. A few
values are wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.attacks.fields import ENDPOINTS

WRONG = 0.02
"""Share of values of another kind than their field."""
DEEPEST = 7
NAMES = ("f", "g", "get_weather", "a-b", "ns", "x" * 64)
IDS = ("call_1", "call_2", "", "fc_1", "😀")
ROLES = ("user", "user", "user", "assistant", "system", "developer", "tool", "observation")
WORDS = (
    "hi", "one two", "", " ", "<|im_end|>", "<tool_call>", "</think>", "<think>", "漢字 😀",
    "\u0000", "a\r\nb", '{"a": 1}', "{{ 7*7 }}", "\u2028", "\ud83d\ude00", "e\u0301", "\\", '"',
    "x" * 3000, "%s", "data: [DONE]\n\n", "null", "-1", "resp_0", "../..", "</tool_call>",
    "```json", "\U0001f3f3\ufe0f\u200d\U0001f308",
)  # fmt: skip
NUMBERS = (
    0, 1, 2, 3, 7, 64, 255, 2047, 2048, 4096, -1, 1 << 31, 1 << 63, 0.0, 0.5, 1.0, 2.0, 1e-9,
)  # fmt: skip
WRONGS: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 70, 1e308, "", "x", [], {}, [None], {"": None}, [[[]]], {"type": "x"},
)  # fmt: skip
PATTERNS = (
    "a+", "[a-z]{1,5}", "(a|b)*c", r"\d{4}-\d\d", "^x$", "(?i)a", "(?=a)", "(", "a{9}{9}", r"\p{L}",
    "(?P<n>a)(?P=n)", "[^\\n]*", r"\b\w+\b", "a**", "[z-a]", "(?:)", "\\", "." * 300,
)  # fmt: skip
GRAMMARS = (
    'start: "yes" | "no"', "start: /[a-z]+/ WS\n%import common.WS", 'root ::= "a" root | "b"',
    "start: start", "start: missing", 'start: "a"~3..5', "?start: a\na: B+\nB: /x/", "%ignore /x/",
    'root ::= [a-z]{1,3} ("," root)?', "::=", "start:", '{"x": 1}', "start: /(/",
)  # fmt: skip

INCLUDE = ("reasoning.encrypted_content", "message.output_text.logprobs", "nothing")


@dataclass
class Seen:
    """Ids that answers brought, for requests that refer to them."""

    responses: list[str] = field(default_factory=lambda: ["resp_none"])
    conversations: list[str] = field(default_factory=lambda: ["conv_none"])


class RequestGrammar:
    """Writes one request after another; the same for the same seed and answers."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.seen = Seen()
        self._schemas = {url: model.model_json_schema() for url, (model, _) in ENDPOINTS.items()}
        self._special: dict[str, Callable[[], Any]] = {
            "model": lambda: self._pick("demo", "demo", "demo", "alias", "nothing"),
            "name": lambda: self._pick(*NAMES),
            "role": lambda: self._pick(*ROLES),
            "id": lambda: self._pick(*IDS),
            "call_id": lambda: self._pick(*IDS),
            "tool_call_id": lambda: self._pick(*IDS),
            "tool_use_id": lambda: self._pick(*IDS),
            "n": lambda: self._pick(1, 1, 1, 2, 3),
            "best_of": lambda: self._pick(1, 2, 3),
            "previous_response_id": lambda: self._pick(*self.seen.responses),
            "conversation": lambda: self._pick(*self.seen.conversations),
            "arguments": self._arguments,
            "parameters": self._json_schema,
            "input_schema": self._json_schema,
            "schema": self._json_schema,
            "json": self._json_schema,
            "guided_json": self._json_schema,
            "regex": lambda: self._pick(*PATTERNS),
            "guided_regex": lambda: self._pick(*PATTERNS),
            "grammar": lambda: self._pick(*GRAMMARS),
            "guided_grammar": lambda: self._pick(*GRAMMARS),
            "definition": lambda: self._pick(*GRAMMARS, *PATTERNS),
            "structural_tag": lambda: json.dumps(self._json_schema()),
            "chat_template_kwargs": lambda: {self._pick("enable_thinking", "x"): self._any(3)},
            "include": lambda: [self._pick(*INCLUDE)],
            "logit_bias": lambda: {str(self._pick(*NUMBERS)): self._pick(-100, 0, 100, 101)},
        }  # fmt: skip

    def request(self) -> tuple[str, str, bytes]:
        """Method, path and body."""
        if self._chance.random() < 0.1:
            return self._stored()
        url = self._pick(*ENDPOINTS)
        body = dict(ENDPOINTS[url][1]) | self._fields(url)
        return "POST", url, json.dumps(body).encode("utf-8", "surrogatepass")

    def _fields(self, url: str) -> dict[str, Any]:
        """The whole request by its schema, or some of its fields beside a plain one."""
        schema = self._schemas[url]
        names = list(schema["properties"])
        few = self._chance.sample(names, self._chance.randint(1, min(5, len(names))))
        chosen = {name: self._value(name, schema["properties"][name], schema, 0) for name in few}
        if "stream" in names and self._chance.random() < 0.3:
            chosen["stream"] = True
        if self._chance.random() < WRONG:
            chosen[self._pick("colour", "", "messages", "__class__")] = self._any(2)
        return chosen

    def _stored(self) -> tuple[str, str, bytes]:
        """An operation on responses and conversations that exist."""
        response = f"/v1/responses/{self._pick(*self.seen.responses)}"
        talk = f"/v1/conversations/{self._pick(*self.seen.conversations)}"
        after = self._pick(-1, 0, 1, 99, "x", 1 << 70)
        schema = self._schemas["/v1/conversations"]
        items = {"items": self._value("items", schema["properties"]["items"], schema, 0)}
        method, path, body = self._pick(
            ("GET", response, {}), ("DELETE", response, {}), ("POST", f"{response}/cancel", {}),
            ("GET", f"{response}?stream=true&starting_after={after}", {}),
            ("GET", f"{response}/input_items?limit={after}&order=asc", {}),
            ("GET", talk, {}), ("POST", talk, {"metadata": self._any(3)}), ("DELETE", talk, {}),
            ("POST", f"{talk}/items", items), ("GET", f"{talk}/items?limit={after}&after=x", {}),
            ("GET", f"{talk}/items/{self._pick(*IDS)}", {}), ("DELETE", f"{talk}/items/msg_x", {}),
            ("GET", "/v1/models", {}), ("GET", "/v1/models/demo", {}),
        )  # fmt: skip
        path = path.encode("utf-8").decode("ascii", "ignore")
        return method, path, b"" if method == "GET" else json.dumps(body).encode()

    def _value(self, name: str, schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
        if self._chance.random() < WRONG:
            return self._pick(*WRONGS)
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        if name in self._special and self._chance.random() < 0.9:
            return self._special[name]()
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._value("", self._pick(*schema[union]), root, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._pick(*schema["enum"])
        return self._typed(schema, root, depth)

    def _typed(self, schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
        match schema.get("type"):
            case "object" if "properties" in schema:
                return self._object(schema, root, depth)
            case "array":
                num = min(self._pick(0, 1, 1, 2, 3), schema.get("maxItems", 3))
                num = 0 if depth > DEEPEST else max(num, schema.get("minItems", 0))
                items = schema.get("items", {})
                return [self._value("", items, root, depth + 1) for _ in range(num)]
            case "string":
                return self._pick(*WORDS)
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return self._pick(True, False)
            case "null":
                return None
        return {self._pick("a", "type", *NAMES): self._any(depth)} if depth < DEEPEST else {}

    def _object(self, schema: dict[str, Any], root: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        share = 0.4 if depth < DEEPEST else 0.0
        return {
            name: self._value(name, inner, root, depth + 1)
            for name, inner in schema["properties"].items()
            if name in required or self._chance.random() < share
        }

    def _number(self, schema: dict[str, Any]) -> float:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        known = [schema[bound] for bound in bounds if bound in schema]
        found = self._pick(*NUMBERS, *known, *known)
        return int(found) if schema["type"] == "integer" else found

    def _arguments(self) -> Any:
        right = json.dumps({self._pick("a", "city"): self._any(3)})
        return self._pick(right, right[:-1], "", "{}", "[]", "nonsense", {"a": 1})

    def _json_schema(self, depth: int = 0) -> Any:
        if depth > 3:
            return self._pick(True, False, {}, {"$ref": "#"}, {"type": "string"})
        inner = [self._json_schema(depth + 1) for _ in range(self._pick(0, 1, 2, 3))]
        named = {self._pick("a", "b", "", "$ref", *NAMES): one for one in inner}
        return self._pick(
            {"type": "object", "properties": named, "required": list(named)},
            {"type": "object", "properties": named, "additionalProperties": False},
            {"type": "array", "items": self._pick(*inner, {}), "maxItems": self._pick(*NUMBERS)},
            {self._pick("anyOf", "oneOf", "allOf"): inner}, {"enum": [self._any(2) for _ in inner]},
            {"const": self._any(2)}, {"type": "string", "pattern": self._pick(*PATTERNS)},
            {"type": ["string", "null"], "format": self._pick("date", "uuid", "x")}, {"not": {}},
            {"type": "integer", "minimum": self._pick(*NUMBERS), "multipleOf": 0},
            {"$defs": {"d": {"$ref": "#/$defs/d"}}, "$ref": "#/$defs/d"}, {"type": "banana"},
        )  # fmt: skip

    def _any(self, depth: int) -> Any:
        """Any JSON, not deeper than this allows."""
        if depth < DEEPEST and self._chance.random() < 0.3:
            inner = [self._any(depth + 2) for _ in range(2)]
            return self._pick(inner, {self._pick(*WORDS): one for one in inner})
        return self._pick(*WORDS, *NUMBERS, None, True, False)

    def _pick(self, *of: Any) -> Any:
        return self._chance.choice(of)
