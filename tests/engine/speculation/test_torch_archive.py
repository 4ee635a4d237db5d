"""Listing the tensors of torch.save files without torch, and without running their code."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from eaglegate.engine.speculation.drafts.inspection import Severity, inspect_draft
from eaglegate.engine.speculation.drafts.inspection.torch_archive import (
    UnreadableArchive,
    read_archive,
)
from eaglegate.engine.speculation.drafts.inspection.weights import read_array
from tests.engine.speculation.draft_changes import reduced
from tests.engine.speculation.draft_folder import DEMO, Folder, read_folder

torch = pytest.importorskip("torch")
KINDS = {"BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}


class Shout:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("the pickle ran",)


def save(folder: Folder, where: Path) -> None:
    folder.weights = False
    folder.write(where)
    state = {}
    for name, array in folder.tensors.items():
        raw = torch.from_numpy(array.data.copy().view(np.uint8).reshape(-1))
        state[name] = raw.view(KINDS[array.dtype]).reshape(array.data.shape)
    torch.save(state, where / "pytorch_model.bin")


def test_a_pickled_draft_is_inspected(tmp_path: Path):
    folder = read_folder(DEMO / "eagle3_1")
    reduced(folder)
    save(folder, tmp_path / "draft")
    tensors = read_archive(tmp_path / "draft" / "pytorch_model.bin")
    assert tensors["fc.weight"].shape == folder.tensors["fc.weight"].data.shape
    assert np.array_equal(read_array(tensors["d2t"]), folder.tensors["d2t"].data)
    settings = {"model": str(tmp_path / "draft"), "method": "eagle3", "num_speculative_tokens": 3}
    report = inspect_draft(DEMO / "target", settings)
    assert report.findings == ()
    assert report.facts["tensors"] == str(len(folder.tensors))


def test_a_tensor_missing_from_a_pickled_draft_is_found(tmp_path: Path):
    folder = read_folder(DEMO / "eagle3_1")
    del folder.tensors["fc.weight"]
    save(folder, tmp_path / "draft")
    settings = {"model": str(tmp_path / "draft"), "method": "eagle3", "num_speculative_tokens": 3}
    assert [one.rule for one in inspect_draft(DEMO / "target", settings).errors] == [
        "tensor-missing"
    ]


def test_code_in_a_pickle_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"fc.weight": Shout()}))
    with pytest.raises(UnreadableArchive, match=r"builtins\.print"):
        read_archive(file)
    assert capsys.readouterr().out == ""


def test_unreadable_archives_are_noted(tmp_path: Path):
    folder = read_folder(DEMO / "eagle3_1")
    folder.weights = False
    folder.files["pytorch_model.bin"] = b"not a zip"
    folder.write(tmp_path / "draft")
    settings = {"model": str(tmp_path / "draft"), "method": "eagle3", "num_speculative_tokens": 3}
    report = inspect_draft(DEMO / "target", settings)
    assert [one.rule for one in report.of(Severity.NOTE)] == ["weights-pickled"]
    assert report.ok
