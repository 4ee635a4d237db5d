"""The auditor: which answers it takes, when it scores them, and what it does about a violation."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eaglegate.engine.errors import EngineDead, EngineFailed
from eaglegate.engine.scripted import DEFAULT_INFO, ScriptedEngine, steps
from eaglegate.engine.speculation.accounts.scores import (
    UNPACED,
    AnswerScores,
    AuditPace,
    split_audit,
)
from eaglegate.engine.speculation.drafts.versions import DraftVersion
from eaglegate.engine.speculation.policy.policy import DepthSource, SpeculationPolicy
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import (
    Constraint,
    DecodeStep,
    Drafter,
    EngineRequest,
    RepetitionStop,
    Sampling,
    Step,
    UndraftedReason,
)
from eaglegate.features.audit import audit_queue
from eaglegate.features.audit import auditor as module
from eaglegate.features.audit.auditor import AuditedEngine, Auditor
from eaglegate.features.audit.evidence import AuditOutcome
from eaglegate.features.audit.files import EvidenceFolder, unpack
from eaglegate.features.audit.holds import AuditHolds
from eaglegate.features.audit.records import (
    EvidenceWriter,
    FinishedAnswer,
    write_nothing,
)
from eaglegate.text.events import FinishReason
from eaglegate.text.media.image import Image
from tests.features.audit.notes import Notes

DRAFT = DraftVersion("abc", "/drafts/abc", "/drafts/abc")
CLEAN = AnswerScores((0.0, 0.0, 0.0))
BAD = AnswerScores((0.0, 2.5, 0.0), (7, 8, 9))
HOT = AnswerScores((0.0,) * 3, (), {"hotter": 4.0}, 3)
"""Of a sampled answer; five such answers are a violation."""
SAMPLED = Sampling(max_tokens=8, temperature=0.7)
OTHER = replace(DRAFT, fingerprint="def")


@dataclass
class ScoringEngine(ScriptedEngine):
    """Gives the scores of a list, in turn; remembers what was to be scored."""

    scores: list[AnswerScores | Exception] = field(default_factory=list)
    scored: list[tuple[EngineRequest, tuple[int, ...], str]] = field(default_factory=list)

    async def score(
        self,
        request: EngineRequest,
        answer: Sequence[int],
        dtype: str,
        pace: AuditPace = UNPACED,
    ) -> AnswerScores:
        await pace.pause()
        self.scored.append((request, tuple(answer), dtype))
        found = self.scores.pop(0) if self.scores else CLEAN
        if isinstance(found, Exception):
            raise found
        return found


class Lab:
    def __init__(self, share: float = 1.0, write: EvidenceWriter = write_nothing) -> None:
        self.engine = ScoringEngine(steps((7, 8, 9), cuts=(1, 2)))
        self.notes, self.holds, self.room, self.now = Notes(), AuditHolds(), True, 100.0
        self.auditor = Auditor(
            share,
            self.holds,
            self.notes.records.append,
            self.notes.drops.append,
            lambda tokens: "".join(map(chr, tokens)),
            lambda: self.room,
            write,
            lambda: self.now,
        )
        self.auditor.change_draft(DRAFT)
        self.auditor.attach(
            self.engine, self.engine.generate, replace(DEFAULT_INFO, details={"dtype": "float32"})
        )
        self.audited = AuditedEngine(self.engine, self.auditor)
        self.policy = SpeculationPolicy(holds=self.holds.covers)

    async def answer(self, name: str = "r", **more: Any) -> None:
        async for _ in read_steps(self.audited.generate, ask(name, **more)):
            pass

    @asynccontextmanager
    async def auditing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.auditor.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def settle(self, count: int = 1) -> None:
        """Wait until so many answers have been audited or dropped."""
        async with asyncio.timeout(60):
            while len(self.notes.records) + len(self.notes.drops) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def ask(id: str = "r", **more: Any) -> EngineRequest:
    sampling = Sampling(max_tokens=8, temperature=0.0)
    values = {"prompt": (1, 2), "sampling": sampling, "workload": "chat"}
    return EngineRequest(id, **values | more)  # type: ignore[arg-type]


async def audit(
    lab: Lab, count: int = 1, tenants: Sequence[str] | None = None, **more: Any
) -> None:
    """Answer and audit one request after the other, each of another tenant in turn."""
    async with lab.auditing():
        for at in range(count):
            tenant = {} if tenants is None else {"tenant": tenants[at % len(tenants)]}
            await lab.answer(f"r{at}", **tenant, **more)
            await lab.settle(at + 1)


async def test_a_lossless_answer_changes_nothing() -> None:
    lab = Lab()
    await audit(lab)
    (record,) = lab.notes.records
    assert (record.outcome, record.choosing, record.workload) == ("lossless", "greedy", "chat")
    assert (record.depth, record.draft, record.tokens) == (3, "abc", 3)
    assert lab.engine.scored[0][1:] == ((7, 8, 9), "float32")
    assert not [*lab.holds]


@pytest.mark.parametrize(
    ("accounts", "drafter", "depth"),
    [
        ([DecodeStep(3, 1, 2)], "draft", 3),
        ([DecodeStep(8, 1, 2, drafter=Drafter.LOOKUP)], "lookup", 8),
        (
            [DecodeStep(1, 0, 1), DecodeStep(8, 0, 1, drafter=Drafter.LOOKUP)],
            "both", 8,
        ),
        ([DecodeStep(0, 0, 2, undrafted=UndraftedReason.OFF)], "none", 0),
    ],
)  # fmt: skip
async def test_an_audit_names_the_drafter(
    accounts: list[DecodeStep], drafter: str, depth: int
) -> None:
    lab = Lab()
    lab.engine.script = [Step((7,)), Step((8, 9), tuple(accounts), finish=FinishReason.STOP)]
    await audit(lab)
    (record,) = lab.notes.records
    assert (record.drafter, record.depth) == (drafter, depth)


async def test_a_violation_takes_speculation_from_its_workload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Lab()
    lab.engine.scores = [BAD]
    with caplog.at_level(logging.WARNING):
        await audit(lab)
    assert [*lab.holds] == ["chat"]
    decision = lab.policy.decide("r", "chat", depth=5)
    assert (decision.depth, decision.lane, decision.source) == (0, "plain", DepthSource.AUDIT)
    assert lab.policy.decide("r", "tools", depth=5).depth == 5
    assert "speculation is off for workload chat" in caplog.text
    assert "token 1 of 3 is not the target's choice: 2.500 nats" in caplog.text
    assert "POST /admin/audit/release" in caplog.text


async def test_another_draft_or_an_operator_brings_speculation_back() -> None:
    lab = Lab()
    lab.engine.scores = [BAD]
    await audit(lab)
    lab.auditor.change_draft(DRAFT)
    assert "chat" in lab.holds
    lab.auditor.change_draft(OTHER)
    assert "chat" not in lab.holds
    lab.engine.scores = [BAD]
    lab.notes.records.clear()
    await audit(lab)
    assert lab.auditor.release("chat")
    assert not lab.auditor.release("chat")
    assert "chat" not in lab.holds


def list_depths(lab: Lab) -> list[int | None]:
    """The depths of alice's, bob's and unnamed requests."""
    return [lab.policy.decide("r", "chat", key, 5).depth for key in ("alice", "bob", None)]


async def test_a_violation_takes_speculation_from_its_own_key_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One client chooses what it asks, and the workload that it asks under."""
    lab = Lab()
    lab.engine.scores = [BAD] * 9
    with caplog.at_level(logging.WARNING):
        await audit(lab, 3, tenant="alice")
    assert list_depths(lab) == [0, 5, 5]
    assert caplog.text.count("speculation is off for workload chat of key alice") == 1
    assert [*lab.auditor.describe()["holds"]] == ["chat of key alice"]
    assert [*lab.holds] == ["chat"]


async def test_violations_of_two_keys_take_speculation_from_their_workload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Lab()
    lab.engine.scores = [BAD] * 9
    await audit(lab, 2, ("alice", ""))
    assert list_depths(lab) == [0, 0, 0]
    assert lab.policy.decide("r", "tools", "bob", 5).depth == 5
    assert [*lab.auditor.describe()["holds"]] == ["chat"]
    assert lab.auditor.release("chat")
    assert list_depths(lab) == [5, 5, 5]


async def test_the_evidence_of_one_key_does_not_count_against_another() -> None:
    lab = Lab()
    lab.engine.scores = [HOT] * 10
    await audit(lab, 10, ("alice", "bob"), sampling=SAMPLED)
    assert not [*lab.holds]
    evidence = lab.auditor.describe()["evidence"]
    assert {name: row["answers"] for name, row in evidence.items()} == {
        "chat of key alice": 5,
        "chat of key bob": 5,
    }


async def test_a_violation_without_drafts_is_not_speculations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Lab()
    lab.engine.script = steps((7,))
    lab.engine.scores = [BAD]
    await audit(lab)
    assert lab.notes.records[0].outcome is AuditOutcome.VIOLATED
    assert not [*lab.holds]
    assert "no draft was verified in it" in caplog.text


async def test_a_draft_that_serves_again_has_its_holds_and_evidence() -> None:
    """A canary exchanges drafts in every slot."""
    lab = Lab()
    lab.engine.scores = [BAD]
    await audit(lab)
    lab.auditor.change_draft(OTHER)
    lab.auditor.change_draft(DRAFT)
    assert "chat" in lab.holds
    assert lab.policy.decide("r", "chat", depth=5).depth == 0
    lab.auditor.change_draft(OTHER)
    assert lab.auditor.release("chat")
    lab.auditor.change_draft(DRAFT)
    assert "chat" not in lab.holds


async def test_a_violation_that_is_found_late_holds_its_own_draft(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Lab()
    lab.engine.scores = [BAD]
    await lab.answer()
    lab.auditor.change_draft(OTHER)
    async with lab.auditing():
        await lab.settle()
    assert lab.notes.records[0].draft == "abc"
    assert not [*lab.holds]
    assert "when draft abc serves again" in caplog.text
    lab.auditor.change_draft(DRAFT)
    assert [*lab.holds] == ["chat"]


async def test_evidence_counts_against_the_draft_of_its_answers() -> None:
    lab = Lab()
    lab.engine.scores = [HOT] * 5
    await audit(lab, 4, sampling=SAMPLED)
    await lab.answer("late", sampling=SAMPLED)
    lab.auditor.change_draft(OTHER)
    async with lab.auditing():
        await lab.settle(5)
    assert lab.auditor.describe()["evidence"] == {}
    lab.auditor.change_draft(DRAFT)
    assert lab.auditor.describe()["evidence"]["chat"]["answers"] == 5


async def test_an_answer_of_two_drafts_holds_neither(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    lab.engine.scores = [BAD]
    async with aclosing(read_steps(lab.audited.generate, ask())) as read:
        async for step in read:
            if step.finish is None:
                lab.auditor.change_draft(OTHER)
    async with lab.auditing():
        await lab.settle()
    assert not [*lab.holds]
    lab.auditor.change_draft(DRAFT)
    assert not [*lab.holds]
    assert "several drafts served it" in caplog.text


async def test_sampled_answers_are_judged_together() -> None:
    lab = Lab()
    lab.engine.scores = [HOT] * 9
    await audit(lab, 9, sampling=SAMPLED)
    outcomes = [record.outcome for record in lab.notes.records]
    first = outcomes.index(AuditOutcome.VIOLATED)
    assert outcomes[:first] == [AuditOutcome.LOSSLESS] * first
    assert first == 5
    assert "do not follow the requests' distribution (hotter)" in lab.notes.records[first].detail
    assert [*lab.holds] == ["chat"]


async def test_near_ties_are_counted_and_nothing_more() -> None:
    lab = Lab()
    lab.engine.scores = [AnswerScores((0.0, 0.004), (7, 8))]
    await audit(lab)
    assert lab.notes.records[0].outcome is AuditOutcome.NEAR_TIE
    assert not [*lab.holds]


async def test_only_the_share_is_kept() -> None:
    lab = Lab(share=0.3)
    chosen = [lab.auditor.selects(ask(f"r{at}")) for at in range(2000)]
    assert 520 < sum(chosen) < 680
    assert chosen == [lab.auditor.selects(ask(f"r{at}")) for at in range(2000)]
    assert not any(Lab(share=0.0).auditor.selects(ask(f"r{at}")) for at in range(100))


async def test_an_answer_that_finds_no_room_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_queue, "POLL_S", 0.001)
    lab = Lab()
    lab.room = False
    async with lab.auditing():
        await lab.answer()
        await asyncio.sleep(0.02)
        assert not lab.notes.drops
        lab.now += audit_queue.PATIENCE_S
        await lab.settle()
    assert lab.notes.drops == ["idle"]
    assert not lab.engine.scored


@pytest.mark.parametrize(("idle", "saved_s"), [(True, audit_queue.SAVED_S / 10), (False, 0.0)])
async def test_audits_keep_to_their_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, idle: bool, saved_s: float
) -> None:
    """Only in an idle engine may they spend what was saved before."""
    monkeypatch.setattr(audit_queue, "POLL_S", 0.0005)
    monkeypatch.setattr(audit_queue, "PATIENCE_S", math.inf)
    lab = Lab()
    lab.auditor.queues[0].is_idle = lambda: idle
    took = 0.3
    score = lab.engine.score

    async def slowly(request: Any, answer: Any, dtype: str, pace: AuditPace) -> AnswerScores:
        lab.now += took
        pace.charge(took)
        return await score(request, answer, dtype, pace)

    lab.engine.score = slowly  # type: ignore[method-assign]
    began = lab.now
    async with lab.auditing():
        for at in range(30):
            await lab.answer(f"r{at}")
        while lab.now < began + 400:
            lab.now += 1.0
            await asyncio.sleep(0.002)
    spent = took * len(lab.notes.records)
    assert spent / 400 < audit_queue.BUDGET + (saved_s + took) / 400
    assert len(lab.notes.records) > 10
    assert lab.auditor.describe()["engine_share"] < 0.02


async def test_only_the_time_of_the_engine_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing the images of an answer takes the engine nothing, however long it takes."""
    monkeypatch.setattr(audit_queue, "POLL_S", 0.0005)
    lab = Lab()

    async def prepare(request: Any, answer: Any, dtype: str, pace: AuditPace) -> AnswerScores:
        lab.now += 9.0
        pace.charge(0.05)
        return CLEAN

    lab.engine.score = prepare  # type: ignore[method-assign]
    await audit(lab, 10, images=(Image(b"", "png", 64, 64, "0"),))
    assert [record.took_s for record in lab.notes.records] == [0.05] * 10


@pytest.mark.parametrize(("side", "drops"), [(300, []), (600, ["images"])])
async def test_images_that_cost_more_than_their_tokens_are_not_audited(
    side: int, drops: list[str]
) -> None:
    lab = Lab()
    await audit(lab, images=(Image(b"", "png", side, side, "0"),))
    assert lab.notes.drops == drops


async def test_the_queue_and_the_answers_in_it_are_bounded() -> None:
    lab = Lab()
    for at in range(audit_queue.QUEUE + 3):
        await lab.answer(f"r{at}")
    assert lab.notes.drops == ["queue"] * 3
    await lab.answer("thinks", sampling=Sampling(max_tokens=8, thinking_token_budget=4))
    assert lab.notes.drops[-1] == "rules"
    await lab.answer("long", prompt=(1,) * module.MOST_TOKENS)
    assert lab.notes.drops[-1] == "length"


async def test_audits_that_cost_engines_end() -> None:
    lab = Lab()
    lab.engine.scores = [EngineFailed("no"), EngineDead("dead"), EngineDead("dead")]
    await audit(lab, 3)
    assert lab.notes.drops == ["error"] * 3
    await lab.answer("later")
    assert len(lab.engine.scored) == 3


async def test_an_answer_whose_engine_failed_is_not_audited() -> None:
    lab = Lab()
    lab.engine.script = [*steps((7, 8))[:1], EngineFailed("no")]
    with pytest.raises(EngineFailed):
        await lab.answer()
    assert lab.auditor.describe()["waiting"] == 0


async def test_the_tokens_of_a_client_that_leaves_are_audited() -> None:
    lab = Lab()
    reading: AsyncGenerator[Any, None]
    async with aclosing(read_steps(lab.audited.generate, ask())) as reading:
        async for _ in reading:
            break
    assert lab.auditor.describe()["waiting"] == 1


async def test_images_of_waiting_answers_are_bounded() -> None:
    lab = Lab()
    image = Image(bytes(module.MOST_IMAGE_BYTES // 2), "png", 28, 28, "0")
    for at in range(3):
        await lab.answer(f"r{at}", images=(image,))
    await lab.answer("text")
    assert lab.notes.drops == ["images"]
    assert lab.auditor.describe()["waiting"] == 3


async def test_lossy_engines_are_not_audited(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    auditor = Auditor(
        1.0, lab.holds, print, lab.notes.drops.append, str, lambda: True, write_nothing
    )
    lossy = replace(DEFAULT_INFO.speculation, lossy=("It accepts more.",))
    auditor.attach(lab.engine, lab.engine.generate, replace(DEFAULT_INFO, speculation=lossy))
    assert "answers are not audited: It accepts more." in caplog.text
    auditor.submit(FinishedAnswer(ask(), (1,), None, False, 1, "", 0.0))
    assert auditor.describe()["waiting"] == 0


async def test_evidence_is_private_and_can_be_replayed(tmp_path: Path) -> None:
    lab = Lab(write=EvidenceFolder(tmp_path / "evidence", "demo"))
    sampling = Sampling(8, temperature=0.0, logit_bias={3: 1.0}, allowed_token_ids=(7, 8, 9))
    content = await write_evidence(lab, tmp_path / "evidence", sampling=sampling)
    assert stat.S_IMODE((tmp_path / "evidence").stat().st_mode) == 0o700
    request, answer, depth = unpack(content)
    assert (request.prompt, request.sampling, answer, depth) == ((1, 2), sampling, (7, 8, 9), 3)
    lab.engine.scores = [BAD, BAD, CLEAN]
    found = await lab.auditor.replay(content)
    assert found["stored"]["differing"] == [
        {"place": 1, "token": 8, "target": 8, "margin_nats": 2.5}
    ]
    assert [found[name]["outcome"] for name in found] == ["violated", "violated", "lossless"]
    assert [one.depth for one in lab.engine.requests[-2:]] == [3, 0]


async def write_evidence(lab: Lab, folder: Path, **more: Any) -> dict[str, Any]:
    """The file of the violation of one answer."""
    lab.engine.scores = [BAD]
    await audit(lab, **more)
    (file,) = folder.iterdir()  # noqa: ASYNC240
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert lab.holds.holds["chat"].evidence == str(file)
    content: dict[str, Any] = json.loads(file.read_text())
    return content


async def test_evidence_of_an_answer_to_images_cannot_be_replayed(tmp_path: Path) -> None:
    lab = Lab(write=EvidenceFolder(tmp_path, "demo"))
    image = Image(b"pixels", "png", 28, 28, "digest")
    content = await write_evidence(lab, tmp_path, images=(image,))
    assert content["images"] == ["digest"]
    with pytest.raises(ValueError, match="The prompt has images"):
        unpack(content)


@pytest.mark.parametrize(("num_files", "is_written"), [(99, True), (100, False)])
async def test_a_folder_holds_100_files_of_evidence(
    tmp_path: Path, num_files: int, is_written: bool
) -> None:
    """Whoever causes violations must not fill the disk."""
    lab = Lab(write=EvidenceFolder(tmp_path, "demo"))
    for number in range(num_files):
        (tmp_path / f"violation-0-{number}.json").touch()
    lab.engine.scores = [BAD]
    await audit(lab)
    assert bool(lab.holds.holds["chat"].evidence) is is_written
    assert len(list(tmp_path.iterdir())) == 100  # noqa: ASYNC240


async def test_evidence_has_no_tokens_of_clients_that_are_not_captured(tmp_path: Path) -> None:
    lab = Lab(write=EvidenceFolder(tmp_path, "demo"))
    lab.audited = AuditedEngine(lab.engine, lab.auditor, lambda: False)
    content = await write_evidence(lab, tmp_path)
    assert (content["prompt"], content["answer"]) == (None, None)
    with pytest.raises(ValueError, match="has no tokens"):
        unpack(content)


@pytest.mark.parametrize(
    "content", [[], {}, {"eaglegate_violation": 1, "prompt": [1], "answer": [1]}]
)
def test_files_that_are_none_are_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="file"):
        unpack(content)


async def test_a_constrained_answer_is_read_without_its_stop_token() -> None:
    lab = Lab()
    text = tuple(map(ord, "yes"))
    last = structs.replace(steps((0,))[0], finish=FinishReason.STOP, stop_token=0)
    lab.engine.script = [*steps(text, cuts=(1, 2))[:2], last]
    for choices in (("yes", "no"), ("maybe",)):
        await lab.answer("/".join(choices), constraint=Constraint("choice", choices=choices))
    async with lab.auditing():
        await lab.settle(2)
    assert [record.outcome for record in lab.notes.records] == ["lossless", "violated"]
    assert not lab.engine.scored


@pytest.mark.parametrize("breach", ["", None])
async def test_a_judgement_of_a_grammar_is_charged_to_nobody(
    monkeypatch: pytest.MonkeyPatch, breach: str | None
) -> None:
    lab = Lab()

    async def judge(*_: Any) -> str | None:
        lab.now += 7.0
        return breach

    monkeypatch.setattr(lab.auditor._judge, "find_breach", judge)
    await audit(lab, 3, constraint=Constraint("regex", "a"))
    assert lab.auditor.describe()["engine_share"] == 0
    assert [record.took_s for record in lab.notes.records] == ([] if breach is None else [0.0] * 3)
    assert lab.notes.drops == (["unknown"] * 3 if breach is None else [])
    await audit(lab)
    assert lab.engine.scored, "audits go on"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(8, temperature=0.0, stop_token_ids=(5, ord("s"))),
        Sampling(8, temperature=0.0, repetition=RepetitionStop(1, 4, 2)),
    ],
)
async def test_a_constrained_answer_that_the_client_has_cut_proves_nothing(
    sampling: Sampling,
) -> None:
    lab = Lab()
    text = tuple(map(ord, "yes"))
    (last,) = steps(text, cuts=(3,))
    lab.engine.script = [structs.replace(last, finish=FinishReason.STOP, stop_token=text[-1])]
    await audit(lab, constraint=Constraint("choice", choices=("yessir", "no")), sampling=sampling)
    assert not lab.notes.records
    assert lab.notes.drops == ["rules"]


@pytest.mark.parametrize(
    ("prompt", "answer", "most"), [(3, 9, 4), (20, 5, 4), (1, 1, 4), (7, 9, 99)]
)
def test_the_pieces_of_an_audit_score_every_token_once(prompt: int, answer: int, most: int) -> None:
    request = EngineRequest("a", tuple(range(prompt)), Sampling(answer), cache_salt="tenant")
    tokens = tuple(range(100, 100 + answer))
    pieces = [*split_audit(request, tokens, "float32", most)]
    read = scored = 0
    for own, key in pieces:
        assert 0 < len(own.prompt) - read <= most
        read = len(own.prompt)
        assert own.prompt == (request.prompt + tokens)[:read]
        assert own.depth == 0
        if own.scoring is None:
            assert not key
            continue
        assert own.scoring["first"] == scored
        scored = len(own.prompt) - prompt + 1
        assert own.scoring["last"] == tokens[scored - 1]
    assert (read, scored) == (prompt + answer - 1, answer)
    assert len({piece.cache_salt for piece, _ in pieces} - {"tenant"}) == 1
    ((whole, _),) = split_audit(request, tokens, "float32", None)
    assert len(whole.prompt) == read


def test_every_piece_of_an_audit_has_all_images() -> None:
    """The engine places the answer by the length of the prompt with the images' tokens."""
    image = Image(b"", "png", 28, 28, "0")
    request = EngineRequest(
        "a", tuple(range(20)), Sampling(9), images=(image, image), expanded_length=150
    )
    tokens = tuple(range(100, 110))
    pieces = [piece for piece, _ in split_audit(request, tokens, "float32", 4)]
    assert [len(piece.prompt) for piece in pieces] == [23, 26, 29]
    assert [piece.num_prompt for piece in pieces] == [153, 156, 159]
    for piece in pieces:
        assert piece.images == request.images
        assert piece.scoring is not None
        assert piece.scoring["prompt_tokens"] == 150


def test_scores_of_parts_are_joined() -> None:
    parts = [
        AnswerScores((0.0, 0.1), (), {"colder": 1.0, "hotter": -1.0}, 2),
        AnswerScores((0.2,), (), {"colder": 0.5, "hotter": 0.0}, 1),
    ]
    joined = AnswerScores.join(parts)
    assert joined == AnswerScores((0.0, 0.1, 0.2), (), {"colder": 1.5, "hotter": -1.0}, 3)
    assert AnswerScores.join([CLEAN, BAD]).evidence is None


async def test_an_audit_waits_for_room_between_its_pieces() -> None:
    lab = Lab()
    lab.engine.scores = [CLEAN]
    lab.room = False
    pausing = asyncio.create_task(lab.auditor.queues[0].pause())
    for _ in range(5):
        await asyncio.sleep(0)
    lab.now += 3.0
    assert not pausing.done()
    lab.room = True
    await pausing
