"""Compare vLLM's behaviour on each draft of the tests with the inspection before the start.

Run it from the repository's root:

    python -m eaglegate.lab.benchmarks.broken_drafts --outcomes outcomes.json --markdown table.md

Every case is loaded into the real engine in a process of its own (forked after the imports):
start, then one short greedy generation. Cases with tensor parallelism need two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eaglegate.engine.speculation.inspection import SpeculationReport, inspect_draft
from tests.engine.speculation.draft_cases import BROKEN, GOOD, UNDECIDED, DraftCase

LIMIT_S = 120
LESS = 0.02
"""Share by which an acceptance length must be shorter than the sound draft's to count as a loss."""
MAX_TOKENS = 96
PROMPTS = (
    "What is speculative decoding?",
    "Write a Python function is_prime that checks whether a number is prime.",
    "What is 47 + 38?",
    "Why is the sky blue?",
    "Return a JSON object with name Alice, age 31",
    "Write a short story with Karen and a cat.",
    "Name three things about release.",
    "Repeat exactly: the engine proposes and the target decides",
)
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case. ``stage`` is where vLLM stopped: start, request, or none."""

    stage: str
    message: str = ""
    length: float | None = None


@dataclass(frozen=True)
class Row:
    """One case: vLLM's behaviour and the inspection's findings."""

    case: DraftCase
    outcome: Outcome
    report: SpeculationReport

    @property
    def is_good(self) -> bool:
        return self.case in GOOD


def serve(target: Path, settings: dict[str, Any], case: DraftCase) -> Outcome:
    """Load and generate with vLLM's offline engine, in this process."""
    from vllm import LLM, SamplingParams

    if case.tensor_parallel_size > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    try:
        engine = LLM(
            str(target),
            speculative_config=settings,
            dtype="bfloat16",
            enforce_eager=True,
            distributed_executor_backend="uni" if case.tensor_parallel_size == 1 else "mp",
            tensor_parallel_size=case.tensor_parallel_size,
            max_model_len=case.max_model_len,
            per_request_spec_decode_metrics="summary",
            disable_log_stats=True,
        )
    except BaseException as fault:
        return Outcome("start", shorten(fault))
    try:
        sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        answers = engine.chat(chats, sampling, use_tqdm=False)
    except BaseException as fault:
        return Outcome("request", shorten(fault))
    return Outcome("none", length=acceptance_length([answer.outputs[0] for answer in answers]))


def acceptance_length(outputs: list[Any]) -> float | None:
    """Return 1 + A / D over all requests (docs/metrics.md)."""
    reports = [output.spec_decode_metrics for output in outputs if output.spec_decode_metrics]
    steps = sum(sum(metrics.histogram) for metrics in reports)
    accepted = sum(
        index * count for metrics in reports for index, count in enumerate(metrics.histogram)
    )
    return 1 + accepted / steps if steps else None


def shorten(fault: BaseException) -> str:
    """Return the informative lines of an exception."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    text = " ".join(line for line in lines if not line.startswith("For further information"))
    return f"{type(fault).__name__}: {text[:300]}" if text else type(fault).__name__


def run_in_child(target: Path, settings: dict[str, Any], case: DraftCase) -> Outcome:
    """Run a case in a fork, so that a crash affects only one case and imports are paid once."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.write(send, json.dumps(asdict(serve(target, settings, case))).encode())
        os._exit(0)
    os.close(send)
    with limit_time(child):
        with os.fdopen(receive, "rb") as stream:
            data = stream.read()
        _, status = os.waitpid(child, 0)
    if data:
        return Outcome(**json.loads(data))
    ending = "hangs" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else "dies"
    return Outcome("request", f"the process {ending} (status {status})")


@contextmanager
def limit_time(child: int) -> Iterator[None]:
    def kill(*_: object) -> None:
        os.killpg(child, signal.SIGKILL)

    handler = signal.signal(signal.SIGALRM, kill)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def try_out(case: DraftCase) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        target, settings = case.build(Path(folder))
        outcome = run_in_child(target, settings, case)
    return replace(outcome, message=outcome.message.replace(folder, "..."))


def inspect(case: DraftCase) -> SpeculationReport:
    with tempfile.TemporaryDirectory() as folder:
        target, settings = case.build(Path(folder))
        return inspect_draft(
            target,
            settings,
            tensor_parallel_size=case.tensor_parallel_size,
            max_model_len=case.max_model_len,
        )


def measure(cases: list[DraftCase], store: Path, limit: int) -> dict[str, Outcome]:
    """Try the cases that ``store`` lacks. The file is rewritten after each case."""
    outcomes = json.loads(store.read_text()) if store.exists() else {}
    for case in [case for case in cases if case.name not in outcomes][:limit]:
        outcome = try_out(case)
        outcomes[case.name] = asdict(outcome)
        store.write_text(json.dumps(outcomes, indent=1))
        print(f"{case.name}: {outcome}", flush=True)
    return {name: Outcome(**fields) for name, fields in outcomes.items()}


def table(rows: list[Row]) -> Iterator[str]:
    lengths = {row.case.name: row.outcome.length or 1 for row in rows if row.is_good}
    yield "| draft | vLLM 0.32 alone | inspection | caught |"
    yield "|---|---|---|---|"
    for row in rows:
        rules = dict.fromkeys(
            f"{finding.severity} {finding.rule}" for finding in row.report.findings
        )
        rules_text = ", ".join(rules) or "nothing"
        verdict = describe_outcome(row.outcome, lengths.get(row.case.beside))
        yield f"| {row.case.name} | {verdict} | {rules_text} | {describe_catch(row)} |"


def describe_outcome(outcome: Outcome, sound_length: float | None) -> str:
    """Describe an outcome and, if the draft serves, its acceptance length next to the sound
    draft's.
    """
    message = outcome.message.replace("|", "/")
    if outcome.stage == "start":
        return f"refuses to start: {message}"
    if outcome.stage == "request":
        return f"starts, dies at the first request: {message}"
    if outcome.length is None:
        return "serves, never drafts"
    if sound_length is None:
        return f"serves: {outcome.length:.2f}, with random weights"
    if outcome.length < sound_length * (1 - LESS):
        return (
            f"serves, in silence accepting less: {outcome.length:.2f} (sound: {sound_length:.2f})"
        )
    return f"serves: {outcome.length:.2f}"


def describe_catch(row: Row) -> str:
    if row.report.errors:
        return "before start: refused"
    if row.report.warnings:
        return "before start: warned"
    if row.is_good:
        return "nothing to catch"
    return "at warm-up" if row.outcome.stage == "request" else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run only the cases whose name contains this")
    parser.add_argument(
        "--outcomes",
        type=Path,
        default=Path("outcomes.json"),
        help="file of vLLM's outcomes, read and written",
    )
    parser.add_argument("--markdown", type=Path, help="file to write the table to")
    parser.add_argument("--most", type=int, default=1000, help="most cases to try in this run")
    options = parser.parse_args()
    os.environ.update(SETTINGS)
    from vllm import LLM  # noqa: F401  paid once, before the forks

    cases = [case for case in (*GOOD, *BROKEN, *UNDECIDED) if options.only in case.name]
    outcomes = measure(cases, options.outcomes, options.most)
    if options.markdown:
        rows = [Row(case, outcomes[case.name], inspect(case)) for case in cases]
        options.markdown.write_text("\n".join(table(rows)) + "\n")


if __name__ == "__main__":
    main()
