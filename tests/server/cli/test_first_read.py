"""Questions that need no vLLM are answered before vLLM is imported."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eaglegate.engine import vllm_contract, vllm_flags
from eaglegate.engine.vllm_contract import find_vllm
from eaglegate.server.cli import first_read
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.cli.first_read import make_option_parser, read_first
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import Heading, flag, list_settings
from eaglegate.server.settings import Settings

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "engine" / "demo"
needs_vllm = pytest.mark.skipif(find_vllm() is None, reason="reads the line on behalf of vLLM")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )


def refuse(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The last line of a usage error."""
    with pytest.raises(SystemExit) as found:
        read_first("serve", argv)
    assert found.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize("command", ["serve", "check", "prove"])
@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.320.0", "0.33.0+cu130"])
def test_an_untested_vllm_is_refused_unless_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch, command: str, version: str
) -> None:
    for module in (vllm_contract, first_read):
        monkeypatch.setattr(module, "find_vllm", lambda: ("vllm", version))
    with pytest.raises(ConfigError) as refusal:
        read_first(command, [str(DEMO / "target")])
    assert f"vllm {version} is installed" in str(refusal.value)
    assert "tested with 0.32 only" in str(refusal.value)
    assert "--allow-untested-vllm" in str(refusal.value)
    first = read_first(command, [str(DEMO / "target"), "--allow-untested-vllm"])
    assert first is not None and first.settings.allow_untested_vllm


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu"])
def test_a_tested_vllm_needs_no_flag(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    for module in (vllm_contract, first_read):
        monkeypatch.setattr(module, "find_vllm", lambda: ("vllm", version))
    assert read_first("serve", [str(DEMO / "target")]) is not None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "argv",
    [["serve", "--help"], ["check", "-h"], ["serve", "--prot", "80"], ["serve", "/nowhere"]],
)
def test_vllm_is_not_imported(argv: Sequence[str]) -> None:
    code = f"""
import sys
from eaglegate.server.__main__ import main
try:
    status = main({argv!r})
except SystemExit as ended:
    status = ended.code
print(sorted({{"vllm", "torch", "transformers"}} & sys.modules.keys()), status)
"""
    assert run(code).stdout.splitlines()[-1].startswith("[] ")


def test_help_is_in_sections_and_shows_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found:
        read_first("serve", ["--help"])
    assert found.value.code == 0
    text = capsys.readouterr().out
    headings = ["engine, most used:", "Address and model names:", "Speculation:", "API keys"]
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)
    assert "--log-level {debug,info,warning,error}" in text
    assert "--tensor-parallel-size" in text
    assert "EAGLEGATE_MAX_RUNNING=64" in text
    assert "--lora-dtype" not in text, "an engine flag that few people need"


def test_every_setting_stands_under_a_heading() -> None:
    headings = [heading for heading, _ in list_settings(Settings)]
    assert all(isinstance(heading, Heading) for heading in headings)
    together = [h for at, h in enumerate(headings) if at == 0 or headings[at - 1] != h]
    assert len(together) == len(set(together)), "a heading stands twice"


@needs_vllm
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "80"], "unrecognized arguments: --prot; did you mean --port?"),
        (["--tensor-paralel-size=2"], "did you mean --tensor-parallel-size?"),
        (["--port", "x"], "argument --port: must be a whole number; given 'x'"),
        (["--log-level", "loud"], "invalid choice: 'loud'"),
        (["--speculative-config", "{x"], "argument --speculative-config/-sc: not JSON"),
        (["one", "two"], "unrecognized arguments: two"),
    ],
)
def test_a_wrong_flag(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    assert words in refuse(capsys, *argv)


@needs_vllm
def test_a_flag_that_is_refused() -> None:
    with pytest.raises(ConfigError, match="--uds is refused: the gateway listens on --host"):
        read_first("serve", ["--uds", "/run/gateway.sock"])
    assert read_first("serve", ["--fingerprint-value", "x"]) is not None


@needs_vllm
def test_a_parser_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="unknown tool call parser 'hermess': use one of"):
        read_first("serve", ["--tool-call-parser", "hermess"])
    with pytest.raises(ConfigError, match="unknown reasoning parser 'qwen': use one of"):
        read_first("serve", ["--reasoning-parser", "qwen"])
    assert read_first("check", ["--tool-call-parser", "hermess"]) is not None
    accepted = ["--tool-call-parser", "hermess", "--vllm-parser-fallback"]
    assert read_first("serve", accepted) is not None


@needs_vllm
def test_wrong_files_and_names_of_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; name the folder"):
        read_first("serve", [str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read_first("serve", [str(tmp_path)])
    assert read_first("serve", [str(tmp_path), "--no-preflight"]) is not None
    file = tmp_path / "gateway.yaml"
    file.write_text("prot: 80\n")
    with pytest.raises(ConfigError, match=r"there is no flag --prot; did you mean port\?"):
        read_first("serve", ["--config", str(file)])
    with pytest.raises(ConfigError, match="--api-key-file"):
        read_first("serve", ["--api-key-file", str(tmp_path / "keys")])
    with pytest.raises(ConfigError, match="--key-class 'chat=fast': write NAME=latency"):
        read_first("serve", ["--key-class", "chat=fast"])
    with pytest.raises(ConfigError, match="no API key 'chat'; name keys in an --api-key-file"):
        read_first("serve", ["--key-class", "chat=latency"])
    with pytest.raises(ConfigError, match="no API key 'chat'; name keys in an --api-key-file, and"):
        read_first("serve", ["--shared-prefix-cache", "chat"])
    for origin in ("app.example", "https://app.example/"):
        with pytest.raises(ConfigError, match=f"such as https://app.example, or .; given {origin}"):
            read_first("serve", ["--allowed-origins", origin])
    for origin in ("*", '["https://app.example:8443"]', "vscode-webview://*", "null"):
        assert read_first("serve", ["--allowed-origins", origin]) is not None
    with pytest.raises(ConfigError, match="--otlp-endpoint must begin with http://"):
        read_first("serve", ["--otlp-endpoint", "localhost:4318"])
    with pytest.raises(
        ConfigError, match=r"--media-hosts: a host is .*; given 'https://b.example'"
    ):
        read_first("serve", ["--media-hosts", "a.example", "https://b.example"])


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
    found = read_first("serve", argv)
    assert found is not None
    assert found.model == "a/model"


@needs_vllm
def test_a_model_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("model_tag: their/model\nport: 1\n")
    found = read_first("serve", ["our/model", "--config", str(file), "--port", "2"])
    assert found is not None
    assert (found.model, found.settings.port) == ("our/model", 2)


@pytest.mark.thorough
def test_the_table_of_flags_is_vllms() -> None:
    pytest.importorskip("vllm")
    from eaglegate.engine.vllm_backend.arguments import add_engine_arguments, make_engine_parser

    theirs = make_engine_parser(prog="eaglegate")
    add_engine_arguments(theirs)
    parser = make_option_parser("serve")
    ours = parser._option_string_actions
    groups = [group.title for group in theirs._action_groups if (group.title or "").endswith("fig")]
    assert tuple(groups) == vllm_flags.GROUPS
    for action in theirs._actions:
        if action.dest in ("help", "model_tag"):
            continue
        for spelling in action.option_strings:
            assert _num_values(ours[spelling]) == _num_values(action), spelling
    known = {spelling for action in theirs._actions for spelling in action.option_strings}
    assert {flag(name) for name in vllm_flags.NAMES} <= known
    assert vllm_flags.SHORT.keys() <= known


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
            line = read_command_line("serve", [flag(name), spell(value)], lambda _: None)
            assert getattr(line.settings, name) == value
            assert read_first("serve", [flag(name), spell(value)]) is not None
    assert "log_level" in chosen
    line = read_command_line("serve", ["--log-level", "debug"], lambda _: None)
    assert make_engine_arguments(line.namespace).log_level is None


def _num_values(action: argparse.Action) -> str:
    return {"*": "+", None: "1"}.get(action.nargs, str(action.nargs))  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_correct_file_starts_in_silence(tmp_path: Path) -> None:
    """vLLM's parser would read the file a second time, and warn of duplicate keys."""
    pytest.importorskip("vllm")
    file = tmp_path / "gateway.yaml"
    file.write_text(f"model_tag: {DEMO / 'target'}\nport: 1\nmax-model-len: 512\n")
    code = f"""
from eaglegate.server.cli import first_read
from eaglegate.server.cli.command_line import read_command_line
line = read_command_line("serve", ["--config", {str(file)!r}, "--port", "0"], lambda _: None)
print(line.settings.port, line.namespace.max_model_len)
"""
    done = run(code)
    assert done.stdout.splitlines()[-1] == "0 512"
    assert "duplicate" not in done.stdout + done.stderr


@needs_vllm
@pytest.mark.thorough
def test_a_port_in_use_is_found_before_vllm_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(
            "import sys; from eaglegate.server.__main__ import main; "
            f"main(['serve', '--port', '{port}']); "
            "print('vllm' in sys.modules)"
        )
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert done.stdout == "False\n"


def test_an_unknown_flag_is_named_before_a_missing_vllm(monkeypatch, capsys):
    monkeypatch.setattr(first_read, "find_vllm", lambda: None)
    assert "did you mean --upstream?" in refuse(capsys, "model", "--upstreams", "http://h")
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        read_first("serve", ["model"])
