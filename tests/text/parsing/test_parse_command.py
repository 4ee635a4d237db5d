"""``eaglegate parse``: what goes in and what comes out, byte for byte."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.server.cli.parse import main
from eaglegate.text.parsing.vocabulary import Vocabulary

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "engine/demo/target"
CALL = (
    '<think>\nHm.\n</think>\n\nOk.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
)
HERMES = ["--tokenizer", str(TARGET), "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    }
]


@pytest.fixture
def ids() -> list[int]:
    return Vocabulary.from_directory(TARGET).encode(CALL + "<|im_end|>")


@pytest.fixture
def parse(monkeypatch, capsys):
    """Run the command with lines (or text) on stdin: the status and what it printed."""

    def run(arguments: list[str], *lines: object) -> tuple[int, list[str]]:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        stdin = io.TextIOWrapper(io.BytesIO("\n".join(texts).encode()), encoding="utf-8")
        monkeypatch.setattr("sys.stdin", stdin)
        status = main(arguments)
        return status, capsys.readouterr().out.splitlines()

    return run


def test_a_line_an_answer(parse, ids):
    whole = {"token_ids": ids, "cuts": [len(ids)], "finish_reason": "stop", "tools": TOOLS}
    single = {"token_ids": ids, "tools": [TOOLS[0]["function"]]}
    status, answers = parse([*HERMES, "--jsonl"], whole, single)
    assert status == 0
    assert (
        answers
        == [
            '{"reasoning": "Hm.", "content": "Ok.", "tool_calls": [{"id": "call_0", "name": "f", '
            '"arguments": "{\\"a\\": 1}", "outcome": "schema_mismatch"}], '
            '"finish_reason": "tool_calls"}'
        ]
        * 2
    )


def test_the_prompt_opened_the_thinking(parse):
    ids = Vocabulary.from_directory(TARGET).encode("Hm.\n</think>\n\nOk.")
    line = {"token_ids": ids, "cuts": [5, 3], "starts_in": "reasoning", "finish_reason": "length"}
    _, answers = parse([*HERMES, "--jsonl"], line)
    assert json.loads(answers[0]) == {
        "reasoning": "Hm.",
        "content": "Ok.",
        "tool_calls": [],
        "finish_reason": "length",
    }


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("no json", "malformed"),
        ("[]", "Expected `object`"),
        ({}, "missing required field `token_ids`"),
        ({"token_ids": [1, True]}, "Expected `int`, got `bool` - at `$.token_ids[1]`"),
        ({"token_ids": [999_999_999]}, "must be below"),
        ({"token_ids": [1], "cuts": [2]}, "cuts add up to 2, token_ids has only 1"),
        ({"token_ids": [], "finish_reason": "tired"}, "at `$.finish_reason`"),
        ({"token_ids": [], "starts_in": "middle"}, "at `$.starts_in`"),
        ({"token_ids": [], "tools": {}}, "at `$.tools`"),
        ({"token_ids": [], "stop": "x"}, "at `$.stop`"),
    ],
)
def test_a_bad_line_says_why_and_the_others_go_on(parse, line, rule):
    status, answers = parse([*HERMES, "--jsonl"], line, {"token_ids": []})
    assert status == 1
    assert rule in json.loads(answers[0])["error"]
    assert json.loads(answers[1])["finish_reason"] == "stop"


def test_raw_text_shows_events_and_message(parse, tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    status, lines = parse([*HERMES, "--tools", str(tools)], CALL)
    assert status == 0
    assert "ToolCallStart(index=0, id='call_0', name='f')" in lines
    message = json.loads("\n".join(lines[lines.index("{") :]))
    assert message["tool_calls"][0]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere", "--tokenizer", str(TARGET)], "/nowhere"),
        (["--tokenizer", "/nowhere"], "no tokenizer at"),
        (["--tokenizer", str(TARGET), "--tool-call-parser", "x"], "use one of"),
        (["--tokenizer", str(TARGET), "--reasoning-parser", "x"], "use one of"),
        (["--tokenizer", str(TARGET), "--tools", "/nowhere"], "/nowhere"),
    ],
)
def test_invalid_arguments_are_reported(parse, capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_parse_starts_without_the_engine(ids):
    """The command imports neither torch nor vLLM, nor other modules that are slow to import."""
    code = (
        "import sys, eaglegate.server.cli.parse; "
        "print([m for m in sys.argv[1:] if m in sys.modules])"
    )
    heavy = ["vllm", "torch", "transformers", "jsonschema", "fastapi", "pydantic"]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
