"""Load generators: every request succeeds, and /metrics counts the tokens they count."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests import workers
from tests.clients.desk import Desk, Ran
from tests.clients.desk import run as run_command
from tests.conftest import ROOT, SAMPLE

REQUESTS = 6
TOKENS = 24
TOKENIZER = workers.MODEL


def metric(desk: Desk, name: str) -> float:
    text = httpx.get(f"{desk.gateway}/metrics").text
    return sum(float(value) for found, _, value in SAMPLE.findall(text) if found == name)


class Counted:
    """Growth of two of the gateway's counters during a block."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def read(self) -> tuple[float, float]:
        names = ("eaglegate_requests_total", "eaglegate_completion_tokens_total")
        requests, tokens = (metric(self.desk, name) for name in names)
        return requests, tokens

    def __enter__(self) -> Counted:
        self.before = self.read()
        return self

    def __exit__(self, *_: object) -> None:
        after = self.read()
        self.requests = after[0] - self.before[0]
        self.tokens = after[1] - self.before[1]


@pytest.mark.client("guidellm")
@pytest.mark.parametrize("api", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_guidellm(desk, api):
    """loads an endpoint with synthetic prompts in two streams; all requests succeed and agree with
    /metrics"""
    report = desk.folder / "report.json"
    with Counted(desk) as counted:
        ran = desk.run(
            "guidellm", "guidellm", "run",
            "--backend", f"kind=openai_http,target={desk.url},model=demo,request_format={api}",
            "--profile", "kind=concurrent,streams=2",
            "--constraint", f"kind=max_requests,count={REQUESTS}",
            "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}",
            "--data", f"kind=synthetic_text,prompt_tokens=40,output_tokens={TOKENS}",
            "--output", f"kind=json,path={report}",
            "--disable-console",
        )  # fmt: skip
    assert ran.code == 0, ran
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (counted.requests, counted.tokens) == (REQUESTS, REQUESTS * TOKENS)
    assert (totals["errored"], totals["incomplete"]) == (0, 0)
    # Its report may lose the last answer: the event that ends it is set before that answer is in
    # the queue, and a poll of the queue may time out in between (request_updates, 0.8.1).
    assert REQUESTS - 1 <= totals["successful"] <= REQUESTS
    sent = benchmark["metrics"]["output_token_count"]["successful"]["total_sum"]
    assert sent == totals["successful"] * TOKENS


@pytest.mark.client("aiperf")
@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
def test_aiperf(desk, api):
    """loads an endpoint with synthetic prompts; all requests succeed and agree with /metrics,
    tokens too where AIPerf reads usage (not of responses that end at a limit)"""
    with Counted(desk) as counted:
        ran = desk.run(
            "aiperf", "aiperf", "profile",
            "--model", "demo", "--url", desk.url, "--endpoint-type", api, "--streaming",
            "--tokenizer", TOKENIZER, "--isl", "40", "--osl", str(TOKENS),
            "--request-count", str(REQUESTS), "--concurrency", "2",
            "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
            "--artifact-dir", str(desk.folder / "out"), "--ui", "none",
            env={"HF_HUB_OFFLINE": ""},  # offline, AIPerf takes folders for names of the hub
        )  # fmt: skip
    assert ran.code == 0, ran
    report = json.loads((desk.folder / "out" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == counted.requests == REQUESTS
    if api != "responses":  # AIPerf reads no usage from a response that ends at its token limit
        assert report["output_sequence_length"]["avg"] * REQUESTS == counted.tokens


BENCH = Path(__file__).parent / "scripts" / "vllm_bench.py"


def vllm_bench(desk: Desk, *arguments: str) -> Ran:
    environment = os.environ | workers.ENVIRONMENT | {"HOME": str(desk.home)}
    command: Sequence[str] = (sys.executable, str(BENCH), *arguments)
    return run_command(tuple(command), ROOT, environment, 120)


@pytest.mark.client("vllm-bench")
@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [
        ("openai", "/v1/completions"),
        ("openai-chat", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
    ],
)
def test_vllm_bench_serve(desk, backend, endpoint):
    """loads an endpoint with random prompts; all requests succeed and agree with /metrics"""
    with Counted(desk) as counted:
        ran = vllm_bench(
            desk,
            "--backend", backend, "--base-url", desk.url, "--endpoint", endpoint,
            "--model", "demo", "--tokenizer", TOKENIZER, "--dataset-name", "random",
            "--random-input-len", "40", "--random-output-len", str(TOKENS), "--ignore-eos",
            "--num-prompts", str(REQUESTS), "--ready-check-timeout-sec", "0", "--disable-tqdm",
            "--save-result", "--result-dir", str(desk.folder), "--result-filename", "bench.json",
        )  # fmt: skip
    assert ran.code == 0, ran
    report = json.loads((desk.folder / "bench.json").read_text())
    assert (report["completed"], report["failed"]) == (REQUESTS, 0)
    assert report["total_output_tokens"] == counted.tokens == REQUESTS * TOKENS
