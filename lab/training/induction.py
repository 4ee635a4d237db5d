"""An induction circuit as initial weights, so that the model copies before any training.

Layer 0 finds the previous token and the one before it, through RoPE phases on a constant input
coordinate, and writes part of their codes into reserved coordinates. Layer 1 looks for earlier
places with the same recent tokens (two, or one) and writes the code of the token there, which the
head reads. Training then has to learn only when to copy.

The residual stream: [0] constant, [1:SLOTS] random token code, [SLOTS:] the two previous tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eaglegate.lab.training.llama import Attention, Llama

SCALE = 0.05
SLOT = 32
FIRST_READ = 65
"""First code coordinate that layer 1 copies and the head reads."""
LOOK_BACK = (2.2, 1.6, 1.1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Strengths of the RoPE pairs, fastest first, with which layer 0 finds its position."""
MATCH_ONE, MATCH_TWO = 2.0, 2.6


@torch.no_grad()
def wire(model: Llama, seed: int = 3) -> None:
    """Overwrite the embeddings and the attention of layers 0 and 1."""
    slots = model.shape.hidden_size - 2 * SLOT
    generator = torch.Generator().manual_seed(seed)
    code = model.embed_tokens.weight
    code.normal_(0, SCALE, generator=generator)
    code[:, 0] = 4 * SCALE
    code[:, slots:] = 0
    copy_attention, match_attention = model.layers[0].self_attn, model.layers[1].self_attn
    assert isinstance(copy_attention, Attention) and isinstance(match_attention, Attention)
    for distance in (1, 2):
        look_back(model, copy_attention, distance, slots + (distance - 1) * SLOT)
    for group in range(match_attention.groups):
        match(match_attention, group, slots)
    model.lm_head.weight[:, FIRST_READ:slots] += code[:, FIRST_READ:slots] * (0.012 / SCALE)


def frequencies(model: Llama) -> Tensor:
    size = model.shape.head_dim
    return 1.0 / (model.shape.rope_theta ** (torch.arange(0, size, 2).double() / size))


def query_heads(attention: Attention, group: int) -> list[int]:
    share = attention.heads // attention.groups
    return list(range(group * share, (group + 1) * share))


def look_back(model: Llama, attention: Attention, distance: int, slot: int) -> None:
    """Make key/value group `back - 1` attend to the position `back` before and copy its code."""
    size, group = attention.size, distance - 1
    strength = torch.zeros(size // 2)
    strength[: len(LOOK_BACK)] = torch.tensor(LOOK_BACK)
    phase = frequencies(model) * distance
    place_phase(attention.k_proj.weight, group * size, strength, phase)
    attention.v_proj.weight[group * size : (group + 1) * size] = 0
    places = torch.arange(SLOT)
    attention.v_proj.weight[group * size + places, 1 + places] = 1
    for head in query_heads(attention, group):
        place_phase(attention.q_proj.weight, head * size, strength, torch.zeros(size // 2))
        attention.o_proj.weight[:, head * size : (head + 1) * size] = 0
        share = 0.6 * SCALE * 2 / len(query_heads(attention, group))
        attention.o_proj.weight[slot + places, head * size + places] = share


def place_phase(weight: Tensor, row: int, strength: Tensor, phase: Tensor) -> None:
    half = len(strength)
    weight[row : row + 2 * half] *= 0.3
    weight[row : row + half, 0] = (strength * phase.cos()).float()
    weight[row + half : row + 2 * half, 0] = (strength * phase.sin()).float()


def match(attention: Attention, group: int, slots: int) -> None:
    """Make the first half of the groups match two tokens of context, the others one."""
    size = attention.size
    for head in query_heads(attention, group):
        attention.q_proj.weight[head * size : (head + 1) * size] *= 0.3
    attention.k_proj.weight[group * size : (group + 1) * size] *= 0.3
    half = size // 2
    dims = torch.arange(half * 3 // 8, half)
    dims = torch.cat([dims, dims + half])
    if group < attention.groups // 2:
        match_two(attention, group, slots, dims)
    else:
        match_one(attention, group, slots, dims[-SLOT:])
    copy_code(attention, group, slots)


def match_one(attention: Attention, group: int, slots: int, dims: Tensor) -> None:
    """Put the token before a place into its key, and the current token into the query."""
    code, row = torch.arange(len(dims)), group * attention.size
    attention.k_proj.weight[row + dims, slots + code] = MATCH_ONE
    for head in query_heads(attention, group):
        attention.q_proj.weight[head * attention.size + dims, 1 + code] = MATCH_ONE


def match_two(attention: Attention, group: int, slots: int, dims: Tensor) -> None:
    first_dims, second_dims = dims[::2], dims[1::2]
    offset = (SLOT - len(first_dims)) * (group % 2)
    code, row = offset + torch.arange(len(first_dims)), group * attention.size
    attention.k_proj.weight[row + first_dims, slots + code] = MATCH_TWO
    attention.k_proj.weight[row + second_dims, slots + SLOT + code] = MATCH_TWO
    for head in query_heads(attention, group):
        query = attention.q_proj.weight[head * attention.size : (head + 1) * attention.size]
        query[first_dims, 1 + code] = MATCH_TWO
        query[second_dims, slots + code] = MATCH_TWO


def copy_code(attention: Attention, group: int, slots: int) -> None:
    """Copy a slice of the attended place's code into the same coordinates."""
    size = attention.size
    slices = -(-(slots - FIRST_READ) // size)
    start = FIRST_READ + group % slices * size
    places = torch.arange(min(size, slots - start))
    attention.v_proj.weight[group * size : (group + 1) * size] = 0
    attention.v_proj.weight[group * size + places, start + places] = 1
    for head in query_heads(attention, group):
        attention.o_proj.weight[:, head * size : (head + 1) * size] = 0
        attention.o_proj.weight[start + places, head * size + places] = 1.2 * SCALE
