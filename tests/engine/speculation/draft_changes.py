"""Ways to change a draft: flags, names, norms, layers, vocabulary maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engine.speculation.draft_folder import (
    AUX,
    LAYER_IDS,
    Array,
    Change,
    Folder,
    bf16,
    floats,
    ones,
    width,
)


def configure(**values: Any) -> Change:
    def change(draft: Folder) -> None:
        draft.config |= values

    return change


def without(*keys: str) -> Change:
    def change(draft: Folder) -> None:
        for key in keys:
            del draft.config[key]

    return change


def drop(*marks: str) -> Change:
    """Drop every tensor with one of the marks in its name."""

    def change(draft: Folder) -> None:
        kept = {n: a for n, a in draft.tensors.items() if not any(mark in n for mark in marks)}
        assert len(kept) < len(draft.tensors)
        draft.tensors = kept

    return change


def put(name: str, make: Callable[[Folder], Array]) -> Change:
    def change(draft: Folder) -> None:
        draft.tensors[name] = make(draft)

    return change


def renamed(old: str, new: str) -> Change:
    def change(draft: Folder) -> None:
        draft.tensors = {n.replace(old, new): a for n, a in draft.tensors.items()}

    return change


def prefixed(draft: Folder) -> None:
    draft.tensors = {f"model.{name}": array for name, array in draft.tensors.items()}


def rekeyed(old: str, new: str) -> Change:
    def change(draft: Folder) -> None:
        draft.config[new] = draft.config.pop(old)

    return change


def nested(*keys: str) -> Change:
    """Move flags into eagle_config."""

    def change(draft: Folder) -> None:
        draft.config["eagle_config"] = {key: draft.config.pop(key) for key in keys}

    return change


def both(*changes: Change) -> Change:
    def change(draft: Folder) -> None:
        for one in changes:
            one(draft)

    return change


def reduced(draft: Folder) -> None:
    """A draft vocabulary of fifteen ids in sixteen, with a right d2t and t2d."""
    full = int(draft.config["vocab_size"])
    ids = np.array([one for one in range(full) if one % 16 != 15])
    draft.tensors["lm_head.weight"] = Array("BF16", draft.tensors["lm_head.weight"].data[ids])
    draft.tensors["d2t"] = Array("I64", ids - np.arange(len(ids)))
    draft.tensors["t2d"] = Array("BOOL", np.isin(np.arange(full), ids))
    draft.config["draft_vocab_size"] = len(ids)


def map_changed(edit: Callable[[NDArray[Any]], NDArray[Any]], mask: bool = False) -> Change:
    def change(draft: Folder) -> None:
        reduced(draft)
        draft.tensors["d2t"] = Array("I64", edit(draft.tensors["d2t"].data))
        if not mask:
            del draft.tensors["t2d"]

    return change


def wider(count: int) -> Change:
    """fc and fc_norm for more captured layers; the new ones get no weight."""

    def change(draft: Folder) -> None:
        hidden = width(draft)
        more = np.zeros((hidden, (count - AUX) * hidden), np.uint16)
        draft.tensors["fc.weight"] = Array(
            "BF16", np.concatenate([draft.tensors["fc.weight"].data, more], axis=1)
        )
        for index in range(AUX, count):
            draft.tensors[f"fc_norm.{index}.weight"] = ones(hidden)

    return change


def backwards(draft: Folder) -> None:
    """Reverse the draft as if it were trained with descending layers, and state that order."""
    hidden = width(draft)
    fc = draft.tensors["fc.weight"].data
    blocks = [fc[:, index * hidden : (index + 1) * hidden] for index in range(AUX)]
    draft.tensors["fc.weight"] = Array("BF16", np.concatenate(blocks[::-1], axis=1))
    norms = [draft.tensors[f"fc_norm.{index}.weight"] for index in range(AUX)]
    for index, norm in enumerate(norms[::-1]):
        draft.tensors[f"fc_norm.{index}.weight"] = norm
    draft.config["eagle_config"] = {LAYER_IDS: [5, 4, 2]}


def speculators(**top: Any) -> Change:
    """The speculators format; flags at its top level unless ``top`` says otherwise."""

    def change(draft: Folder) -> None:
        inner = dict(draft.config)
        flags = {key: inner.pop(key) for key in ("fc_norm", "norm_output") if key in inner}
        small = inner.pop("draft_vocab_size")
        layer = {**inner, **top.get("inner", {})}
        outer = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.6.0",
            "draft_vocab_size": small,
            "norm_before_residual": False,
            "norm_before_fc": False,
            "target_hidden_size": None,
            LAYER_IDS: None,
            **flags,
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"},
            },
            "transformer_layer_config": layer,
        }
        outer |= {key: value for key, value in top.items() if key != "inner"}
        draft.config = {key: value for key, value in outer.items() if value is not ABSENT}
        renamed("midlayer.", "layers.0.")(draft)

    return change


ABSENT = object()


def weighty_norms(draft: Folder) -> None:
    """The same draft with fc_norm far from one: powers of two, taken back in fc."""
    hidden = width(draft)
    fc = floats(draft.tensors["fc.weight"]).copy()
    for index in range(AUX):
        scale = np.float32(2.0 ** (4 * index - 4))
        name = f"fc_norm.{index}.weight"
        draft.tensors[name] = bf16(floats(draft.tensors[name]) * scale)
        fc[:, index * hidden : (index + 1) * hidden] /= scale
    draft.tensors["fc.weight"] = bf16(fc)


def before_fc(place: str) -> Change:
    """The norm_before_fc variant, its weights far from one; the flag at a place, or nowhere."""

    def change(draft: Folder) -> None:
        scales = np.resize(np.array([0.125, 8], np.float32), AUX * width(draft))
        draft.tensors["input_norm.weight"] = bf16(scales)
        draft.tensors["fc.weight"] = bf16(floats(draft.tensors["fc.weight"]) / scales)
        if place == "eagle_config":
            draft.config["eagle_config"] = {"norm_before_fc": True}
        elif place == "top":
            draft.config["norm_before_fc"] = True

    return change


def cut_fc(rows: int, blocks: int) -> Change:
    def change(draft: Folder) -> None:
        fc = draft.tensors["fc.weight"].data
        draft.tensors["fc.weight"] = Array("BF16", fc[:rows, : blocks * width(draft)])

    return change


def poisoned(draft: Folder) -> None:
    values = np.ones(width(draft), np.float32)
    values[7] = np.nan
    draft.tensors["midlayer.hidden_norm.weight"] = bf16(values)


def biases(draft: Folder) -> None:
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        rows = draft.tensors[f"midlayer.self_attn.{name}.weight"].data.shape[0]
        draft.tensors[f"midlayer.self_attn.{name}.bias"] = bf16(np.zeros(rows))


def loud_norm(draft: Folder) -> None:
    """The same draft with hidden_norm far from one, taken back in the attention's input."""
    name = "midlayer.hidden_norm.weight"
    draft.tensors[name] = bf16(floats(draft.tensors[name]) * 64)
    for part in ("q_proj", "k_proj", "v_proj"):
        weight = f"midlayer.self_attn.{part}.weight"
        values = floats(draft.tensors[weight]).copy()
        values[:, width(draft) :] /= 64
        draft.tensors[weight] = bf16(values)


def shuffled_head(draft: Folder) -> None:
    rows = draft.tensors["lm_head.weight"].data
    draft.tensors["lm_head.weight"] = Array("BF16", np.roll(rows, 7, axis=0))
