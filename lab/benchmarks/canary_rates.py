"""Count how often canaries of an equal draft, and of a worse one, are promoted or rolled back.

    python -m eaglegate.lab.benchmarks.canary_rates --out build/canaries [--canaries 10]

Serves the demo under live traffic of tool calls and chat. The equal candidates hold the promoted
draft's weights under another fingerprint (a note in the file's header), so that every verdict but
"not enough data" is a false one. Prints a line per canary, and counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from eaglegate.canary.client import GatewayClient
from eaglegate.lab.benchmarks.improve import BUSY_S, DEPTH, Traffic, make_traffic, say
from eaglegate.lab.benchmarks.improve_data import TARGET
from eaglegate.lab.measure.servers import demo_flags
from tests.conftest import ADMIN, serving

DRAFT = TARGET.parent / "eagle3_1"


def copy_with_note(draft: Path, goal: Path, note: str) -> Path:
    """The same weights in a file of other bytes."""
    goal.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(draft / "config.json", goal / "config.json")
    with safe_open(draft / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, goal / "model.safetensors", {"format": "pt", "note": note})
    return goal


async def try_draft(client: GatewayClient, path: Path, rules: dict[str, Any]) -> dict[str, Any]:
    """The canary as it ended."""
    await asyncio.to_thread(client.start_canary, str(path), rules)
    while True:
        await asyncio.sleep(1)
        found = await asyncio.to_thread(client.find_canary)
        assert found is not None
        if not found["running"]:
            return dict(found)


def describe(number: int, canary: dict[str, Any]) -> str:
    primary = next(row for row in canary["evidence"] if row["metric"] == "acceptance")
    ends = " to ".join(
        "open" if row is None else f"{row:+.3f}" for row in (primary["low"], primary["high"])
    )
    return (
        f"canary {number}: {canary['verdict']}, {canary['blocks']} blocks, {canary['sessions']} "
        f"sessions, acceptance {primary['mean']:+.3f} ({ends})"
    )


async def measure(out: Path, canaries: int, slot_s: float, blocks: int) -> Counter[str]:
    flags = demo_flags(TARGET, DRAFT, num_speculative_tokens=DEPTH)
    flags += ("--responses-store=none", *ADMIN, "--draft-store", str(out / "store"))
    rules = {"slot_s": slot_s, "max_s": 2 * slot_s * blocks}
    seen: Counter[str] = Counter()
    with serving(out / "serve.log", flags) as gateway:
        traffic = Traffic(gateway.url, {}, pause_s=BUSY_S)
        going = asyncio.create_task(traffic.go_on(make_traffic()["live"], 3))
        client = GatewayClient(gateway.operator)
        try:
            for number in range(1, canaries + 1):
                equal = copy_with_note(DRAFT, out / f"equal-{number}", str(number))
                found = await try_draft(client, equal, rules)
                seen[found["verdict"]] += 1
                say(describe(number, found))
        finally:
            traffic.stopped = True
            await going
    say(f"{traffic.sent} requests, {len(traffic.broken)} broken, {len(traffic.different)} differ")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--canaries", type=int, default=10)
    parser.add_argument("--slot", type=float, default=5.0, help="seconds")
    parser.add_argument("--blocks", type=int, default=12, help="pairs of slots at most")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    seen = asyncio.run(measure(out, options.canaries, options.slot, options.blocks))
    print(json.dumps(dict(seen)))


if __name__ == "__main__":
    main()
