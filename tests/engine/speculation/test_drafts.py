"""Draft versions and swaps: what is refused, what is copied, what is remembered."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eaglegate.engine.base import DropsBlocks, Engine
from eaglegate.engine.errors import DraftRefused, DraftSwapBusy, EngineDead
from eaglegate.engine.speculation.drafts.files import DraftPlan, DraftStore, fingerprint_draft
from eaglegate.engine.speculation.drafts.inspection.checkpoint import open_checkpoint
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.speculation.drafts.versions import SwapsDrafts

DEMO = Path(__file__).parents[3] / "engine" / "demo"
SPECULATION = {
    "method": "eagle3",
    "model": str(DEMO / "eagle3_1"),
    "num_speculative_tokens": 3,
}


def copy_draft(where: Path, seed: int = 0) -> Path:
    """The demo's draft; a seed above 0 changes one weight."""
    shutil.copytree(DEMO / "eagle3_1", where)
    if seed:
        write_weight(where, "fc.weight", np.array([0x3F80 + seed], np.uint16))
    return where


def write_weight(where: Path, name: str, values: np.ndarray) -> None:
    with (where / "model.safetensors").open("r+b") as stream:
        stream.seek(open_checkpoint(where).tensors[name].start)
        stream.write(values.tobytes())


def change_config(where: Path, **values: object) -> Path:
    file = where / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return where


class Loader(Engine, SwapsDrafts, DropsBlocks):
    """A loader that takes every draft, unless it is to fail."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.drops = 0

    async def drop_blocks(self) -> int:
        self.drops += 1
        return 20

    async def swap_draft(self, path: str, running: str) -> float:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        assert (Path(path) / "model.safetensors").is_file(), "an engine reads the weights"
        self.loaded.append((path, running))
        return 0.01


def make_manager(
    store: Path | None = None, draft: Path | None = None
) -> tuple[DraftManager, Loader]:
    speculation = SPECULATION | ({"model": str(draft)} if draft else {})
    plan = DraftPlan(str(DEMO / "target"), speculation)
    manager = DraftManager(plan, DraftStore(None if store is None else str(store)))
    manager.open()
    manager.choose_path()
    loader = Loader()
    manager.attach(loader)
    return manager, loader


async def test_a_swap_loads_a_copy_and_a_rollback_the_draft_before(tmp_path: Path) -> None:
    manager, loader = make_manager()
    heard: list[tuple[str, str]] = []
    manager.watch(lambda draft, swap: heard.append((draft.fingerprint, swap.kind)))
    configured = manager.serving
    done = await manager.swap(str(copy_draft(tmp_path / "new", 1)))
    assert configured is not None
    assert done.before == configured.fingerprint != done.after
    assert manager.promoted == manager.serving
    (path, _) = loader.loaded[0]
    assert path != str(tmp_path / "new")
    assert fingerprint_draft(Path(path)) == done.after
    shutil.rmtree(tmp_path / "new")
    back = await manager.rollback()
    assert (back.before, back.after) == (done.after, done.before)
    assert (await manager.rollback()).after == done.after
    assert heard == [(done.after, "swap"), (done.before, "rollback"), (done.after, "rollback")]


async def test_an_exchange_for_good_drops_what_the_draft_before_has_cached(tmp_path: Path) -> None:
    manager, loader = make_manager()
    await manager.swap(str(copy_draft(tmp_path / "one", 1)))
    assert loader.drops == 1
    await manager.rollback()
    assert loader.drops == 2
    trial = str(copy_draft(tmp_path / "two", 2))
    await manager.swap(trial, trial=True)
    await manager.rollback()
    assert loader.drops == 2
    await manager.swap(trial, trial=True)
    assert manager.serving is not None
    await manager.promote(manager.serving)
    assert loader.drops == 3


async def test_a_trial_ends_with_its_engine(tmp_path: Path) -> None:
    manager, _ = make_manager()
    promoted = await manager.swap(str(copy_draft(tmp_path / "one", 1)))
    trial = await manager.swap(str(copy_draft(tmp_path / "two", 2)), trial=True)
    assert manager.in_trial
    path = manager.choose_path()
    assert fingerprint_draft(Path(path)) == promoted.after
    assert manager.serving == manager.promoted
    assert (manager.swaps[-1].kind, manager.swaps[-1].before) == ("restart", trial.after)


async def test_trials_and_their_ends_are_no_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A canary exchanges drafts in every slot."""
    caplog.set_level("INFO")
    manager, _ = make_manager()
    draft = str(copy_draft(tmp_path / "one", 1))
    await manager.swap(draft, trial=True)
    await manager.rollback()
    await manager.swap(draft)
    await manager.rollback()
    levels = [row.levelname for row in caplog.records if " -> " in row.getMessage()]
    assert levels == ["INFO", "INFO", "WARNING", "WARNING"]


async def test_the_rollback_of_a_trial_serves_the_promoted_draft(tmp_path: Path) -> None:
    manager, _ = make_manager()
    await manager.swap(str(copy_draft(tmp_path / "one", 1)))
    promoted = manager.promoted
    await manager.swap(str(copy_draft(tmp_path / "two", 2)), trial=True)
    await manager.rollback()
    assert manager.serving == promoted
    assert not manager.in_trial


async def test_a_draft_on_trial_is_promoted_without_a_pause(tmp_path: Path) -> None:
    manager, loader = make_manager()
    draft = str(copy_draft(tmp_path / "one", 1))
    await manager.swap(draft, trial=True)
    done = await manager.swap(draft)
    assert (done.pause_s, len(loader.loaded), manager.in_trial) == (0, 1, False)


async def test_a_gateway_with_a_store_serves_the_promoted_draft_again(tmp_path: Path) -> None:
    manager, _ = make_manager(tmp_path / "store")
    done = await manager.swap(str(copy_draft(tmp_path / "one", 1)))
    again, _ = make_manager(tmp_path / "store")
    assert again.serving is not None
    assert again.serving.fingerprint == done.after
    other, _ = make_manager(tmp_path / "store", copy_draft(tmp_path / "other", 5))
    assert other.serving is not None
    assert other.serving.fingerprint not in (done.after, done.before), "a new draft is configured"


async def test_a_damaged_copy_is_not_served_again(tmp_path: Path) -> None:
    manager, _ = make_manager(tmp_path / "store")
    done = await manager.swap(str(copy_draft(tmp_path / "one", 1)))
    write_weight(tmp_path / "store" / done.after, "fc.weight", np.array([0], np.uint16))
    assert manager.choose_path() == str(DEMO / "eagle3_1")
    again, _ = make_manager(tmp_path / "store")
    assert again.serving is not None
    assert again.serving.fingerprint == done.before


async def test_relative_paths_mean_the_folder_where_the_gateway_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inspection has a process of its own, and a restart may have another folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO / "target", tmp_path / "target")
    plan = DraftPlan("target", SPECULATION | {"model": str(copy_draft(Path("configured")))})
    manager = DraftManager(plan, DraftStore("drafts"))
    manager.open()
    manager.attach(Loader())
    first = await manager.swap(str(copy_draft(Path("one"), 1)))
    again = await manager.swap(str(copy_draft(Path("two"), 2)))
    assert again.before == first.after
    monkeypatch.chdir(tmp_path / "elsewhere")
    restarted = DraftManager(
        DraftPlan(str(DEMO / "target"), SPECULATION), DraftStore(str(tmp_path / "drafts"))
    )
    restarted.open()
    assert restarted.serving is not None
    assert restarted.serving.fingerprint == again.after


async def test_a_draft_that_is_not_there_is_refused_as_such(tmp_path: Path) -> None:
    manager, _ = make_manager()
    for missing in ("drafts/candidate", str(tmp_path / "candidate")):
        with pytest.raises(DraftRefused, match=r"is not on this machine|does not exist"):
            await manager.swap(missing)
    plan = DraftPlan(str(DEMO / "target"), SPECULATION)
    with pytest.raises(DraftRefused, match="drafts/gone is not on this machine"):
        plan.check(str(DEMO / "eagle3_1"), "drafts/gone")


def drop_norms(where: Path) -> None:
    change_config(where, norm_output=False)


def make_infinite(where: Path) -> None:
    write_weight(where, "lm_head.weight", np.array([0x7F80], np.uint16))


def narrow(where: Path) -> None:
    change_config(where, rms_norm_eps=1e-5)


def remove(where: Path) -> None:
    (where / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (make_infinite, "lm_head.weight holds values that are not finite"),
        (narrow, "rms_norm_eps = 1e-05, the running draft 1e-06"),
        (drop_norms, "norm_output"),
        (remove, "holds no weights"),
        (shutil.rmtree, "does not exist"),
    ],
)
async def test_drafts_that_do_not_fit_are_refused(
    tmp_path: Path, spoil: Callable[[Path], None], why: str
) -> None:
    manager, loader = make_manager()
    draft = copy_draft(tmp_path / "bad", 1)
    spoil(draft)
    with pytest.raises(DraftRefused, match=why):
        await manager.swap(str(draft))
    assert not loader.loaded
    with pytest.raises(DraftRefused, match="no earlier draft"):
        await manager.rollback()


async def test_the_other_method_is_refused() -> None:
    manager, _ = make_manager()
    with pytest.raises(
        DraftRefused,
        match=r"it is eagle3, the running draft is eagle3\.1; restart the gateway with it\.",
    ):
        await manager.swap(str(DEMO / "eagle3"))


async def test_one_swap_at_a_time_and_a_client_that_leaves_ends_none(tmp_path: Path) -> None:
    manager, loader = make_manager()
    loader.gate, done = asyncio.Event(), asyncio.Event()
    manager.watch(lambda *_: done.set())
    first = asyncio.create_task(manager.swap(str(copy_draft(tmp_path / "one", 1))))
    await asyncio.sleep(0)
    with pytest.raises(DraftSwapBusy):
        await manager.rollback()
    first.cancel()
    await asyncio.sleep(0)
    loader.gate.set()
    await asyncio.wait_for(done.wait(), 10)
    assert manager.serving == manager.promoted


async def test_an_engine_that_dies_in_a_swap_leaves_the_promoted_draft(tmp_path: Path) -> None:
    manager, loader = make_manager()
    before = manager.promoted
    loader.error = EngineDead("gone")
    with pytest.raises(EngineDead):
        await manager.swap(str(copy_draft(tmp_path / "one", 1)))
    assert manager.promoted is not None
    assert before is not None
    assert manager.promoted.fingerprint == before.fingerprint
    assert not manager.in_trial
