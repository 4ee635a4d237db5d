"""Inspection of block drafts, Medusa and PARD in their plain formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.speculation.drafts.inspection import (
    Severity,
    SpeculationReport,
    inspect_draft,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import convert_as_vllm
from tests.engine.speculation.draft_changes import both, configure, drop
from tests.engine.speculation.draft_folder import (
    DEMO,
    Change,
    Folder,
    noise,
    read_folder,
    unchanged,
)
from tests.engine.speculation.speculators_cases import make_draft, resized

ALARMS = (Severity.ERROR, Severity.WARNING)


def make_dflash() -> Folder:
    """A draft as z-lab publishes them: layers counted from 0, the mask token in
    ``dflash_config``."""
    draft = make_draft("dflash, whole vocabulary")
    flat = dict(convert_as_vllm(draft.config))
    inner = {"mask_token_id": 7, "target_layer_ids": [1, 3, 5]}
    flat |= {"dflash_config": inner, "block_size": 8, "model_type": "qwen3"}
    del flat["eagle_aux_hidden_state_layer_ids"]
    draft.config = flat
    return draft


def make_dspark() -> Folder:
    draft = make_draft("dspark")
    flat = dict(convert_as_vllm(draft.config))
    flat |= {"target_layer_ids": [1, 3, 5], "block_size": 8}
    del flat["eagle_aux_hidden_state_layer_ids"]
    draft.config = flat
    return draft


def make_medusa() -> Folder:
    heads = range(3)
    tensors = {f"blocks.{head}.layers.0.weight": noise(256, 256) for head in heads}
    tensors |= {f"lm_heads.{head}.weight": noise(2048, 256) for head in heads}
    config = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": 256}
    return Folder(config | {"vocab_size": 2048, "num_heads": 3, "num_hidden_layers": 1}, tensors)


def make_old_medusa() -> Folder:
    """Names of the first Medusa, without a model type."""
    tensors = {f"{head}.0.linear.weight": noise(256, 256) for head in range(3)}
    tensors |= {f"{head}.1.weight": noise(2048, 256) for head in range(3)}
    return Folder({"medusa_num_heads": 3, "medusa_num_layers": 1, "hidden_size": 256}, tensors)


def make_pard() -> Folder:
    draft = read_folder(DEMO / "target")
    draft.config["pard_token"] = 9
    return draft


def make_speculator() -> Folder:
    draft = make_pard()
    draft.config |= {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
    }
    return draft


MAKERS = {
    "dflash": make_dflash,
    "dspark": make_dspark,
    "medusa": make_medusa,
    "old medusa": make_old_medusa,
    "pard": make_pard,
    "mlp_speculator": make_speculator,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "dflash": {"method": "dflash", "num_speculative_tokens": 7},
    "dspark": {"method": "dspark", "num_speculative_tokens": 8},
    "medusa": {"method": "medusa", "num_speculative_tokens": 3},
    "old medusa": {"method": "medusa", "num_speculative_tokens": 3},
    "pard": {"method": "draft_model", "num_speculative_tokens": 5, "parallel_drafting": True},
    "mlp_speculator": {"method": "mlp_speculator", "num_speculative_tokens": 3},
}


def inspect(
    name: str, where: Path, change: Change = unchanged, **settings: Any
) -> SpeculationReport:
    draft = MAKERS[name]()
    change(draft)
    draft.write(where / "draft")
    given = {"model": str(where / "draft"), **SETTINGS[name], **settings}
    return inspect_draft(DEMO / "target", given, max_model_len=1024)


@pytest.mark.parametrize("name", ["dflash", "dspark", "medusa", "old medusa", "pard"])
def test_a_good_draft_raises_no_alarm(name: str, tmp_path: Path):
    report = inspect(name, tmp_path)
    assert [str(one) for one in report.findings if one.severity in ALARMS] == []


def inner(**keys: Any) -> Change:
    def change(draft: Folder) -> None:
        draft.config["dflash_config"] |= keys

    return change


def without_mask(draft: Folder) -> None:
    for part in (draft.config, draft.config.get("dflash_config", {})):
        for key in ("mask_token_id", "pard_token"):
            part.pop(key, None)


@pytest.mark.parametrize(
    ("name", "rule", "change", "settings"),
    [
        ("dflash", "block-layers", inner(target_layer_ids=[1, 3, 8]), {}),
        ("dflash", "tensor-shape", inner(target_layer_ids=[1, 5]), {}),
        ("dflash", "mask-token", without_mask, {}),
        ("dflash", "mask-token", inner(mask_token_id=151669), {}),
        ("dflash", "block-depth", unchanged, {"num_speculative_tokens": 8}),
        ("dflash", "block-architecture", configure(architectures=["Qwen2ForCausalLM"]), {}),
        ("dflash", "block-attention", inner(use_swa=True), {}),
        ("dflash", "tensor-prefix", lambda draft: draft.tensors.update(
            {"model.norm.weight": draft.tensors.pop("norm.weight")}), {}),
        ("dspark", "block-layers", configure(target_layer_ids=[1, 3, 8]), {}),
        ("dspark", "mask-token", without_mask, {}),
        ("dspark", "block-depth", unchanged, {"num_speculative_tokens": 9}),
        ("medusa", "medusa-depth", unchanged, {"num_speculative_tokens": 4}),
        ("medusa", "medusa-tensors", drop("blocks.2"), {}),
        ("medusa", "medusa-tensors", resized("lm_heads.0.weight", 1024, 256), {}),
        ("medusa", "same-width",
         both(configure(hidden_size=128), resized("blocks.0.layers.0.weight", 128, 128)), {}),
        ("old medusa", "medusa-tensors", drop("2.0.linear"), {}),
        ("pard", "mask-token", without_mask, {}),
        ("mlp_speculator", "method-loader", unchanged, {}),
    ],
)  # fmt: skip
def test_a_broken_draft_is_found(
    name: str, rule: str, change: Change, settings: dict[str, Any], tmp_path: Path
):
    report = inspect(name, tmp_path, change, **settings)
    assert rule in [one.rule for one in report.errors], [str(one) for one in report.findings]
