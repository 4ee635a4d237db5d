"""Malformed requests: from our own OpenAPI document, and raw bytes at the socket.

    python -m tests.faults.fuzz --requests 10000 [--url http://127.0.0.1:8000]

Without a URL the gateway runs on the scripted engine, so that what is tried is the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from eaglegate.server.store.base import Retention
from eaglegate.server.store.sql import SqlResponseStore
from tests.server.conftest import Lab, on_a_port

Body = dict[str, Any]
HANG_S = 20.0
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


class Fuzzer:
    """Spoils good requests in ways the document suggests."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self._chance = random.Random(seed)
        self._document = document
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


def shaped(path: str, body: bytes) -> bool:
    """Whether an error is in the API's own shape."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    kinds = {"message", "type"} if path.startswith("/v1/messages") else {"message", "type", "code"}
    return kinds <= set(error) and bool(error["message"])


async def fuzz(url: str, requests: int, seed: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    # An expiry of its own would let httpx close a connection that it has just given to a request.
    limits = httpx.Limits(max_connections=32, keepalive_expiry=None)
    async with httpx.AsyncClient(base_url=url, timeout=HANG_S, limits=limits) as client:
        document = (await client.get("/openapi.json")).json()
        fuzzer = Fuzzer(document, seed)
        gate = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with gate:
                if number % 5 == 0:
                    await _raw(url, fuzzer.raw(), seen)
                else:
                    await _request(client, *fuzzer.request(), seen)

        await asyncio.gather(*(one(number) for number in range(requests)))
        seen["alive"] = int((await client.get("/health")).status_code == 200)
    return seen


async def _request(
    client: httpx.AsyncClient, method: str, path: str, body: bytes, seen: Counter[str]
) -> None:
    try:
        headers = {"content-type": "application/json"}
        answer = await client.request(method, path, content=body, headers=headers)
    except httpx.TimeoutException:
        seen["hang"] += 1
        print(f"hang: {method} {path} {body[:300]!r}", file=sys.stderr)
        return
    except httpx.TransportError as error:
        seen["broken"] += 1
        print(f"{error!r}: {method} {path} {body[:300]!r}", file=sys.stderr)
        return
    seen[f"{answer.status_code // 100}xx"] += 1
    if answer.status_code >= 500:
        print(f"{answer.status_code}: {method} {path} {body[:300]!r}", file=sys.stderr)
    if 400 <= answer.status_code < 500 and not shaped(path, answer.content):
        seen["misshapen"] += 1
        print(f"misshapen: {path} {body[:200]!r} -> {answer.content[:200]!r}", file=sys.stderr)


async def _raw(url: str, message: bytes, seen: Counter[str]) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(message)
        writer.write_eof()
        async with asyncio.timeout(HANG_S):
            answer = await reader.read(1 << 16)
        seen["raw 5xx" if b" 500 " in answer[:40] else "raw"] += 1
    except TimeoutError:
        seen["hang"] += 1
        print(f"hang: raw {message[:200]!r}", file=sys.stderr)
    except ConnectionError:
        seen["raw"] += 1
    finally:
        writer.close()


def bad(seen: Counter[str]) -> int:
    """Number of outcomes that must not have happened."""
    never = ("5xx", "raw 5xx", "hang", "misshapen", "broken")
    return sum(seen[what] for what in never) + (not seen["alive"])


def on_the_scripted_engine(
    run: Callable[[str], Counter[str]], *, real_template: bool = False
) -> Counter[str]:
    lab = Lab(renderer=_renderer()) if real_template else Lab()
    lab.says("one two three")
    with tempfile.TemporaryDirectory() as folder:
        lab.gateway.store = SqlResponseStore(f"sqlite:///{folder}/responses.db", Retention(3600))
        with on_a_port(lab.app) as url:
            return run(url)


def _renderer() -> Any:
    """The demo's own tokenizer and chat template, as vLLM renders them."""
    from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
    from eaglegate.engine.vllm_backend.renderer import VllmRenderer

    return VllmRenderer(make_demo_arguments())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url")
    given = parser.parse_args()

    def run(url: str) -> Counter[str]:
        return asyncio.run(fuzz(url, given.requests, given.seed))

    seen = run(given.url) if given.url else on_the_scripted_engine(run, real_template=True)
    print(json.dumps(dict(sorted(seen.items())), indent=2))
    return 1 if bad(seen) else 0


if __name__ == "__main__":
    sys.exit(main())
