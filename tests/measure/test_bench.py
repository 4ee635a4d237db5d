"""The bench against stand-in servers whose speed and acceptance are known."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from measure.bench import BenchError, BenchPlan, LoadPoint, run
from measure.bench_command import main, make_parser, make_plan
from measure.bench_report import make_report
from measure.counters import parse_counters
from measure.datasets import load_sessions
from measure.figures import Goal
from measure.servers import SPECULATION, ServerError, Setting, drop_speculation
from measure.statistics import Verdict
from tests.measure.stand_in_server import StandInServer

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


def ignore(_):
    pass


def plan_for(*urls, **more):
    settings = tuple(Setting(url, url) for url in urls)
    plan = BenchPlan(
        settings=settings,
        has_baseline=len(urls) > 1,
        loads=(LoadPoint(concurrency=2),),
        sessions=tuple(load_sessions("chat")),
        requests=4,
        repeats=5,
        warmup=1,
        seed=0,
    )
    return replace(plan, **more)


def bench(plan, folder, resume=False):
    folder.mkdir(exist_ok=True)
    blocks = run(plan, folder, ignore, resume=resume, bar=False)
    return blocks, make_report(plan, blocks, {"command": "eaglegate bench --url a"})


@pytest.fixture
def fast_and_slow(start_server):
    fast, slow = StandInServer(step_s=0.01), StandInServer(step_s=0.03)
    return fast, slow, start_server(fast), start_server(slow)


def test_the_faster_server_is_found_better(fast_and_slow, tmp_path):
    _, _, fast_url, slow_url = fast_and_slow
    blocks, report = bench(plan_for(fast_url, slow_url), tmp_path)
    assert len(blocks) == 10
    (found,) = report.comparisons
    assert found.finding.verdict is Verdict.BETTER
    assert 1.8 < found.user_speed.value < 4
    assert report.figures[0].failed == 0
    assert report.figures[0].requests >= 20


def test_acceptance_is_exact_from_answers_and_from_counters(fast_and_slow, tmp_path):
    _, slow, *urls = fast_and_slow
    slow.reports = False
    _, report = bench(plan_for(*urls), tmp_path)
    answers, counters = (figures.acceptance for figures in report.figures)
    assert (answers.source, counters.source) == ("answers", "counters")
    for found in (answers, counters):
        assert found.length == pytest.approx(1 + 4 / 3)
        assert found.per_position == pytest.approx((2 / 3, 1 / 3, 1 / 3))
        assert found.conditional == pytest.approx((2 / 3, 1 / 2, 1))
        assert found.fallback == pytest.approx(1 / 3)
    assert any("other traffic" in note for note in report.notes)


def test_repeats_take_turns_and_send_the_same(fast_and_slow, tmp_path):
    fast, slow, *urls = fast_and_slow
    plan = plan_for(*urls, repeats=2, warmup=1)
    order = [(repeat, setting.url) for repeat, _, setting in plan.order()]
    assert order == [(0, urls[0]), (0, urls[1]), (1, urls[1]), (1, urls[0])]
    bench(plan, tmp_path)
    sent = [[json.dumps(body["messages"]) for body in s.bodies] for s in (fast, slow)]
    assert sorted(sent[0]) == sorted(sent[1])


def test_a_run_resumes_where_it_was_killed(fast_and_slow, tmp_path):
    fast, _, *urls = fast_and_slow
    plan = plan_for(*urls, repeats=2)
    bench(plan, tmp_path)
    journal = tmp_path / "blocks.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    journal.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    fast.bodies.clear()
    blocks, _ = bench(plan, tmp_path, resume=True)
    assert [(b.number, b.setting) for b in blocks] == [
        (repeat, setting.name) for repeat, _, setting in plan.order()
    ]
    assert len(fast.bodies) < 10
    with pytest.raises(BenchError, match="--resume"):
        bench(plan, tmp_path)
    with pytest.raises(BenchError, match="other settings"):
        bench(replace(plan, seed=9), tmp_path, resume=True)


def test_no_prompt_and_no_answer_is_on_disk(fast_and_slow, tmp_path):
    fast, _, *urls = fast_and_slow
    _, report = bench(plan_for(*urls, repeats=1), tmp_path)
    report.write(tmp_path)
    prompt = fast.bodies[0]["messages"][-1]["content"]
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert prompt not in text
        assert "w0 w1" not in text


def test_a_server_that_answers_nothing_is_refused(server, url, tmp_path):
    server.fails = 2
    with pytest.raises(BenchError, match="no request of the warm-up: HTTP 503"):
        bench(plan_for(url), tmp_path)


def test_failed_requests_are_counted_and_noted(server, url, tmp_path):
    blocks, _ = bench(plan_for(url, repeats=1), tmp_path)
    server.fails = 2
    again, report = bench(plan_for(url, repeats=1, warmup=4), tmp_path / "again")
    assert len(again[0].results) >= len(blocks[0].results) - 2
    figures = report.figures[0]
    assert figures.failed == sum(not result.ok for result in again[0].results)


def test_goodput(server, url, tmp_path):
    server.step_s = 0.02
    _, report = bench(plan_for(url, repeats=1, goal=Goal({"tpot": 1e4})), tmp_path)
    figures = report.figures[0]
    assert figures.goodput == pytest.approx(figures.request_rate)
    _, report = bench(plan_for(url, repeats=1, goal=Goal({"tpot": 0.001})), tmp_path / "none")
    assert report.figures[0].goodput == 0
    with pytest.raises(ValueError, match="ttft:MS"):
        Goal.parse(["speed:3"])


def test_the_command_writes_all_reports(server, url, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--url", url, "--concurrency", "1,2", "--requests", "4", "--repeats", "2"]
    arguments += ["--header", "authorization: Bearer secret", "--out", str(out), "--quiet"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "| 2 " in shown
    assert "acceptance length" in shown
    report = json.loads((out / "report.json").read_text())
    assert report["run"]["command"].startswith(f"eaglegate bench --url {url} --concurrency 1,2")
    assert len(report["figures"]) == 2
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 5
    assert page.count("from <code>eaglegate bench") >= 3
    assert "http://" not in page.replace(url, "").replace("http://www.w3.org/2000/svg", "")
    for path in out.iterdir():
        assert "secret" not in path.read_text()


def test_sigterm_ends_a_run_as_ctrl_c_does(server, url, tmp_path):
    server.step_s = 30
    command = [sys.executable, "-m", "server", "bench", "--url", url, "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert "warming up" in running.stderr.readline()
        running.terminate()
        assert "--resume" in running.stderr.read()
    assert running.returncode == 130


def test_fields_make_a_baseline_of_the_same_server(server, url, tmp_path):
    fields = '{"num_speculative_tokens": 0}'
    arguments = ["--url", url, "--baseline", fields, "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*arguments, "--concurrency", "1", "--requests", "4", "--repeats", "1"]) == 0
    depths = {body.get("num_speculative_tokens") for body in server.bodies}
    assert depths == {None, 0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "http://x", "--baseline", "none"], "num_speculative_tokens"),
        (["--url", "http://x", "--cost-scaled"], "leave out"),
        (["--baseline", "something"], "write none, a URL"),
        (["--url", "http://x", "--category", "nothing"], "has none of it"),
        (["--url", "http://127.0.0.1:9"], "does not answer"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, says, tmp_path, capsys):
    assert main([*arguments, "--out", str(tmp_path), "--quiet"]) == 1
    assert says in capsys.readouterr().err


def test_the_baseline_of_a_started_server_has_no_draft():
    plan = make_plan(make_parser().parse_args([]), ["my/model", SPECULATION, "{}", "--port=1"])
    assert [setting.name for setting in plan.settings] == ["speculative", "none"]
    assert plan.settings[1].flags == ("my/model", "--port=1")
    assert drop_speculation(["m", f"{SPECULATION}={{}}"]) == ("m",)
    assert drop_speculation(["m", f"{SPECULATION}.model", "d"]) == ("m",)
    with pytest.raises(ServerError, match="have none"):
        drop_speculation(["m"])


def test_the_demo_names_its_draft():
    plan = make_plan(make_parser().parse_args(["--concurrency", "1,4"]), [])
    assert "eagle3_1" in " ".join(plan.settings[0].flags)
    assert "eagle3_1" not in " ".join(plan.settings[1].flags)
    assert [load.concurrency for load in plan.loads] == [1, 4]


def test_vllms_counters():
    text = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 10\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 30\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 15\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 6\n'
    )
    totals = (parse_counters(text) - parse_counters("")).totals()
    assert (totals.verify_steps, totals.proposed, totals.accepted) == (10, 30, 15)
    assert totals.accepted_at == (9, 6)
    assert parse_counters("up 1\n").totals() is None
    assert (parse_counters("") - parse_counters(text)).reset
