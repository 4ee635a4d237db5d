"""LoRA adapters as models: how they are named, and where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglegate.server.backends.adapters import read_adapters
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    return str(tmp_path)


def test_adapters_are_named_as_in_vllm(folder: str) -> None:
    given = [f"sql={folder}", f'{{"name": "chat", "path": "{folder}", "base_model_name": "m"}}']
    assert read_adapters(given, True, ("demo",)) == {"sql": folder, "chat": folder}
    assert read_adapters([], False, ("demo",)) == {}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("demo={}", "more than one model named 'demo'"),
        ("sql", "takes name=path"),
        ('{"name": "x"}', "with name and path"),
        ("sql=/nowhere", "holds no adapter_config.json"),
    ],
)
def test_invalid_adapters_stop_the_start(folder: str, item: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_adapters([item.replace("{}", folder)], True, ("demo",))


def test_adapters_need_the_engines_flag(folder: str) -> None:
    with pytest.raises(ConfigError, match="--enable-lora"):
        read_adapters([f"a={folder}"], False, ())


def test_with_workers_adapters_are_theirs() -> None:
    argv = ["m", "--upstream", "http://127.0.0.1:1", "--lora-modules", "a=b"]
    with pytest.raises(ConfigError, match="with --upstream, adapters"):
        read_command_line("serve", argv, lambda _: None)


async def test_a_request_names_its_adapter_as_model(lab: Any) -> None:
    lab.change_model(adapters=frozenset({"alias"}))
    for name, adapter in (("demo", None), ("alias", "alias")):
        lab.says("three")
        assert (await lab.chat(model=name)).json["model"] == name
        assert lab.engine.requests[-1].adapter == adapter
    cards = (await lab.get("/v1/models")).json["data"]
    assert [card.get("parent") for card in cards] == [None, "demo"]
