"""Evaluation harnesses on tasks of ours; nothing is fetched from a hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import workers
from tests.clients.brain import IDLE, RENDERER, call
from tests.clients.desk import Desk

SCRIPTS = Path(__file__).parent / "scripts"
CHOICE_TASK = """
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""
TEXT_TASK = """
task: texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
generation_kwargs: {{until: ["four"], max_gen_toks: 32}}
doc_to_text: "{{{{question}}}}"
doc_to_target: "one two three"
filter_list:
  - {{name: strip, filter: [{{function: remove_whitespace}}, {{function: take_first}}]}}
metric_list: [{{metric: exact_match}}]
"""
CHOICES = ["yes", "certainly not, by no means at all"]


def evaluate(desk: Desk, task: str, model: str, endpoint: str, *more: str) -> dict[str, Any]:
    """lm-eval's results and samples of one task."""
    rows = [{"question": f"Number {n}?", "choices": CHOICES, "answer": 0} for n in range(3)]
    data = desk.write("data.json", "\n".join(map(json.dumps, rows)))
    desk.write("tasks/choices.yaml", CHOICE_TASK.format(data=data))
    desk.write("tasks/texts.yaml", TEXT_TASK.format(data=data))
    arguments = f"model=demo,base_url={desk.url}{endpoint},num_concurrent=2,max_retries=1"
    ran = desk.run(
        "lm-eval", "lm_eval", "run", "--model", model,
        "--model_args", ",".join((arguments, *more)),
        "--tasks", task, "--include_path", str(desk.project / "tasks"),
        "--output_path", str(desk.folder / "out"), "--log_samples",
        *(["--apply_chat_template"] if "chat" in model else []),
        env={"OPENAI_API_KEY": "none"},
    )  # fmt: skip
    assert ran.code == 0, ran
    (results,) = (desk.folder / "out").rglob("results_*.json")
    (samples,) = (desk.folder / "out").rglob(f"samples_{task}_*.jsonl")
    scores = json.loads(results.read_text())["results"][task]
    return {"scores": scores, "samples": list(map(json.loads, samples.read_text().splitlines()))}


@pytest.mark.client("lm-eval")
@pytest.mark.parametrize("tokenizer", ["huggingface", "remote"])
def test_lm_eval_log_likelihoods(desk, tokenizer):
    """scores choices by the log probabilities of echoed prompts"""
    more = [f"tokenizer_backend={tokenizer}"]
    if tokenizer == "huggingface":
        more.append(f"tokenizer={workers.MODEL}")
    found = evaluate(desk, "choices", "local-completions", "/v1/completions", *more)
    assert found["scores"]["acc,none"] == 1.0
    for sample in found["samples"]:
        # The scripted worker gives every token of a prompt a log probability of -1.
        likelihoods = [float(answer[0][0]) for answer in sample["resps"]]
        question = sample["doc"]["question"]
        assert likelihoods == [-num_added(question, f" {choice}") for choice in CHOICES]


def num_added(text: str, more: str) -> int:
    """Number of tokens that ``more`` adds to ``text``."""
    return len(RENDERER.encode(text + more, False)) - len(RENDERER.encode(text, False))


@pytest.mark.client("lm-eval")
@pytest.mark.parametrize(
    ("model", "endpoint"),
    [
        ("local-completions", "/v1/completions"),
        ("local-chat-completions", "/v1/chat/completions"),
    ],
)
def test_lm_eval_generation(desk, model, endpoint):
    """generates until a stop string"""
    more = ("tokenizer_backend=None",) if "chat" not in model else ()
    found = evaluate(desk, "texts", model, endpoint, *more)
    assert IDLE.startswith("one two three four")
    assert found["scores"]["exact_match,strip"] == 1.0


@pytest.mark.client("inspect")
@pytest.mark.parametrize(
    ("model", "path"),
    [("openai-api/local/demo", "/v1"), ("openai/demo", "/v1"), ("anthropic/demo", "")],
)
def test_inspect(desk, model, path):
    """scores plain answers and an agent with a tool"""
    desk.write("task.py", (SCRIPTS / "inspect_task.py").read_text())
    desk.brain.plays["weather-said"] = ["It rains in Oslo."]
    desk.brain.plays["weather-asked"] = [
        call("weather", city="Oslo"),
        lambda seen: call("submit", answer=seen.last),
    ]
    keys = dict.fromkeys(("LOCAL_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "none")
    ran = desk.run(
        "inspect", "inspect", "eval", "task.py", "--model", model, "--max-tokens", "400",
        "--model-base-url", desk.url + path, "--log-dir", str(desk.folder / "logs"),
        "--no-log-realtime", "--display", "none", "--log-format", "json", env=keys,
    )  # fmt: skip
    assert ran.code == 0, ran
    logs = [json.loads(path.read_text()) for path in (desk.folder / "logs").glob("*.json")]
    assert {log["eval"]["task"]: log["status"] for log in logs} == {
        "plain": "success",
        "agent": "success",
    }
    scores = [log["results"]["scores"][0]["metrics"]["accuracy"]["value"] for log in logs]
    assert scores == [1, 1], ran


@pytest.mark.client("promptfoo")
def test_promptfoo(desk):
    """checks answers of chat completions, responses and messages"""
    desk.brain.plays["city"] = ["It rains in Oslo."]
    v1 = {"apiBaseUrl": f"{desk.url}/v1", "apiKey": "none"}
    config = {
        "prompts": ["play:city Weather?"],
        "providers": [
            {"id": "openai:chat:demo", "config": v1},
            {"id": "openai:responses:demo", "config": v1},
            {
                "id": "anthropic:messages:demo",
                "config": {"apiBaseUrl": desk.url, "apiKey": "none", "max_tokens": 200},
            },
        ],
        "tests": [{"assert": [{"type": "contains", "value": "Oslo"}]}],
    }
    desk.write("promptfooconfig.json", json.dumps(config))
    out = desk.folder / "out.json"
    switches = {
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "PROMPTFOO_DISABLE_UPDATE": "1",
        "PROMPTFOO_CACHE_ENABLED": "false",
        "PROMPTFOO_CONFIG_DIR": str(desk.home / ".promptfoo"),
    }
    ran = desk.run(
        "promptfoo", "promptfoo", "eval", "-c", "promptfooconfig.json", "--no-progress-bar",
        "--no-table", "-o", str(out), env=switches,
    )  # fmt: skip
    assert ran.code == 0, ran
    stats = json.loads(out.read_text())["results"]["stats"]
    assert (stats["successes"], stats["failures"], stats["errors"]) == (3, 0, 0)
