"""Walks over known answers, cost tables, and the whole command on the demo."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from eaglegate.engine.speculation.drafts.files import fingerprint_draft
from eaglegate.engine.speculation.planner.step_cost import ObservedStep, StepCostModel
from eaglegate.engine.types import DecodeStep
from eaglegate.lab.measure import drafts_command
from eaglegate.lab.measure.drafts import (
    ALL,
    AnswerFacts,
    CostTable,
    DraftReplay,
    Walk,
    compare_pair,
    compare_served,
    walk_answer,
    walk_captured,
    walk_sampled_drafts,
)
from eaglegate.lab.measure.drafts_answers import Answer, read_answers
from eaglegate.lab.measure.drafts_report import conclude_drafts
from eaglegate.lab.measure.statistics import Estimate
from eaglegate.observability.captures.files import read_records, write_records
from eaglegate.observability.captures.record import (
    CapturedChoice,
    CapturedPrompt,
    CapturedStep,
    CaptureRecord,
)

DEMO = Path(__file__).parents[3] / "engine" / "demo"
PHASES = ["content"] * 99
TOKENS = 12


def chances(matches: list[int], depth: int) -> list[list[float]]:
    return [[float(at < right) for at in range(depth)] for right in matches]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_walk_is_what_an_engine_does(depth: int) -> None:
    """The walk equals decoding step by step with drafts that are right or wrong at random."""
    draw = random.Random(depth)
    answer = [draw.randrange(5) for _ in range(200)]
    drafts = [
        [token if draw.random() < 0.7 else -1 for token in answer[at + 1 : at + 1 + depth]]
        for at in range(len(answer) - 1)
    ]
    matches = []
    for at, proposed in enumerate(drafts):
        right = 0
        while right < len(proposed) and proposed[right] == answer[at + 1 + right]:
            right += 1
        matches.append(right)
    steps, at = [], 0
    while at < len(answer) - 1:
        accepted = matches[at]
        delivered = min(accepted + 1, len(answer) - 1 - at)
        steps.append(DecodeStep(depth, accepted, delivered))
        at += delivered
    walk = walk_answer(matches, chances(matches, depth), depth, PHASES)[ALL]
    assert walk.steps == len(steps)
    assert walk.accepted == sum(step.accepted for step in steps)
    deeper = [sum(step.accepted > position for step in steps) for position in range(depth)]
    assert walk.accepted_at == deeper


VOCABULARY = 5
Chain = list[list[float]]
"""Probabilities of the next token, by the token before it."""


def make_chain(seed: int) -> Chain:
    draw = random.Random(seed)
    rows = [[draw.random() ** 3 for _ in range(VOCABULARY)] for _ in range(VOCABULARY)]
    return [[one / sum(row) for one in row] for row in rows]


def speculate(
    target: Chain, draft: Chain, depth: int, count: int, sampled: bool, draw: random.Random
) -> tuple[list[int], list[CapturedStep]]:
    """Speculative sampling as it is defined: an answer of ``count`` tokens, and its steps."""

    def pick(weights: list[float]) -> int:
        return draw.choices(range(VOCABULARY), weights)[0]

    answer, steps = [pick(target[0])], []
    while len(answer) < count:
        accepted, last, tokens = 0, answer[-1], []
        while True:
            if accepted == depth:
                tokens.append(pick(target[last]))
                break
            p, q = target[last], draft[last]
            token = pick(q) if sampled else q.index(max(q))
            q = q if sampled else [float(one == token) for one in range(VOCABULARY)]
            if draw.random() >= p[token] / q[token]:
                tokens.append(pick([max(0.0, a - b) for a, b in zip(p, q, strict=True)]))
                break
            accepted, last = accepted + 1, token
            tokens.append(token)
        tokens = tokens[: count - len(answer)]
        steps.append(CapturedStep(depth, min(accepted, len(tokens)), len(tokens)))
        answer += tokens
    return answer, steps


def unroll_chain(
    target: Chain, draft: Chain, answer: list[int], depth: int, sampled: bool
) -> tuple[list[int], list[list[float]]]:
    """The outcome of `eaglegate.lab.training.unrolling` for models that see one token."""
    matches, found = [], []
    for at in range(len(answer) - 1):
        ahead = answer[at + 1 : at + 1 + depth]
        pairs = list(zip(answer[at:], ahead, strict=False))
        if sampled:
            row = [min(1.0, draft[last][one] / target[last][one]) for last, one in pairs]
        else:
            best = [draft[last].index(max(draft[last])) for last, _ in pairs]
            right = [a == b for a, b in zip(best, ahead, strict=True)]
            matches.append(next((n for n, one in enumerate(right) if not one), len(right)))
            alive = matches[-1]
            row = [
                target[last][token] if n <= alive else 0.0
                for n, ((last, _), token) in enumerate(zip(pairs, best, strict=True))
            ]
        found.append(row + [0.0] * (depth - len(row)))
    return matches, found


@pytest.mark.thorough
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy drafts", "sampled drafts"])
def test_acceptance_of_sampled_answers_is_that_of_speculative_sampling(sampled: bool) -> None:
    """Predicted from answers of the target alone; lived through by rejection sampling."""
    target, other, depth, draw = make_chain(1), make_chain(2), 3, random.Random(3)
    draft = [
        [0.7 * p + 0.3 * q for p, q in zip(*rows, strict=True)]
        for rows in zip(target, other, strict=True)
    ]
    live, counted, expected = Walk(), Walk(), Walk()
    for _ in range(1500):
        _, steps = speculate(target, draft, depth, 30, sampled, draw)
        live.steps += len(steps)
        live.accepted += sum(step.accepted for step in steps)
        answer, _ = speculate(target, target, 1, 30, True, draw)
        matches, found = unroll_chain(target, draft, answer, depth, sampled)
        if sampled:
            walk = walk_sampled_drafts(found, depth, PHASES)[ALL]
        else:
            walk = walk_answer(matches, found, depth, PHASES)[ALL]
        counted.steps += walk.steps
        counted.accepted += walk.accepted
        expected.accepted += walk.expected
    assert counted.accepted / counted.steps == pytest.approx(live.accepted / live.steps, rel=0.03)
    assert expected.accepted == pytest.approx(counted.accepted, rel=0.03)
    assert 0.5 < live.accepted / live.steps < 2.5


def test_live_acceptance_is_judged_by_the_predicted_interval() -> None:
    def observe(shares: list[float]) -> list[DraftReplay]:
        rows = []
        for number, share in enumerate(shares):
            facts = AnswerFacts(f"{number}", f"s{number}", "chat", "0-512", (), False, 100)
            steps = [CapturedStep(3, 3 if at < 25 * share else 0, 1) for at in range(25)]
            rows.append(DraftReplay(facts, {3: walk_captured(steps, 3, PHASES)}))
        return rows

    predicted = observe([0.4, 0.5, 0.6] * 8)
    same = compare_served(predicted, predicted, 3)[ALL]
    assert same.is_inside and same.difference is not None and same.difference.value == 0
    worse = compare_served(observe([0.2, 0.3, 0.4] * 8), predicted, 3)["workload chat"]
    assert worse.is_inside is False
    assert worse.difference is not None and worse.difference.high is not None
    assert worse.difference.high < 0


def test_live_acceptance_leaves_answers_with_lookups_out() -> None:
    draft, lookup = CapturedStep(3, 1, 2), CapturedStep(8, 8, 9, lookup=1)
    answers, predictions = [], []
    for number, steps in enumerate([(draft, draft), (draft, lookup)]):
        facts = AnswerFacts(f"{number}", f"s{number}", "chat", "0-512", (), False, 100)
        answers.append(Answer(facts, (1,), CapturedChoice(tokens=11, steps=steps), {}, "abc"))
        walks = {depth: walk_captured([draft, draft], depth, PHASES) for depth in (3, 8)}
        predictions.append(DraftReplay(facts, walks))
    contestant: Any = SimpleNamespace(label="new", fingerprint="abc")
    (row,) = drafts_command.list_live(answers, [contestant], {"new": predictions})
    assert (row["depth"], row["slices"]["all"].live.value) == (3, 2.0)


def test_steps_belong_to_the_phase_of_their_first_token() -> None:
    matches = [1, 0, 0, 1, 0]
    phases = ["reasoning"] * 3 + ["content"] * 3
    walks = walk_answer(matches, chances(matches, 2), 2, phases)
    assert (walks["reasoning"].steps, walks["reasoning"].accepted) == (1, 1)
    assert (walks["content"].steps, walks["content"].accepted) == (2, 1)
    assert walks[ALL].steps == 3


def test_a_cost_table_is_linear_between_what_was_measured() -> None:
    row = {"batches": [1, 3], "depths": [0, 2], "step_ms": [[10, 14], [20, 28]]}
    table = CostTable.parse(row, "t.json")
    assert table.step_time(2, 1) == 18.0
    with pytest.raises(ValueError, match="depths 0 to 2"):
        table.step_time(1, 3)
    with pytest.raises(ValueError, match="step_ms"):
        CostTable.parse({"batches": [1]}, "t.json")
    with pytest.raises(ValueError, match="one row per batch"):
        CostTable.parse(row | {"step_ms": [[1, 2]]}, "t.json")


def test_the_planners_table_is_one_that_drafts_compare_reads() -> None:
    model = StepCostModel(2)
    assert model.tabulate() is None
    for _ in range(40):
        for batch in (1, 4):
            for depth in (0, 1, 2):
                model.observe(ObservedStep(batch, batch * depth, depth, 0.01 + 0.002 * depth))
    shown = json.loads(json.dumps({"planner": {"cost": model.describe()}}))
    table = CostTable.parse(shown, "gateway")
    assert (table.batches, table.depths) == ((1, 2, 4), (0, 1, 2))
    assert table.step_time(1, 0) == pytest.approx(10, rel=0.05)
    assert table.step_time(4, 2) == pytest.approx(14, rel=0.05)
    assert all(shown["planner"]["cost"]["table"]["steps"][0])


def describe_drafts(times: Mapping[str, Sequence[float]], plain_ms: float | None) -> dict[str, Any]:
    """The findings about drafts whose predicted times per token are known by depth."""

    def estimate(value: float) -> Estimate:
        return Estimate(value, 0.9 * value, 1.1 * value, 0.95, 9, 9)

    drafts = {
        label: {
            "refused": False,
            "time_per_token_ms": {k: estimate(time) for k, time in enumerate(of, 1)},
            "slices": {"all": {2: estimate(3.0)}},
        }
        for label, of in times.items()
    }
    against = {"base": next(iter(times)), "depth": 2, "drafts": {}}
    return {"drafts": drafts, "against": against, "batch": 4.0, "plain_ms": plain_ms}


def test_the_conclusion_names_the_fastest_draft_and_depth() -> None:
    found = describe_drafts({"old": [9.0, 8.0], "new": [8.0, 5.0]}, 10.0)
    (line,) = conclude_drafts(found).lines
    assert line == (
        "Fastest with 4 sequences at a time: new at K = 2, 5 (4.5 to 5.5) ms per token, "
        "2.00x (1.82 to 2.22) over no speculation (predicted)"
    )
    (line,) = conclude_drafts(describe_drafts({"old": [12.0, 15.0]}, 10.0)).lines
    assert line.startswith("No draft is predicted to pay with 4 sequences at a time: the best, old")
    (line,) = conclude_drafts(describe_drafts({"old": []}, None)).lines
    assert line == "old: 3 (2.7 to 3.3) tokens per step at K = 2"


def test_a_better_draft_is_told_from_the_same_one() -> None:
    draw = random.Random(1)

    def observe(share: float, seed: int) -> list[DraftReplay]:
        rows = []
        draw.seed(seed)
        for number in range(60):
            matches = [3 if draw.random() < share else 0 for _ in range(99)]
            facts = AnswerFacts(str(number), f"s{number}", "chat", "0-512", (), False, 100)
            rows.append(
                DraftReplay(facts, {3: walk_answer(matches, chances(matches, 3), 3, PHASES)})
            )
        return rows

    base = observe(0.4, 1)
    assert compare_pair(base, base, 3)[ALL]["verdict"] == "no difference"
    assert compare_pair(base, observe(0.7, 2), 3)["workload chat"]["verdict"] == "better"
    assert compare_pair(base, observe(0.2, 3), 3)[ALL]["verdict"] == "worse"


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Greedy answers of the demo's target, as a capture whose live steps say depth 2."""
    torch = pytest.importorskip("torch")
    from transformers import AutoTokenizer

    from eaglegate.lab.training.target import TargetModel

    target = TargetModel.load(DEMO / "target")
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    records = []
    for number in range(6):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"What is {10 + number} + {20 + number}?"}],
            add_generation_prompt=True,
            tokenize=False,
        )
        prompt = tokenizer.encode(text, add_special_tokens=False)
        ids = list(prompt)
        for _ in range(TOKENS):
            _, last = target.states(torch.tensor([ids]), (0,))
            ids.append(int(target.logits(last[:, -1:])[0, 0].argmax()))
        answer = tuple(ids[len(prompt) :])
        choice = CapturedChoice(
            tokens=TOKENS,
            token_ids=answer,
            steps=tuple(CapturedStep(2, 2, 3) for _ in range(3)),
            phases=(("reasoning", 4), ("content", TOKENS - 4)),
        )
        records.append(
            CaptureRecord(
                messages=({"role": "user", "content": "?"},),
                id=f"r{number}",
                session=f"s{number}",
                workload="chat",
                context="0-512",
                sampling={"temperature": 0.0},
                draft=fingerprint_draft(DEMO / "eagle3_1"),
                prompts=(CapturedPrompt(len(prompt), tuple(prompt)),),
                choices=(choice,),
            )
        )
    records.append(CaptureRecord(input_length=9, mode="hashes", prompts=(CapturedPrompt(9),)))
    path = tmp_path_factory.mktemp("capture") / "a.jsonl"
    write_records(path, records)
    return path


@pytest.mark.slow
def test_drafts_are_compared_on_a_capture(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(DEMO / "eagle3_1", broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    cost = tmp_path / "cost.json"
    cost.write_text('{"batches": [1], "depths": [0, 4], "step_ms": [[10, 14]]}')
    out = tmp_path / "out"
    argv = ["compare", str(capture), "--out", str(out), "--depth", "4", "--cost-table", str(cost)]
    argv += ["--draft", f"new={DEMO / 'eagle3_1'}", "--draft", f"old={DEMO / 'eagle3'}"]
    argv += ["--draft", f"broken={broken}"]
    assert drafts_command.main(argv) == 0
    printed = capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    assert report["answers"] == 6 and report["sessions"] == 6
    assert report["drafts"]["broken"]["refused"] and "broken is refused" in printed
    new = report["drafts"]["new"]
    lengths = [new["slices"]["all"][str(depth)]["value"] for depth in (1, 2, 3, 4)]
    assert 1 < lengths[0] <= 2 and lengths == sorted(lengths)
    assert set(new["phases"]) == {"reasoning", "content"}
    assert new["time_per_token_ms"]["4"]["value"] == pytest.approx(14 / lengths[3])
    (live,) = report["live"]
    assert (live["draft"], live["depth"]) == ("new", 2)
    assert set(live["slices"]) >= {"all", "workload chat", "phase reasoning", "phase content"}
    found = live["slices"]["all"]
    assert found["live"]["value"] == 3.0
    assert found["predicted"]["value"] == pytest.approx(lengths[1])
    assert found["difference"]["value"] == pytest.approx(3.0 - lengths[1])
    page = (out / "report.html").read_text()
    assert "<script" not in page and "src=" not in page and "http-equiv" not in page
    assert "broken is refused" in page
    for title in (
        "Acceptance length by slice, K = 4",
        "Acceptance per position",
        "Predicted time per token",
    ):
        assert f"<b>{title}" in page, title
    for svg in re.findall("<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    assert "eaglegate drafts compare" in report["command"]

    one = next(out.glob("unrolled-*.jsonl"))
    kept = one.read_bytes()
    one.write_bytes(kept[: len(kept) * 2 // 3])  # as if killed in mid-write
    assert drafts_command.main(argv) == 0
    again = json.loads((out / "report.json").read_text())
    assert again["drafts"] == report["drafts"]


@pytest.mark.slow
def test_sampled_drafts_at_a_low_temperature_are_greedy_ones(capture: Path) -> None:
    pytest.importorskip("torch")
    from eaglegate.lab.training.target import TargetModel
    from eaglegate.lab.training.unrolling import DraftHead, Trajectory, unroll_answers

    target = TargetModel.load(DEMO / "target")
    heads = [DraftHead.load("eagle3", DEMO / "eagle3", target)]
    seen = set()
    for answer in read_answers(read_records(capture))[0]:
        given = (answer.prompt, answer.choice.token_ids or ())
        ((_, greedy),) = unroll_answers(target, heads, Trajectory(*given), 3)
        low = Trajectory(*given, temperature=0.01, drafts_sampled=True)
        ((_, sampled),) = unroll_answers(target, heads, low, 3)
        found = [next((n for n, p in enumerate(row) if p < 0.5), 3) for row in sampled.chances]
        assert found == greedy.matches
        seen |= set(found)
    assert len(seen) > 1


def test_a_capture_of_hashes_cannot_be_unrolled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    choice = CapturedChoice(tokens=5)
    record = CaptureRecord(input_length=3, prompts=(CapturedPrompt(3),), choices=(choice,))
    write_records(path, [record])
    draft = str(DEMO / "eagle3_1")
    argv = ["compare", str(path), "--draft", draft, "--out", str(tmp_path / "out")]
    assert drafts_command.main(argv) == 1
    assert "--capture-mode full" in capsys.readouterr().err


def test_a_draft_that_is_not_there_is_an_error_at_once(tmp_path, capsys):
    """The error comes before the capture is read, which may take minutes."""
    nowhere = tmp_path / "nowhere"
    command = ["compare", str(tmp_path / "no-capture"), "--draft", f"mine={nowhere}"]
    assert drafts_command.main([*command, "--out", str(tmp_path / "out")]) == 1
    assert f"there is no folder {nowhere}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
