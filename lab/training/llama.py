"""Small Llama, trained here and served by vLLM. Tensor names are those of the checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXPLICIT_UP_TO = 512
"""Length up to which explicit attention is faster on a CPU than the fused kernel."""


@dataclass(frozen=True)
class LlamaShape:
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 64
    rope_theta: float = 500_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096

    def config(self, dtype: str) -> dict[str, Any]:
        """Return the `config.json` of the checkpoint."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": dtype,
            "bos_token_id": None,
            "eos_token_id": 3,
            "pad_token_id": 0,
        }


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


@dataclass(frozen=True)
class Rope:
    """Cosines and sines by position: [positions, head_dim]."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def table(length: int, head_dim: int, theta: float, device: torch.device | str = "cpu") -> Rope:
        frequency = 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
        angle = torch.outer(torch.arange(length).float(), frequency)
        angles = torch.cat([angle, angle], -1).to(device)
        return Rope(angles.cos(), angles.sin())

    def __getitem__(self, index: slice | Tensor) -> Rope:
        return Rope(self.cos[index], self.sin[index])

    def rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rotation = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos.to(x.dtype) + rotation * self.sin.to(x.dtype)


@cache
def causal_bias(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((length, length), -1e30, dtype=dtype, device=device).triu(1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention over [batch, heads, length, head_dim] each."""
    length = q.shape[2]
    if q.is_cuda or length > EXPLICIT_UP_TO:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    return (scores + causal_bias(length, scores.dtype, q.device)).softmax(-1).to(v.dtype) @ v


class Attention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        heads, groups, size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.heads, self.groups, self.size = heads, groups, size
        self.q_proj = nn.Linear(shape.hidden_size, heads * size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, groups * size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, groups * size, bias=False)
        self.o_proj = nn.Linear(heads * size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        batch, length, _ = x.shape
        q = rope.rotate(self.split(self.q_proj(x), self.heads))
        k = rope.rotate(self.split(self.k_proj(x), self.groups))
        v = self.split(self.v_proj(x), self.groups)
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        mixture = causal_attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(mixture)

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.initialise()

    def initialise(self) -> None:
        output_std = 0.02 / (2 * self.shape.num_hidden_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = output_std if is_output else 0.01 if "lm_head" in name else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, ids: Tensor, rope: Rope) -> Tensor:
        """Return the final normed hidden states: [batch, length] -> [batch, length, hidden]."""
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)
