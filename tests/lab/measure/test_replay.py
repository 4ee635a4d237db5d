"""Replays of captures to stand-in servers: what differs is found, what does not is not."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace

import pytest

from eaglegate.lab.measure.bench_command import main as bench
from eaglegate.lab.measure.datasets import Turn
from eaglegate.lab.measure.pairs import Pair, TextReport
from eaglegate.lab.measure.replay import ReplayOutcome, ReplayRequest, read_requests
from eaglegate.lab.measure.replay_command import main
from eaglegate.lab.measure.replay_report import make_report
from eaglegate.lab.measure.stream import RequestResult, ToolCall
from eaglegate.lab.measure.tool_outcomes import judge_calls
from eaglegate.observability.captures.files import write_records
from eaglegate.observability.captures.record import (
    CapturedChoice,
    CapturedPrompt,
    CapturedStep,
    CaptureRecord,
)
from tests.lab.measure.stand_in_server import StandInServer

pytestmark = pytest.mark.thorough

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "required": ["city"]},
    },
}


def record(number, workload="chat", **more):
    """A record of an answer that the stand-in server would give."""
    steps = (CapturedStep(3, 3, 4), CapturedStep(3, 1, 2), CapturedStep(3, 0, 1))
    body = {"temperature": 0, "messages": [{"role": "user", "content": f"secret {number}"}]}
    found = CaptureRecord(
        timestamp=number * 10.0,
        id=f"r{number}",
        session=f"s{number // 2}",
        messages=tuple(body["messages"]),
        body=body,
        workload=workload,
        sampling={"temperature": 0.0},
        ending="completed",
        prompts=(CapturedPrompt(7),),
        choices=(CapturedChoice(tokens=8, token_ids=tuple(range(8)), steps=steps),),
        ttft_ms=10.0,
        duration_ms=80.0,
    )
    return replace(found, **more)


@pytest.fixture
def capture(tmp_path):
    def write(*records):
        path = tmp_path / "capture.jsonl"
        write_records(path, records or [record(number) for number in range(24)])
        return path

    return write


def replay(capture, out, *arguments):
    """Exit status and report."""
    fixed = ["--out", str(out), "--quiet", "--speed", "5"]
    status = main([str(capture), *arguments, *fixed])
    return status, json.loads((out / "report.json").read_text())


def rows_of(report, at=0):
    return {row["name"]: row for row in report["slices"][at]["rows"]}


def test_fewer_tokens_a_step_are_found(start_server, capture, tmp_path, capsys):
    deep = StandInServer(step_s=0.01)
    flat = StandInServer(step_s=0.01, steps=(1, 2, 1, 2, 1, 1), depth=1)
    urls = start_server(deep), start_server(flat)
    _, report = replay(capture(), tmp_path / "out", "--against", urls[0], "--against", urls[1])
    rows = rows_of(report)
    assert rows["acceptance length"]["ratio"]["value"] == pytest.approx(1.4 / (7 / 3))
    assert rows["tokens per step"]["finding"]["verdict"] == "worse"
    assert report["text"]["different"] == 0
    assert report["verdict"]["reason"] in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "eaglegate replay" in page


def test_a_setting_without_drafts_is_not_short_of_data(start_server, capture, tmp_path, capsys):
    plain = StandInServer(step_s=0.01, steps=(1,), depth=0, text="one")
    urls = start_server(StandInServer(step_s=0.01)), start_server(plain)
    _, report = replay(capture(), tmp_path / "out", "--against", urls[0], "--against", urls[1])
    rows = rows_of(report)
    for name in ("tokens per step", "acceptance length"):
        assert rows[name]["finding"]["verdict"] == "no drafts"
    assert "no drafts" in capsys.readouterr().out
    assert rows["TTFT"]["finding"]["verdict"] != "no drafts"


def judge(factor, *, clusters=12, faults=0, spread=0.05):
    """The verdict where the other side takes ``factor`` times as long, give or take."""
    noise = random.Random(1)
    pairs = []
    for number in range(clusters * 2):
        request = ReplayRequest(f"r{number}", f"s{number // 2}", Turn(), {"api": "chat"}, True)
        sides = []
        for scale in (1.0, factor):
            step = 0.05 * scale * math.exp(noise.gauss(0, spread))
            result = RequestResult(
                request.id, request.cluster, ttft=step, latency=9 * step, gaps=[step] * 8,
                output_tokens=9,
            )  # fmt: skip
            sides.append(ReplayOutcome(result, "same", {}))
        pairs.append(Pair(request, *sides))
    text = TextReport(len(pairs), faults, 0, faults, 0, ())
    report = make_report(
        {"command": "eaglegate replay"}, ("a", "b"), len(pairs), pairs, text,
        base_is_capture=False, margin=0.02,
    )  # fmt: skip
    return report.verdict


@pytest.mark.parametrize(
    ("factor", "more", "verdict", "says"),
    [
        (1.0, {"spread": 0.005}, "no difference", "lies within"),
        (1.1, {}, "worse", "TPOT: "),
        (0.8, {}, "better", "excludes 0"),
        (1.0, {"spread": 0.4}, "not enough data", "reaches beyond"),
        (0.5, {"clusters": 3}, "not enough data", "3 sessions"),
        (0.5, {"faults": 1}, "worse", "greedy texts differ"),
    ],
)
def test_verdicts(factor, more, verdict, says):
    found = judge(factor, **more)
    assert found.verdict == verdict
    assert says in found.reason


class PickyServer(StandInServer):
    """Rejects more drafts of one kind of request."""

    async def play(self, body):
        tools = "tools" in body
        mine = replace(self, steps=(1, 1, 1, 1, 1, 1, 1, 1)) if tools else self
        async for data in StandInServer.play(mine, body):
            yield data


def test_the_slice_that_got_worse_is_accused(start_server, capture, tmp_path):
    records = [record(n, "tools", tools=(TOOL,)) if n % 4 < 2 else record(n) for n in range(40)]
    even, picky = StandInServer(step_s=0.003), PickyServer(step_s=0.003)
    urls = start_server(even), start_server(picky)
    _, report = replay(
        capture(*records), tmp_path / "out", "--against", urls[0], "--against", urls[1]
    )
    accused = {
        one["name"]
        for one in report["slices"][1:]
        for row in one["rows"]
        if row["name"] == "acceptance length" and row["finding"]["verdict"] == "worse"
    }
    assert accused == {"tools"}
    names = {one["name"]: one for one in report["slices"]}
    assert names["chat"]["other"]["length"] == pytest.approx(7 / 3)
    assert names["tools"]["other"]["length"] == 1


def test_against_the_recorded_run(server, url, capture, tmp_path):
    _, report = replay(capture(), tmp_path / "out", "--against", url)
    assert report["base"] == "recorded"
    assert report["text"] | {"examples": []} == {
        "compared": 24, "different": 0, "near_ties": 0, "faults": 0, "unexplained": 0,
        "examples": [],
    }  # fmt: skip
    assert rows_of(report)["acceptance length"]["ratio"]["value"] == pytest.approx(1)
    assert server.bodies[0]["return_token_ids"]
    assert set(server.captures) == {"off"}, "a replay is no traffic to learn from"
    assert any("take turns" in note for note in report["notes"])


class TiedServer(StandInServer):
    """Writes another last token, and says how close it was."""

    last, gap = "w7", 0.0

    async def play(self, body):
        tops = [{"token": "w7", "logprob": -1.0}, {"token": "x", "logprob": -1.0 - self.gap}]
        chosen = next(top for top in tops if top["token"] == self.last)
        entries = [{"token": "w0", "logprob": 0.0}, chosen | {"top_logprobs": tops}]
        async for data in StandInServer.play(self, body):
            if body.get("logprobs") and b'"content": "w0' in data:
                chunk = json.loads(data[6:])
                chunk["choices"][0]["logprobs"] = {"content": entries}
                data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
            yield data

    def delta(self, at, size):
        return {"content": super().delta(at, size)["content"].replace("w7", self.last)}


@pytest.mark.parametrize(("gap", "verdict"), [(0.02, "near_ties"), (3.0, "faults")])
def test_a_near_tie_is_told_from_a_fault(start_server, capture, tmp_path, gap, verdict):
    same, other = TiedServer(owner="vllm"), TiedServer(owner="vllm")
    same.gap, other.gap, other.last = gap, gap, "x"
    urls = start_server(same), start_server(other)
    records = [record(number) for number in range(6)]
    _, report = replay(
        capture(*records), tmp_path / "out", "--against", urls[0], "--against", urls[1]
    )
    assert report["text"]["different"] == 6
    assert report["text"][verdict] == 6
    assert f"{gap:.3f} nats" in report["text"]["examples"][0]


def test_a_run_resumes(start_server, capture, tmp_path):
    server = StandInServer()
    url, file, out = start_server(server), capture(), tmp_path / "out"
    arguments = ("--against", url, "--against", '{"seed": 1}')
    replay(file, out, *arguments)
    journal = out / "outcomes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:5]) + lines[5][:30])
    before = len(server.bodies)
    _, report = replay(file, out, *arguments, "--resume")
    assert report["pairs"] == 24
    assert len(server.bodies) - before < before
    assert main([str(file), *arguments, "--out", str(out), "--quiet"]) == 1


def test_no_prompt_and_no_answer_is_on_disk(url, capture, tmp_path):
    out = tmp_path / "out"
    replay(capture(), out, "--against", url, "--against", url)
    for path in out.iterdir():
        text = path.read_text()
        assert "secret 1" not in text
        assert "w0 w1" not in text


def test_a_bench_can_send_a_trace_at_its_times(server, url, capture, tmp_path, capsys):
    out = tmp_path / "out"
    file = capture(*(record(n, timestamp=n * 100.0, session=f"s{n}") for n in range(4)))
    fixed = ["--url", url, "--rate", "trace", "--repeats", "1", "--warmup", "1", "--quiet"]
    assert bench([*fixed, "--data", str(file), "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "blocks.jsonl").read_text().splitlines()]
    starts = sorted(result["started"] for result in rows[1]["results"])
    assert len(starts) == 4
    assert starts[-1] >= 0.3
    assert bench([*fixed, "--data", "chat", "--out", str(out)]) == 1
    assert "records no times" in capsys.readouterr().err


def test_a_client_that_left_leaves_again_and_has_no_text_to_compare():
    left = record(1, ending="client_gone")
    (request,) = read_requests([left])
    assert request.turn.leave_after == 8
    assert not request.greedy


def test_a_capture_of_hashes_replays_lengths_and_prefixes():
    def hashed(number, blocks):
        prompt = CapturedPrompt(40, blocks=blocks)
        return CaptureRecord(
            id=f"r{number}", mode="hashes", input_length=40, prompts=(prompt,),
            choices=(CapturedChoice(tokens=9),), duration_ms=5.0,
        )  # fmt: skip

    first, second = read_requests([hashed(1, (11, 12, 13)), hashed(2, (11, 12, 99))])
    a, b = first.turn.body["prompt"], second.turn.body["prompt"]
    assert (len(a), first.turn.body["max_tokens"], first.is_invented) == (40, 9, True)
    assert a[:32] == b[:32]
    assert a[32:] != b[32:]
    (mooncake,) = read_requests(
        [CaptureRecord(input_length=600, output_length=5, hash_ids=(1, 2), timestamp=0.0)]
    )
    assert len(mooncake.turn.body["prompt"]) == 600


@pytest.mark.parametrize(
    ("name", "arguments", "finish", "outcome"),
    [
        ("get_weather", '{"city": "Oslo"}', "tool_calls", "valid"),
        ("get_weather", "{}", "tool_calls", "schema_mismatch"),
        ("get_weather", '{"city', "tool_calls", "malformed"),
        ("get_weather", '{"city', "length", "truncated"),
        ("other", "{}", "tool_calls", "unknown_tool"),
    ],
)
def test_outcomes_of_tool_calls(name, arguments, finish, outcome):
    result = RequestResult("r", "s", finish=finish, tool_calls=[ToolCall(name, arguments)])
    assert judge_calls(result, [TOOL]) == {outcome: 1}


def test_broken_tool_calls_are_worse(start_server, capture, tmp_path):
    good = StandInServer(call=("get_weather", '{"city": "Oslo"}'))
    bad = StandInServer(call=("get_weather", '{"town": "Oslo"}'))
    urls = start_server(good), start_server(bad)
    body = {"temperature": 0, "tools": [TOOL], "messages": [{"role": "user", "content": "x"}]}
    records = [record(number, body=body) for number in range(20)]
    status, report = replay(
        capture(*records), tmp_path / "out", "--against", urls[0], "--against", urls[1]
    )
    assert status == 3
    assert report["tools"]["finding"]["verdict"] == "worse"
    assert report["tools"]["other"] == {"schema_mismatch": 20}


@pytest.mark.parametrize(
    ("against", "says"),
    [
        (["something"], "give a URL"),
        (['{"a": 1}'], "need an earlier --against"),
        (["http://a", "http://b", "http://c"], "one .* or two"),
        (["http://127.0.0.1:9"], "does not answer"),
    ],
)
def test_unreplayable_command_lines_are_refused(capture, tmp_path, capsys, against, says):
    arguments = [part for text in against for part in ("--against", text)]
    assert main([str(capture()), *arguments, "--out", str(tmp_path / "out"), "--quiet"]) == 1

    assert re.search(says, capsys.readouterr().err)


def test_recorded_times_are_kept(server, url, capture, tmp_path):
    out = tmp_path / "out"
    records = [
        record(number, timestamp=number * 100.0, session=f"s{number}") for number in range(4)
    ]
    main([str(capture(*records)), "--against", url, "--out", str(out), "--quiet", "--windows", "1"])
    rows = [json.loads(line) for line in (out / "outcomes.jsonl").read_text().splitlines()]
    starts = sorted(o["result"]["started"] for o in rows[1]["outcomes"])
    assert starts[-1] >= 0.3
