"""Other kinds of drafts, and files that are no whole draft."""

from __future__ import annotations

import json
import struct

import numpy as np

from tests.engine.speculation.draft_changes import drop
from tests.engine.speculation.draft_folder import (
    AUX,
    DEMO,
    LAYER_IDS,
    Array,
    Change,
    Folder,
    bf16,
    noise,
    ones,
    read_folder,
    width,
)


def qwen3(draft: Folder) -> None:
    draft.config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    for name in ("q_norm", "k_norm"):
        draft.tensors[f"midlayer.self_attn.{name}.weight"] = ones(draft.config["head_dim"])


LATENT = {
    "q_lora_rank": 64, "kv_lora_rank": 512,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32,
}  # fmt: skip
"""512 + 64 is the only latent width vLLM's CPU kernel has."""


def latent_attention(folder: Folder, prefix: str, taken: int) -> None:
    """Replace the attention of every layer by MLA with random weights."""
    hidden, heads = width(folder), int(folder.config["num_attention_heads"])
    drop("self_attn")(folder)
    folder.config |= {**LATENT, "num_key_value_heads": heads}
    folder.config.pop("head_dim")
    made = {
        "q_a_proj": noise(64, taken),
        "q_a_layernorm": ones(64),
        "q_b_proj": noise(heads * 96, 64),
        "kv_a_proj_with_mqa": noise(576, taken),
        "kv_a_layernorm": ones(512),
        "kv_b_proj": noise(heads * 64, 512),
        "o_proj": noise(hidden, heads * 32),
    }
    for layer in range(folder.config["num_hidden_layers"]):
        for name, array in made.items():
            folder.tensors[f"{prefix.format(layer)}self_attn.{name}.weight"] = array


def latent(draft: Folder) -> None:
    """An MLA draft like Kimi's: random, and right in its form."""
    draft.config |= {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "eagle_config": {LAYER_IDS: [1, 4, 6], "use_aux_hidden_state": True},
    }
    latent_attention(draft, "midlayer.", 2 * width(draft))


def latent_target(target: Folder) -> None:
    """A target like DeepSeek's in its attention, random."""
    latent_attention(target, "model.layers.{}.", target.config["hidden_size"])
    layers = target.config["num_hidden_layers"]
    target.config |= {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "first_k_dense_replace": layers,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    }


def eagle1(draft: Folder) -> None:
    """An EAGLE draft as of the first paper: fc over embedding and last state."""
    hidden = width(draft)
    drop("midlayer", "fc", "lm_head", "norm")(draft)
    for key in ("fc_norm", "norm_output", "draft_vocab_size"):
        draft.config.pop(key)
    draft.config["architectures"] = ["LlamaForCausalLM"]
    wide = draft.config["intermediate_size"]
    keys = draft.config["num_key_value_heads"] * draft.config["head_dim"]
    for name, shape in {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }.items():
        draft.tensors[f"layers.0.{name}.weight"] = noise(*shape)
    draft.tensors["layers.0.post_attention_layernorm.weight"] = ones(hidden)
    draft.tensors["fc.weight"] = noise(hidden, 2 * hidden)


def own_embedding(draft: Folder) -> None:
    target = read_folder(DEMO / "target")
    draft.tensors["embed_tokens.weight"] = target.tensors["model.embed_tokens.weight"]


def narrower(draft: Folder) -> None:
    """Make the draft half as wide as the target, with random weights and an embedding of its
    own."""
    full, half = width(draft), width(draft) // 2
    draft.config |= {"hidden_size": half, "target_hidden_size": full}
    own_embedding(draft)
    size = {full: half, 2 * full: full}
    for name, array in draft.tensors.items():
        if name.startswith("fc_norm"):
            continue
        shape = [size.get(one, one) for one in array.data.shape]
        if "q_proj" in name or "k_proj" in name or "v_proj" in name:
            shape[0] = array.data.shape[0]
        elif "o_proj" in name:
            shape[1] = array.data.shape[1]
        elif "gate_proj" in name or "up_proj" in name:
            shape = [array.data.shape[0], half]
        elif "down_proj" in name:
            shape = [half, array.data.shape[1]]
        elif name == "fc.weight":
            shape = [half, AUX * full]
        draft.tensors[name] = noise(*shape) if len(shape) > 1 else ones(*shape)


def smaller_vocabulary(draft: Folder) -> None:
    own_embedding(draft)
    small = int(draft.config["vocab_size"]) // 2
    draft.config |= {"vocab_size": small, "draft_vocab_size": small}
    for name in ("embed_tokens.weight", "lm_head.weight"):
        draft.tensors[name] = Array("BF16", draft.tensors[name].data[:small])


def smaller_model(draft: Folder) -> None:
    """A complete model that knows half of the target's ids."""
    whole_model(draft)
    small = int(draft.config["vocab_size"]) // 2
    draft.config["vocab_size"] = small
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        draft.tensors[name] = Array("BF16", draft.tensors[name].data[:small])


def six_layers(target: Folder) -> None:
    target.config["num_hidden_layers"] = 6
    drop("layers.6.", "layers.7.")(target)


def whole_model(draft: Folder) -> None:
    target = read_folder(DEMO / "target")
    draft.config, draft.tensors = target.config, target.tensors


def weights_as(data: bytes, name: str = "model.safetensors") -> Change:
    def change(draft: Folder) -> None:
        draft.weights = False
        draft.files[name] = data

    return change


def truncated(draft: Folder) -> None:
    name = "fc.weight"
    header = {name: {"dtype": "BF16", "shape": [256, 768], "data_offsets": [0, 393216]}}
    text = json.dumps(header).encode()
    weights_as(struct.pack("<Q", len(text)) + text + b"\0" * 1000)(draft)


def without_shard(draft: Folder) -> None:
    index = {"weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}
    draft.files["model.safetensors.index.json"] = json.dumps(index).encode()


def set_text(text: str) -> Change:
    def change(draft: Folder) -> None:
        draft.config_text = text

    return change


def absent(draft: Folder) -> None:
    draft.exists = False


def weightless(draft: Folder) -> None:
    draft.weights = False


def in_shards(draft: Folder) -> None:
    draft.shards = 2


def gptq(draft: Folder) -> None:
    """Names and kinds of a four-bit GPTQ export, values random."""
    draft.config["quantization_config"] = {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
    }  # fmt: skip
    numbers = np.random.default_rng(0)
    for name in [n for n in draft.tensors if n.startswith("midlayer") and "_proj" in n]:
        rows, columns = draft.tensors.pop(name).data.shape
        stem, groups = name.removesuffix("weight"), columns // 128
        draft.tensors |= {
            f"{stem}qweight": Array(
                "I32", numbers.integers(0, 2**31, (columns // 8, rows)).astype(np.int32)
            ),
            f"{stem}qzeros": Array("I32", np.full((groups, rows // 8), 0x77777777, np.int32)),
            f"{stem}scales": bf16(np.full((groups, rows), 0.01)),
            f"{stem}g_idx": Array("I32", (np.arange(columns) // 128).astype(np.int32)),
        }


def one_head(draft: Folder) -> None:
    draft.config |= {"num_attention_heads": 1, "num_key_value_heads": 1}
    hidden, dim = width(draft), draft.config["head_dim"]
    for name, shape in {
        "q_proj": (dim, 2 * hidden),
        "k_proj": (dim, 2 * hidden),
        "v_proj": (dim, 2 * hidden),
        "o_proj": (hidden, dim),
    }.items():
        draft.tensors[f"midlayer.self_attn.{name}.weight"] = noise(*shape)


def second_layer(draft: Folder) -> None:
    for name, array in list(draft.tensors.items()):
        if name.startswith("midlayer.mlp."):
            draft.tensors[name.replace("midlayer", "layers.1")] = array


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 2888672\n"
