"""A model's small files: config, tokenizer, chat template; from a folder or from the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
CODED = {
    "deepseek_v32": "DeepSeek writes its prompts in code",
    "deepseek_v4": "DeepSeek writes its prompts in code",
    "gpt_oss": "gpt-oss is rendered through Harmony",
}
"""Model types whose prompts no template makes."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class UnsupportedModel(Exception):
    """A model whose prompts cannot be made from a tokenizer.json and a template; says why."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model's, read. Raises UnfitModel when what a prompt is made of is not there."""

    name: str
    folder: Path
    tokenizer_folder: Path

    @classmethod
    def find(cls, model: str, revision: str | None, tokenizer: str | None) -> ModelFiles:
        """``model`` and ``tokenizer`` are folders or hub names. Raises UnsupportedModel."""
        folder = _folder(model, revision)
        files = cls(model, folder, folder if tokenizer is None else _folder(tokenizer, None))
        kind = files.config.get("model_type", "")
        if kind in CODED:
            raise UnsupportedModel(f"{CODED[kind]}, not through a template")
        if not files.tokenizer_json.is_file():
            raise UnsupportedModel(f"{files.tokenizer_folder} has no tokenizer.json")
        return files

    @property
    def tokenizer_json(self) -> Path:
        return self.tokenizer_folder / "tokenizer.json"

    @property
    def config(self) -> dict[str, Any]:
        return _json(self.folder / "config.json")

    @property
    def vocab_size(self) -> int | None:
        """As the weights have it; a tokenizer may know fewer."""
        size = self._text_config.get("vocab_size")
        return int(size) if size else None

    @property
    def max_model_len(self) -> int | None:
        longest = self._text_config.get("max_position_embeddings")
        return int(longest) if longest else None

    @property
    def default_sampling(self) -> dict[str, float]:
        """generation_config.json by the names of ``engine.types.Sampling``, as vLLM reads it."""
        said = _json(self.folder / "generation_config.json")
        found = {name: said[name] for name in SAMPLING if said.get(name) is not None}
        if said.get("max_new_tokens") is not None:
            found["max_tokens"] = said["max_new_tokens"]
        return found

    @property
    def special_tokens(self) -> dict[str, Any]:
        """What templates know by name: ``bos_token``, ``eos_token`` and the like."""
        said = _json(self.tokenizer_folder / "special_tokens_map.json") | self._tokenizer_config
        named = {key: _text(value) for key, value in said.items() if key.endswith("_token")}
        return {key: value for key, value in named.items() if value is not None}

    def chat_template(self, with_tools: bool) -> str | None:
        """The model's own; some have another one for conversations with tools."""
        templates = self._templates()
        if with_tools and "tool_use" in templates:
            return templates["tool_use"]
        return templates.get("default")

    def _templates(self) -> dict[str, str]:
        found = _named(self._tokenizer_config.get("chat_template"))
        found |= _named(_json(self.tokenizer_folder / "chat_template.json").get("chat_template"))
        more = self.tokenizer_folder / "additional_chat_templates"
        found |= {file.stem: _read(file) for file in sorted(more.glob("*.jinja"))}
        own = self.tokenizer_folder / "chat_template.jinja"
        return found | ({"default": _read(own)} if own.is_file() else {})

    @property
    def tokenizer_info(self) -> dict[str, Any]:
        """tokenizer_config.json with every token as its text, as ``/tokenizer_info`` gives it."""
        info = {"tokenizer_class": "PreTrainedTokenizerFast"} | self._tokenizer_config
        info = {key: _plain(value) for key, value in info.items() if not key.endswith("_file")}
        template = self.chat_template(with_tools=False)
        return (
            info | self.special_tokens | ({} if template is None else {"chat_template": template})
        )

    @property
    def _tokenizer_config(self) -> dict[str, Any]:
        return _json(self.tokenizer_folder / "tokenizer_config.json")

    @property
    def _text_config(self) -> dict[str, Any]:
        """Models of several kinds of input keep the language model's part in a part of its own."""
        config = self.config
        return config | (config.get("text_config") or {})


def _folder(name: str, revision: str | None) -> Path:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise UnsupportedModel(
            f"{name} is no folder, and the hub did not give it: {error}"
        ) from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    said = json.loads(_read(path))
    return said if isinstance(said, dict) else {}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _text(token: Any) -> str | None:
    """A token as tokenizer_config.json has it: its text, or an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _plain(value: Any) -> Any:
    """Tokens that are objects, at any depth, as their texts."""
    if isinstance(value, dict):
        inner = {key: _plain(item) for key, item in value.items()}
        return inner["content"] if isinstance(inner.get("content"), str) else inner
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _named(template: Any) -> dict[str, str]:
    """One template, or a list of named ones."""
    if isinstance(template, str):
        return {"default": template}
    return {entry["name"]: entry["template"] for entry in template or ()}
