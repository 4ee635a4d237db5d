"""The demo as a model that reads images, made without training: its weights are the language model
of a Qwen 2.5-VL, and its EAGLE 3.1 draft is that model's draft.

    python -m tests.vision_demo FOLDER

A Qwen 2.5-VL's language model is a Llama whose queries, keys and values have biases, here zero, and
whose rotary positions have three parts, which are equal in text. The vision encoder has random
weights. What it says of an image is a word's embedding plus a little that depends on the image, so
the text stays like the demo's, and the draft is still accepted. A token stands for 28 by 28 pixels.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image
import torch
from safetensors.torch import load_file, save_file

from eaglegate.text.media.image import Image

DEMO = Path(__file__).parent.parent / "engine" / "demo"
WORDS = 2048
"""Size of the demo's vocabulary."""
VOCABULARY = 2112
SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IDS = {token: WORDS + index for index, token in enumerate(SPECIAL)}
PLACEHOLDER = IDS["<|image_pad|>"]
IMAGE = [IDS["<|vision_start|>"], PLACEHOLDER, IDS["<|vision_end|>"]]
"""Token ids that stand for one image in a prompt."""
TEXT_PART = "{% if p.text is defined %}{{ p.text }}{% endif %}"
IMAGE_PART = (
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif p.text is defined %}{{ p.text }}{% endif %}"
)
SMALLEST, LARGEST = 56 * 56, 1003520
"""Pixels to which images are enlarged or reduced."""
WIDTH, INNER, HEADS, BLOCKS = 64, 96, 2, 2
HIDDEN = 256
PATCH = 14
MERGED = 2
LINE, BLANK_LINE = 202, 260
"""Tokens that the text stays the same around: the new tokens resemble the first, images the second.
"""
DIFFERENCE = 1.3
"""Size of what depends on the image, in standard deviations of the words' embeddings."""
Tensors = dict[str, torch.Tensor]


class VisionDemo(NamedTuple):
    """The folders of a model that reads images and of its draft."""

    target: Path
    draft: Path

    def arguments(self, depth: int | None = 3, **settings: Any) -> dict[str, Any]:
        """Return an engine's arguments; ``depth`` None for an engine without a draft."""
        size = {"shortest_edge": SMALLEST, "longest_edge": 256 * 28 * 28}
        draft = {
            "method": "eagle3",
            "model": str(self.draft),
            "num_speculative_tokens": depth,
        }
        return {
            "model": str(self.target),
            "served_model_name": ["vision-demo"],
            "dtype": "float32",
            "limit_mm_per_prompt": {"image": 3, "video": 0},
            "mm_processor_kwargs": {"size": size},
            "speculative_config": draft if depth else None,
            **settings,
        }


def make_vision_demo(folder: Path) -> VisionDemo:
    """Write the target and the draft, 30 MB, into a folder."""
    demo = VisionDemo(folder / "target", folder / "eagle3_1")
    for made in demo:
        made.mkdir(parents=True)
    _write_texts(demo.target)
    _write_configs(demo.target)
    weights = load_file(DEMO / "target" / "model.safetensors")
    _save(_make_language_model(weights) | _make_vision(weights), demo.target)
    config = json.loads((DEMO / "eagle3_1" / "config.json").read_text())
    sizes = {"vocab_size": VOCABULARY, "draft_vocab_size": VOCABULARY, "torch_dtype": "float32"}
    _write_json(demo.draft / "config.json", config | sizes)
    draft = {
        name: tensor.float()
        for name, tensor in load_file(DEMO / "eagle3_1" / "model.safetensors").items()
    }
    _save(draft | {"lm_head.weight": _widen(draft["lm_head.weight"])}, demo.draft)
    return demo


def draw_picture(seed: int, width: int, height: int) -> Image:
    """Draw 64 random rectangles."""
    draws = random.Random(seed)
    small = PIL.Image.frombytes("RGB", (8, 8), draws.randbytes(8 * 8 * 3))
    buffer = BytesIO()
    small.resize((width, height), PIL.Image.Resampling.NEAREST).save(buffer, "PNG")
    data = buffer.getvalue()
    return Image(data, "png", width, height, sha256(data).hexdigest())


def _write_texts(target: Path) -> None:
    """Write the demo's tokenizer and its chat template, with the tokens for images."""
    tokenizer = json.loads((DEMO / "target" / "tokenizer.json").read_text())
    shape = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] += [
        {"id": token_id, "content": token, "special": True, **shape}
        for token, token_id in IDS.items()
    ]
    _write_json(target / "tokenizer.json", tokenizer)
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    config = json.loads((DEMO / "target" / "tokenizer_config.json").read_text())
    _write_json(target / "tokenizer_config.json", config | names)
    template = (DEMO / "target" / "chat_template.jinja").read_text()
    assert TEXT_PART in template
    (target / "chat_template.jinja").write_text(template.replace(TEXT_PART, IMAGE_PART))
    shutil.copy(DEMO / "target" / "generation_config.json", target)


def _write_configs(target: Path) -> None:
    text = json.loads((DEMO / "target" / "config.json").read_text())
    for name in ("torch_dtype", "architectures", "attention_bias", "mlp_bias"):
        text.pop(name, None)
    base = text.get("rope_theta") or text["rope_parameters"]["rope_theta"]
    rope = {"rope_type": "default", "type": "default", "rope_theta": base}
    text |= {
        "model_type": "qwen2_5_vl_text",
        "vocab_size": VOCABULARY,
        "rope_parameters": {**rope, "mrope_section": [8, 12, 12]},
        "use_sliding_window": False,
        "max_window_layers": text["num_hidden_layers"],
        "sliding_window": None,
    }
    vision = {
        "model_type": "qwen2_5_vl",
        "depth": BLOCKS,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_heads": HEADS,
        "in_channels": 3,
        "out_hidden_size": HIDDEN,
        "patch_size": PATCH,
        "spatial_merge_size": MERGED,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [BLOCKS - 1],
        "hidden_act": "silu",
        "tokens_per_second": 2,
    }
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "dtype": "float32",
        "image_token_id": PLACEHOLDER,
        "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
        "vision_end_token_id": IDS["<|vision_end|>"],
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
    }
    images = {
        "processor_class": "Qwen2_5_VLProcessor",
        "size": {"shortest_edge": SMALLEST, "longest_edge": LARGEST},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGED,
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"), True),
        "rescale_factor": 1 / 255,
        "resample": 3,
        "image_mean": [0.481, 0.457, 0.408],
        "image_std": [0.268, 0.261, 0.275],
    }
    image_processor = {"image_processor_type": "Qwen2VLImageProcessor"}
    video_processor = {"video_processor_type": "Qwen2VLVideoProcessor"}
    _write_json(target / "config.json", config)
    _write_json(target / "processor_config.json", {"processor_class": "Qwen2_5_VLProcessor"})
    _write_json(target / "preprocessor_config.json", images | image_processor)
    _write_json(target / "video_preprocessor_config.json", images | video_processor)


def _make_language_model(weights: Tensors) -> Tensors:
    tensors = {}
    for name, tensor in weights.items():
        wide = tensor.float()
        if name == "lm_head.weight":
            wide = _widen(wide)
        elif "embed_tokens" in name:
            wide = _widen(wide, wide[LINE])
        tensors[name.replace("model.", "model.language_model.", 1)] = wide
        for part in ("q_proj", "k_proj", "v_proj"):
            if f"{part}.weight" in name:
                bias = name.replace("model.", "model.language_model.", 1).replace("weight", "bias")
                tensors[bias] = torch.zeros(len(wide))
    return tensors


def _make_vision(weights: Tensors) -> Tensors:
    """Make an encoder with random matrices, norms of one, and biases of zero but the last."""
    draws = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.4) -> torch.Tensor:
        inputs = torch.Size(shape[1:]).numel()
        return torch.randn(shape, generator=draws) * scale * inputs**-0.5

    def linear(name: str, outputs: int, inputs: int) -> Tensors:
        return {f"{name}.weight": draw(outputs, inputs), f"{name}.bias": torch.zeros(outputs)}

    tensors = {"patch_embed.proj.weight": draw(WIDTH, 3, 2, PATCH, PATCH)}
    for block in (f"blocks.{index}" for index in range(BLOCKS)):
        tensors |= {f"{block}.norm{index}.weight": torch.ones(WIDTH) for index in (1, 2)}
        tensors |= linear(f"{block}.attn.qkv", 3 * WIDTH, WIDTH)
        tensors |= linear(f"{block}.attn.proj", WIDTH, WIDTH)
        tensors |= linear(f"{block}.mlp.gate_proj", INNER, WIDTH)
        tensors |= linear(f"{block}.mlp.up_proj", INNER, WIDTH)
        tensors |= linear(f"{block}.mlp.down_proj", WIDTH, INNER)
    merged = WIDTH * MERGED**2
    deviation = float(weights["model.embed_tokens.weight"].float().std())
    tensors["merger.ln_q.weight"] = torch.ones(WIDTH)
    tensors |= linear("merger.mlp.0", merged, merged)
    tensors["merger.mlp.2.weight"] = draw(HIDDEN, merged, scale=1.4 * DIFFERENCE * deviation)
    tensors["merger.mlp.2.bias"] = weights["model.embed_tokens.weight"][BLANK_LINE].float()
    return {f"model.visual.{name}": tensor for name, tensor in tensors.items()}


def _widen(rows: torch.Tensor, row: torch.Tensor | None = None) -> torch.Tensor:
    """Add rows for the new tokens: copies of one, or zeros."""
    added = torch.zeros(VOCABULARY - WORDS, rows.shape[1])
    return torch.cat([rows, added if row is None else added + row])


def _save(tensors: Tensors, folder: Path) -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


if __name__ == "__main__":
    print(make_vision_demo(Path(sys.argv[1])))
