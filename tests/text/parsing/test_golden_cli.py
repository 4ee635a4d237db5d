"""The golden cases through ``eaglegate parse --jsonl``."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eaglegate.server.cli import parse as cli
from eaglegate.text.events import Outcome
from tests.text.parsing.golden_corpus import Call, Case, Format, corpus, formats
from tests.text.parsing.golden_cuts import randomly
from tests.text.parsing.golden_reading import Reading, disagreements, output
from tests.text.parsing.golden_tokenizer import format_tokenizer

FORMATS = list(formats().values())


def line(case: Case, seed: int) -> str:
    ids, eos, _ = output(case)
    whole = [*ids, *([] if eos is None else [eos])]
    described = {
        "token_ids": whole,
        "cuts": [len(chunk) for chunk in randomly(whole, seed)],
        "finish_reason": case.finish.value,
        "starts_in": case.starts_in,
        "tools": case.offered(),
    }
    return json.dumps(described)


def arguments(form: Format, folder: Path) -> list[str]:
    format_tokenizer(form).save(str(folder / "tokenizer.json"))
    names = ["--tool-call-parser", *form.tool_parsers[:1]] if form.tool_parsers else []
    if form.reasoning_parser:
        names += ["--reasoning-parser", form.reasoning_parser]
    return ["--tokenizer", str(folder), *names, "--jsonl"]


def reading(message: dict[str, Any]) -> Reading:
    calls = [
        Call(call["name"], call["arguments"], Outcome(call["outcome"]), call["id"])
        for call in message["tool_calls"]
    ]
    return Reading(message["reasoning"], message["content"], calls, message["finish_reason"])


def check(cases: list[Case], printed: str) -> None:
    messages = [json.loads(text) for text in printed.splitlines()]
    for case, message in zip(cases, messages, strict=True):
        assert list(disagreements(case, reading(message))) == [], case.id


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_every_case_of_a_format(
    form: Format,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = [case for case in corpus() if case.format == form]
    lines = "\n".join(line(case, seed) for seed, case in enumerate(cases))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert cli.main(arguments(form, tmp_path)) == 0
    check(cases, capsys.readouterr().out)


def test_as_a_command(tmp_path: Path) -> None:
    form = formats()["hermes"]
    cases = [case for case in corpus() if case.format == form][:20]
    done = subprocess.run(
        [sys.executable, "-m", "eaglegate.server.cli.parse", *arguments(form, tmp_path)],
        input="\n".join(line(case, 0) for case in cases),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    check(cases, done.stdout)
