"""Every drafting method on a real engine: it serves at every depth, and text is the same.

One engine a method, for all checks; one without a draft writes the reference. docs/methods.md
has a row of each.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.errors import DraftRefused
from eaglegate.engine.speculation.drafts.files import DraftPlan, DraftStore
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.totals import Totals
from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.draft_copies import perturb
from tests.engine.drive import Outcome, find_logger, fix_depth, make_greedy, run, run_all
from tests.engine.vllm_backend.conftest import SMALL, run_engine
from tests.engine.vllm_backend.drafters import (
    EAGLE3,
    EAGLE31,
    PACKAGES,
    PAGE,
    ROWS,
    TARGET,
    MethodRow,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TOKENS = 40
ROOMY = SMALL | {"kv_cache_memory_bytes": 96 << 20}
"""A draft model as large as the target needs as much KV again."""
Prompts = Sequence[tuple[int, ...]]
Texts = list[tuple[int, ...]]


def texts(outcomes: Sequence[Outcome]) -> Texts:
    return [outcome.token_ids for outcome in outcomes]


async def write(engine: VllmEngine, prompts: Prompts, name: str, depth: int | None) -> Texts:
    """Greedy answers in one batch, all of them at ``depth``; their accounts balance."""
    requests = [make_greedy(f"{name}-{n}", prompt, TOKENS) for n, prompt in enumerate(prompts)]
    written = await run_all(engine, [fix_depth(depth, request) for request in requests])
    for outcome in written:
        assert outcome.totals.imbalance == 0
        assert depth is None or len(outcome.totals.proposed_at) <= depth
    return texts(written)


def count_drafts(engine: VllmEngine) -> tuple[int, int, int]:
    """vLLM's own counters: verify steps, draft tokens, accepted draft tokens."""
    logger = find_logger(engine)
    count = getattr(logger, "count", None)
    if count is not None:
        count()
    counted = logger.spec_decoding_prom
    counters: tuple[Any, ...] = (
        counted.counter_spec_decode_num_drafts,
        counted.counter_spec_decode_num_draft_tokens,
        counted.counter_spec_decode_num_accepted_tokens,
    )
    drafts, proposed, accepted = (int(counter[0]._value.get()) for counter in counters)
    return drafts, proposed, accepted


async def check_accounts(engine: VllmEngine, prompts: Prompts, depths: Sequence[int]) -> Totals:
    """Compare the drafts in the answers' accounts with vLLM's own counters."""
    before = count_drafts(engine)
    requests = [
        fix_depth(depths[n % len(depths)], make_greedy(f"counted-{n}", prompt, 60 + n))
        for n, prompt in enumerate(prompts)
    ]
    totals = sum((outcome.totals for outcome in await run_all(engine, requests)), Totals())
    grown = tuple(b - a for a, b in zip(before, count_drafts(engine), strict=True))
    assert grown == (totals.verify_steps, totals.proposed, totals.accepted + totals.cut)
    assert totals.imbalance == 0
    return totals


async def check_early_ends(
    engine: VllmEngine, prompts: Prompts, reference: Texts, depth: int
) -> None:
    """Requests that are cancelled, and one that ends with a stop token: the others go on."""
    stay = asyncio.create_task(write(engine, prompts[:3], "stay", depth))
    leave = [
        run(
            engine,
            fix_depth(n % (depth + 1), make_greedy(f"leave-{n}", prompt, TOKENS)),
            leave_after=3 + n,
        )
        for n, prompt in enumerate(prompts)
    ]
    stop = reference[0][TOKENS // 2]
    ends = run(
        engine, fix_depth(depth, make_greedy("ends", prompts[0], TOKENS, stop_token_ids=(stop,)))
    )
    left, ended = await asyncio.gather(asyncio.gather(*leave), ends)
    assert await stay == reference[:3]
    for outcome, text in zip(left, reference, strict=True):
        assert outcome.token_ids == text[: len(outcome.token_ids)]
    assert ended.token_ids == reference[0][: reference[0].index(stop) + 1]
    assert ended.totals.imbalance == 0


async def check_exchange(
    engine: VllmEngine, row: MethodRow, arguments: dict[str, Any], folder: Path
) -> str:
    """Another draft takes its place, or the refusal names the reason."""
    settings = arguments["speculative_config"]
    manager = DraftManager(DraftPlan(str(arguments.get("model", TARGET)), settings), DraftStore())
    manager.open()
    manager.choose_path()
    manager.attach(engine)
    source = EAGLE3 if row.title == "EAGLE 3" else EAGLE31
    if row.exchanges:
        done = await manager.swap(str(perturb(folder / "other", source=source)))
        assert done.pause_s > 0
        return "done"
    with pytest.raises(DraftRefused) as refused:
        await manager.swap(str(source))
    reason = str(refused.value)
    assert "cannot replace the running one: " in reason or "no local folder" in reason, reason
    return "refused"


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=row.title,
            marks=pytest.mark.skipif(
                not row.is_installed, reason=f"needs {row.package}: make install-dev"
            ),
        )
        for row in ROWS
    ],
)
async def test_a_method(
    row: MethodRow,
    tmp_path: Path,
    plain_engine: VllmEngine,
    prompts: list[tuple[int, ...]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if row.package:
        monkeypatch.syspath_prepend(str(PACKAGES))
    reference = await write(plain_engine, prompts, "plain", None)
    arguments = row.make(tmp_path / "draft")
    most = int(arguments["speculative_config"]["num_speculative_tokens"])
    async with run_engine(**ROOMY | arguments) as engine:
        fixed = await engine.set_planning("random") != "random"
        await engine.set_planning("off")
        warned = [record for record in caplog.records if "depth:" in record.getMessage()]
        assert [one.levelno for one in warned] == [logging.WARNING] * fixed
        if fixed:
            assert await write(engine, prompts, "fixed", None) == reference
        else:
            mixed = [fix_depth(n % (most + 1), make_greedy(f"mixed-{n}", prompt, TOKENS))
                     for n, prompt in enumerate(prompts)]  # fmt: skip
            assert texts(await run_all(engine, mixed)) == reference
            for mode in ("random", "auto"):
                assert await engine.set_planning(mode) == mode
                assert await write(engine, prompts, mode, None) == reference, mode
            await engine.set_planning("off")
        counted = await check_accounts(engine, prompts, [most] if fixed else [most, 0, 1, most])
        assert counted.proposed > 0
        assert counted.accepted > 0 or not row.accepts
        await check_early_ends(engine, prompts, reference, most)
        exchange = await check_exchange(engine, row, arguments, tmp_path)
        assert await write(engine, prompts, "after", most) == reference
        assert (await engine.health()).live
    line = rf"^\| {re.escape(row.title)} \| .* \| pass \| {exchange} \|$"
    assert re.search(line, PAGE.read_text(), re.MULTILINE)
