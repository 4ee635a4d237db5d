"""Finding a model's files: by path, and by hub id in the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eaglegate.engine.speculation.drafts.inspection import inspect_draft
from eaglegate.engine.speculation.drafts.inspection.checkpoint import (
    NotDownloaded,
    locate,
    open_model,
)
from tests.engine.speculation.draft_folder import DEMO

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds the demo's draft as org/draft, config.json alone as org/config."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name, files in (("draft", ("config.json", "model.safetensors")), ("config", ())):
        folder = tmp_path / f"models--org--{name}"
        snapshot = folder / "snapshots" / REVISION
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(REVISION)
        for file in files or ("config.json",):
            shutil.copy(DEMO / "eagle3_1" / file, snapshot / file)
    return tmp_path


def test_a_downloaded_draft_is_inspected_by_its_hub_id(cache: Path):
    settings = {"model": "org/draft", "method": "eagle3", "num_speculative_tokens": 3}
    report = inspect_draft(DEMO / "target", settings)
    assert report.inspected and report.findings == ()
    assert report.summary.startswith("EAGLE 3.1")
    assert locate("org/draft", "main").name == REVISION


@pytest.mark.parametrize("name", ["org/absent", "org/config"])
def test_a_draft_not_downloaded_is_told_apart_from_a_broken_one(cache: Path, name: str):
    settings = {"model": name, "method": "eagle3", "num_speculative_tokens": 3}
    report = inspect_draft(DEMO / "target", settings)
    assert not report.inspected and report.ok
    assert [one.rule for one in report.warnings] == ["not-inspected"]
    assert report.summary == f"EAGLE 3 or 3.1: {name}, not inspected; K=3"
    with pytest.raises(NotDownloaded):
        open_model(name)
