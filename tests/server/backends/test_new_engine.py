"""Adding an engine takes one module and one row of ``BACKENDS``; nothing else knows of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from unittest.mock import Mock

import pytest

from eaglegate.engine.scripted import ScriptedEngine, steps
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.policy import RecoveryObserver, SupervisionTimeouts
from eaglegate.engine.supervision.supervisor import SupervisedEngine
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.server.__main__ import main
from eaglegate.server.backends import Backend
from eaglegate.server.backends.line import CommandLine, ModelArguments
from eaglegate.server.backends.remote import RenderingBackend
from eaglegate.server.cli.command_line import BACKENDS, read_command_line
from eaglegate.server.cli.feature_table import load
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import setting
from tests.server.conftest import DEMO

REQUEST = EngineRequest("r1", (1, 2, 3), Sampling(max_tokens=64))


@dataclass(frozen=True, slots=True)
class ToyArguments(ModelArguments):
    toy: str = setting("", "what the toy says", metavar="TEXT")


class ToyBackend(RenderingBackend):
    arguments = ToyArguments

    def __init__(self, line: CommandLine, progress: Callable[[str], None]) -> None:
        super().__init__(line, progress)
        assert isinstance(line.model, ToyArguments)
        self._answer = self.renderer.encode(line.model.toy, add_special_tokens=False)

    def create_engine(
        self, timeouts: SupervisionTimeouts, observer: RecoveryObserver
    ) -> SupervisedEngine:
        return SupervisedEngine(lambda: ScriptedEngine(steps(self._answer)), timeouts, observer)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(BACKENDS, "toy", f"{__name__}:ToyBackend")
    return [str(DEMO), "--toy", "Hello, world"]


async def test_a_backend_is_a_class_and_a_row(toy: list[str]) -> None:
    line = read_command_line("serve", toy, lambda _: None)
    backend: Backend = load(line.backend)(line, lambda _: None)
    engine = backend.create_engine(SupervisionTimeouts(), Mock())
    info = backend.describe(await engine.start())
    async with aclosing(read_steps(engine.generate, REQUEST)) as generated:
        tokens = [token async for step in generated for token in step.token_ids]
    assert backend.renderer.decode(tokens) == "Hello, world"
    assert info.model == backend.names[0]
    await engine.aclose()
    await backend.aclose()


def test_a_new_engine_can_be_checked(toy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *toy, "--port", "0"]) == 0
    assert "Nothing found would stop it" in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--max-num-seqs", "8"], ["--lora-modules", "a=b"]])
def test_flags_of_vllm_are_not_its_own(toy: list[str], more: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{more[0]}.*: with --toy"):
        read_command_line("serve", [*toy, *more], lambda _: None)
    with pytest.raises(ConfigError, match="--toy needs the model"):
        read_command_line("serve", toy[1:], lambda _: None)
