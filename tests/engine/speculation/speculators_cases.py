"""Drafts in the speculators format: those the library makes, and broken ones made from them.

``speculators_format/drafts.json`` holds the configs and tensors of the library's version 0.9.0; the
script that wrote it is make.py beside it in commit c299eae4. Each broken draft changes one
thing, and names the rule that has to find it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.speculation.draft_changes import both, drop, put, without
from tests.engine.speculation.draft_changes import configure as top
from tests.engine.speculation.draft_folder import Array, Change, Folder, noise, ones, unchanged

DRAFTS = json.loads((Path(__file__).parent / "speculators_format" / "drafts.json").read_text())
METHODS = {"peagle": "eagle3", "dflash2": "dflash"}
LAYERS = "aux_hidden_state_layer_ids"
EAGLE_LAYERS = f"eagle_{LAYERS}"


@dataclass(frozen=True)
class FormatCase:
    """``rule`` is the finding that has to come, None for a good draft."""

    name: str
    base: str
    rule: str | None
    change: Change = unchanged
    settings: Mapping[str, Any] = field(default_factory=dict)
    severity: str = "error"

    def build(self, where: Path) -> dict[str, Any]:
        """Write the draft; the --speculative-config that names it."""
        folder = make_draft(self.base)
        settings = make_settings(folder.config, where / "draft") | self.settings
        self.change(folder)
        folder.write(where / "draft")
        return {key: value for key, value in settings.items() if value is not None}


def make_settings(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kind = config["speculators_model_type"]
    proposal = config["speculators_config"]["proposal_methods"][0]
    settings = {
        "model": str(path),
        "method": METHODS.get(kind, kind),
        "num_speculative_tokens": proposal["speculative_tokens"],
    }
    return settings | ({"parallel_drafting": True} if kind == "peagle" else {})


def make_draft(base: str) -> Folder:
    made = deepcopy(DRAFTS[base])
    tensors = {name: make_tensor(name, *kind) for name, kind in made["tensors"].items()}
    return Folder(made["config"], tensors)


def make_tensor(name: str, dtype: str, shape: list[int]) -> Array:
    if name == "d2t":
        return Array("I64", np.arange(shape[0]) // 4)
    if name == "t2d":
        kept = np.arange(1024)
        return Array("BOOL", np.isin(np.arange(shape[0]), kept + kept // 4))
    assert dtype == "BF16"
    return ones(*shape) if len(shape) == 1 else noise(*shape)


def layer(**keys: Any) -> Change:
    """Keys of transformer_layer_config; None takes the key out."""

    def change(draft: Folder) -> None:
        inner = draft.config["transformer_layer_config"]
        merged = {**inner, **keys}
        kept = {key: value for key, value in merged.items() if value is not None or key not in keys}
        draft.config["transformer_layer_config"] = kept

    return change


def described(**keys: Any) -> Change:
    """Keys of speculators_config."""

    def change(draft: Folder) -> None:
        draft.config["speculators_config"] |= keys

    return change


def trained_for(*architectures: str) -> Change:
    return described(verifier={"name_or_path": "target", "architectures": list(architectures)})


def resized(name: str, *shape: int) -> Change:
    return put(name, lambda _: ones(*shape) if len(shape) == 1 else noise(*shape))


def offsets(change: Callable[[Any], Any]) -> Change:
    def apply(draft: Folder) -> None:
        draft.tensors["d2t"] = Array("I64", np.asarray(change(draft.tensors["d2t"].data)))
        draft.tensors.pop("t2d", None)

    return apply


NOT_LOADED = ("mtp", "xpress", "dspark, gated")
GOOD = tuple(FormatCase(name, name, None) for name in DRAFTS if name not in NOT_LOADED)
GOOD += (
    FormatCase("fewer tokens than the block", "dflash", None,
               settings={"num_speculative_tokens": 4}),
    FormatCase("the last layer's output", "dflash", None, top(**{LAYERS: [2, 4, 8]})),
    FormatCase("one layer", "dflash, whole vocabulary", None,
               both(top(**{LAYERS: [8]}), resized("fc.weight", 256, 256))),
    FormatCase("six layers", "dflash2", None,
               both(top(**{LAYERS: [1, 2, 3, 4, 5, 8]}), resized("fc.weight", 256, 1536))),
    FormatCase("own embedding and head", "dflash, whole vocabulary", None,
               both(resized("embed_tokens.weight", 2048, 256),
                    resized("lm_head.weight", 2048, 256))),
    FormatCase("a plain Markov head without confidence", "dspark", None,
               both(top(enable_confidence_head=False), drop("confidence_head"))),
    FormatCase("verifier without an architecture", "eagle3", None, trained_for()),
    FormatCase("DSpark without K", "dspark", None, settings={"num_speculative_tokens": None}),
)  # fmt: skip

BROKEN = (
    # what vLLM does not load
    FormatCase("mtp", "mtp", "speculators-type"),
    FormatCase("xpress", "xpress", "speculators-type", settings={"method": "dflash"}),
    FormatCase("an unknown type", "dflash", "speculators-type",
               top(speculators_model_type="dflash3")),
    FormatCase("no type", "eagle3", "speculators-type", without("speculators_model_type")),
    FormatCase("no speculators_config", "eagle3", "speculators-parts",
               top(speculators_config=None)),
    FormatCase("no transformer_layer_config", "dflash2", "speculators-parts",
               without("transformer_layer_config")),
    # what the folder says of its target
    FormatCase("no proposal", "dflash", "proposal", described(proposal_methods=[]),
               severity="warning"),
    FormatCase("no verifier", "dspark", "verifier", described(verifier={}), severity="warning"),
    FormatCase("trained for another family", "eagle3", "verifier",
               trained_for("Qwen3ForCausalLM")),
    FormatCase("trained for another class of the family", "dspark", "verifier",
               trained_for("Llama4ForConditionalGeneration"), severity="warning"),
    FormatCase("another algorithm", "eagle3", "algorithm", described(algorithm="dflash"),
               severity="warning"),
    # EAGLE 3
    FormatCase("a layer twice", "eagle3", "layers-distinct", top(**{EAGLE_LAYERS: [2, 4, 4]})),
    FormatCase("map out of the vocabulary", "eagle3", "map-values",
               offsets(lambda values: np.append(values[:-1], 4000))),
    FormatCase("a decoder layer that vLLM has no draft for", "eagle3", "architecture",
               layer(model_type="gpt_oss")),
    FormatCase("fc_norm without its tensors", "eagle3", "tensor-missing", drop("fc_norm")),
    FormatCase("input_norm without its flag", "eagle3, whole vocabulary", "input-norm",
               top(norm_before_fc=False)),
    FormatCase("norm_eps missing", "eagle3", "sizes", layer(rms_norm_eps=None)),
    # P-EAGLE
    FormatCase("P-EAGLE, no mask token", "peagle", "mask-token", top(mask_token_id=None)),
    FormatCase("P-EAGLE, no mask_hidden", "peagle", "parallel-hidden", drop("mask_hidden")),
    FormatCase("P-EAGLE, mask_hidden of two states", "peagle", "parallel-hidden",
               resized("mask_hidden", 1, 1, 512)),
    FormatCase("P-EAGLE, drafting token by token", "peagle", "parallel-setting",
               settings={"parallel_drafting": None}, severity="warning"),
    FormatCase("P-EAGLE, layer out of range", "peagle", "layers-exist",
               top(**{EAGLE_LAYERS: [2, 4, 9]})),
    # block drafts
    *(
        FormatCase(f"{base}: {name}", base, rule, change, settings, severity)
        for base in ("dflash, whole vocabulary", "dflash2", "dspark")
        for name, rule, change, settings, severity in (
            ("layer 99 of 8", "block-layers", top(**{LAYERS: [2, 4, 99]}), {}, "error"),
            ("no layers", "block-layers", top(**{LAYERS: None}), {}, "error"),
            ("a layer twice", "block-layers", top(**{LAYERS: [2, 4, 4]}), {}, "error"),
            ("layers descending", "block-layers", top(**{LAYERS: [6, 4, 2]}), {}, "warning"),
            ("two layers, fc for three", "tensor-shape", top(**{LAYERS: [2, 4]}), {}, "error"),
            ("no mask token", "mask-token", top(mask_token_id=None), {}, "error"),
            ("mask token out of range", "mask-token", top(mask_token_id=2048), {}, "error"),
            ("K above the block", "block-depth", unchanged, {"num_speculative_tokens": 15},
             "error"),
            ("block of one", "block-depth", top(block_size=4), {}, "error"),
            ("made for a wider target", "block-width", top(target_hidden_size=512), {}, "error"),
            ("hidden size absent", "block-sizes", layer(hidden_size=None), {}, "error"),
            ("another vocabulary", "vocabulary", layer(vocab_size=4096), {}, "error"),
            ("more layers in config.json", "tensor-missing",
             layer(num_hidden_layers=3, layer_types=["full_attention"] * 3), {}, "error"),
            ("fewer layers in config.json", "tensor-unknown", layer(num_hidden_layers=1), {},
             "error"),
            ("heads that do not divide", "heads", layer(num_attention_heads=3), {}, "error"),
            ("fc missing", "tensor-missing", drop("fc.weight"), {}, "error"),
            ("a layer of the wrong type", "block-attention",
             layer(layer_types=["full_attention", "linear_attention"]), {}, "error"),
            ("layer_types too short", "block-attention", layer(layer_types=["full_attention"]),
             {}, "error"),
            ("no window", "block-attention", layer(layer_types=["sliding_attention"] * 2), {},
             "error"),
            ("verifier's final norm in the file", "tensor-unknown",
             resized("verifier_norm.weight", 256), {}, "error"),
        )
    ),
    FormatCase("DFlash, map missing", "dflash", "map-needed", drop("d2t", "t2d")),
    FormatCase("DFlash, reduced head missing", "dflash", "block-head", drop("lm_head")),
    FormatCase("DFlash, samples from its anchor", "dflash", "block-anchor",
               top(sample_from_anchor=True)),
    FormatCase("DFlash, mask_hidden", "dflash", "mask-hidden", resized("mask_hidden", 1, 1, 768)),
    FormatCase("DFlash, positions", "dflash", "positions", layer(max_position_embeddings=64),
               severity="warning"),
    FormatCase("DFlash2, reduced vocabulary", "dflash2", "selector",
               top(draft_vocab_size=1024)),
    FormatCase("DFlash2, groups do not divide", "dflash2", "selector", top(conv_group_size=24)),
    FormatCase("DFlash2, no rank", "dflash2", "selector", top(selector_rank=None)),
    FormatCase("DFlash2, no selector", "dflash2", "tensor-missing", drop("candidate_selector")),
    FormatCase("DFlash2, no convolution", "dflash2", "tensor-missing", drop("mlp_conv")),
    FormatCase("DFlash2 as DFlash", "dflash2", "tensor-unknown",
               both(top(speculators_model_type="dflash"), described(algorithm="dflash"))),
    FormatCase("DFlash as DFlash2", "dflash, whole vocabulary", "selector",
               both(top(speculators_model_type="dflash2"), described(algorithm="dflash2"))),
    FormatCase("DSpark, gated head", "dspark, gated", "markov-head"),
    FormatCase("DSpark, no rank", "dspark", "markov-head", without("markov_rank")),
    FormatCase("DSpark, no Markov head", "dspark", "tensor-missing", drop("markov_head")),
    FormatCase("DSpark, confidence without Markov", "dspark", "tensor-shape",
               top(confidence_head_with_markov=False)),
    FormatCase("DSpark, anchor unsaid", "dspark", "block-anchor",
               without("sample_from_anchor"), {"num_speculative_tokens": 7}, "warning"),
    FormatCase("DSpark as DFlash", "dspark", "method-mismatch", settings={"method": "dflash"}),
    FormatCase("DSpark, K and block absent", "dspark", "block-depth", without("block_size"),
               {"num_speculative_tokens": None}),
)  # fmt: skip
