"""Lookups in a conversation's own text: the index, the replay, and the command."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from eaglegate.lab.measure import drafts_command
from eaglegate.lab.measure.drafts import ALL, CostTable
from eaglegate.lab.measure.lookup_answers import TEXT, LookupAnswer, Twins, read_lookups
from eaglegate.lab.measure.lookup_index import propose
from eaglegate.lab.measure.lookups import DRAFT, Prices, Replay, replay_answers
from eaglegate.observability.captures.files import write_records
from eaglegate.observability.captures.record import (
    CapturedChoice,
    CapturedPrompt,
    CapturedStep,
    CaptureRecord,
)

TARGET = Path(__file__).parents[3] / "engine" / "demo" / "target"
WIDTH = 8
FILE = 'def area(width: int):\n    """Area of a "square"."""\n    return width * width\n\n\n' * 3
TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))


def encode(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, add_special_tokens=False).ids)


def draw_tokens(count: int, seed: int, vocabulary: int = 50_000) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(vocabulary) for _ in range(count))


def make_steps(tokens: int, accepted: Sequence[int], drafted: int = 3) -> tuple[CapturedStep, ...]:
    """Steps over all tokens but the first, which comes from prefill."""
    steps: list[CapturedStep] = []
    left = tokens - 1
    while left:
        count = min(accepted[len(steps) % len(accepted)], left - 1)
        steps.append(CapturedStep(drafted, count, count + 1))
        left -= count + 1
    return tuple(steps)


def make_record(
    prompt: Sequence[int], answer: Sequence[int], number: int = 0, **fields: Any
) -> CaptureRecord:
    steps = fields.pop("steps", make_steps(len(answer), (0, 1, 2, 1)))
    choice = CapturedChoice(
        tokens=len(answer),
        token_ids=tuple(answer),
        steps=steps,
        phases=(("reasoning", 2), ("content", len(answer) - 2)),
    )
    record = CaptureRecord(
        messages=({"role": "user", "content": "?"},),
        id=f"r{number}",
        session=f"s{number}",
        workload="chat",
        method="eagle3.1",
        prompts=(CapturedPrompt(len(prompt), tuple(prompt)),),
        choices=(choice,),
    )
    return replace(record, **fields)


def read_all(records: Sequence[CaptureRecord]) -> list[LookupAnswer]:
    answers, _ = read_lookups(records, WIDTH, Twins(TARGET))
    replay_answers(answers, WIDTH, Prices())
    return answers


def compute_gain(answers: Sequence[LookupAnswer], variant: str) -> float:
    """Time of the draft alone over the time with lookups."""
    return sum(answer.costs[DRAFT][ALL] for answer in answers) / sum(
        answer.costs[variant][ALL] for answer in answers
    )


def make_copies(count: int = 10) -> list[CaptureRecord]:
    """Answers that repeat most of their prompts."""
    return [
        make_record(text := draw_tokens(200, number), text[:150], number) for number in range(count)
    ]


def make_new_texts(count: int = 10) -> list[CaptureRecord]:
    return [
        make_record(draw_tokens(200, number), draw_tokens(150, 1000 + number), number)
        for number in range(count)
    ]


def test_a_proposal_beyond_the_text_goes_on_with_its_own_tokens() -> None:
    """After a b c a b c, the proposal is a b c a b c a ...; eight of its tokens are right."""
    (first, *_) = propose([1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2, 3, 1, 2, 9], 20)
    assert first is not None and first.hits == 8


def test_copied_answers_gain() -> None:
    answers = read_all(make_copies())
    assert compute_gain(answers, "at once") > 2
    # The draft takes a few steps by chance, other ones in each variant.
    assert 1.5 < compute_gain(answers, "one step late") < 1.05 * compute_gain(answers, "at once")


def test_new_text_costs_exactly_the_captured_steps() -> None:
    """No lookup is taken, so nothing but the captured draft steps remains."""
    for answer in read_all(make_new_texts()):
        for costs in answer.costs.values():
            assert costs == answer.costs[DRAFT]


def test_a_draft_that_copies_as_well_leaves_no_gain() -> None:
    """Acceptance beside a match decides, not its mean over copies and new text."""
    copied, new = (0, *[7] * 18), (0,)
    records = [
        make_record(
            text := draw_tokens(200, number), text[:150], number, steps=make_steps(150, copied, 7)
        )
        for number in range(10)
    ] + [
        replace(record, choices=(replace(choice, steps=make_steps(150, new, 7)),))
        for record in make_new_texts(30)
        for choice in record.choices
    ]
    gain = compute_gain(read_all(records), "at once")
    assert 0.98 <= gain < 1.15


def test_lookups_that_are_seldom_right_do_not_cost_much() -> None:
    """Texts of few tokens match everywhere, and what followed then tells nothing."""
    records = [
        make_record(draw_tokens(300, number, 6), draw_tokens(300, 99 + number, 6), number)
        for number in range(20)
    ]
    answers = read_all(records)
    assert compute_gain(answers, "at once") > 0.98
    assert compute_gain(answers, "one step late") > 0.98


@pytest.mark.parametrize(
    ("method", "drafted"), [("none", 0), ("ngram", 3), ("mtp", 3), ("eagle3", 3)]
)
def test_every_draft_method_is_estimated(method: str, drafted: int) -> None:
    accepted = (1,) if drafted else (0,)
    records = [
        make_record(
            text := draw_tokens(200, number),
            text[:150],
            number,
            method=method,
            steps=make_steps(150, accepted, drafted),
        )
        for number in range(10)
    ]
    assert compute_gain(read_all(records), "at once") > 1.5


def make_tool_records(count: int = 6) -> list[CaptureRecord]:
    """Tool loops whose answers quote the tool's result inside JSON arguments."""
    records = []
    for number in range(count):
        file = FILE.replace("area", f"area_{number}").replace("width", f"side_{number}")
        call = '{"name": "replace", "arguments": {"old": "' + json.dumps(file)[1:-1] + '"}}'
        prompt = encode(f"<|im_start|>tool\n{file}<|im_end|>\n<|im_start|>assistant\n")
        messages = ({"role": "tool", "content": [{"type": "text", "text": file}]},)
        records.append(
            make_record(prompt, encode(call), number, messages=messages, workload="tools")
        )
    return records


def test_the_twin_finds_escaped_tool_results() -> None:
    answers = read_all(make_tool_records())
    assert compute_gain(answers, "twin, at once") > 1.2 * compute_gain(answers, "at once")
    assert compute_gain(answers, "twin, one step late") > compute_gain(answers, "one step late")


def test_a_tokenizer_of_another_model_makes_no_twin() -> None:
    """Its ids for the escaped text would never match, and the twin would seem worthless."""
    record = make_tool_records(1)[0]
    shifted = replace(
        record,
        prompts=(
            CapturedPrompt(9, tuple(token + 1 for token in record.prompts[0].token_ids or ())),
        ),
    )
    twins = Twins(TARGET)
    assert twins.encode(shifted, shifted.prompts[0].token_ids or ()) == []
    assert "give the folder of the captured model" in twins.describe()


def test_a_late_lookup_keeps_only_what_follows_the_step_before() -> None:
    (answer,) = read_all(make_copies(1))
    late = Replay(answer, answer.sources[TEXT], True, WIDTH, Prices())
    assert late.look_up(10, None) is None
    before, proposal = answer.sources[TEXT][10], late.look_up(14, 10)
    assert before is not None and proposal is not None
    assert (proposal.bucket, proposal.hits) == (before.bucket, before.hits - 4)
    assert late.look_up(10 + before.hits + 1, 10) is None


def test_costs_by_phase_add_up() -> None:
    for answer in read_all(make_copies()):
        for costs in answer.costs.values():
            assert costs["reasoning"] + costs["content"] == pytest.approx(costs[ALL])


def test_measured_step_costs_replace_the_assumption() -> None:
    table = CostTable.parse(
        {"batches": [1, 8], "depths": [0, 4], "step_ms": [[10, 16], [20, 20]]}, "costs.json"
    )
    prices = Prices.from_table(table, 1)
    assert prices.price_draft(4, "eagle3") == pytest.approx(1.6)
    assert prices.verification == Prices().verification and "costs.json" in prices.describe()
    assert Prices.from_table(table, 8).price_draft(4, "eagle3") == 1
    flat = CostTable.parse({"batches": [1], "depths": [3], "step_ms": [[10]]}, "costs.json")
    with pytest.raises(ValueError, match="two depths"):
        Prices.from_table(flat, 1)


def damage(record: CaptureRecord, **fields: Any) -> CaptureRecord:
    return replace(record, choices=(replace(record.choices[0], **fields),))


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": None},
        {"token_ids": ("a", [1], None)},
        {"token_ids": (-1, 2**70, True)},
        {"steps": ()},
        {"steps": (CapturedStep(3, 2, 900),)},
        {"steps": (CapturedStep(3, -2, -1),)},
        {"steps": (CapturedStep(1, 3, 4),)},
        {"steps": (CapturedStep("x", [], {}),)},  # type: ignore[arg-type]
        {"prompt": 7},
        {"prompt": -1},
        {"prompt": "x"},
    ],
)
def test_answers_without_valid_tokens_or_steps_are_left_out(fields: dict[str, Any]) -> None:
    whole = make_copies(2)
    answers, left_out = read_lookups([damage(whole[0], **fields), whole[1]], WIDTH, Twins(TARGET))
    assert (len(answers), left_out) == (1, 1)


def test_phases_longer_than_the_answer_are_cut() -> None:
    record = damage(make_copies(1)[0], phases=(("content", 10**12),))
    ((answer,), _) = read_lookups([record], WIDTH, Twins(TARGET))
    assert len(answer.phases) == 150


def run_command(records: Sequence[CaptureRecord], folder: Path, *arguments: str) -> int:
    capture = folder / "capture.jsonl"
    write_records(capture, records)
    out = ["--out", str(folder / "out")]
    return drafts_command.main(["compare", str(capture), "--lookup", "8", *out, *arguments])


def test_the_first_sentence_tells_whether_the_traffic_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(make_copies(), tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("This traffic repeats enough for lookups: a lookup predicts 98% of")
    assert "0.07 per draft token" in lines[1] and "no twin" in lines[2]
    assert any(line.startswith("| workload chat") for line in lines)
    assert any(line.startswith("| phase content") for line in lines)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["slices"]["all"]["gains"]["at once"]["value"] > 2
    assert "This traffic repeats" in (tmp_path / "out" / "report.html").read_text()
    assert run_command(make_new_texts(), tmp_path) == 0
    assert capsys.readouterr().out.startswith("This traffic does not repeat enough for lookups")
    assert run_command(make_copies(2), tmp_path) == 0
    assert capsys.readouterr().out.startswith("Too little traffic to tell whether lookups pay")


def test_the_table_has_the_gains_of_the_twin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(make_tool_records(), tmp_path) == 0
    printed = capsys.readouterr().out
    assert "The twin has 6 of 6 tool results" in printed
    assert "twin, one step late" in printed


def test_flags_that_do_not_matter_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(make_copies(1), tmp_path, "--depth", "3", "--limit", "9") == 0
    assert capsys.readouterr().err == "eaglegate drafts: --depth does not matter with --lookup\n"


def test_a_lookup_estimate_that_cannot_be_made_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([damage(make_copies(1)[0], steps=())], tmp_path) == 1
    assert "--capture-mode full" in capsys.readouterr().err
    assert run_command(make_copies(1), tmp_path, "--target", str(tmp_path)) == 1
    assert f"No such file or directory: '{tmp_path}/tokenizer.json'" in capsys.readouterr().err
    (tmp_path / "tokenizer.json").write_text("{}")
    assert run_command(make_copies(1), tmp_path, "--target", str(tmp_path)) == 1
    assert "tokenizer.json cannot be read" in capsys.readouterr().err
    argv = ["compare", str(tmp_path), "--lookup", "0", "--out", str(tmp_path)]
    assert drafts_command.main(argv) == 1
    assert "--lookup must be from 1 to 64; given 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        drafts_command.main([*argv, "--draft", "x"])
