"""Write ``drafts.json``: a tiny draft of every type, as the speculators library itself makes it.

The library is no dependency of the project. Install it into a folder of its own, without what it
needs for training, and run this from the root of the repository:

    pip install --no-deps --target /tmp/speculators speculators==0.9.0
    PYTHONPATH=. python -m tests.engine.speculation.speculators_format.make /tmp/speculators

The file holds each draft's config.json, and dtype and shape of the tensors that the library saves.
"""

from __future__ import annotations

import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

OUT = Path(__file__).parent / "drafts.json"
FOR_TRAINING = ("datasets", "loguru", "hs_connectors", "typer", "click", "rich")
"""Packages that the library imports and its configs do not use."""
DTYPES = {"torch.float32": "BF16", "torch.int64": "I64", "torch.bool": "BOOL"}
TARGET = "engine/demo/target"
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
}  # fmt: skip
BLOCK = {"aux_hidden_state_layer_ids": [2, 4, 6], "mask_token_id": 7, "block_size": 8}


class Stubs(MetaPathFinder, Loader):
    """Finds an empty module for each package that only training needs."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in FOR_TRAINING
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: ModuleType = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""


def make_configs() -> dict[str, Any]:
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash.config import DFlashSpeculatorConfig
    from speculators.models.dflash2.config import DFlash2SpeculatorConfig
    from speculators.models.dspark.config import DSparkSpeculatorConfig
    from speculators.models.eagle3.config import Eagle3SpeculatorConfig
    from speculators.models.mtp.config import MTPSpeculatorConfig
    from speculators.models.peagle.config import PEagleSpeculatorConfig
    from speculators.models.xpress.config import XPressSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config, Qwen3NextConfig

    verifier = VerifierConfig(name_or_path=TARGET, architectures=["LlamaForCausalLM"])

    def name(algorithm: str, depth: int) -> Any:
        proposals = [GreedyTokenProposalConfig(speculative_tokens=depth)]
        return SpeculatorsConfig(
            algorithm=algorithm,
            proposal_methods=proposals,
            default_proposal_method="greedy",
            verifier=verifier,
        )

    def block(algorithm: str, depth: int = 7, **more: Any) -> dict[str, Any]:
        layer = Qwen3Config(**SIZES)
        return {
            "transformer_layer_config": layer,
            "draft_vocab_size": 2048,
            "speculators_config": name(algorithm, depth),
            **BLOCK,
            **more,
        }

    one = {**SIZES, "num_hidden_layers": 1}
    eagle = {"draft_vocab_size": 1024, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    hybrid = {**one, "num_experts": 4, "layer_types": ["full_attention"]}
    windows = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 512}
    return {
        "eagle3": Eagle3SpeculatorConfig(
            transformer_layer_config=LlamaConfig(**one), fc_norm=True, norm_output=True,
            speculators_config=name("eagle3", 3), **eagle),
        "eagle3, Qwen3-shaped": Eagle3SpeculatorConfig(
            transformer_layer_config=Qwen3Config(**one),
            speculators_config=name("eagle3", 3), **eagle),
        "eagle3, whole vocabulary": Eagle3SpeculatorConfig(
            transformer_layer_config=LlamaConfig(**one), norm_before_fc=True,
            speculators_config=name("eagle3", 3), **{**eagle, "draft_vocab_size": 2048}),
        "peagle": PEagleSpeculatorConfig(
            transformer_layer_config=LlamaConfig(**one), mask_token_id=7,
            speculators_config=name("peagle", 4), **eagle),
        "dflash": DFlashSpeculatorConfig(**block("dflash", draft_vocab_size=1024)),
        "dflash, whole vocabulary": DFlashSpeculatorConfig(**block("dflash")),
        "dflash, sliding windows": DFlashSpeculatorConfig(
            **block("dflash", transformer_layer_config=Qwen3Config(**SIZES, **windows,
                                                                   use_sliding_window=True))),
        "dflash2": DFlash2SpeculatorConfig(**block("dflash2", selector_rank=32)),
        "dspark": DSparkSpeculatorConfig(
            **block("dspark", 8, draft_vocab_size=1024, markov_rank=32)),
        "dspark, bonus anchor, no confidence head": DSparkSpeculatorConfig(
            **block("dspark", markov_rank=32, sample_from_anchor=False,
                    enable_confidence_head=False)),
        "dspark, gated": DSparkSpeculatorConfig(
            **block("dspark", 8, markov_rank=32, markov_head_type="gated")),
        "xpress": XPressSpeculatorConfig(**block("xpress", xpress_rank=32)),
        "mtp": MTPSpeculatorConfig(
            transformer_layer_config=Qwen3NextConfig(**hybrid),
            speculators_config=name("mtp", 3)),
    }  # fmt: skip


def describe(config: Any) -> dict[str, Any]:
    """The draft's config.json, and the tensors that ``save_pretrained`` would write."""
    from speculators import SpeculatorModel

    model = SpeculatorModel.registry[config.speculators_model_type](config=config)
    left_out = set(getattr(model, "_keys_to_ignore_on_save", ()))
    tensors = {
        name: [DTYPES[str(tensor.dtype)], list(tensor.shape)]
        for name, tensor in model.state_dict().items()
        if name not in left_out
    }
    return {"config": json.loads(config.to_json_string()), "tensors": tensors}


def main() -> None:
    sys.path.append(sys.argv[1])
    sys.meta_path.append(Stubs())
    drafts = {name: describe(config) for name, config in make_configs().items()}
    rows = (f"{json.dumps(name)}: {json.dumps(draft)}" for name, draft in drafts.items())
    OUT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"{len(drafts)} drafts in {OUT}")


if __name__ == "__main__":
    main()
