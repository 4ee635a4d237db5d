"""Two keys of two classes over HTTP: the batch key gives up depth, the latency key none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from eaglegate.server.access.keys import hash_key
from tests.conftest import SAMPLE, RunningGateway, serving

pytestmark = pytest.mark.alone
"""The batch key's depth follows from times of steps, which are wrong beside other engines."""
KEYS = {name: f"eg-{name}-secret-of-32-bytes-or-more" for name in ("chat", "nightly", "operator")}
DEPTH = 3
BATCH = 4
"""Requests of the batch key at a time."""
COUNTED = ("drafted_tokens", "decode_steps", "wasted_tokens", "accepted_tokens", "verify_steps")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("classes")
    lines = [f"- name: {name}\n  sha256: {hash_key(key).hex()}\n" for name, key in KEYS.items()]
    (folder / "keys.yaml").write_text("keys:\n" + "".join(lines) + "  admin: true\n")
    classes = ("--key-class", "chat=latency", "nightly=batch:2")
    arguments = (f"--api-key-file={folder}/keys.yaml", *classes, f"--depth={DEPTH}")
    with serving(folder / "serve.log", arguments) as running:
        yield running


def ask(gateway: RunningGateway, key: str, subject: str, tokens: int) -> str:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"Tell me a story about {subject}."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {KEYS[key]}"}
    url = f"{gateway.url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=300).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == tokens
    return str(answer["choices"][0]["message"]["content"])


def count_by_key(gateway: RunningGateway, key: str) -> dict[str, float]:
    headers = {"authorization": f"Bearer {KEYS['operator']}"}
    page = httpx.get(f"{gateway.operator}/metrics", headers=headers, timeout=60).text
    found = SAMPLE.findall(page)
    return {
        name: sum(
            float(value)
            for series, labels, value in found
            if series == f"eaglegate_key_{name}_total" and f'key="{key}"' in labels
        )
        for name in COUNTED
    }


class KeyUsage:
    """Counts of one key over a part of the test."""

    def __init__(self, gateway: RunningGateway, key: str) -> None:
        self._gateway, self._key = gateway, key
        self._before = count_by_key(gateway, key)
        self.counts: dict[str, float] = {}

    def stop(self) -> None:
        after = count_by_key(self._gateway, self._key)
        self.counts = {name: after[name] - self._before[name] for name in COUNTED}

    @property
    def depth(self) -> float:
        return self.counts["drafted_tokens"] / self.counts["decode_steps"]


@contextmanager
def chat_running(gateway: RunningGateway, texts: set[str]) -> Iterator[None]:
    """One stream of the latency key after another, until the block ends."""
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            texts.add(ask(gateway, "chat", "a cat", 300))

    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(keep)
        try:
            yield
        finally:
            over.set()
        kept.result()


def ask_batch(gateway: RunningGateway) -> list[str]:
    with ThreadPoolExecutor(BATCH) as pool:
        return [*pool.map(lambda at: ask(gateway, "nightly", f"{at} lions", 60), range(BATCH))]


def test_the_batch_key_gives_up_depth_and_the_latency_key_keeps_it(
    gateway: RunningGateway,
) -> None:
    texts: set[str] = set()
    texts.add(ask(gateway, "chat", "a cat", 300))
    free = KeyUsage(gateway, "nightly")
    unlimited = ask_batch(gateway)
    free.stop()
    batch, chat = KeyUsage(gateway, "nightly"), KeyUsage(gateway, "chat")
    with chat_running(gateway, texts):
        limited = ask_batch(gateway)
    batch.stop()
    chat.stop()
    assert limited == unlimited
    assert len(texts) == 1
    assert free.depth > 0.9 * DEPTH
    assert chat.depth > 0.9 * DEPTH
    assert batch.depth < 0.8 * DEPTH
    for usage in (free, batch, chat):
        one = usage.counts
        assert one["wasted_tokens"] <= one["drafted_tokens"] - one["accepted_tokens"]
        assert one["accepted_tokens"] > 0


def test_the_page_shows_each_named_key(gateway: RunningGateway) -> None:
    ask(gateway, "chat", "a dog", 40)
    headers = {"authorization": f"Bearer {KEYS['operator']}"}
    url = f"{gateway.operator}/debug/speculation"
    rows: dict[str, Any] = httpx.get(url, headers=headers, timeout=60).json()["slices"]["key"]
    assert "chat" in rows
    assert rows["chat"]["mean_depth"] > 0
    assert set(rows) <= set(KEYS)
