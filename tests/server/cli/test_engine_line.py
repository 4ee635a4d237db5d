"""The command line of a gateway with vLLM in its process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine import vllm_contract, vllm_parts
from eaglegate.engine.vllm_contract import find_vllm
from eaglegate.engine.vllm_parts import Area, PartDifference
from eaglegate.server.backends.line import CommandLine, read_engine_arguments
from eaglegate.server.cli import command_line
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import flag, list_settings
from eaglegate.server.settings import Settings

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "engine" / "demo"
SCHEDULER = "eaglegate.engine.vllm_backend.scheduler.scheduler"
needs_vllm = pytest.mark.skipif(find_vllm() is None, reason="vLLM reads the line")


def read(*argv: str) -> CommandLine:
    return read_command_line("serve", list(argv), lambda _: None)


def refuse(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The last line of a usage error."""
    with pytest.raises(SystemExit) as found:
        read(*argv)
    assert found.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture
def another_vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[Area, list[str]]], None]:
    """Installs a version of vLLM with differences by area."""

    def install(version: str, missing: dict[Area, list[str]]) -> None:
        for module in (vllm_contract, command_line):
            monkeypatch.setattr(module, "find_vllm", lambda: ("vllm", version))
        differences = {
            area: [PartDifference(name, "is missing") for name in names]
            for area, names in missing.items()
        }
        monkeypatch.setattr(vllm_parts, "_compare_once", lambda _: differences)

    return install


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.330.0", "0.34.0+cu130"])
def test_an_untested_vllm_that_differs_is_refused(another_vllm: Any, version: str) -> None:
    another_vllm(version, {Area.SCHEDULER: ["Scheduler.running"]})
    with pytest.raises(ConfigError) as refusal:
        read(str(DEMO / "target"))
    for words in (
        f"vllm {version} is installed",
        "tested with 0.32 and 0.33 only",
        "Scheduler.running is missing (planner)",
        "no depth is chosen or bound",
        "--allow-untested-vllm",
    ):
        assert words in str(refusal.value)


@needs_vllm
def test_an_untested_vllm_can_be_allowed(another_vllm: Any) -> None:
    another_vllm("0.34.0", {Area.AUDITS: ["Worker.add_request"]})
    assert read(str(DEMO / "target"), "--allow-untested-vllm").settings.allow_untested_vllm
    with pytest.raises(ConfigError, match=r"tested with 0\.32 and 0\.33 only"):
        read(str(DEMO / "target"), "--no-allow-untested-vllm")


@needs_vllm
def test_an_untested_vllm_without_differences_needs_no_flag(another_vllm: Any) -> None:
    another_vllm("0.34.0", {})
    assert not read(str(DEMO / "target")).settings.allow_untested_vllm
    examination = vllm_parts.examine_installed()
    assert examination is not None
    assert "275 methods, functions and fields of 60 files" in examination.explain()
    assert examination.explain().endswith("and all are as expected")


@needs_vllm
@pytest.mark.parametrize(
    ("area", "scheduler", "speculates"),
    [(Area.SCHEDULER, None, True), (Area.WORKER, None, False), (Area.SEEDS, SCHEDULER, True)],
)
def test_only_the_affected_promise_is_switched_off(
    another_vllm: Any, area: Area, scheduler: str | None, speculates: bool
) -> None:
    another_vllm("0.34.0", {area: ["one"]})
    line = read("--allow-untested-vllm")
    arguments = read_engine_arguments(line.namespace, line.settings.depth)
    assert getattr(arguments, "scheduler_cls", None) == scheduler
    assert bool(arguments.speculative_config) is speculates


@needs_vllm
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "80"], "unrecognized arguments: --prot; did you mean --port?"),
        (["--tensor-paralel-size=2"], "did you mean --tensor-parallel-size?"),
        (["--port", "x"], "argument --port: must be a whole number; given 'x'"),
        (["--log-level", "loud"], "invalid choice: 'loud'"),
        (["one", "two"], "unrecognized arguments: two"),
    ],
)
def test_a_wrong_flag(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    assert words in refuse(capsys, *argv)


@needs_vllm
@pytest.mark.parametrize(
    "argv",
    [
        ["-tp", "2", "--enforce-eager", "a/model"],
        ["a/model", "-O3", "--speculative-config.method", "eagle3", "--max_model_len", "1k"],
        ["--speculative-config.num_speculative_tokens=3", "a/model"],
        ["--served-model-name", "x", "y", "--seed", "-1", "--model", "a/model"],
        ["a/model", "--hf-token", "--port", "0"],
    ],
)
def test_a_line_that_vllm_takes(argv: list[str]) -> None:
    namespace = read(*argv).namespace
    assert "a/model" in (namespace.model_tag, getattr(namespace, "model", None))


@needs_vllm
def test_a_model_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("model_tag: their/model\nport: 1\n")
    line = read("our/model", "--config", str(file), "--port", "2")
    assert (line.namespace.model_tag, line.settings.port) == ("our/model", 2)


@pytest.mark.thorough
@pytest.mark.parametrize("spell", [str.lower, str.upper])
def test_the_whole_line_takes_every_value_of_the_gateways_choices(
    spell: Callable[[str], str],
) -> None:
    """vLLM has a flag of the same name as one of them, ``--log-level``, with other values."""
    pytest.importorskip("vllm")
    from eaglegate.engine.vllm_backend.arguments import make_engine_arguments

    chosen = {
        item.name: item.metadata["choices"]
        for _, item in list_settings(Settings)
        if item.metadata.get("choices")
    }
    for name, values in chosen.items():
        for value in values:
            assert getattr(read(flag(name), spell(value)).settings, name) == value
    assert "log_level" in chosen
    line = read("--log-level", "debug")
    assert make_engine_arguments(line.namespace).log_level is None


def test_a_missing_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "find_vllm", lambda: None)
    with pytest.raises(ConfigError, match=r"vLLM is not installed.*--upstream URL"):
        read("model")
