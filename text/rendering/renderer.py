"""Renderer without vLLM, and the model files it needs: starts in a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from eaglegate.text.rendering.encoding import NO_LIMITS, RenderLimits, TextEncoder
from eaglegate.text.rendering.sandbox import TemplateInput, TemplateRunner
from eaglegate.text.rendering.special_text import MarkedInput, SpecialText
from eaglegate.text.rendering.template import ChatTemplate, read_template

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
"""Model types whose prompts no template can render."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class UnsupportedModel(Exception):
    """A model whose prompts cannot be rendered from a tokenizer.json and a chat template."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model. Raises UnsupportedModel when one that a prompt needs is missing."""

    name: str
    folder: Path
    tokenizer_folder: Path

    @classmethod
    def find(cls, model: str, revision: str | None, tokenizer: str | None) -> ModelFiles:
        """``model`` and ``tokenizer`` are folders or hub names. Raises UnsupportedModel."""
        folder = _find_folder(model, revision)
        files = cls(model, folder, folder if tokenizer is None else _find_folder(tokenizer, None))
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
        return _read_json(self.folder / "config.json")

    @property
    def vocab_size(self) -> int | None:
        """The vocabulary size of the weights; a tokenizer may know fewer tokens."""
        size = self._text_config.get("vocab_size")
        return int(size) if size else None

    @property
    def max_model_len(self) -> int | None:
        longest = self._text_config.get("max_position_embeddings")
        return int(longest) if longest else None

    @property
    def default_sampling(self) -> dict[str, float]:
        """generation_config.json by the field names of ``Sampling``, as vLLM reads it."""
        content = _read_json(self.folder / "generation_config.json")
        found = {name: content[name] for name in SAMPLING if content.get(name) is not None}
        if content.get("max_new_tokens") is not None:
            found["max_tokens"] = content["max_new_tokens"]
        return found

    @property
    def special_tokens(self) -> dict[str, Any]:
        """Tokens that templates know by name: ``bos_token``, ``eos_token`` and the like."""
        content = (
            _read_json(self.tokenizer_folder / "special_tokens_map.json") | self._tokenizer_config
        )
        named = {
            key: _read_token(value) for key, value in content.items() if key.endswith("_token")
        }
        return {key: value for key, value in named.items() if value is not None}

    def chat_template(self, with_tools: bool) -> str | None:
        """The model's own template; some models have another one for conversations with tools."""
        templates = self._read_templates()
        if with_tools and "tool_use" in templates:
            return templates["tool_use"]
        return templates.get("default")

    def _read_templates(self) -> dict[str, str]:
        found = _name_templates(self._tokenizer_config.get("chat_template"))
        found |= _name_templates(
            _read_json(self.tokenizer_folder / "chat_template.json").get("chat_template")
        )
        more = self.tokenizer_folder / "additional_chat_templates"
        found |= {file.stem: _read(file) for file in sorted(more.glob("*.jinja"))}
        own = self.tokenizer_folder / "chat_template.jinja"
        return found | ({"default": _read(own)} if own.is_file() else {})

    @property
    def tokenizer_info(self) -> dict[str, Any]:
        """tokenizer_config.json with every token as its text, as ``/tokenizer_info`` gives it."""
        info = {"tokenizer_class": "PreTrainedTokenizerFast"} | self._tokenizer_config
        info = {
            key: _flatten_tokens(value) for key, value in info.items() if not key.endswith("_file")
        }
        template = self.chat_template(with_tools=False)
        return (
            info | self.special_tokens | ({} if template is None else {"chat_template": template})
        )

    @property
    def _tokenizer_config(self) -> dict[str, Any]:
        return _read_json(self.tokenizer_folder / "tokenizer_config.json")

    @property
    def _text_config(self) -> dict[str, Any]:
        """The config of the language model; multimodal models keep it in ``text_config``."""
        config = self.config
        return config | (config.get("text_config") or {})


def _find_folder(name: str, revision: str | None) -> Path:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise UnsupportedModel(
            f"{name} is not a folder, and could not be downloaded from the hub: {error}"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(_read(path))
    return content if isinstance(content, dict) else {}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _read_token(token: Any) -> str | None:
    """A token as tokenizer_config.json has it: its text, or an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _flatten_tokens(value: Any) -> Any:
    """Tokens that are objects, at any depth, as their texts."""
    if isinstance(value, dict):
        inner = {key: _flatten_tokens(item) for key, item in value.items()}
        return inner["content"] if isinstance(inner.get("content"), str) else inner
    return [_flatten_tokens(item) for item in value] if isinstance(value, list) else value


def _name_templates(template: Any) -> dict[str, str]:
    """One template, or a list of named ones, as a mapping from names."""
    if isinstance(template, str):
        return {"default": template}
    return {entry["name"]: entry["template"] for entry in template or ()}


class TemplateRenderer:
    """See ``eaglegate.engine.base.Renderer``. Raises ValueError where the template refuses."""

    def __init__(
        self, files: ModelFiles, chat_template: str | None = None, parse_special: bool = False
    ) -> None:
        """``parse_special``: a special token's text in a message becomes the token."""
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(files.tokenizer_json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._encoder = TextEncoder(self._tokenizer)
        self._special = self._find_special_text()
        self._parse_special = parse_special
        self._writer = TemplateRunner()
        self._named = files.special_tokens
        self._info = files.tokenizer_info
        given = None if chat_template is None else read_template(chat_template)
        self._plain = _compile(given or files.chat_template(with_tools=False))
        self._with_tools = _compile(given or files.chat_template(with_tools=True))

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def tokenizer_info(self) -> dict[str, Any]:
        template = {} if self._plain is None else {"chat_template": self._plain.source}
        return self._info | template

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        limits: RenderLimits = NO_LIMITS,
    ) -> list[int]:
        """``chat_template`` overrides the model's, for this request."""
        template = self._with_tools if tools else self._plain
        if template is None and chat_template is None:
            raise ValueError("the model has no chat template: give one with --chat-template")
        own = chat_template is None
        given = MarkedInput(messages, tools, chat_template_kwargs or {})
        if not self._parse_special:
            given = self._special.mark(given.messages, given.tools, given.kwargs)
        writing = TemplateInput(
            chat_template or (template.source if template else ""),
            given.messages,
            given.tools,
            self._named,
            given.kwargs,
            add_generation_prompt,
            continue_final_message,
        )
        text = self._writer.write(writing, template if own else None, limits)
        return self._encoder.encode_parts(text, given.mark, limits)

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        return self._encoder.encode(text, add_special_tokens, limits)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def spells_special_tokens(self, text: str, token_ids: Sequence[int]) -> bool:
        """Whether ``text``, tokenized again, would have special tokens that these ids do not."""
        added = self._tokenizer.get_added_tokens_decoder()
        return self._special.count(text) > sum(1 for id in token_ids if id in added)

    def _find_special_text(self) -> SpecialText:
        added = self._tokenizer.get_added_tokens_decoder().values()
        return SpecialText.of(added, lambda text: self.encode(text, False), self.decode)


def _compile(source: str | None) -> ChatTemplate | None:
    return None if source is None else ChatTemplate(source)
