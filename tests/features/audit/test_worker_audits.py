"""Audits of workers' answers: damage of every kind, the probe, holds, and what is left out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from eaglegate.engine.errors import EngineDead, EngineError, RequestRejected
from eaglegate.engine.fleet.types import FindingKind, WorkerState
from eaglegate.engine.types import Constraint, EngineRequest, Sampling
from eaglegate.features.audit import audit_queue, workers
from eaglegate.features.audit.files import EvidenceFolder
from eaglegate.features.audit.likelihood import find_distribution, score_sampled, weigh_faults
from eaglegate.features.audit.workers import WorkerScorer
from tests.engine.remote.stand_in_worker import StandIn, running
from tests.engine.supervision.mortal import until
from tests.features.audit import damage
from tests.features.audit.toy_workers import (
    TEXT,
    VOCABULARY,
    ToyFleet,
    ToyWorker,
    apply_rules,
    find_logprobs,
    look,
    toy_fleet,
)

GREEDY = Sampling(max_tokens=32, temperature=0.0)
SAMPLED = Sampling(max_tokens=32, temperature=1.0)
QWEN = Sampling(max_tokens=32, temperature=0.7, top_p=0.8, top_k=20)
RULES = (
    SAMPLED,
    QWEN,
    Sampling(max_tokens=32, temperature=1.0, top_p=0.9),
    Sampling(max_tokens=32, temperature=0.3, top_k=5),
    Sampling(max_tokens=32, temperature=1.3, top_k=20, top_p=0.95),
)
MOST = 20
"""Audited answers within which damage must be found."""


@pytest.fixture(autouse=True)
def no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_queue, "BUDGET", 1e6)
    monkeypatch.setattr(audit_queue, "POLL_S", 0.001)


DAMAGES: dict[str, Any] = {
    "replaced": lambda _, tokens, __: damage.replace_token(tokens, 9, VOCABULARY),
    "dropped": lambda _, tokens, __: damage.drop_token(tokens, 9),
    "doubled": lambda _, tokens, __: damage.double_token(tokens, 9),
    "another request's": lambda w, tokens, _: damage.mix_answers(tokens, w.previous, 9),
    "temperature ignored": lambda w, _, request: w.generate(
        request, damage.ignore_temperature(request.sampling)
    ),
    "a neighbour's count": lambda w, tokens, _: damage.swap_counts(
        tokens, [1, 2, 1, 3, 1] * 4, w.sizes, w.previous
    ),
}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, QWEN], ids=["greedy", "sampled", "qwen"])
@pytest.mark.parametrize("kind", DAMAGES)
async def test_damage_is_found_within_20_answers(kind: str, sampling: Sampling) -> None:
    async with toy_fleet(ToyWorker(1, damage=DAMAGES[kind]), ToyWorker(2)) as town:
        while not (violated := [r for r in town.records if r.outcome == "violated"]):
            made = sum(record.worker == "w0" for record in town.records)
            assert made < MOST, town.auditor.describe()["evidence"]
            await town.answer(sampling)
        assert {record.worker for record in violated} == {"w0"}
        assert {record.scorer for record in violated} == {"w1"}
        (text,) = (alarm.text for alarm in town.fleet.workers["w0"].alarms.values())
        assert "w0, vLLM 0.28.0" in text and "scored by w1" in text
        assert not town.fleet.workers["w1"].alarms


@pytest.mark.parametrize("count", [1, 2])
async def test_sound_answers_give_no_alarm(count: int) -> None:
    async with toy_fleet(*(ToyWorker(seed) for seed in range(count))) as town:
        for number in range(60):
            await town.answer((GREEDY, *RULES)[number % 6])
        assert not town.drops
        assert {record.outcome for record in town.records} == {"lossless"}
        assert all((r.worker == r.scorer) is (count == 1) for r in town.records)
        for test in town.auditor.describe()["evidence"].values():
            assert test["nats"] < 8 and test["tokens"] > 500


@pytest.mark.parametrize("sampling", RULES)
@pytest.mark.parametrize("last", [3, 4, 5])
def test_no_fault_is_likelier_than_the_truth(sampling: Sampling, last: int) -> None:
    """The mean of each ratio, over the tokens that a sound worker draws, is at most 1."""
    town = ToyFleet(None, None)  # type: ignore[arg-type]
    rules = town.find_rules(sampling, 0.001)
    logprobs = find_logprobs(last)
    means: dict[str, float] = {}
    for token, chance in apply_rules(logprobs, sampling).items():
        spread = find_distribution(look(logprobs, token, 20), rules, VOCABULARY)
        for step in range(200):
            found = weigh_faults(spread, rules, (step + 0.5) / 200) if spread else ()
            for kind, ratio in found:
                means[kind] = means.get(kind, 0.0) + chance * math.exp(ratio) / 200
    assert all(mean < 1.02 for mean in means.values()), means
    excluded = set(range(VOCABULARY)) - apply_rules(logprobs, sampling).keys()
    scores = [score_sampled([look(logprobs, token, 20)], rules, VOCABULARY) for token in excluded]
    assert all(score.margins == (math.inf,) or not score.judged for score in scores)
    if sampling.top_k:
        assert sum(score.margins == (math.inf,) for score in scores) > 200


def read_only_file(folder: Path) -> Any:
    (file,) = folder.iterdir()
    return json.loads(file.read_text())


async def test_a_held_worker_gets_no_requests_until_it_is_released(tmp_path: Path) -> None:
    write = EvidenceFolder(tmp_path, "m")
    bad = ToyWorker(1, damage=DAMAGES["replaced"])
    async with toy_fleet(bad, ToyWorker(2), holds=True, write=write) as town:
        while not town.fleet.workers["w0"].alarms:
            await town.answer(GREEDY)
        by_name = {status.name: status for status in town.fleet.list_status()}
        assert by_name["w0"].state is WorkerState.HELD
        assert [finding.kind for finding in by_name["w0"].findings] == [FindingKind.AUDIT]
        for _ in range(6):
            await town.answer(GREEDY)
        assert [record.worker for record in town.records[-6:]] == ["w1"] * 6
        assert town.records[-1].scorer == "w1", "a held worker scores nobody else"
        content = read_only_file(tmp_path)
        assert content["found"]["worker"] == "w0"
        replay = await town.auditor.replay(content)
        assert replay["stored"]["outcome"] == "violated"
        assert replay["again by w1"]["outcome"] == "lossless"
        assert town.auditor.release("w0") and not town.auditor.release("w0")
        assert town.fleet.list_status()[0].state is WorkerState.SERVING


async def test_the_last_worker_is_never_held() -> None:
    bad = DAMAGES["replaced"]
    async with toy_fleet(ToyWorker(1, damage=bad), ToyWorker(2, damage=bad), holds=True) as town:
        while not all(worker.alarms for worker in town.fleet.workers.values()):
            await town.answer(GREEDY)
        states = [status.state for status in town.fleet.list_status()]
        assert sorted(states) == [WorkerState.HELD, WorkerState.SERVING]


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        (ToyWorker(noise=2.0), "vllm#53488"),
        (ToyWorker(error=EngineDead("prompt_logprobs must be a list")), "must be a list"),
        (ToyWorker(error=RequestRejected("at most 0", "prompt_logprobs")), "at most 0"),
    ],
)
async def test_an_unreliable_worker_is_not_audited_and_says_so(
    worker: ToyWorker, words: str
) -> None:
    async with toy_fleet(worker) as town:
        await town.answer(GREEDY)
        assert town.drops == ["scorer"]
        finding = town.fleet.workers["w0"].alarms[FindingKind.SCORES]
        assert "its answers are not audited" in finding.text and words in finding.text


async def test_a_worker_that_failed_its_probe_is_probed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "RETRY_S", 0.0)
    monkeypatch.setattr(workers, "POLL_S", 0.001)
    worker = ToyWorker(error=EngineDead("no answer in time"))
    async with toy_fleet(worker) as town:
        assert town.fleet.workers["w0"].alarms
        worker.error = None
        await until(lambda: not town.fleet.workers["w0"].alarms)
        await town.answer(GREEDY)
        assert [record.outcome for record in town.records] == ["lossless"]


async def test_workers_with_other_weights_do_not_judge_each_other() -> None:
    async with toy_fleet(ToyWorker(1), ToyWorker(2, weights=1)) as town:
        for _ in range(8):
            await town.answer(GREEDY)
        assert {(r.outcome, r.worker == r.scorer) for r in town.records} == {("lossless", True)}
        for worker in town.fleet.workers.values():
            assert "other weights" in worker.alarms[FindingKind.SCORES].text


async def test_weights_that_change_later_are_no_violation_of_the_other_worker() -> None:
    pair = ToyWorker(1), ToyWorker(2)
    async with toy_fleet(*pair) as town:
        pair[1].weights = 1
        while not town.drops:
            await town.answer(GREEDY)
        assert town.drops == ["scorer"]
        assert not any(FindingKind.AUDIT in w.alarms for w in town.fleet.workers.values())


REASONS = (
    ("seed", {"sampling": structs.replace(SAMPLED, seed=1)}),
    ("penalties", {"sampling": structs.replace(GREEDY, presence_penalty=1.0)}),
    ("rules", {"sampling": structs.replace(GREEDY, logit_bias={1: 2.0})}),
    ("rules", {"sampling": structs.replace(GREEDY, thinking_token_budget=4)}),
    ("distribution", {"sampling": structs.replace(SAMPLED, temperature=0.7)}),
    ("distribution", {"sampling": structs.replace(SAMPLED, top_k=40, temperature=0.7)}),
    ("distribution", {"sampling": structs.replace(SAMPLED, min_p=0.1)}),
    ("length", {"sampling": structs.replace(GREEDY, max_tokens=4090)}),
    ("unknown", {"sampling": GREEDY, "constraint": Constraint("grammar", "x")}),
)


@pytest.mark.parametrize(("reason", "fields"), REASONS)
async def test_answers_that_cannot_be_judged_are_counted(
    reason: str, fields: dict[str, Any]
) -> None:
    async with toy_fleet(ToyWorker()) as town:
        await town.answer(**fields)
        assert town.drops in ([reason], ["rules"]) and not town.records


async def test_answers_whose_every_place_is_undecided_are_counted() -> None:
    async with toy_fleet(ToyWorker()) as town:
        await town.answer(structs.replace(SAMPLED, top_p=0.99999))
        assert town.drops == ["distribution"]


async def test_replies_that_end_in_errors_end_the_audits() -> None:
    worker = ToyWorker()
    async with toy_fleet(worker) as town:
        worker.error = EngineDead("a number must be a number, is null")
        for _ in range(3):
            await town.answer(GREEDY)
        assert town.drops == ["error", "error", "scorer"]


ENTRY = {"logprob": -1.0, "rank": 1}
NUMBERS: dict[str, Any] = {
    "null": None,
    "no list": {"1": ENTRY},
    "too many": [None] + [{str(token): ENTRY} for token in range(2, 40)],
    "a text for a number": [None, *({str(t): {"logprob": "-1", "rank": 1}} for t in (2, 3, 4))],
    "a number beyond JSON": [None, *({str(t): {"logprob": 1e400, "rank": 1}} for t in (2, 3, 4))],
    "another token": [None, *({"9": ENTRY} for _ in range(3))],
    "an id that is none": [None, *({str(t): ENTRY, "-1": ENTRY} for t in (2, 3, 4))],
    "too many alternatives": [None, *({str(t): ENTRY for t in range(999)} for _ in (2, 3, 4))],
    "no probabilities": [None, *({str(t): {"logprob": 9.0, "rank": 1}} for t in (2, 3, 4))],
    "a huge reply": ["x" * (1 << 20)] * 4,
}


@pytest.mark.parametrize("name", NUMBERS)
async def test_hostile_numbers_end_in_a_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = StandIn()
    async with running(worker) as engine:
        whole = worker._whole
        monkeypatch.setattr(
            worker, "_whole", lambda b: whole(b) | {"prompt_logprobs": NUMBERS[name]}
        )
        session = SimpleNamespace(info=engine.info)
        scorer = WorkerScorer(None, session, engine)  # type: ignore[arg-type]
        request = EngineRequest("r", (1, 2), SAMPLED)
        with pytest.raises(EngineError) as caught:
            await scorer.score(request, (3, 4), "")
        assert str(caught.value) and len(str(caught.value)) < 400


async def test_long_prompts_are_drawn_as_rarely_as_they_cost() -> None:
    async with toy_fleet(ToyWorker()) as town:
        town.auditor.share = 0.5
        requests = [EngineRequest(f"r{at}", (1,) * 4096, SAMPLED) for at in range(400)]
        drawn = sum(town.auditor.selects(request) for request in requests)
        assert 25 < drawn < 80
        assert TEXT
