"""Which speculation it is: what vLLM takes the settings for, and what the files look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.speculation.inspection.checkpoint import Checkpoint
from engine.speculation.inspection.draft import get_mapping

MTP_METHODS = frozenset(
    {
        "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp",
        "glm4_moe_lite_mtp", "glm_ocr_mtp", "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp",
        "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp", "longcat_flash_mtp",
        "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "mtp", "kimi_k3_mtp",
        "pangu_ultra_moe_mtp", "step3p5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp",
        "inkling_mtp", "glm5_next_mtp",
    }
)  # fmt: skip
MODEL_FREE = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"})
"""Methods without a draft checkpoint."""
FROM_TARGET = frozenset({"mtp", "dspark"})
"""Methods whose draft may come inside the target's checkpoint."""
METHODS = MODEL_FREE | FROM_TARGET | MTP_METHODS
METHODS |= {"eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "dflash"}
NAMED_IN_PATH = (
    ("eagle-", "eagle"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
)


def resolve_method(settings: Mapping[str, Any], kind: str | None) -> str:
    """The method vLLM runs: the one given, else guessed from the draft's path, else draft_model."""
    given = settings.get("method")
    model = settings.get("model")
    if isinstance(given, str):
        return "mtp" if given in MTP_METHODS else given.strip("[]")
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if isinstance(model, str) and is_dotted_path(model):
        return "custom_class"
    for mark, method in NAMED_IN_PATH:
        if isinstance(model, str) and mark in model.lower():
            return method
    return kind if kind in ("medusa", "mtp", "dspark") else "draft_model"


def is_dotted_path(model: str) -> bool:
    parts = model.split(".")
    return "/" not in model and len(parts) > 1 and all(part.isidentifier() for part in parts)


def detect_kind(checkpoint: Checkpoint) -> str | None:
    """What the files look like, by config.json first and by tensors second."""
    return detect_kind_by_config(checkpoint.config) or detect_kind_by_tensors(checkpoint)


def detect_kind_by_config(config: Mapping[str, Any]) -> str | None:
    speculators = config.get("speculators_model_type")
    if isinstance(speculators, str):
        return {"peagle": "eagle3", "dflash2": "dflash"}.get(speculators, speculators)
    names = config.get("architectures")
    name = str(names[0]).lower() if isinstance(names, list) and names else ""
    if name.startswith("eagle") and not name.startswith("eagle3"):
        return "eagle"
    for mark, kind in (("eagle3", "eagle3"), ("peagle", "eagle3"), ("dflash", "dflash"),
                       ("dspark", "dspark"), ("medusa", "medusa"), ("mtp", "mtp")):  # fmt: skip
        if mark in name:
            return kind
    model_type = config.get("model_type")
    if model_type in MTP_METHODS:
        return "mtp"
    if model_type in ("medusa", "mlp_speculator"):
        return str(model_type)
    if "draft_vocab_size" in config or "target_hidden_size" in config:
        return "eagle3"
    return "eagle3" if get_mapping(config, "eagle_config") else None


def detect_kind_by_tensors(checkpoint: Checkpoint) -> str | None:
    tensors = checkpoint.tensors
    plain = {name.removeprefix("model.") for name in tensors}
    if any("hidden_norm" in name or name.startswith("midlayer.") for name in plain):
        return "eagle3"
    if "fc.weight" in plain:
        return "eagle"
    if any(name.startswith("model.layers.") for name in tensors):
        return "draft_model"
    return None
