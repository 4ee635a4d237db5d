"""EAGLE 3 and EAGLE 3.1 draft heads in vLLM's checkpoint layout, and their unrolling in training.

The head is one layer. At row r it reads the target's hidden states at position r and the embedding
of token r + 1, and predicts token r + 2. At greater depths it reads its own last hidden state
instead of the target's. EAGLE 3 feeds back the residual sum. EAGLE 3.1 norms the target's states
before `fc` (`fc_norm`) and feeds back the normed output (`norm_output`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eaglegate.lab.training.llama import Mlp, Norm, Rope

METHODS = ("eagle3", "eagle3.1")


@dataclass(frozen=True)
class DraftShape:
    """Properties that the head takes from its target, and the method."""

    method: str
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    layers_read: tuple[int, ...]
    """Hidden states of the target that the draft reads: 0 is the embedding, i follows layer i."""
    default_layers: bool
    eos_token_id: Any = None
    bos_token_id: Any = None

    @property
    def is_stable(self) -> bool:
        """True for EAGLE 3.1, with normed inputs and normed feedback."""
        return self.method == "eagle3.1"

    def config(self, dtype: str) -> dict[str, Any]:
        """Return the `config.json` of the checkpoint."""
        exclusions = ("method", "layers_read", "default_layers")
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **{name: item for name, item in vars(self).items() if name not in exclusions},
            "num_hidden_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": dtype,
        }
        if not self.default_layers:
            config["eagle_aux_hidden_state_layer_ids"] = list(self.layers_read)
        if self.is_stable:
            config |= {"fc_norm": True, "norm_output": True}
        return config


class DraftAttention(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.heads, self.groups = shape.num_attention_heads, shape.num_key_value_heads
        self.size = shape.head_dim
        wide = 2 * shape.hidden_size
        self.q_proj = nn.Linear(wide, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(wide, self.groups * self.size, bias=False)
        self.v_proj = nn.Linear(wide, self.groups * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, shape.hidden_size, bias=False)

    def query(self, x: Tensor, rope: Rope) -> Tensor:
        return rope.rotate(self.split(self.q_proj(x), self.heads))

    def key(self, x: Tensor, rope: Rope) -> Tensor:
        return self.repeat_groups(rope.rotate(self.split(self.k_proj(x), self.groups)))

    def value(self, x: Tensor) -> Tensor:
        return self.repeat_groups(self.split(self.v_proj(x), self.groups))

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def repeat_groups(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.heads // self.groups, 1)


class Midlayer(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.self_attn = DraftAttention(shape)
        self.mlp = Mlp(size, shape.intermediate_size)
        self.input_layernorm = Norm(size, eps)
        self.hidden_norm = Norm(size, eps)
        self.post_attention_layernorm = Norm(size, eps)


class Draft(nn.Module):
    """Draft head. Tensor names are those of the checkpoint; the embedding is the target's."""

    def __init__(self, shape: DraftShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.midlayer = Midlayer(shape)
        self.fc = nn.Linear(len(shape.layers_read) * size, size, bias=False)
        if shape.is_stable:
            self.fc_norm = nn.ModuleList(Norm(size, eps) for _ in shape.layers_read)
        self.norm = Norm(size, eps)
        self.lm_head = nn.Linear(size, shape.draft_vocab_size, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02, generator=generator)

    def combine(self, states: list[Tensor]) -> Tensor:
        """Fuse the target's hidden states into one."""
        if self.shape.is_stable:
            states = [norm(state) for norm, state in zip(self.fc_norm, states, strict=True)]
        fused: Tensor = self.fc(torch.cat([state.float() for state in states], -1))
        return fused.float()

    def inputs(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        layer = self.midlayer
        return torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)

    def outputs(self, attention_output: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's input and the state that is fed back."""
        layer = self.midlayer
        x = hidden + attention_output.float()
        x = x + layer.mlp(layer.post_attention_layernorm(x)).float()
        output = self.norm(x)
        return output, output if self.shape.is_stable else x


NextTokens = Callable[[int, Tensor], Tensor]
"""Function from a finished depth and its normed output to the next token ids: [batch, rows]."""


def unroll(
    draft: Draft,
    embed: Callable[[Tensor], Tensor],
    states: list[Tensor],
    ids: Tensor,
    rows: Tensor,
    rope: Rope,
    depths: int,
    next_tokens: NextTokens,
) -> Iterator[Tensor]:
    """Speculate `depths` tokens from every row at once.

    Yield each depth's input of the output head: [batch, rows, hidden].

    states: the target's hidden states, [batch, length, hidden] each. ids: [batch, length]. rows:
    positions to speculate from, [batch, rows]. A row sees the context up to itself and its own
    speculated tokens, as in serving.
    """
    attention = draft.midlayer.self_attn
    length, scale = ids.shape[1], attention.size**-0.5
    fused = draft.combine(states)
    context = draft.inputs(embed(shifted(ids)), fused)
    keys, values = attention.key(context, rope[:length]), attention.value(context)
    hidden = pick(fused, rows)
    x = pick(context, rows)
    is_visible = torch.arange(length, device=ids.device) <= rows[..., None]
    bias = torch.zeros_like(is_visible, dtype=keys.dtype).masked_fill_(~is_visible, -1e30)[:, None]
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    for depth in range(depths):
        place = at_rows(rope, (rows + depth).clamp(max=len(rope.cos) - 1))
        query = attention.query(x, place) * scale
        if depth:
            own_keys.append(attention.key(x, place))
            own_values.append(attention.value(x))
        scores = [query @ keys.transpose(2, 3) + bias]
        scores += [(query * key).sum(-1, keepdim=True) for key in own_keys]
        weights = torch.cat(scores, -1).float().softmax(-1).to(values.dtype)
        mixture = weights[..., :length] @ values
        for i, value in enumerate(own_values):
            mixture = mixture + weights[..., length + i, None] * value
        features = mixture.transpose(1, 2).reshape(*rows.shape, -1)
        output, hidden = draft.outputs(attention.o_proj(features), hidden)
        yield output
        if depth + 1 < depths:
            x = draft.inputs(embed(next_tokens(depth, output)), hidden)


def shifted(ids: Tensor) -> Tensor:
    """Return token r + 1 at row r."""
    return torch.cat([ids[:, 1:], ids[:, -1:]], 1)


def pick(x: Tensor, rows: Tensor) -> Tensor:
    """Select rows: [batch, length, size] -> [batch, rows, size]."""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))


def at_rows(rope: Rope, positions: Tensor) -> Rope:
    """Return angles for [batch, rows] positions, broadcast over heads."""
    return Rope(rope.cos[positions][:, None], rope.sin[positions][:, None])


def known_tokens(ids: Tensor, rows: Tensor) -> NextTokens:
    """Return the tokens of the text itself, as in training."""

    def tokens(depth: int, _: Tensor) -> Tensor:
        return ids.gather(1, (rows + depth + 2).clamp(max=ids.shape[1] - 1))

    return tokens


def own_tokens(draft: Draft, target_ids: Tensor | None = None) -> NextTokens:
    """Return the draft's own greedy tokens, as in serving."""

    def tokens(_: int, output: Tensor) -> Tensor:
        guesses = draft.lm_head(output).argmax(-1)
        return guesses if target_ids is None else target_ids[guesses]

    return tokens
