"""The bench against stand-in servers whose speed and acceptance are known."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eaglegate.lab.measure.bench import BenchPlan, LoadPoint, run_bench
from eaglegate.lab.measure.bench_command import main, make_parser, make_plan
from eaglegate.lab.measure.bench_compare import COST_TABLE, make_depth_settings
from eaglegate.lab.measure.bench_report import make_report
from eaglegate.lab.measure.counters import parse_counters
from eaglegate.lab.measure.datasets import load_sessions
from eaglegate.lab.measure.drafts import CostTable
from eaglegate.lab.measure.figures import Block
from eaglegate.lab.measure.runs import BenchError
from eaglegate.lab.measure.servers import SPECULATION, ServerError, Setting, drop_speculation
from eaglegate.lab.measure.statistics import Verdict
from eaglegate.lab.measure.stream import RequestResult
from tests.lab.measure.stand_in_server import StandInServer

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]


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
    blocks = asyncio.run(run_bench(plan, folder, ignore, resume=resume, bar=False))
    return blocks, make_report(plan, blocks, {"command": "eaglegate bench --url a"})


@pytest.fixture
def fast_and_slow(start_server):
    fast, slow = StandInServer(step_s=0.02), StandInServer(step_s=0.06)
    return fast, slow, start_server(fast), start_server(slow)


def make_result(number, tokens, seconds, bunched=False):
    gaps = [0.0001] * 3 if bunched else [seconds / 3] * 3
    return RequestResult(
        f"r{number}", f"s{number}", ttft=0.1, latency=0.1 + seconds, gaps=gaps,
        output_tokens=tokens,
    )  # fmt: skip


def make_blocks(seconds_by_setting):
    """A block of two answers per repeat; seconds of each setting by repeat."""
    return [
        Block(
            setting, "2", repeat, 1.0,
            (make_result(0, 101, seconds), make_result(1, 11, seconds / 10)),
        )
        for setting, times in seconds_by_setting.items()
        for repeat, seconds in enumerate(times)
    ]  # fmt: skip


def report_of(blocks):
    plan = plan_for("fast", "slow")
    return make_report(plan, blocks, {"command": "eaglegate bench"})


def test_a_ratio_is_that_of_the_figures_beside_it():
    """One slow repeat weighs in the ratio as it does in the values."""
    report = report_of(make_blocks({"fast": [1, 1, 1, 1, 9], "slow": [2, 2, 2, 2, 2]}))
    fast, slow = report.figures
    (found,) = report.comparisons
    assert fast.user_speed.value < slow.user_speed.value
    assert found.user_speed.value == pytest.approx(fast.user_speed.value / slow.user_speed.value)
    assert found.throughput.value == pytest.approx(fast.throughput.value / slow.throughput.value)
    assert found.ttft.value == pytest.approx(fast.ttft.mean / slow.ttft.mean)
    assert found.finding.verdict is Verdict.UNKNOWN
    assert found.user_speed.low < found.user_speed.value < found.user_speed.high


def test_too_few_repeats_give_no_ratio_but_say_so():
    report = report_of(make_blocks({"fast": [1, 1], "slow": [2, 2]}))
    (found,) = report.comparisons
    assert (found.user_speed, found.throughput, found.ttft) == (None, None, None)
    shown = report.render_text()
    assert shown.startswith("fast against slow: no verdict, 2 repeats; an interval needs 5")
    assert "2 of 5 repeats" in shown
    assert not re.search(r"\d+x", shown)


def test_an_answer_that_one_setting_lacks_counts_in_none():
    """The answers left out here are slow ones of "slow": it must not look faster for it."""
    blocks = make_blocks({"fast": [1] * 5, "slow": [2] * 5})
    bunched = make_result(0, 101, 2, bunched=True)
    blocks = [
        replace(b, results=(bunched, b.results[1])) if b.setting == "slow" else b for b in blocks
    ]
    report = report_of(blocks)
    assert [f.user_speed.value for f in report.figures] == pytest.approx([100, 50])
    assert report.comparisons[0].user_speed.value == pytest.approx(2)
    assert any("5 of 10 answers came together" in note for note in report.notes)


DEPTHS = ["--depths", "1,3,7", "--concurrency", "2", "--requests", "4", "--warmup", "1", "--quiet"]


@pytest.fixture
def drafting(server):
    server.obeys, server.depth, server.step_s = True, 7, 0.02
    return server


def test_depths_of_one_server_are_compared(drafting, url, tmp_path, capsys):
    """A step at depth K takes 1 + K / 4 as long and yields at most 4 tokens."""
    assert main(["--url", url, *DEPTHS, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"Depth 3 is best: \d\.\d\dx over no speculation \(\d\.\d\d to ", shown)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["setting"] for row in report["figures"]] == [f"depth {k}" for k in (1, 3, 7, 0)]
    assert report["comparisons"][0]["baseline"] == "depth 0"
    lengths = [f["acceptance"]["length"] for f in report["figures"] if f["acceptance"]]
    assert report["figures"][-1]["acceptance"]["fallback"] == 1.0
    assert lengths == [1 + 3 / 4, 1 + 5 / 2, 1 + 5 / 2, None]
    assert {body["num_speculative_tokens"] for body in drafting.bodies} == {0, 1, 3, 7}
    salts = {body["cache_salt"] for body in drafting.bodies if "cache_salt" in body}
    assert len(salts) == 4 * 5, "no block finds the prompts of another in the cache"
    table = CostTable.parse(json.loads((tmp_path / "out" / COST_TABLE).read_text()), "bench")
    assert table.depths == (0, 1, 3, 7)
    assert 20 < table.step_time(2, 0) < 90, "milliseconds"
    assert table.step_time(2, 7) / table.step_time(2, 0) == pytest.approx(2.75, rel=0.25)


def test_where_no_depth_pays_the_conclusion_says_so():
    blocks = make_blocks({"depth 1": [1.2] * 5, "depth 3": [2.0] * 5, "depth 0": [1.0] * 5})
    settings = make_depth_settings((0, 1, 3), Setting("s", "http://s"))
    plan = plan_for(settings=settings, has_baseline=True, depths=(0, 1, 3))
    report = make_report(plan, blocks, {"command": "eaglegate bench"})
    (line,) = report.conclusion.lines
    assert (
        line == "No depth pays: the best of them, depth 1, is at 0.83x over no speculation "
        "(0.83 to 0.83)"
    )
    assert report.conclusion.verdict is Verdict.WORSE
    assert any("depth 3: the gateway drafted nothing" in note for note in report.notes)


def test_depths_that_cannot_be_told_apart_are_named():
    noisy = [1.0, 1.2, 0.9, 1.1, 1.0]
    blocks = make_blocks({"depth 1": [2.0] * 5, "depth 3": noisy, "depth 5": noisy[::-1],
                          "depth 0": [3.0] * 5})  # fmt: skip
    settings = make_depth_settings((0, 1, 3, 5), Setting("s", "http://s"))
    plan = plan_for(settings=settings, has_baseline=True, depths=(0, 1, 3, 5))
    (line,) = make_report(plan, blocks, {"command": "x"}).conclusion.lines
    assert "is best: 2.88x over no speculation" in line
    assert line.endswith("not told apart from depth 5") or line.endswith("from depth 3")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--depths", "0"], "write whole numbers such as 0,1,3,5,7"),
        (["--depths", "two"], "write whole numbers"),
        (["--depths", "1,9"], "drafts at most 7 tokens, not 9"),
        (["--depths", "1", "--baseline", "none"], "leave out --baseline"),
        (
            ["--depths", "1", "--fields", '{"num_speculative_tokens": 2}'],
            "leave it out of --fields",
        ),
    ],
)
def test_depths_that_cannot_be_compared_are_refused(
    arguments, says, drafting, url, tmp_path, capsys
):
    assert main(["--url", url, *arguments, "--out", str(tmp_path), "--quiet"]) == 1
    assert says in capsys.readouterr().err


def test_acceptance_is_exact_from_answers_and_from_counters(fast_and_slow, tmp_path):
    _, slow, *urls = fast_and_slow
    slow.reports = False
    _, report = bench(plan_for(*urls), tmp_path)
    answers, counters = (figures.acceptance for figures in report.figures)
    assert (answers.source, counters.source) == ("answers", "counters")
    for found in (answers, counters):
        assert found.length == pytest.approx(1 + 4 / 3)
        assert found.per_position == pytest.approx((2 / 3, 1 / 3, 1 / 3))
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


def test_a_server_that_answers_nothing_is_refused(server, url, tmp_path):
    server.fails = 2
    with pytest.raises(BenchError, match="no request of the warm-up: HTTP 503"):
        bench(plan_for(url), tmp_path)


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
    assert page.count("eaglegate bench --url") == 1
    assert "http://" not in page.replace(url, "")
    for path in out.iterdir():
        assert "secret" not in path.read_text()


def test_sigterm_ends_a_run_as_ctrl_c_does(server, url, tmp_path):
    server.step_s = 30
    command = [
        sys.executable,
        "-m",
        "eaglegate.server",
        "bench",
        "--url",
        url,
        "--out",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert "warming up" in running.stderr.readline()
        running.terminate()
        assert "--resume" in running.stderr.read()
    assert running.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "http://x", "--baseline", "none"], "num_speculative_tokens"),
        (["--url", "http://x", "--cost-scaled"], "leave out"),
        (["--baseline", "something"], "write none, a URL"),
        (["--url", "http://127.0.0.1:9"], "does not answer"),
    ],
)
def test_unmeasurable_command_lines_are_refused(arguments, says, tmp_path, capsys):
    assert main([*arguments, "--out", str(tmp_path), "--quiet"]) == 1
    assert says in capsys.readouterr().err


def test_the_baseline_of_a_started_server_has_no_draft():
    plan = make_plan(make_parser().parse_args([]), ["my/model", SPECULATION, "{}", "--port=1"])
    assert [setting.name for setting in plan.settings] == ["speculative", "none"]
    assert plan.settings[1].flags == ("my/model", "--port=1")
    assert drop_speculation(["m", f"{SPECULATION}={{}}"]) == ("m",)
    assert drop_speculation(["m", f"{SPECULATION}.model", "d"]) == ("m",)
    with pytest.raises(ServerError, match="which lack it"):
        drop_speculation(["m"])


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
    pod = f'eaglegate_pod_verify_steps_total{{engine="0"}} 10\n{text}'
    assert parse_counters(pod) == parse_counters(text), "a pod's own counters stand beside vLLM's"
    assert parse_counters("up 1\n").totals() is None
    assert (parse_counters("") - parse_counters(text)).reset


def test_the_report_names_what_the_draft_costs_the_prefix_cache():
    blocks = make_blocks({"fast": [1.0], "slow": [2.0]})
    report = report_of([replace(block, recomputed_tokens=64) for block in blocks[:1]] + blocks[1:])
    found = [note for note in report.notes if "computed again" in note]
    assert len(found) == 1
    assert "fast at 2: because of the draft, 64 cached prompt tokens" in found[0]


def test_depths_need_an_eaglegate(drafting, url, tmp_path, capsys):
    drafting.owner = "vllm"
    assert main(["--url", url, *DEPTHS, "--out", str(tmp_path)]) == 1
    assert "--depths needs an eaglegate" in capsys.readouterr().err
