"""LoRA adapters as files: what vLLM would refuse once it has loaded the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.speculation.inspection.checkpoint import read_json
from engine.speculation.inspection.weights import InvalidCheckpoint, TensorEntry, read_header

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
"""Where vLLM looks for them, in this order."""
UNSUPPORTED = {
    "use_dora": "DoRA",
    "lora_bias": "biases",
    "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "layer replication",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
}
"""By the member of the configuration that asks for it."""
PREFIX = "base_model.model."
Tensors = Mapping[str, TensorEntry]


def inspect_adapter(folder: Path, max_rank: int, base: Tensors) -> Iterator[str]:
    """What is wrong with it; ``base`` are the model's own tensors, empty when they are unknown."""
    try:
        if not (folder / CONFIG).is_file():
            raise InvalidCheckpoint(
                "config-absent", f"{folder} holds no {CONFIG}", "name its folder"
            )
        config = read_json(folder / CONFIG, "config-malformed")
        yield from check_config(config, max_rank)
        yield from check_weights(folder, base)
    except InvalidCheckpoint as fault:
        yield f"{fault.found}; {fault.advice}"


def check_config(config: Mapping[str, Any], max_rank: int) -> Iterator[str]:
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        yield f"its peft_type is {kind!r}; vLLM loads LoRA adapters alone"
    pattern = config.get("rank_pattern") or {}
    for rank in {config.get("r"), *(pattern.values() if isinstance(pattern, Mapping) else ())}:
        if not isinstance(rank, int) or rank <= 0:
            yield f"its rank r is {rank!r}, not a positive integer"
        elif rank > max_rank:
            yield f"its rank is {rank}, more than --max-lora-rank {max_rank}: raise that"
    for name, what in UNSUPPORTED.items():
        if config.get(name):
            yield f"it has {name}, and vLLM does not support {what}"
    if saved := config.get("modules_to_save"):
        yield f"it replaces whole modules ({', '.join(map(str, saved))}), which vLLM does not load"


def check_weights(folder: Path, base: Tensors) -> Iterator[str]:
    """Raises InvalidCheckpoint."""
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise InvalidCheckpoint(
            "weights-absent", f"{folder} holds no {WEIGHTS[0]}", "copy the weights there"
        )
    if file.suffix != ".safetensors":
        return
    tensors = read_header(file)
    pairs = [(name, entry, find_base(name, base)) for name, entry in tensors.items()]
    if base and not any(original for _, _, original in pairs):
        yield f"none of the layers in {file.name} is one of this model's: it is another model's"
    wrong = [
        name for name, entry, original in pairs if original and not fits(name, entry, original)
    ]
    if wrong:
        yield (
            f"{wrong[0]} ({len(wrong)} such) has the shape {tensors[wrong[0]].shape}, which does "
            "not fit this model's layer: it is another model's"
        )


def find_base(name: str, base: Tensors) -> TensorEntry | None:
    """The model's tensor that a tensor of the adapter belongs to."""
    module = name.removeprefix(PREFIX).rpartition(".lora_")[0]
    return base.get(f"{module}.weight")


def fits(name: str, entry: TensorEntry, original: TensorEntry) -> bool:
    """A is rank times inputs, B outputs times rank; the model's tensor is outputs times inputs."""
    if len(entry.shape) != 2 or len(original.shape) != 2:
        return True
    if ".lora_A." in name:
        return entry.shape[1] == original.shape[1]
    return entry.shape[0] == original.shape[0] if ".lora_B." in name else True
