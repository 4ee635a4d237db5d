"""Folders with the config.json facts and tensor sizes of real models, that take no disk space.

Weights are sparse files: a true safetensors header over a hole of the true length.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"BF16": 2, "F16": 2, "U8": 1, "I64": 8, "BOOL": 1, "F8_E4M3": 1}
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def write_sparse(file: Path, tensors: Tensors, values: Mapping[str, bytes] | None = None) -> None:
    header, position = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = position + SIZES[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + position)
        for name, data in (values or {}).items():
            stream.seek(8 + len(text) + header[name]["data_offsets"][0])
            stream.write(data)


def write_model(where: Path, config: Mapping[str, Any], tensors: Tensors, **values: bytes) -> Path:
    where.mkdir(parents=True)
    (where / "config.json").write_text(json.dumps(config))
    write_sparse(where / "model.safetensors", tensors, values)
    (where / "tokenizer.json").write_text("{}")
    return where


def norms(*names: str, size: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {f"{name}.weight": ("BF16", (size,)) for name in names}


def filled(size: int) -> bytes:
    """A bfloat16 vector of ones."""
    return np.full(size, 0x3F80, np.uint16).tobytes()


YARN = {
    "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


def kimi(where: Path) -> Path:
    """A target like Kimi-K2.6 in NVFP4: MLA, 61 layers of 384 experts, about 550 GiB."""
    text = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2",
        "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64,
        "n_routed_experts": 384, "num_experts_per_tok": 8, "vocab_size": 163840,
        "max_position_embeddings": 262144, "rope_theta": 50000.0, "rope_scaling": YARN,
        "num_nextn_predict_layers": 0, "dtype": "bfloat16", **LATENT,
    }  # fmt: skip
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        "text_config": text,
    }  # fmt: skip
    tensors = {"language_model.model.experts.weight": ("U8", (61, 384, 3, 2048, 7168 // 2))}
    tensors["language_model.model.experts.weight_scale"] = (
        "F8_E4M3", (61, 384, 3, 2048, 7168 // 16)
    )  # fmt: skip
    tensors["language_model.model.embed_tokens.weight"] = ("BF16", (163840, 7168))
    tensors["language_model.lm_head.weight"] = ("BF16", (163840, 7168))
    return write_model(where, config, tensors)


def kimi_draft(where: Path) -> Path:
    """An EAGLE 3.1 draft for it: MLA, three captured layers, the full vocabulary."""
    hidden = 7168
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2",
        "hidden_size": hidden, "intermediate_size": 18432, "num_hidden_layers": 1,
        "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
        "draft_vocab_size": 163840, "max_position_embeddings": 262144, "rope_theta": 50000.0,
        "rope_scaling": YARN, "torch_dtype": "bfloat16", "fc_norm": True, "norm_output": True,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [1, 29, 57], "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        },
        **LATENT,
    }  # fmt: skip
    names = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors = norms(*(f"layers.0.{name}" for name in names), "norm", size=hidden)
    tensors |= norms("fc_norm.0", "fc_norm.1", "fc_norm.2", size=hidden)
    tensors |= norms("layers.0.self_attn.q_a_layernorm", size=1536)
    tensors |= norms("layers.0.self_attn.kv_a_layernorm", size=512)
    matrices = {
        "fc": (hidden, 3 * hidden), "embed_tokens": (163840, hidden),
        "lm_head": (163840, hidden), "layers.0.self_attn.q_a_proj": (1536, 2 * hidden),
        "layers.0.self_attn.q_b_proj": (64 * 192, 1536),
        "layers.0.self_attn.kv_a_proj_with_mqa": (512 + 64, 2 * hidden),
        "layers.0.self_attn.kv_b_proj": (64 * 256, 512),
        "layers.0.self_attn.o_proj": (hidden, 64 * 128),
        "layers.0.mlp.gate_proj": (18432, hidden), "layers.0.mlp.up_proj": (18432, hidden),
        "layers.0.mlp.down_proj": (hidden, 18432),
    }  # fmt: skip
    values = {name: filled(shape[0]) for name, (_, shape) in tensors.items()}
    tensors |= {f"{name}.weight": ("BF16", shape) for name, shape in matrices.items()}
    return write_model(where, config, tensors, **values)


def llama_70b(where: Path) -> Path:
    """A target like Llama 3.3 70B Instruct, about 131 GiB."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
        "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rope_theta": 500000.0, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    }  # fmt: skip
    layer = 8192 * (8192 * 2 + 1024 * 2 + 28672 * 3)
    tensors = {"model.layers.weight": ("BF16", (80, layer))}
    tensors["model.embed_tokens.weight"] = ("BF16", (128256, 8192))
    tensors["lm_head.weight"] = ("BF16", (128256, 8192))
    return write_model(where, config, tensors)
