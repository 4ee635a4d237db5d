"""One brain, one gateway in front of it, and a desk per test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests import workers
from tests.clients.brain import Brain
from tests.clients.desk import Desk, end_processes
from tests.clients.local_server import serve_in_thread
from tests.clients.report import PAGE, Reporter
from tests.clients.traffic import Traffic
from tests.conftest import serving

LIMIT_S = 600
"""Limit of a test: a client may install itself first, and machines are slow."""
LONG = 400_000
"""A context no agent fills by accident: the demo's tokens are short."""
ANSWER = "{{ text(m.content) }}{% if m.tool_calls %}"
REASONING = (
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)
LATER_SYSTEM = "{% if not loop.first %}"
REFUSAL = LATER_SYSTEM + "{{ raise_exception('System message must be at the beginning.') }}"
"""As Qwen 3.5's template has it, with which Claude Code once could not work."""
FLAGS = (
    "--served-model-name=demo",
    "--tool-call-parser=hermes",
    "--reasoning-parser=qwen3",
    "--enable-tokenizer-info-endpoint",
    "--allowed-origins",
    '["https://page.example"]',
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clients-page", action="store_true", help="write docs/clients.md")


def pytest_configure(config: pytest.Config) -> None:
    page = PAGE if config.getoption("--clients-page") else None
    config.pluginmanager.register(Reporter(page), "clients-report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("client"):
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def brain() -> Brain:
    return Brain()


StartGateway = Callable[[int], str]


@pytest.fixture(scope="session")
def start_gateway(
    stack: ExitStack, brain: Brain, tmp_path_factory: pytest.TempPathFactory
) -> StartGateway:
    """A gateway with a context of so many tokens; one per length."""
    started: dict[int, str] = {}

    def start(max_model_len: int) -> str:
        if max_model_len not in started:
            folder = tmp_path_factory.mktemp(f"gateway-{max_model_len}")
            model = make_model(folder, max_model_len)
            worker = stack.enter_context(serve_in_thread(brain.worker(max_model_len).app()))
            store = f"--responses-store=sqlite:///{folder}/responses.sqlite"
            flags = (str(model), *FLAGS, store, "--upstream", worker)
            gateway = stack.enter_context(serving(folder / "serve.log", flags))
            started[max_model_len] = gateway.url
        return started[max_model_len]

    return start


def make_model(folder: Path, max_model_len: int) -> Path:
    """The demo's files with a longer context, and its template with the reasoning that came back,
    and strict about system messages.
    """
    model = folder / "demo"
    shutil.copytree(workers.MODEL, model, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = max_model_len
    (model / "config.json").write_text(json.dumps(config))
    template = model / "chat_template.jinja"
    text = template.read_text()
    assert (text.count(ANSWER), text.count(LATER_SYSTEM)) == (1, 1)
    text = text.replace(ANSWER, REASONING + ANSWER).replace(LATER_SYSTEM, REFUSAL)
    template.write_text(text)
    return model


MakeDesk = Callable[[int], Desk]


@pytest.fixture
def make_desk(start_gateway: StartGateway, brain: Brain, tmp_path: Path) -> Iterator[MakeDesk]:
    """A desk before a gateway with that context; at the end nothing may have been refused."""
    made: list[Desk] = []
    with ExitStack() as stack:

        def make(max_model_len: int) -> Desk:
            gateway = start_gateway(max_model_len)
            traffic = Traffic(gateway)
            url = stack.enter_context(serve_in_thread(traffic.app()))
            for name in ("home", "project"):
                (tmp_path / name).mkdir()
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="eg-")))
            made.append(Desk(tmp_path, url, scratch, gateway, brain, traffic))
            return made[-1]

        brain.plays.clear()
        brain.rules.clear()
        brain.seen.clear()
        yield make
        for desk in made:
            end_processes(desk.home)
    for desk in made:
        assert desk.traffic.expects_refusals or not desk.traffic.refused


@pytest.fixture
def desk(make_desk: MakeDesk) -> Desk:
    return make_desk(LONG)
