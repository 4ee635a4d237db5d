"""Rules of all commands: no abbreviated flags, one way to name a gateway, and their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.lab.improve.config import read_config
from eaglegate.lab.measure.bench_command import make_headers, make_parser
from eaglegate.lab.measure.replay_command import make_parser as make_replay_parser
from eaglegate.lab.measure.report import describe_run
from eaglegate.server.__main__ import main

ABBREVIATED = (
    "explain --ur http://h",
    "top --onc",
    "draft swap folder --tria",
    "capture stats folder --key-f file",
    "replay folder --against http://h --key-fil file",
    "improve --conf file --url http://h",
)
INFINITE = (
    "bench --timeout nan",
    "bench --url http://h --rate 1,nan",
    "replay folder --against http://h --speed inf",
    "replay folder --against http://h --tie=-inf",
    "drafts compare folder --draft d --out o --batch nan",
    "canary folder --share nan",
)
ROOT = Path(__file__).parents[3]
UNREACHABLE = "127.0.0.1:9"


@pytest.mark.parametrize("line", ABBREVIATED)
def test_an_abbreviated_flag_is_refused(line, capsys):
    """``replay --key SECRET`` was read as ``--key-file SECRET``, and printed as a path."""
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert re.search(r"unrecognized arguments|required", error)


@pytest.mark.parametrize("line", INFINITE)
def test_a_number_that_is_not_finite_is_refused(line, capsys):
    """Every comparison with a NaN is false, and an infinite timeout never ends."""
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    assert code in (1, 2)
    assert "must be a finite number; given '" in capsys.readouterr().err


def test_the_usage_lists_installed_commands(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "eaglegate.features.audit.command", None)
    assert main(["audit"]) == 2
    error = capsys.readouterr().err
    assert "there is no command 'audit'" in error
    assert "draft COMMAND" in error
    assert "audit ACTION" not in error
    assert "did you mean audit" not in error


@pytest.mark.parametrize(
    "line",
    [
        "explain --url {}",
        "top --once --url {}",
        "top --once {}",
        "audit show --url {}",
        "draft show --url {}",
        "canary --url {}",
    ],
)
def test_every_operator_command_names_its_gateway_by_url(line, capsys):
    assert main(line.format(UNREACHABLE).split()) == 1
    assert f"http://{UNREACHABLE}" in capsys.readouterr().err


def test_the_improvement_loop_names_its_gateway_by_url(tmp_path, capsys):
    config = tmp_path / "improve.yaml"
    config.write_text("state: state\ncapture: capture\n")
    line = ["improve", "--config", str(config), "--once"]
    assert main(line) == 2
    assert "--url URL" in capsys.readouterr().err
    assert main([*line, "--url", UNREACHABLE]) == 0, "there is no traffic to learn from"
    assert main([*line, "--serve", UNREACHABLE]) == 0


@pytest.mark.parametrize("made", [make_parser(), make_replay_parser()])
def test_a_key_is_sent_and_not_reported(made, monkeypatch):
    argv = ["file", "--against", "http://h", "--key", "secret"]
    options = made.parse_args(argv if made.prog.endswith("replay") else argv[3:])
    assert make_headers(options) == {"Authorization": "Bearer secret"}
    assert "secret" not in describe_run("replay", argv)["command"]


def test_a_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("EAGLEGATE_API_KEY", "secret")
    assert make_headers(make_parser().parse_args([])) == {"Authorization": "Bearer secret"}


def test_the_commands_of_the_page_on_improving_fit_each_other(tmp_path):
    """The operator's paths are closed without keys, unless they have a port of their own."""
    page = (ROOT / "docs" / "improve.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "improve.yaml"
    file.write_text(text)
    config = read_config(file)
    assert (config.reference, config.keep) == (None, None), "a newcomer has neither"
    serve, improve = re.findall(r"```\n(eaglegate serve.*)\n(eaglegate improve.*)\n", page)[0]
    (port,) = re.findall(r"--admin-port (\d+)", serve)
    assert f"--url http://localhost:{port}" in improve
    assert f"--capture {config.capture.name}" in serve


# -- output that nobody reads


def run_without_reader(*argv: str) -> tuple[int, str]:
    """Exit status and standard error of a command whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "eaglegate.server", *argv]
    with os.fdopen(writer, "w") as out:
        ended = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
        )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("argv", [["help"], ["explain", "--help"]])
def test_a_reader_that_has_left(argv: list[str]) -> None:
    assert run_without_reader(*argv) == (0, "")


def test_a_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 2
    assert "there is no command 'serv'; did you mean serve?" in capsys.readouterr().err
