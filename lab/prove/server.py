"""``eaglegate prove --server URL``: check a ``vllm serve`` in which eaglegate runs (docs/pod.md).

Each prompt is answered at depth 0 and at the server's own choice, greedy and one at a time: the
texts must be equal. The pod's accounts must grow by as much as vLLM's own counters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from eaglegate.lab.measure.counters import SAMPLE
from eaglegate.lab.measure.datasets import load_sessions

QUESTIONS = "chat"
"""The set of bench whose first messages are asked."""
COUNTERS = {
    "eaglegate_pod_verify_steps_total": "vllm:spec_decode_num_drafts_total",
    "eaglegate_pod_draft_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "eaglegate_pod_accepted_tokens_total": "vllm:spec_decode_num_accepted_tokens_total",
}
TIMEOUT_S = 300.0


async def sum_series(client: httpx.AsyncClient) -> Counter[str]:
    """Sum up a server's metrics by name of series."""
    sums, reply = Counter[str](), await client.get("/metrics")
    for name, _, value in SAMPLE.findall(reply.raise_for_status().text):
        sums[name] += float(value)  # type: ignore[assignment]
    return sums


async def answer(client: httpx.AsyncClient, body: Mapping[str, Any]) -> str:
    reply = await client.post("/v1/chat/completions", json=body)
    return json.dumps(reply.raise_for_status().json()["choices"][0]["message"])


async def prove(arguments: argparse.Namespace) -> list[tuple[bool, str]]:
    """Return each check's result and sentence. Raises httpx.HTTPError."""
    sessions = load_sessions(QUESTIONS, count=arguments.prompts)
    prompts = [session.turns[0].messages for session in sessions]
    key = os.environ.get("EAGLEGATE_SERVER_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(
        base_url=arguments.server, headers=headers, timeout=TIMEOUT_S
    ) as client:
        models = (await client.get("/v1/models")).raise_for_status().json()["data"]
        before = await sum_series(client)
        if "eaglegate_pod_info" not in before:
            return [(False, "pod: no eaglegate_pod_info on /metrics: is --scheduler-cls set?")]
        fields = {"model": models[0]["id"], "temperature": 0, "max_tokens": arguments.max_tokens}
        pairs = []
        for prompt in prompts:
            body = fields | {"messages": prompt}
            plain_body = body | {"vllm_xargs": {"num_speculative_tokens": 0}}
            pairs.append([await answer(client, plain_body), await answer(client, body)])
        grown = await sum_series(client)
    grown.subtract(before)
    num_equal = sum(plain == drafted for plain, drafted in pairs)
    texts = f"texts: {num_equal} of {len(pairs)} are equal at depth 0 and at the server's choice"
    counts = [(ours, theirs, grown[ours], grown[theirs]) for ours, theirs in COUNTERS.items()]
    return [
        (num_equal == len(pairs), texts),
        *(
            (own == other, f"accounts: {ours} grew by {own:g}, {theirs} by {other:g}")
            for ours, theirs, own, other in counts
        ),
        (grown[next(iter(COUNTERS))] > 0, "speculation: drafts were verified"),
    ]


def main(argv: Sequence[str]) -> int:
    """Return 0 if all checks passed, 1 if one failed, 2 if the server cannot be asked."""
    parser = argparse.ArgumentParser(prog="eaglegate prove", description=__doc__)
    parser.add_argument("--server", required=True, metavar="URL", help="address of vllm serve")
    parser.add_argument("--prompts", type=int, default=24, help="number of prompts")
    parser.add_argument("--max-tokens", type=int, default=100, help="length of an answer")
    try:
        results = asyncio.run(prove(parser.parse_args(argv)))
    except (httpx.HTTPError, ValueError, LookupError) as error:
        print(f"eaglegate prove: the server cannot be asked: {error}")
        return 2
    for passed, sentence in results:
        print(f"{'pass' if passed else 'FAIL'}  {sentence}")
    return 0 if all(passed for passed, _ in results) else 1
