"""Tiny drafts of every method, made for the demo's target; most have random weights.

``ROWS`` are the methods that a CPU runs, ``READ`` those that only a GPU runs or nothing runs.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eaglegate.engine.vllm_backend.arguments import DEMO
from tests.engine.speculation.draft_folder import read_folder
from tests.engine.speculation.draft_kinds import eagle1

PAGE = Path(__file__).parents[3] / "docs" / "methods.md"
PACKAGES = Path(__file__).parents[3] / ".drafters"
"""Folder where ``make install-dev`` puts the packages of lookup methods."""
TARGET, EAGLE3, EAGLE31 = DEMO / "target", DEMO / "eagle3", DEMO / "eagle3_1"
HIDDEN, WIDE, VOCABULARY, HEADS, HEAD = 256, 512, 2048, 4, 64
MASK = 5
"""Token that stands for a position to be drafted in parallel."""
Tensors = dict[str, torch.Tensor]
Arguments = dict[str, Any]
"""Arguments of an engine: ``speculative_config``, and the model where it is not the demo's."""


@dataclass(frozen=True)
class MethodRow:
    """A method that is run: ``make`` writes its draft into a folder and returns the arguments."""

    title: str
    method: str
    make: Callable[[Path], Arguments]
    draft: str
    parallel: bool = False
    accepts: bool = False
    """Some drafts are accepted for certain."""
    package: str = ""
    """A module that vLLM needs for it, and that ``make install-dev`` brings."""
    exchanges: bool = False
    """Another draft may take its place while the engine serves."""

    @property
    def is_installed(self) -> bool:
        path = [*sys.path, str(PACKAGES)]
        return not self.package or PathFinder.find_spec(self.package, path) is not None


@dataclass(frozen=True)
class ReadRow:
    """A method that is only read: ``source`` of vLLM holds ``words``."""

    title: str
    method: str
    source: str
    words: str
    finding: str


def ngram(_: Path) -> Arguments:
    return speculate("ngram", 4, prompt_lookup_max=3)


def suffix(_: Path) -> Arguments:
    return speculate("suffix", 6)


def draft_model(_: Path) -> Arguments:
    return speculate("draft_model", 3, model=str(TARGET))


def pard(folder: Path) -> Arguments:
    config = json.loads((TARGET / "config.json").read_text()) | {"pard_token": MASK}
    write(folder, config, load_file(TARGET / "model.safetensors"))
    return speculate("draft_model", 7, model=str(folder), parallel_drafting=True)


def eagle_3(_: Path) -> Arguments:
    return speculate("eagle3", 3, model=str(EAGLE3))


def eagle_31(_: Path) -> Arguments:
    return speculate("eagle3", 3, model=str(EAGLE31))


def eagle_1(folder: Path) -> Arguments:
    draft = read_folder(EAGLE31)
    eagle1(draft)
    draft.write(folder)
    return speculate("eagle", 3, model=str(folder))


def p_eagle(folder: Path) -> Arguments:
    config = json.loads((EAGLE3 / "config.json").read_text()) | {"ptd_token_id": MASK}
    tensors = load_file(EAGLE3 / "model.safetensors")
    write(folder, config, tensors | {"mask_hidden": torch.zeros(1, 3 * HIDDEN)})
    return speculate("eagle3", 4, model=str(folder), parallel_drafting=True)


def medusa(folder: Path) -> Arguments:
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "medusa_num_heads": 4,
        "medusa_num_layers": 1,
        "torch_dtype": "float32",
    }
    shapes = {f"lm_heads.{at}.weight": (VOCABULARY, HIDDEN) for at in range(4)}
    shapes |= {f"blocks.{at}.layers.0.weight": (HIDDEN, HIDDEN) for at in range(4)}
    shapes |= {f"blocks.{at}.layers.0.bias": (HIDDEN,) for at in range(4)}
    write(folder, config, draw(shapes))
    return speculate("medusa", 4, model=str(folder))


def mtp(folder: Path) -> Arguments:
    """The demo's target as a MiMo: a Qwen 2 with biases of zero, and one layer that drafts."""
    config = json.loads((TARGET / "config.json").read_text())
    config |= {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
    }
    tensors = load_file(TARGET / "model.safetensors")
    layers = range(config["num_hidden_layers"])
    tensors |= make_biases(f"model.layers.{at}.self_attn" for at in layers)
    layer = "model.mtp_layers.0"
    tensors |= draw(
        {f"{layer}.{name}": shape for name, shape in layer_shapes().items()}
        | {f"{layer}.{name}_layernorm.weight": (HIDDEN,) for name in ("token", "hidden", "final")}
        | {f"{layer}.input_proj.weight": (HIDDEN, 2 * HIDDEN)}
    )
    tensors |= make_biases([f"{layer}.self_attn"])
    write(folder, config, tensors)
    for file in TARGET.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            shutil.copy(file, folder / file.name)
    return {"model": str(folder), **speculate("mtp", 2)}


def dflash(folder: Path) -> Arguments:
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "block_size": 5,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 5]},
        "torch_dtype": "float32",
    }
    shapes = {f"layers.0.{name}": shape for name, shape in layer_shapes().items()}
    shapes |= {f"layers.0.self_attn.{name}_norm.weight": (HEAD,) for name in "qk"}
    shapes |= {"norm.weight": (HIDDEN,), "hidden_norm.weight": (HIDDEN,)}
    shapes |= {"fc.weight": (HIDDEN, 3 * HIDDEN)}
    write(folder, config, draw(shapes))
    return speculate("dflash", 4, model=str(folder))


def custom_class(_: Path) -> Arguments:
    name = f"{__name__}.LastTokenProposer"
    return speculate("custom_class", 3, model=name)


class LastTokenProposer:
    """A proposer of a user's own, for ``custom_class``: each request's last token, K times."""

    def __init__(self, vllm_config: Any) -> None:
        self._depth = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[tokens[-1]] * self._depth if tokens else [] for tokens in sampled_token_ids]

    def load_model(self, *_: Any, **__: Any) -> None:
        """vLLM calls it for every proposer."""


def speculate(method: str, depth: int, **more: Any) -> Arguments:
    return {"speculative_config": {"method": method, "num_speculative_tokens": depth, **more}}


def layer_shapes() -> dict[str, tuple[int, ...]]:
    """A decoder layer's tensors by their names in it."""
    projections = {f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
    norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
    return {
        **projections,
        **dict.fromkeys(norms, (HIDDEN,)),
        "mlp.gate_proj.weight": (WIDE, HIDDEN),
        "mlp.up_proj.weight": (WIDE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, WIDE),
    }


def draw(shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Random matrices; norms of one, biases of zero."""
    draws = torch.Generator().manual_seed(1)

    def make(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        return torch.randn(shape, generator=draws) * shape[-1] ** -0.5

    return {name: make(name, shape) for name, shape in shapes.items()}


def make_biases(attentions: Iterator[str] | list[str]) -> Tensors:
    names = [f"{attention}.{name}_proj.bias" for attention in attentions for name in "qkv"]
    return {name: torch.zeros(HIDDEN) for name in names}


def write(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors", {"format": "pt"})  # fmt: skip


ROWS = (
    MethodRow("EAGLE 3.1", "eagle3", eagle_31, "the demo's", accepts=True, exchanges=True),
    MethodRow("EAGLE 3", "eagle3", eagle_3, "the demo's", accepts=True, exchanges=True),
    MethodRow("EAGLE", "eagle", eagle_1, "random weights"),
    MethodRow("P-EAGLE", "eagle3", p_eagle, "the demo's EAGLE 3, masks untrained", True,
              accepts=True),
    MethodRow("MTP", "mtp", mtp, "random weights, in a MiMo"),
    MethodRow("draft model", "draft_model", draft_model, "the target itself", accepts=True),
    MethodRow("PARD", "draft_model", pard, "the target itself, mask untrained", True,
              accepts=True),
    MethodRow("n-gram", "ngram", ngram, "none", accepts=True, package="numba"),
    MethodRow("suffix", "suffix", suffix, "none", accepts=True, package="arctic_inference"),
    MethodRow("Medusa", "medusa", medusa, "random weights"),
    MethodRow("DFlash", "dflash", dflash, "random weights"),
    MethodRow("custom class", "custom_class", custom_class, "the last token, K times"),
)  # fmt: skip
READ = (
    ReadRow(
        "DSpark", "dspark", "config/vllm.py", 'unsupported.append("dspark speculative decoding")',
        "only the second model runner has it; it drafts a block of K tokens in one pass",
    ),
    ReadRow(
        "DFlash 2, LiLiCorr", "dflash", "v1/worker/gpu/spec_decode/__init__.py",
        "return DFlash2Speculator(vllm_config, device)",
        "only the second model runner has their heads; they draft a block of K tokens in one pass",
    ),
    ReadRow(
        "n-gram on the GPU", "ngram_gpu", "v1/spec_decode/ngram_proposer_gpu.py",
        "assert num_speculative_tokens == self.k",
        "keeps its own copy of the text in pinned memory, which needs a GPU",
    ),
    ReadRow(
        "MLP speculator", "mlp_speculator", "model_executor/models/registry.py",
        '# "MLPSpeculatorPreTrainedModel"',
        "vLLM knows its configuration and has neither a model nor a proposer for it",
    ),
    ReadRow(
        "hidden-state extraction", "extract_hidden_states",
        "v1/worker/gpu/spec_decode/extract_hidden_states.py",
        "extract_hidden_states requires num_speculative_tokens to be 1",
        "no drafter: it writes hidden states to files",
    ),
)  # fmt: skip
