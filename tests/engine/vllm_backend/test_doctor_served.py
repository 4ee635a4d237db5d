"""The doctor on a served gateway: poisons in the draft of a real engine, found.

Clean traffic gives the doctor its history. Then a poison goes into the engine process
(``poisons.py``) while streams run. The doctor has 200 requests to find it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import httpx
import pytest

from tests.conftest import ADMIN, RunningGateway, serving
from tests.engine.draft_copies import EAGLE31, change_weights
from tests.engine.vllm_backend.drafters import TARGET
from tests.engine.vllm_backend.poisons import POISON_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = "tests.engine.vllm_backend.poisons.PoisonedWorker"
SERVE = (
    *ADMIN,
    "--dtype=float32",
    "--doctor=watch",
    "--depth=3",
    "--trust-request-chat-template",
    f"--worker-extension-cls={WORKER}",
    "--max-model-len=2048",
    "--kv-cache-memory-bytes=268435456",
)
FLAGS = os.environ.get("DOCTOR_FLAGS", "").split()
"""More flags of both gateways, such as ``--dtype=bfloat16 --depth=auto``."""
CLEAN_REQUESTS = int(os.environ.get("CLEAN_REQUESTS", "200"))
"""Clean requests in which no fault may be found."""
CLEAN_AT_ONCE = 12
WARM = 60
"""Clean answers before the first poison."""
MOST = 200
"""Requests in which a poison has to be found."""
AT_ONCE = 6
TOKENS, STREAMED = 40, 200
"""Tokens of an answer, and of a long one."""
RULES = " ".join(
    f"Rule {number}: answer in {words} and keep to the point, as a {person} would."
    for number, (words, person) in enumerate(
        itertools.product(
            ("short words", "long words", "plain words", "few words", "kind words"),
            ("teacher", "doctor", "sailor", "farmer", "painter"),
        )
    )
)
"""The hot prefix: five cached blocks of 128 tokens."""
QUESTIONS = [
    ask.format(thing)
    for ask in ("Tell me a story about a {}.", "Explain a {}.", "Count to {}.", "What is a {}?")
    for thing in ("cat", "dog", "key", "lamp", "river", "ship", "city", "garden", "clock", "door")
]
OTHER_TEMPLATE = "{% for one in messages %}{{ one.content }}\n\n{% endfor %}"


class Answer(NamedTuple):
    text: str
    acceptance: float
    """Acceptance length by the answer's own timings."""


@dataclass
class Patient:
    """A served gateway, its traffic, and the way to poison its draft."""

    gateway: RunningGateway
    command: Path
    template: str | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.client = httpx.Client(timeout=120)

    def ask(self, number: int, tokens: int = TOKENS, system: str = "", **fields: Any) -> Answer:
        """Stream an answer, at temperature 0 unless ``fields`` say so."""
        question = QUESTIONS[number % len(QUESTIONS)]
        body = {
            "model": "demo",
            "messages": [
                {"role": "system", "content": system or RULES},
                {"role": "user", "content": question},
            ],
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"chat_template": self.template} if self.template else {}),
            **fields,
        }
        parts, acceptance, ended = list[str](), 0.0, False
        url = f"{self.gateway.url}/v1/chat/completions"
        with self.client.stream("POST", url, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                ended = ended or line == "data: [DONE]"
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    assert "error" not in chunk, chunk
                    acceptance = chunk.get("timings", {}).get("acceptance_length", acceptance)
                    for choice in chunk["choices"]:
                        delta = choice["delta"]
                        parts.append((delta.get("reasoning") or "") + (delta.get("content") or ""))
        assert ended
        return Answer("".join(parts), acceptance)

    def ask_many(self, count: int) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.ask, (next(self.numbers) for _ in range(count))))

    def describe(self) -> dict[str, Any]:
        found = self.client.get(f"{self.gateway.operator}/admin/doctor")
        return dict(found.raise_for_status().json())

    def wait_unsuspected(self) -> None:
        """A trial that began before a poison would say nothing of it."""
        while self.describe()["suspected"]:
            self.ask(next(self.numbers))

    def poison(self, name: str, **given: Any) -> None:
        """Blocks until it is done, which the next step does."""
        done = self.command.with_suffix(".done")
        done.unlink(missing_ok=True)
        whole = self.command.with_suffix(".new")
        whole.write_text(json.dumps([name, given]))
        whole.rename(self.command)
        self.ask(0, 4)
        result = json.loads(done.read_text())
        assert isinstance(result, int), result
        print(name, given, result)

    def measure(self) -> tuple[float, list[str]]:
        """Acceptance length and texts of eight prompts."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(self.ask, range(0, 40, 5)))
        assert all(one.acceptance >= 1 for one in answers)
        return fmean(one.acceptance for one in answers), [one.text for one in answers]

    def serve_until_diagnosed(self) -> tuple[dict[str, Any], int]:
        """The diagnosis, and the requests that it took."""
        known, asked = len(self.describe()["diagnoses"]), 0
        while asked < MOST:
            self.ask_many(2 * AT_ONCE)
            asked += 2 * AT_ONCE
            found = self.describe()
            if len(found["diagnoses"]) > known:
                return found["diagnoses"][0], asked
        raise AssertionError(f"nothing was found: {json.dumps(found)[:2000]}")


class Streams:
    """Long streams, one after the other, whose texts are compared with their first run."""

    def __init__(self, patient: Patient) -> None:
        self._patient, self._over = patient, threading.Event()
        self._expected = [patient.ask(number, STREAMED).text for number in (3, 17)]
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Streams:
        self._running = self._pool.submit(self._run)
        return self

    def _run(self) -> int:
        for rounds in itertools.count(1):
            for number, text in zip((3, 17), self._expected, strict=True):
                assert self._patient.ask(number, STREAMED).text == text
            if self._over.is_set():
                return rounds
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        self._over.set()
        print("rounds of streams", self._running.result(120))


def serve(folder: Path, *more: str) -> Iterator[Patient]:
    command = folder / "poison.json"
    os.environ[POISON_FILE] = str(command)
    try:
        with serving(folder / "serve.log", (*SERVE, *more, *FLAGS)) as gateway:
            patient = Patient(gateway, command)
            with patient.client:
                patient.ask_many(WARM)
                yield patient
    finally:
        os.environ.pop(POISON_FILE, None)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """The demo, with EAGLE 3.1."""
    yield from serve(tmp_path_factory.mktemp("eagle"))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """The demo's target as its own draft: eight layers whose acceptance hangs on cached blocks.

    The demo's EAGLE draft hardly looks at them.
    """
    folder = tmp_path_factory.mktemp("twin")
    copy = shutil.copytree(TARGET, folder / "draft")
    draft = {"method": "draft_model", "model": str(copy), "num_speculative_tokens": 5}
    yield from serve(folder, f"--speculative-config={json.dumps(draft)}")


def check_found(patient: Patient, poison: Callable[[], None], cause: str) -> None:
    patient.wait_unsuspected()
    before, texts = patient.measure()
    with Streams(patient):
        poison()
        found, asked = patient.serve_until_diagnosed()
        after, again = patient.measure()
    print(f"{cause}: {before:.3f} -> {after:.3f}; {asked} requests")
    print(found)
    assert (found["cause"], found["outcome"]) == (cause, "not treated")
    assert again == texts


def test_another_drafts_keys_and_values_in_cached_blocks(twin: Patient) -> None:
    check_found(twin, lambda: twin.poison("write_noise", scale=1.0), "cached blocks")


@pytest.mark.timeout(600 + CLEAN_REQUESTS)
def test_clean_traffic_has_no_fault(demo: Patient) -> None:
    """Of prefixes that stay and prefixes that come and go, in a mix that changes all the time."""
    draws, began = random.Random(f"{FLAGS} {CLEAN_REQUESTS}"), time.monotonic()
    mix = (RULES,)

    def ask(number: int) -> None:
        prefix, temperature = draws.choice(mix), draws.choice((0, 0, 0.5, 0.8, 1.2))
        demo.ask(number, draws.randint(16, 24), system=prefix, temperature=temperature)

    with ThreadPoolExecutor(CLEAN_AT_ONCE) as pool:
        for turn in range(CLEAN_REQUESTS // 40):
            guest = f"You are guest {turn // 5}. {RULES[: 300 * (turn // 5 % 5)]}"
            mix = (RULES, *draws.choices((RULES, RULES[400:], "Be brief.", guest), k=5))
            list(pool.map(ask, draws.choices(range(len(QUESTIONS)), k=40)))
    found = demo.describe()
    causes = [one["cause"] for one in found["diagnoses"]]
    took_s = time.monotonic() - began
    print(f"{40 * (turn + 1)} clean answers in {took_s:.0f} s:", causes, found["engine_share"])
    assert {*causes} <= {"traffic"}


def test_a_changed_template_is_traffic(demo: Patient) -> None:
    before, _ = demo.measure()
    demo.template = OTHER_TEMPLATE
    try:
        after, _ = demo.measure()
        print(f"template: {before:.3f} -> {after:.3f}")
        found, asked = demo.serve_until_diagnosed()
    finally:
        demo.template = None
    print(asked, found)
    assert (found["cause"], found["outcome"]) == ("traffic", "nothing done")


def test_half_of_the_weights_from_another_file(demo: Patient, tmp_path: Path) -> None:
    numbers = itertools.count()
    mixed = change_weights(tmp_path / "mixed", lambda _, one: -one if next(numbers) % 2 else one)
    check_found(
        demo,
        lambda: demo.poison("load_weights", folder=str(mixed), running=str(EAGLE31)),
        "draft weights",
    )
