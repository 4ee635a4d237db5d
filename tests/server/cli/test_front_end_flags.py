"""No flag of ``vllm serve`` is forgotten: each has an effect, a notice or a refusal."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import IGNORED, REFUSED, flag
from eaglegate.server.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "flags.md"
HERE_TOO = {"config", "model_tag", "help"}
VALUES = {"lora_modules": ["a=b"], "disable_access_log_for_endpoints": ["/x"]}


@pytest.fixture(scope="module")
def theirs() -> list[argparse.Action]:
    """Flags of vLLM's front end that are no engine flags."""
    engine = {a.dest for a in AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())._actions}
    actions = make_arg_parser(FlexibleArgumentParser())._actions
    return [action for action in actions if action.dest not in engine | HERE_TOO]


def test_every_flag_is_honoured_ignored_or_refused(theirs: list[argparse.Action]) -> None:
    ours = {field.name for field in dataclasses.fields(Settings)}
    listed = {*REFUSED, *IGNORED, "lora_modules"}
    assert {action.dest for action in theirs} <= ours | listed
    assert listed <= {action.dest for action in theirs}, "a flag vLLM does not have"


def given(action: argparse.Action) -> list[str]:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return [action.option_strings[0]]
    return [action.option_strings[0], *VALUES.get(action.dest, ["7"])]


def test_every_listed_flag_parses_and_tells_or_stops(theirs: list[argparse.Action]) -> None:
    for action in theirs:
        notices: list[str] = []
        if action.dest in REFUSED:
            with pytest.raises(ConfigError, match=flag(action.dest)):
                read_command_line("serve", given(action), notices.append)
        elif action.dest in IGNORED:
            read_command_line("serve", given(action), notices.append)
            (notice,) = [text for text in notices if text.startswith("note: ")]
            assert flag(action.dest) in notice


def test_values_that_ask_for_nothing_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    notices: list[str] = []
    argv = ["--response-role", "assistant", "--no-enable-log-outputs", "-asc", "1"]
    read_command_line(
        "serve", [*argv, "--tool-strict-level", "auto", "--no-tokens-only"], notices.append
    )
    assert [text for text in notices if text.startswith("note")] == []


def test_with_workers_the_same_holds() -> None:
    notices: list[str] = []
    argv = ["some/model", "--upstream", "http://127.0.0.1:1"]
    read_command_line("serve", [*argv, "--enable-prompt-tokens-details"], notices.append)
    assert any("--enable-prompt-tokens-details" in text for text in notices)
    with pytest.raises(ConfigError, match="--middleware"):
        read_command_line("serve", [*argv, "--middleware", "x.y"], notices.append)


def test_the_page_lists_them_all() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in (*REFUSED, *IGNORED):
        assert f"| `{flag(name)}` |" in page, name
