"""Adapters that vLLM would refuse at their first request are found before the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglegate.engine.machine import GIB, Machine
from eaglegate.engine.preflight import EnginePlan, preflight

save_file = pytest.importorskip("safetensors.numpy").save_file
DEMO = Path(__file__).parents[2] / "engine" / "demo" / "target"
LAPTOP = Machine("cpu", cores=2, free_memory=16 * GIB)
ABOUT = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}
SIZES = json.loads((DEMO / "config.json").read_text())
LAYER = "base_model.model.model.layers.{}.mlp.down_proj.lora_{}.weight"


def adapter(path: Path, layer: int = 0, inner: int | None = None, **about: Any) -> Path:
    rank, hidden = 4, SIZES["hidden_size"]
    inner = inner or SIZES["intermediate_size"]
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps(ABOUT | about))
    tensors = {
        LAYER.format(layer, "A"): np.zeros((rank, inner), np.float32),
        LAYER.format(layer, "B"): np.zeros((hidden, rank), np.float32),
    }
    save_file(tensors, path / "adapter_model.safetensors")
    return path


def obstacles(folder: Path, max_rank: int = 16) -> list[str]:
    plan = EnginePlan(str(DEMO), adapters={"sql": str(folder)}, max_lora_rank=max_rank)
    found = preflight(plan, LAPTOP)
    assert found.facts["adapters"] == "sql"
    return [text for text in found.obstacles if "adapter sql" in text]


def test_an_adapter_of_this_model_is_no_obstacle(tmp_path):
    assert obstacles(adapter(tmp_path / "a")) == []
    assert obstacles(adapter(tmp_path / "b", r=16), 16) == []


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"r": 32}, "rank is 32, more than --max-lora-rank 16"),
        ({"rank_pattern": {"q_proj": 64}}, "rank is 64"),
        ({"r": 0}, "not a positive integer"),
        ({"r": "8"}, "not a positive integer"),
        ({"use_dora": True}, "does not support DoRA"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
        ({"peft_type": "PROMPT_TUNING"}, "only LoRA adapters"),
        ({"layer": 99}, "no layer in"),
        ({"inner": 5}, "does not fit this model's layer"),
    ],
)
def test_an_adapter_that_cannot_be_loaded_is_an_obstacle(tmp_path, about, words):
    (found,) = obstacles(adapter(tmp_path / "a", **about))
    assert words in found


def test_files_that_are_not_there_or_not_what_they_should_be(tmp_path):
    folder = adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").write_bytes(b"version https://git-lfs")
    assert len(obstacles(folder)) == 1
    (folder / "adapter_model.safetensors").unlink()
    assert "holds no adapter_model.safetensors" in obstacles(folder)[0]
    (folder / "adapter_config.json").write_text("[")
    assert "not JSON" in obstacles(folder)[0]
    (folder / "adapter_config.json").unlink()
    assert "holds no adapter_config.json" in obstacles(folder)[0]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "adapter_config.json").write_text(json.dumps(ABOUT))
    (tmp_path / "b" / "adapter_model.bin").touch()
    assert obstacles(tmp_path / "b") == [], "a pickle is vLLM's to read"


def test_of_a_model_that_is_elsewhere_the_configuration_counts(tmp_path):
    plan = EnginePlan("org/elsewhere", adapters={"a": str(adapter(tmp_path / "a", r=99, layer=7))})
    found = preflight(plan, LAPTOP, lambda: None)
    assert [text for text in found.obstacles if "adapter" in text] == [
        "the adapter a cannot be loaded: its rank is 99, more than --max-lora-rank 16: raise it"
    ]
