"""A draft is read in a thread before the pause, and loaded from memory in it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from eaglegate.engine.vllm_backend import draft_reload
from eaglegate.engine.vllm_backend.draft_reload import (
    DraftReloader,
    discard_draft,
    get_staged,
    stage_draft,
)
from tests.engine.draft_copies import EAGLE31, change_weights

OTHER, RUNNING = "/other", "/running"


class Worker(DraftReloader):
    """One with a draft that shares its head with the target."""

    def __init__(self) -> None:
        self.vllm_config: Any = None
        self.device = torch.device("cpu")
        self._target, self._draft = nn.Module(), nn.Module()
        self._target.lm_head = self._draft.lm_head = nn.Linear(2, 2)

    def get_model(self) -> nn.Module:
        return self._target

    def get_draft_model(self) -> nn.Module:
        return self._draft


class Executor:
    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def collective_rpc(self, method: str, args: tuple[str, ...] = ()) -> list[Any]:
        return [getattr(worker, method)(*args) for worker in self._workers]


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(draft_reload, "set_current_vllm_config", lambda _: torch.device("cpu"))
    return SimpleNamespace(model_executor=Executor([Worker(), Worker()]))


def wait_staged(core: Any) -> bool | str:
    end = time.monotonic() + 30
    while (state := get_staged(core)) is False and time.monotonic() < end:
        time.sleep(0.001)
    return state


def test_steps_go_on_until_every_worker_has_read_it(core, monkeypatch):
    gates, loaded = [threading.Event(), threading.Event()], []
    waiting = iter(gates)

    def read(*_: object) -> dict[str, torch.Tensor]:
        assert threading.current_thread() is not threading.main_thread()
        next(waiting).wait(30)
        return {"weight": torch.ones(1)}

    monkeypatch.setattr(draft_reload, "read_draft", read)
    monkeypatch.setattr(draft_reload, "reload_draft", lambda _, weights: loaded.append(weights))
    stage_draft(core, OTHER, RUNNING)
    assert get_staged(core) is False
    gates[0].set()
    assert get_staged(core) is False
    gates[1].set()
    assert wait_staged(core) is True
    monkeypatch.setattr(draft_reload, "read_draft", None)
    assert core.model_executor.collective_rpc("reload_draft", (OTHER, RUNNING)) == [None, None]
    assert len(loaded) == 2
    assert get_staged(core) == "no draft is being read"


def test_a_draft_that_cannot_be_read_is_known_before_the_pause(core, tmp_path):
    stage_draft(core, str(tmp_path), str(EAGLE31))
    assert "does not hold the tensors" in str(wait_staged(core))
    discard_draft(core)
    assert get_staged(core) == "no draft is being read"


def test_weights_shared_with_the_target_are_compared_and_not_kept(core, tmp_path):
    worker: Any = Worker()
    same = change_weights(tmp_path / "same", lambda name, one: one if "head" in name else -one)
    found = draft_reload.read_draft(worker, same, EAGLE31)
    assert found
    assert not any("lm_head" in name for name in found)
    other = change_weights(tmp_path / "other", lambda _, one: -one)
    with pytest.raises(ValueError, match="shares lm_head"):
        draft_reload.read_draft(worker, other, EAGLE31)


def test_another_draft_than_the_staged_one_is_read(core, monkeypatch):
    read = []
    monkeypatch.setattr(
        draft_reload, "read_draft", lambda _, folder, running: read.append(str(folder)) or {}
    )
    monkeypatch.setattr(draft_reload, "reload_draft", lambda *_: None)
    worker = Worker()
    worker.stage_draft(OTHER, RUNNING)
    assert worker.reload_draft(RUNNING, RUNNING) is None
    assert read == [OTHER, RUNNING]
