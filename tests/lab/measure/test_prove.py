"""The judgements of ``eaglegate prove``, on answers that are made up; real engines: tests/e2e."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.types import (
    DecodeStep,
    EngineRequest,
    Execution,
    PositionLogprobs,
    Sampling,
    Step,
    TokenLogprob,
    WorkerExecution,
)
from eaglegate.lab.prove import checks
from eaglegate.lab.prove.blank_draft import list_tensors, make_blank_draft
from eaglegate.lab.prove.lane import ProofAnswer, Speed, divide
from eaglegate.lab.prove.report import ProofReport, scrub, scrub_arguments
from eaglegate.lab.prove.sampling import Candidates, score_samples
from eaglegate.lab.prove.texts import Kind, compare_texts
from eaglegate.lab.prove.trial import Evidence, ProofOutcome

EAGLE31 = Path(__file__).parents[3] / "engine" / "demo" / "eagle3_1"
LOGPROBS = (-0.1, -2.6, -2.65, -5.0)
"""Log probabilities of the tokens 0 to 3, in every place of the made-up texts."""


def make_entry(chosen: int, logprobs: tuple[float, ...] = LOGPROBS) -> PositionLogprobs:
    top = tuple(TokenLogprob(token, logprob) for token, logprob in enumerate(logprobs))
    own = logprobs[chosen] if chosen < len(logprobs) else -9.0
    return PositionLogprobs(TokenLogprob(chosen, own), top)


def make_answer(
    tokens: tuple[int, ...],
    temperature: float = 0.0,
    seed: int | None = None,
    steps: tuple[DecodeStep, ...] = (),
    depth: int | None = None,
) -> ProofAnswer:
    sampling = Sampling(max_tokens=8, temperature=temperature, seed=seed)
    request = EngineRequest("a", (9, 9), sampling, depth=depth)
    account = Account()
    account.add(Step(tokens, steps))
    logprobs = tuple(make_entry(token) for token in tokens)
    return ProofAnswer(request, tokens, logprobs, account, 0.0, 1.0)


def find_kind(reference: ProofAnswer, answer: ProofAnswer, dtype: str = "bfloat16") -> Kind | None:
    differences = compare_texts([(reference, answer)], dtype, lambda *_: (0.0, 0.0)).differences
    return differences[0].kind if differences else None


def test_a_near_tie_is_no_fault() -> None:
    reference = make_answer((0, 1, 0))
    assert find_kind(reference, make_answer((0, 1, 0))) is None
    assert find_kind(reference, make_answer((0, 2, 2))) is Kind.TIE
    assert find_kind(reference, make_answer((0, 2, 2)), "float32") is Kind.FAULT
    assert find_kind(reference, make_answer((0, 3, 2))) is Kind.FAULT
    assert find_kind(reference, make_answer((0, 7, 2))) is Kind.FAULT, "not a likely token at all"
    assert find_kind(reference, make_answer((0, 1))) is Kind.FAULT, "it ends early"


def test_the_margin_of_a_seeded_text_counts_its_noise() -> None:
    reference = make_answer((1, 0), temperature=2.0, seed=4)
    other = make_answer((3, 0), temperature=2.0, seed=4)

    def compare(ours: float, theirs: float) -> Kind:
        compared = compare_texts([(reference, other)], "bfloat16", lambda *_: (ours, theirs))
        return compared.differences[0].kind

    assert compare(3.0, 0.0) is Kind.FAULT
    assert compare(0.0, 1.19) is Kind.TIE
    assert compare(0.0, 3.0) is Kind.UNKNOWN, "the reference did not take the best token"


@pytest.mark.parametrize(
    ("drawn_at", "outcome"),
    [(2.0, ProofOutcome.PASSED), (1.0, ProofOutcome.FAILED), (0.0, ProofOutcome.FAILED)],
)
def test_samples_are_judged_by_the_temperature_they_were_drawn_at(
    drawn_at: float, outcome: ProofOutcome
) -> None:
    dice = random.Random(3)
    shares = Candidates(LOGPROBS, 0).weigh(drawn_at) if drawn_at else [1.0, 0.0, 0.0, 0.0]
    texts = [tuple(dice.choices(range(4), shares, k=8)) for _ in range(64)]
    judged = checks.judge_samples({0: [make_answer(text) for text in texts]})
    assert judged.outcome is outcome, judged.evidence
    power = judged.numbers["depth 0"]["z_without_temperature"]
    assert f"would give z {power:+.0f}." in judged.evidence


def test_tokens_outside_of_top_k() -> None:
    """Log probabilities of 20 tokens, of which 16 may be drawn."""
    entry = make_entry(18, tuple(-0.2 * at for at in range(20)))
    answer = replace(make_answer((0,)), logprobs=(entry,))
    assert score_samples([answer], 2.0, 16).outside_top_k == 1
    assert checks.judge_samples({0: [answer]}).outcome is ProofOutcome.FAILED


def test_accounts_are_exact_or_wrong() -> None:
    answers = [make_answer((0, 1, 2), steps=(DecodeStep(1, 1, 2),))]
    same = (1, 1, 1)
    assert checks.judge_accounts(answers, same, same).outcome is ProofOutcome.PASSED
    assert checks.judge_accounts(answers, same, (1, 2, 1)).outcome is ProofOutcome.FAILED
    unexplained = [make_answer((0, 1, 2))]
    assert checks.judge_accounts(unexplained, same, same).outcome is ProofOutcome.FAILED


def make_execution(
    asked: tuple[str, str] = ("VLLM_COMPILE", "FULL_AND_PIECEWISE"),
    graphs: str = "FULL_AND_PIECEWISE",
    captured: int = 9,
    compiled: int = 1,
    eager: bool = False,
    steps: dict[str, int] | None = None,
) -> Execution:
    worker = WorkerExecution(2, ("FLASH_ATTN",), asked[0], graphs, captured, compiled, 1)
    return Execution(eager, *asked, "bfloat16", True, (worker,), steps or {"FULL": 9, "NONE": 1})


@pytest.mark.parametrize(
    ("execution", "outcome", "words"),
    [
        (make_execution(), ProofOutcome.PASSED, "as asked"),
        (make_execution(compiled=0), ProofOutcome.FAILED, "0 of 1 parts"),
        (make_execution(captured=0), ProofOutcome.FAILED, "captured 0"),
        (make_execution(steps={"NONE": 9, "FULL": 1}), ProofOutcome.FAILED, "9 of 10 steps"),
        (make_execution(graphs="PIECEWISE"), ProofOutcome.UNSURE, "lowered"),
        (make_execution(asked=("NONE", "NONE")), ProofOutcome.FAILED, "do not ask"),
        (make_execution(asked=("NONE", "NONE"), eager=True), ProofOutcome.PASSED, "eagerly, as"),
        (
            make_execution(asked=("DYNAMO_TRACE_ONCE", "NONE"), graphs="NONE"),
            ProofOutcome.PASSED,
            "none asked",
        ),
    ],
)
def test_eager_execution_is_a_fault_where_it_was_not_asked_for(
    execution: Execution, outcome: ProofOutcome, words: str
) -> None:
    found, sentence = checks.judge_execution(execution)
    assert found is outcome
    assert words in sentence


@pytest.mark.parametrize(
    ("rounds", "outcome"),
    [
        ((0.9, 0.7, 1.2), ProofOutcome.PASSED),
        ((0.7, 0.6, 0.9), ProofOutcome.UNSURE),
        ((0.5, 0.6, 0.7), ProofOutcome.FAILED),
    ],
)
def test_speeds_are_judged_by_rounds(rounds: tuple[float, ...], outcome: ProofOutcome) -> None:
    ours, theirs = [Speed(one, one) for one in rounds], [Speed(1.0, 1.0)] * len(rounds)
    judged = checks.judge_speed({4: divide(ours, theirs)}, {4: {"draft": ours, "none": theirs}})
    assert judged.outcome is outcome
    planned = checks.judge_planner({4: {"0": theirs, "1": theirs, "auto": ours}})
    assert planned.outcome is outcome


def test_an_exchange_must_show_in_acceptance() -> None:
    same = compare_texts([(make_answer((0,)),) * 2], "bfloat16")
    assert checks.judge_exchange(same, (2.5, 1.0, 2.5), 0.1).outcome is ProofOutcome.PASSED
    assert checks.judge_exchange(same, (2.5, 2.5, 2.5), 0.1).outcome is ProofOutcome.UNSURE
    assert checks.judge_exchange(same, (2.5, 1.0, 1.0), 0.1).outcome is ProofOutcome.FAILED


def test_a_blank_draft_keeps_what_it_shares(tmp_path: Path) -> None:
    folder = make_blank_draft(EAGLE31, tmp_path / "blank")
    before = (EAGLE31 / "model.safetensors").read_bytes()
    after = (folder / "model.safetensors").read_bytes()
    ranges = list(list_tensors(folder / "model.safetensors"))
    assert ranges
    assert len(before) == len(after)
    assert all(not any(after[begin:end]) for begin, end in ranges)
    blanked = bytearray(before)
    for begin, end in ranges:
        blanked[begin:end] = bytes(end - begin)
    assert bytes(blanked) == after


def read_report(folder: Path) -> dict[str, str]:
    report = json.loads((folder / "prove.json").read_bytes())
    assert {path.name for path in folder.iterdir()} == {"prove.html", "prove.json"}
    return {check["check"]: check["evidence"] for check in report["checks"]}


def test_the_report_is_whole_after_every_check(tmp_path: Path) -> None:
    first, second, *_ = checks.CHECKS
    report = ProofReport.open({"command": "c"}, tmp_path, (first, second), ())
    assert read_report(tmp_path) == dict.fromkeys(
        ("start", first.name, second.name), "Not done yet."
    )
    report.record("start", Evidence(ProofOutcome.PASSED, "It starts."), 1.0)
    report.record(first.name, Evidence(ProofOutcome.PASSED, "Equal."), 1.0)
    expected = {"start": "It starts.", first.name: "Equal.", second.name: "Not done yet."}
    assert read_report(tmp_path) == expected
    report.stop("the run was interrupted")
    assert read_report(tmp_path)[second.name] == "Not done: the run was interrupted."
    assert report.status == 3
    report.record(second.name, Evidence(ProofOutcome.FAILED, "A fault."), 1.0)
    assert report.status == 1


def test_reports_hold_nothing_private() -> None:
    given = [
        "/home/ann/models/m-7b", "--api-key", "a", "b", "--port", "1", "--admin-api-key=x",
        "--host", "10.0.0.1", "--speculative-config", '{"model": "/data/ann/draft", "k": 3}',
        "--max-num-batched-tokens", "512", "--otlp-endpoint", "http://collector:4317",
        "--model", "Qwen/Qwen3-8B",
    ]  # fmt: skip
    assert scrub_arguments(given) == [
        ".../m-7b", "--api-key", "...", "...", "--port", "1", "--admin-api-key=...",
        "--host", "...", "--speculative-config", '{"model": ".../draft", "k": 3}',
        "--max-num-batched-tokens", "512", "--otlp-endpoint", "...",
        "--model", "Qwen/Qwen3-8B",
    ]  # fmt: skip
    assert scrub("cannot read /home/ann/x.bin at http://h/a") == "cannot read .../x.bin at URL"
