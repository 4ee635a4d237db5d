"""The contract with vLLM, against copies of its source with one private name changed at a time."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

from eaglegate.engine.vllm_parts import PARTS, PROMISES, Area, ModuleSource, compare, split_parts

pytestmark = pytest.mark.thorough

vllm = pytest.importorskip("vllm")
SOURCE = Path(vllm.__file__).parent


def list_names(part: str) -> list[str]:
    """The dotted names in one line of the contract."""
    if "(" in part:
        return [part.partition("(")[0]]
    owner, names = part.split(": ")
    return [f"{owner}.{name}" for name in names.split()]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for file in {file for files in PARTS.values() for file in files}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / file, tmp_path / file)
    return tmp_path


def test_the_installed_vllm_keeps_it(copy: Path) -> None:
    assert compare(SOURCE) == compare(copy) == {}


FILES = sorted({(area, file) for area, files in PARTS.items() for file in files})


@pytest.mark.parametrize(("area", "file"), FILES)
def test_renamed_parts_are_found_by_name(area: Area, file: str) -> None:
    parts = list(split_parts(PARTS[area][file]))
    names = [name for part in parts for name in list_names(part)]
    leaves = "|".join(name.rpartition(".")[2] for name in names)
    text = (SOURCE / file).read_text(encoding="utf-8")
    renamed = ModuleSource(ast.parse(re.sub(rf"\b({leaves})\b", r"\1_renamed", text)))
    differences = [one for part in parts for one in renamed.find_differences(part)]
    assert [one.name for one in differences] == names
    assert {one.text for one in differences} == {"is missing"}


def test_every_changed_signature_is_found(copy: Path) -> None:
    """Another parameter in what we override or replace; a lost one in what we call."""
    file = copy / "v1/core/sched/scheduler.py"
    text = file.read_text(encoding="utf-8")
    assert "def _free_request(\n        self, request: Request, delay_free_blocks" in text
    file.write_text(text.replace("delay_free_blocks", "delay"), encoding="utf-8")
    (difference,) = compare(copy)[Area.SCHEDULER]
    assert str(difference) == (
        "Scheduler._free_request takes (self request delay), not (self request delay_free_blocks)"
    )


def test_a_parameter_that_older_versions_lack_may_be_missing() -> None:
    part = "process(self outputs weight_version?)"
    for parameters, fits in (
        ("self, outputs", True),
        ("self, outputs, weight_version", True),
        ("self, outputs, other", False),
        ("self, weight_version", False),
    ):
        source = ModuleSource(ast.parse(f"def process({parameters}): ..."))
        assert (not list(source.find_differences(part))) is fits, parameters


def test_a_file_that_is_gone_breaks_all_of_it(copy: Path) -> None:
    (copy / "model_executor/model_loader/reload/layerwise.py").unlink()
    assert set(compare(copy)) == {Area.SWAP}
    assert len(compare(copy)[Area.SWAP]) == 4


def test_every_area_has_parts_and_a_promise() -> None:
    assert set(PARTS) == set(PROMISES) == set(Area)


def test_a_field_that_is_gone_is_found(copy: Path) -> None:
    file = copy / "v1/engine/__init__.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("new_logprobs:", "logprobs_of_new:"), encoding="utf-8")
    (difference,) = compare(copy)[Area.OUTPUTS]
    assert str(difference) == "EngineCoreOutput.new_logprobs is missing"
