"""Malformed requests: good ones of our own OpenAPI document, spoilt, and raw bytes for a socket."""

from __future__ import annotations

import json
import random
from typing import Any

Body = dict[str, Any]
POISON: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, -1e-308, "", " ", "\u0000", "\ud7ff", "😀" * 50,
    "a" * 5000, [], {}, [[]], [None] * 50, {"": ""}, {"$ref": "#"}, [{"type": "text"}],
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "../../etc/passwd", "{{7*7}}",
    "<|im_end|>", "NaN", [1, "a", None, {}], {"role": "user"},
)  # fmt: skip
SPOILT: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"null", b"NaN", b"{}{}", b"\xff\xfe", b'{"a":1,"a":2}', b"[" * 5000,
    b'{"a":' * 2000, b"\x00" * 100, b'{"model": "demo", "messages": [' + b"{}," * 500 + b"{}]}",
)  # fmt: skip
RAW: tuple[bytes, ...] = (
    b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nhost: \x00\xff\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nhost: x\r\n\r\n",
)  # fmt: skip


class Spoiler:
    """Spoils good requests in ways the document suggests."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self._chance = random.Random(seed)
        self.targets = [
            (method.upper(), path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if not path.startswith("/admin")
        ]

    def request(self) -> tuple[str, str, bytes]:
        method, path, operation = self._chance.choice(self.targets)
        while "{" in path:
            before, _, rest = path.partition("{")
            path = (
                before + self._chance.choice(("x", "demo", "%00", "..%2f")) + rest.partition("}")[2]
            )
        if method in ("GET", "DELETE"):
            return method, path, b""
        if self._chance.random() < 0.15:
            return method, path, self._chance.choice(SPOILT)
        body = json.dumps(self._spoilt(operation)).encode()
        if self._chance.random() < 0.1:
            at = self._chance.randrange(len(body))
            body = body[:at] + bytes([self._chance.randrange(256)]) + body[at + 1 :]
        return method, path, body

    def _spoilt(self, operation: Body) -> Body:
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        fields = list(schema.get("properties", {"messages": {}}))
        body: Body = {
            "model": "demo",
            "messages": [{"role": "user", "content": "hi"}],
            "prompt": "hi",
            "input": "hi",
            "max_tokens": 4,
        }
        body = {key: value for key, value in body.items() if key in fields}
        for _ in range(self._chance.randint(1, 3)):
            body[self._chance.choice([*fields, "colour"])] = self._poison()
        return body

    def _poison(self) -> Any:
        made = self._chance.choice(POISON)
        draw = self._chance.random()
        if draw < 0.2:
            return [made, self._chance.choice(POISON)]
        return {self._chance.choice(("type", "name", "role", "a")): made} if draw < 0.4 else made

    def raw(self) -> bytes:
        if self._chance.random() < 0.5:
            return self._chance.choice(RAW)
        return self._chance.randbytes(self._chance.randrange(1, 2000))
