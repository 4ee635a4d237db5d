"""`eaglegate bench` compared with `vllm bench serve` and AIPerf: same server and load, in turn.

    python -m eaglegate.lab.benchmarks.agreement --url http://127.0.0.1:8000 [--aiperf PATH] \\
        [--rounds 3]

All tools send completions of 40 random tokens with an output of fixed length. Prints each tool's
median over the rounds, and the ratio of ours to theirs. Definitions: docs/measure.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "engine" / "demo" / "target"
PROMPT_TOKENS = 40
Row = dict[str, float]
VLLM = {
    "TTFT mean": "mean_ttft_ms", "TTFT median": "median_ttft_ms", "TPOT mean": "mean_tpot_ms",
    "TPOT median": "median_tpot_ms", "ITL mean": "mean_itl_ms", "E2EL mean": "mean_e2el_ms",
    "tokens/s": "output_throughput", "requests/s": "request_throughput",
    "acceptance length": "spec_decode_acceptance_length",
}  # fmt: skip
VLLM_MAIN = (
    "import argparse, vllm.benchmarks.serve as serve; parser = argparse.ArgumentParser();"
    "serve.add_cli_args(parser); serve.main(parser.parse_args())"
)
"""`vllm bench serve` without its entry point, which requires a package named vllm."""
AIPERF = {
    "TTFT mean": ("time_to_first_token", "avg"), "TTFT median": ("time_to_first_token", "p50"),
    "TPOT mean": ("inter_token_latency", "avg"), "TPOT median": ("inter_token_latency", "p50"),
    "ITL mean": ("inter_chunk_latency", "avg"), "E2EL mean": ("request_latency", "avg"),
    "tokens/s": ("output_token_throughput", "avg"), "requests/s": ("request_throughput", "avg"),
    "1/TPOT mean": ("output_token_throughput_per_user", "avg"),
}  # fmt: skip


def run(command: list[str]) -> None:
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT.parent)}
    process = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command[:6])} failed:\n{process.stdout[-2000:]}{process.stderr[-2000:]}"
        )


def run_vllm(folder: Path, url: str, options: argparse.Namespace) -> Row:
    run([
        sys.executable, "-c", VLLM_MAIN,
        "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url,
        "--model", options.model, "--tokenizer", str(TOKENIZER), "--dataset-name", "random",
        "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(options.tokens),
        "--num-prompts", str(options.requests),
        "--max-concurrency", str(options.concurrency), "--temperature", "0", "--ignore-eos",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm",
        "--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json",
    ])  # fmt: skip
    report = json.loads((folder / "vllm.json").read_text())
    return {name: report[key] for name, key in VLLM.items() if report.get(key) is not None}


def run_aiperf(folder: Path, url: str, options: argparse.Namespace) -> Row:
    out = folder / "aiperf"
    run([
        options.aiperf, "profile", "--model", options.model, "--url", url,
        "--endpoint-type", "completions", "--streaming", "--tokenizer", str(TOKENIZER),
        "--isl", str(PROMPT_TOKENS), "--osl", str(options.tokens),
        "--request-count", str(options.requests), "--concurrency", str(options.concurrency),
        "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0",
        "--use-server-token-count",
        "--artifact-dir", str(out), "--ui", "none",
    ])  # fmt: skip
    report = json.loads((out / "profile_export_aiperf.json").read_text())
    return {name: report[key][part] for name, (key, part) in AIPERF.items() if key in report}


def run_ours(folder: Path, url: str, options: argparse.Namespace) -> Row:
    out = Path(tempfile.mkdtemp(dir=folder))
    run([
        sys.executable, "-m", "eaglegate.server", "bench", "--url", url, "--no-baseline",
        "--data", f"random:{PROMPT_TOKENS}:{options.tokens}",
        "--concurrency", str(options.concurrency),
        "--requests", str(options.requests), "--repeats", "1", "--warmup", "1",
        "--quiet", "--out", str(out),
    ])  # fmt: skip
    (figures,) = json.loads((out / "report.json").read_text())["figures"]
    row = {"tokens/s": figures["throughput"]["value"], "requests/s": figures["request_rate"]}
    for name in ("ttft", "tpot", "itl", "e2el"):
        row[f"{name.upper()} mean"] = figures[name]["mean"]
        row[f"{name.upper()} median"] = figures[name]["median"]
    row["1/TPOT mean"] = figures["mean_inverse_tpot"]
    if figures["acceptance"]:
        row["acceptance length"] = figures["acceptance"]["length"]
    return row


def measure(options: argparse.Namespace) -> dict[str, list[Row]]:
    tools = {"ours": run_ours, "vllm bench serve": run_vllm}
    if options.aiperf:
        tools["AIPerf"] = run_aiperf
    rows: dict[str, list[Row]] = {name: [] for name in tools}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            names = list(tools)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                rows[name].append(tools[name](Path(folder), options.url, options))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--aiperf", help="path of the aiperf command")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    rows = measure(parser.parse_args())
    print("| figure | " + " | ".join(rows) + " | " + " | ".join(f"ours / {n}" for n in [*rows][1:]))
    print("|---" * (2 * len(rows)) + "|")
    for name in dict.fromkeys(key for samples in rows.values() for row in samples for key in row):
        values = [
            statistics.median(row[name] for row in samples) if name in samples[0] else None
            for samples in rows.values()
        ]
        cells = ["" if value is None else f"{value:.2f}" for value in values]
        own_value = values[0]
        ratios = [
            "" if v is None or own_value is None else f"{own_value / v:.3f}" for v in values[1:]
        ]
        print(f"| {name} | " + " | ".join(cells + ratios) + " |")


if __name__ == "__main__":
    main()
