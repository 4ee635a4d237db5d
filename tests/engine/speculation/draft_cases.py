"""Drafts made in code from the demo pair: good ones, and broken ones that each break one thing.

The tests inspect them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.speculation.draft_changes import (
    ABSENT,
    backwards,
    before_fc,
    biases,
    both,
    configure,
    cut_fc,
    drop,
    loud_norm,
    map_changed,
    nested,
    poisoned,
    prefixed,
    put,
    reduced,
    rekeyed,
    renamed,
    shuffled_head,
    speculators,
    weighty_norms,
    wider,
    without,
)
from tests.engine.speculation.draft_folder import (
    AUX,
    DEMO,
    LAYER_IDS,
    Change,
    bf16,
    noise,
    ones,
    read_folder,
    unchanged,
    whole_head,
    width,
)
from tests.engine.speculation.draft_kinds import (
    LFS,
    absent,
    eagle1,
    in_shards,
    latent,
    latent_target,
    narrower,
    one_head,
    own_embedding,
    qwen3,
    second_layer,
    set_text,
    six_layers,
    smaller_model,
    smaller_vocabulary,
    truncated,
    weightless,
    weights_as,
    whole_model,
    without_shard,
)


@dataclass(frozen=True)
class DraftCase:
    """``rule`` is the finding that has to come, None for a good draft.

    ``beside`` names the good draft it is compared with, the demo's EAGLE 3.1 unless said.

    ``settings`` are laid over the usual --speculative-config; a value of None removes a key.
    """

    name: str
    rule: str | None
    change: Change = unchanged
    settings: Mapping[str, Any] = field(default_factory=dict)
    base: str = "eagle3_1"
    folder: str = "draft"
    severity: str = "error"
    change_target: Change | None = None
    draft_is_target: bool = False
    tensor_parallel_size: int = 1
    max_model_len: int = 1024
    beside: str = "EAGLE 3.1, the demo's"

    def build(self, where: Path) -> tuple[Path, dict[str, Any]]:
        """Write the folders; the target's path and the --speculative-config."""
        draft = where / self.folder
        folder = read_folder(DEMO / self.base)
        whole_head(folder)
        self.change(folder)
        folder.write(draft)
        target = DEMO / "target"
        if self.change_target is not None:
            changed = read_folder(target)
            self.change_target(changed)
            target = where / "target"
            changed.write(target)
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(DEMO / "target" / name, target / name)
        model = target if self.draft_is_target else draft
        base = {"model": str(model), "method": "eagle3", "num_speculative_tokens": 3}
        merged = {**base, **self.settings}
        return target, {key: value for key, value in merged.items() if value is not None}


EAGLE3 = "EAGLE 3, the demo's"


REDUCED = "reduced vocabulary with d2t and t2d"


BEFORE_FC = "norm_before_fc variant, flag in eagle_config"


MLA = "MLA, Kimi-like, for an MLA target"


GOOD = (
    DraftCase("EAGLE 3.1, the demo's", None),
    DraftCase(EAGLE3, None, base="eagle3", beside=EAGLE3),
    DraftCase(BEFORE_FC, None, before_fc("eagle_config"), base="eagle3", beside=BEFORE_FC),
    DraftCase("speculators format", None, speculators()),
    DraftCase(MLA, None, latent, change_target=latent_target, beside=MLA),
    DraftCase("Qwen3-like", None, qwen3, beside="Qwen3-like"),
    DraftCase("layers.0.* names", None, renamed("midlayer.", "layers.0.")),
    DraftCase("four layers in eagle_config", None,
              both(wider(4), configure(eagle_config={LAYER_IDS: [2, 4, 5, 6]}))),
    DraftCase("index with two shards", None, in_shards),
    DraftCase(REDUCED, None, reduced, beside=REDUCED),
    DraftCase("own embedding", None, own_embedding),
    DraftCase("draft_vocab_size left out", None, without("draft_vocab_size")),
    DraftCase("EAGLE 1 by method eagle", None, eagle1, {"method": "eagle"}, beside="-"),
    DraftCase("whole model as draft_model", None, whole_model, {"method": "draft_model"}),
    DraftCase("method left to the path's name", None, settings={"method": None},
              folder="tiny-eagle3"),
    DraftCase("narrower than the target, own embedding", None, narrower, beside="-"),
    DraftCase("attention_bias on, with biases", None, both(configure(attention_bias=True), biases)),
    DraftCase("K = 7", None, settings={"num_speculative_tokens": 7}),
)  # fmt: skip


BROKEN = (
    # flags
    DraftCase("fc_norm tensors, flag absent", "tensor-unknown", without("fc_norm")),
    DraftCase("fc_norm flag, no tensors", "tensor-missing",
              both(weighty_norms, drop("fc_norm"))),
    DraftCase("norm_output absent", "norm-output", without("norm_output"), severity="warning"),
    DraftCase("norm_output misspelt", "key-misspelt", rekeyed("norm_output", "norm_outputs"),
              severity="warning"),
    DraftCase("draft_vocab_size misspelt", "map-needed",
              both(reduced, rekeyed("draft_vocab_size", "draft_vocabsize")), beside=REDUCED),
    DraftCase("norm_output inside eagle_config", "key-misplaced", nested("norm_output"),
              severity="warning"),
    DraftCase("input_norm, flag absent", "input-norm", before_fc("nowhere"), base="eagle3",
              beside=BEFORE_FC),
    DraftCase("fc_norm and norm_before_fc", "two-norms",
              both(configure(norm_before_fc=True),
                   put("input_norm.weight", lambda draft: noise(AUX * width(draft)))),
              severity="warning"),
    DraftCase("use_aux_hidden_state false, fc there", "aux-unused",
              configure(eagle_config={"use_aux_hidden_state": False}), base="eagle3",
              beside=EAGLE3),
    # tensors
    DraftCase("fc missing", "tensor-missing", drop("fc.weight")),
    DraftCase("lm_head missing, reduced vocabulary", "head", both(reduced, drop("lm_head")),
              beside=REDUCED),
    DraftCase("model. prefix", "tensor-prefix", prefixed),
    DraftCase("unknown tensor name", "tensor-unknown", renamed("midlayer.", "decoder.")),
    DraftCase("Qwen3 head norms in a Llama draft", "tensor-unknown",
              put("midlayer.self_attn.q_norm.weight", lambda draft: ones(32))),
    DraftCase("more layers in the file", "tensor-unknown", second_layer),
    DraftCase("more layers in config.json", "tensor-missing", configure(num_hidden_layers=2)),
    DraftCase("intermediate_size wrong", "tensor-shape", configure(intermediate_size=1024)),
    DraftCase("key-value heads wrong", "tensor-shape", configure(num_key_value_heads=2)),
    DraftCase("attention_bias on, biases missing", "tensor-missing",
              configure(attention_bias=True)),
    DraftCase("NaN in a norm", "tensor-finite", poisoned),
    DraftCase("a norm all zeros", "tensor-finite",
              put("midlayer.hidden_norm.weight", lambda draft: bf16(np.zeros(width(draft))))),
    DraftCase("heads do not divide the hidden size", "heads",
              both(without("head_dim"), configure(num_attention_heads=7))),
    # layers
    DraftCase("two ids at the top level", "layers-counted", configure(**{LAYER_IDS: [2, 5]})),
    DraftCase("four ids at the top level, fc for four", "layers-counted",
              both(wider(4), configure(**{LAYER_IDS: [2, 4, 5, 6]}))),
    DraftCase("id out of range", "layers-exist", configure(eagle_config={LAYER_IDS: [2, 4, 99]})),
    DraftCase("id twice", "layers-distinct", configure(eagle_config={LAYER_IDS: [2, 4, 4]})),
    DraftCase("ids descending", "layers-ascending", backwards, severity="warning"),
    DraftCase("ids contradict each other", "layers-agree",
              configure(eagle_config={LAYER_IDS: [2, 4, 5]}, **{LAYER_IDS: [0, 1, 8]}),
              severity="warning"),
    DraftCase("default ids, six-layer target", "layers-distinct", change_target=six_layers),
    # target and vocabulary
    DraftCase("made for a narrower target", "target-width", configure(target_hidden_size=128)),
    DraftCase("smaller vocabulary than the target", "vocabulary", smaller_vocabulary),
    DraftCase("reduced vocabulary, d2t missing", "map-needed", both(reduced, drop("d2t", "t2d")),
              beside=REDUCED),
    DraftCase("d2t there, draft_vocab_size absent", "map-needed",
              both(reduced, without("draft_vocab_size")), beside=REDUCED),
    DraftCase("d2t holds target ids", "map-values",
              map_changed(lambda offsets: offsets + np.arange(len(offsets))), beside=REDUCED),
    DraftCase("d2t all zeros", "map-values", map_changed(np.zeros_like), severity="warning",
              beside=REDUCED),
    DraftCase("draft reaches 64 positions", "positions", configure(max_position_embeddings=64),
              severity="warning"),
    DraftCase("rope_theta contradicts rope_parameters", "rope",
              configure(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
              severity="warning"),
    DraftCase("narrower than the target, embedding missing", "embedding",
              both(narrower, drop("embed_tokens")), beside="-"),
    DraftCase("fc for two states", "fc-width", cut_fc(256, 2)),
    DraftCase("fc with too few rows", "fc-rows", cut_fc(128, AUX)),
    DraftCase("hidden_size absent", "sizes", without("hidden_size")),
    DraftCase("architecture unknown", "architecture", configure(architectures=["GPT2LMHeadModel"])),
    DraftCase("draft is the target", "draft-is-target", draft_is_target=True),
    DraftCase("a whole model as EAGLE 3", "method-mismatch", whole_model),
    DraftCase("EAGLE 1 as EAGLE 3", "method-mismatch", eagle1),
    # settings
    DraftCase("method absent", "method-absent", settings={"method": None}),
    DraftCase("method eagle3.1", "method-unknown", settings={"method": "eagle3.1"}),
    DraftCase("K = 0", "depth", settings={"num_speculative_tokens": 0}),
    DraftCase("K absent", "depth", settings={"num_speculative_tokens": None}),
    DraftCase("key of the settings misspelt", "setting-unknown",
              settings={"num_spec_tokens": 3}),
    DraftCase("draft TP 3 of 2", "draft-parallelism", settings={"draft_tensor_parallel_size": 3},
              tensor_parallel_size=2),
    DraftCase(
        "one head over 2 ranks",
        "sharding",
        one_head,
        tensor_parallel_size=2,
    ),
    DraftCase("parallel drafting without its mask", "parallel-hidden",
              settings={"parallel_drafting": True}),
    DraftCase("no draft named", "draft-absent", settings={"model": None}),
    DraftCase("draft's length above its own", "draft-length", settings={"max_model_len": 9999}),
    DraftCase("acceptance by dice", "lossy",
              settings={"rejection_sample_method": "synthetic",
                        "synthetic_acceptance_length": 2.5}, severity="warning"),
    DraftCase("FLy before it came", "acceptance-method",
              settings={"rejection_sample_method": "fly"}),
    DraftCase("n-gram window upside down", "lookup-window",
              settings={"model": None, "method": "ngram", "prompt_lookup_min": 5,
                        "prompt_lookup_max": 3}),
    # other methods
    DraftCase("draft model with another vocabulary", "same-vocabulary", smaller_model,
              {"method": "draft_model"}),
    DraftCase("EAGLE 1 for a narrower target", "same-width",
              both(eagle1, configure(hidden_size=128, head_dim=32, num_attention_heads=4)),
              {"method": "eagle"}, beside="-"),
    DraftCase("EAGLE 1 without fc", "eagle-fc", both(eagle1, drop("fc.weight")),
              {"method": "eagle"}, beside="-"),
    DraftCase("MTP on a target without MTP layers", "mtp-layers",
              settings={"model": None, "method": "mtp"},
              change_target=configure(num_nextn_predict_layers=0)),
    # speculators format
    DraftCase("P-EAGLE without its mask token", "parallel-mask",
              speculators(speculators_model_type="peagle")),
    DraftCase("speculators: fc_norm in the inner config", "key-misplaced",
              speculators(inner={"fc_norm": True}, fc_norm=ABSENT), severity="warning"),
    DraftCase("speculators: norm_before_residual absent", "residual-default",
              both(loud_norm, speculators(norm_before_residual=ABSENT)), severity="warning"),
    DraftCase("norm_before_fc in an MLA draft", "mla-norm",
              both(latent, configure(norm_before_fc=True),
                   put("input_norm.weight", lambda draft: ones(AUX * width(draft)))),
              change_target=latent_target, beside=MLA),
    # files
    DraftCase("folder absent", "folder-absent", absent),
    DraftCase("config.json absent", "config-absent", set_text("")),
    DraftCase("config.json cut", "config-malformed", set_text('{"architectures": [')),
    DraftCase("no weights", "weights-absent", weightless),
    DraftCase("weights are an LFS pointer", "weights-lfs-pointer", weights_as(LFS)),
    DraftCase("weights cut", "weights-truncated", truncated),
    DraftCase("weights are not safetensors", "weights-malformed", weights_as(b"\xff" * 4096)),
    DraftCase("a shard is missing", "weights-shard-absent", without_shard),
)  # fmt: skip


UNDECIDED = (
    DraftCase("rope_theta consistently wrong", "rope",
              configure(rope_theta=500.0,
                        rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
              severity="note"),
    DraftCase("weights of another training", None, shuffled_head),
    DraftCase("a target that reads images", "images", severity="note",
              change_target=configure(vision_config={"hidden_size": 64})),
)  # fmt: skip
"""Wrong drafts that no file gives away: only acceptance shows them."""
