"""The loop against a scripted gateway: verdicts, and kills at every stage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from eaglegate.lab.improve.command import main
from eaglegate.lab.improve.config import ConfigInvalid, read_config
from eaglegate.lab.improve.ledger import Candidate, CandidateVerdict, Ledger, Stage
from eaglegate.lab.improve.ledger_command import main as show_log
from eaglegate.lab.improve.loop import LoopRunning, Switch, lock_state
from eaglegate.lab.improve.stages import GatewayClient, Stages
from eaglegate.observability.captures.files import read_records, write_records
from eaglegate.observability.captures.record import CapturedChoice, CapturedPrompt, CaptureRecord
from tests.conftest import ROOT
from tests.engine.speculation.test_drafts import DEMO, copy_draft
from tests.lab.improve.scripted_commands import make_report
from tests.lab.improve.scripted_gateway import ScriptedGateway
from tests.lab.improve.scripted_loop import make_scripted_loop

pytestmark = pytest.mark.thorough

WINDOW = {"answers": 20, "sessions": 10}


def write_capture(folder: Path, name: str, count: int, began: float) -> None:
    folder.mkdir(exist_ok=True)
    records = [
        CaptureRecord(
            id=f"{name}-{number}",
            session=f"{name}-{number}",
            arrived=began + number,
            input_length=3,
            workload="chat",
            prompts=(CapturedPrompt(3, token_ids=(1, 2, 3)),),
            choices=(CapturedChoice(tokens=4, token_ids=(4, 5, 6, 7), finish="stop"),),
        )
        for number in range(count)
    ]
    write_records(folder / f"{name}.jsonl", records)


@dataclass
class Scene:
    folder: Path
    gateway: ScriptedGateway

    @property
    def config(self) -> Path:
        return self.folder / "improve.yaml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.state / "ledger.sqlite3")

    def write_config(self, **changes: Any) -> None:
        content = {"state": "state", "capture": "capture", "window": WINDOW, "poll_s": 0.05}
        self.config.write_text(yaml.safe_dump({**content, **changes}))

    def run(self) -> Candidate | None:
        return make_scripted_loop(read_config(self.config), self.gateway.url).run(once=True)

    def start(self) -> subprocess.Popen[bytes]:
        line = (
            sys.executable,
            "-m",
            "tests.lab.improve.scripted_loop",
            self.config,
            self.gateway.url,
        )
        return subprocess.Popen(line, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    (tmp_path / "state").mkdir()
    write_capture(tmp_path / "capture", "one", 40, time.time() - 1000)
    with ScriptedGateway(DEMO / "eagle3_1").serving() as gateway:
        made = Scene(tmp_path, gateway)
        made.write_config()
        yield made


def wait_until(is_true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_better_draft_goes_from_traffic_to_promotion(scene: Scene) -> None:
    first = scene.gateway.promoted
    one = scene.run()
    assert one is not None
    assert (one.verdict, one.reason, one.stage) == (CandidateVerdict.PROMOTED, "why", Stage.DONE)
    assert scene.gateway.served == [first, one.fingerprint]
    assert one.parent == {"fingerprint": first, "source": "demo"}
    assert (one.data["answers"], one.data["sessions"]) == (20, 20)
    assert one.data["files"]["judge"] + one.data["files"]["tune"] == 20
    assert one.offline["passed"]
    texts = [event["text"] for event in scene.ledger.list_events(one.id)]
    assert texts[1] == "tuned"
    assert texts[-1] == "promoted: why"
    assert scene.run() is None, "the same traffic makes no second candidate"


def test_a_window_is_the_newest_traffic_as_much_as_is_configured(scene: Scene) -> None:
    one = scene.run()
    assert one is not None
    window = scene.state / "candidates" / f"{one.id:05d}" / "window"
    parts = [read_records(window / part) for part in ("tune", "judge")]
    found = {record.id for part in parts for record in part}
    assert found == {f"one-{number}" for number in range(20, 40)}


def test_sessions_that_judge_are_never_trained_on(scene: Scene) -> None:
    one = scene.run()
    assert one is not None
    write_capture(scene.folder / "capture", "two", 40, time.time() - 500)
    two = scene.run()
    assert two is not None
    assert two.id != one.id
    window = scene.state / "candidates" / f"{two.id:05d}" / "window"
    sessions = {
        part: {record.session for record in read_records(window / part)}
        for part in ("tune", "keep", "judge")
    }
    assert sessions["keep"], "the earlier window is trained on again"
    assert all(name.startswith("one") for name in sessions["keep"])
    assert {name[:3] for name in sessions["judge"]} == {"one", "two"}
    assert not sessions["judge"] & (sessions["tune"] | sessions["keep"])
    assert two.parent["fingerprint"] == one.fingerprint


def test_a_draft_that_loses_a_slice_never_meets_live_traffic(scene: Scene) -> None:
    report = make_report()
    worse = {"value": 0.9, "low": 0.85, "high": 0.94, "clusters": 30}
    report["against"]["drafts"]["candidate"]["workload tools"] = {"ratio": worse}
    (scene.state / "report.json").write_text(json.dumps(report))
    one = scene.run()
    assert one is not None
    assert one.verdict is CandidateVerdict.REFUSED
    assert "workload tools: -10.0% (-15.0% to -6.0%) is worse than the margin of 3%" in one.reason
    assert scene.gateway.started == 0


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [("roll back", CandidateVerdict.ROLLED_BACK), ("not enough data", CandidateVerdict.UNDECIDED)],
)
def test_a_canary_that_does_not_promote_leaves_the_parent(
    scene: Scene, verdict: str, expected: CandidateVerdict
) -> None:
    scene.gateway.verdict = verdict
    one = scene.run()
    assert one is not None
    assert (one.verdict, len(scene.gateway.served)) == (expected, 1)


def test_an_operators_draft_is_judged_like_any_other_or_forced(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    (scene.state / "report.json").write_text(json.dumps(make_report(low=0.8)))
    scene.gateway.verdict = "roll back"
    bad = copy_draft(scene.folder / "bad", 1)
    queue = ["--config", str(scene.config), "--candidate", str(bad)]
    assert main(queue) == 0
    refused = scene.run()
    assert refused is not None
    assert (refused.verdict, refused.given) == (CandidateVerdict.REFUSED, str(bad))
    assert main([*queue, "--force"]) == 0
    forced = scene.run()
    assert forced is not None
    assert (forced.verdict, forced.forced) == (CandidateVerdict.ROLLED_BACK, True)
    assert not forced.offline["passed"]
    capsys.readouterr()
    assert show_log([str(scene.state), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in rows] == ["refused", "rolled back"]
    assert rows[1]["events"][1]["text"].startswith("forced past a failed comparison")
    assert show_log([str(scene.state)]) == 0
    assert "forced, rolled back: why" in capsys.readouterr().out
    assert show_log([str(scene.state), "2"]) == 0
    assert "offline FAIL all" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["tune", "compare"])
def test_a_loop_killed_in_a_command_goes_on_from_it(scene: Scene, stage: str) -> None:
    (scene.state / f"hold-{stage}").touch()
    loop = scene.start()
    wait_until((scene.state / f"at-{stage}").exists, f"{stage} begins")
    with pytest.raises(LoopRunning), lock_state(scene.state):
        pass
    loop.send_signal(signal.SIGKILL)
    loop.wait()
    assert scene.ledger.list_candidates()[0].stage == stage
    (scene.state / f"hold-{stage}").unlink()
    wait_until(lambda: is_unlocked(scene.state), "the killed loop's command ends with it")
    one = scene.run()
    assert one is not None
    assert (one.id, one.verdict) == (1, CandidateVerdict.PROMOTED)
    assert scene.gateway.served[1:] == [one.fingerprint]


def is_unlocked(state: Path) -> bool:
    try:
        with lock_state(state):
            return True
    except LoopRunning:
        return False


def test_a_loop_killed_during_the_canary_finds_it_again(scene: Scene) -> None:
    scene.gateway.verdict = None
    loop = scene.start()
    wait_until(lambda: scene.gateway.canary, "the canary begins")
    loop.send_signal(signal.SIGKILL)
    loop.wait()
    scene.gateway.verdict = "promote"
    one = scene.run()
    assert one is not None
    assert (one.verdict, scene.gateway.started) == (CandidateVerdict.PROMOTED, 1)


def test_a_promotion_that_the_loop_did_not_see_is_recorded(scene: Scene) -> None:
    scene.gateway.verdict = None
    loop = scene.start()
    wait_until(lambda: scene.gateway.canary, "the canary begins")
    loop.send_signal(signal.SIGKILL)
    loop.wait()
    scene.gateway.promote(Path(scene.gateway.canary["path"]))  # type: ignore[index]
    scene.gateway.restart()
    one = scene.run()
    assert one is not None
    assert (one.verdict, one.reason) == (CandidateVerdict.PROMOTED, "the gateway had promoted it")


def test_a_gateway_that_restarts_gets_the_canary_again(scene: Scene) -> None:
    scene.gateway.verdict = None
    loop = scene.start()
    for started in (1, 2):
        wait_until(lambda started=started: scene.gateway.started == started, "a canary begins")
        scene.gateway.restart()
    wait_until(lambda: scene.gateway.started == 3, "a third one begins")
    scene.gateway.restart()
    assert loop.wait(30) == 0
    one = scene.ledger.list_candidates()[0]
    assert one.verdict is CandidateVerdict.FAILED
    assert "3 canaries started" in one.reason
    assert len(scene.gateway.served) == 1


def test_a_draft_promoted_by_an_operator_ends_the_candidate(scene: Scene, tmp_path: Path) -> None:
    (scene.state / "hold-compare").touch()
    loop = scene.start()
    wait_until((scene.state / "at-compare").exists, "compare begins")
    scene.gateway.promote(copy_draft(tmp_path / "other", 5))
    (scene.state / "hold-compare").unlink()
    assert loop.wait(30) == 0
    one = scene.ledger.list_candidates()[0]
    assert one.verdict is CandidateVerdict.UNDECIDED
    assert "another draft was promoted in the meantime" in one.reason
    assert scene.gateway.started == 0


def test_a_command_that_fails_is_tried_three_times(scene: Scene) -> None:
    (scene.state / "break-tune").touch()
    one = scene.run()
    assert one is not None
    assert one.verdict is CandidateVerdict.FAILED
    assert "ended with 1: no memory" in one.reason
    failures = [e["text"] for e in scene.ledger.list_events(1) if e["text"].startswith("failed")]
    assert len(failures) == 3


def test_the_switch_ends_the_command_and_outlives_the_loop(scene: Scene) -> None:
    (scene.state / "hold-tune").touch()
    loop = scene.start()
    wait_until((scene.state / "at-tune").exists, "tune begins")
    assert main(["--config", str(scene.config), "--stop", "maintenance"]) == 0
    assert loop.wait(30) == 0, "with --once a stopped loop ends"
    assert scene.run() is None
    assert scene.ledger.list_candidates()[0].stage is Stage.TUNE
    (scene.state / "hold-tune").unlink()
    assert main(["--config", str(scene.config), "--start"]) == 0
    one = scene.run()
    assert one is not None
    assert (one.id, one.verdict) == (1, CandidateVerdict.PROMOTED)


def test_the_switch_ends_the_canary_and_it_begins_again(scene: Scene) -> None:
    scene.gateway.verdict = None
    loop = scene.start()
    wait_until(lambda: scene.gateway.canary, "the canary begins")
    Switch(scene.state).turn_off("enough")
    assert loop.wait(30) == 0
    assert (scene.gateway.started, scene.gateway.stopped) == (1, 1)
    assert scene.gateway.canary is not None
    assert not scene.gateway.canary["running"]
    Switch(scene.state).turn_on()
    scene.gateway.verdict = "promote"
    one = scene.run()
    assert one is not None
    assert (one.verdict, scene.gateway.started) == (CandidateVerdict.PROMOTED, 2)


def test_tuning_replays_what_the_draft_was_trained_on(scene: Scene) -> None:
    scene.write_config(keep="exchanges.jsonl", tune={"keep_share": 0.6})
    config = read_config(scene.config)
    stages = Stages(config, scene.ledger, GatewayClient(scene.gateway.url))
    folder = scene.folder / "one"
    (folder / "window" / "keep").mkdir(parents=True)
    command = stages.make_tune_command(folder)
    assert [command[at + 1] for at, part in enumerate(command) if part == "--keep"] == [
        str(scene.folder / "exchanges.jsonl")
    ]
    (folder / "window" / "keep" / "older.jsonl").touch()
    command = stages.make_tune_command(folder)
    assert command.count("--keep") == 2
    assert command[command.index("--keep-share") + 1] == "0.6"


def test_a_wrong_configuration_names_the_field(scene: Scene) -> None:
    scene.write_config(gate={"marign": 0.1})
    with pytest.raises(ConfigInvalid, match=r"gate\.marign"):
        read_config(scene.config)
    assert main(["--config", str(scene.config)]) == 2


def test_text_of_old_windows_is_deleted(scene: Scene) -> None:
    scene.write_config(window={**WINDOW, "history": 1})
    for number in range(3):
        write_capture(scene.folder / "capture", f"w{number}", 40, time.time() - 900 + 100 * number)
        assert scene.run() is not None
    folders = sorted(path.name for path in (scene.state / "candidates").iterdir())
    assert folders == ["00003"]
    assert not (scene.state / "candidates" / "00003" / "parent").exists()
    assert len(scene.ledger.list_candidates()) == 3


def test_a_draft_that_the_gateway_refuses_is_refused(scene: Scene) -> None:
    scene.gateway.refusal = (400, "The draft holds values that are not finite numbers.")
    one = scene.run()
    assert one is not None
    assert (one.verdict, one.reason) == (CandidateVerdict.REFUSED, scene.gateway.refusal[1])


def test_a_canary_that_an_operator_stops_is_not_started_again(scene: Scene) -> None:
    scene.gateway.verdict = None
    loop = scene.start()
    wait_until(lambda: scene.gateway.canary, "the canary begins")
    scene.gateway.canary["running"] = False  # type: ignore[index]
    assert loop.wait(30) == 0
    one = scene.ledger.list_candidates()[0]
    assert (one.verdict, one.reason) == (CandidateVerdict.UNDECIDED, "an operator stopped it")
