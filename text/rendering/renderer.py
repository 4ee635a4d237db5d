"""Renderer without vLLM, which starts in a fraction of a second, and the files it reads."""

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

MODEL_JSON = ("config.json", "generation_config.json")
TOKENIZER_JSON = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.json")
WANTED = (
    *MODEL_JSON,
    *TOKENIZER_JSON,
    "tokenizer.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
CODED = {
    "deepseek_v32": "DeepSeek builds its prompts in code",
    "deepseek_v4": "DeepSeek builds its prompts in code",
    "gpt_oss": "gpt-oss is rendered through Harmony",
}
"""Model types whose prompts are not rendered through a template, with the reason."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class UnsupportedModel(Exception):
    """Model whose prompts cannot be rendered from a tokenizer.json and a chat template."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of one model. Raises UnsupportedModel if a file that a prompt needs is missing."""

    name: str
    folder: Path
    tokenizer_folder: Path

    @classmethod
    def find(cls, model: str, revision: str | None, tokenizer: str | None) -> ModelFiles:
        """Find a model's files by folder or hub name. Raises UnsupportedModel."""
        folder = _find_folder(model, revision)
        files = cls(model, folder, folder if tokenizer is None else _find_folder(tokenizer, None))
        files.check()
        kind = files.config.get("model_type", "")
        if kind in CODED:
            raise UnsupportedModel(f"{CODED[kind]}, not through a template")
        if not files.tokenizer_json.is_file():
            raise UnsupportedModel(f"{files.tokenizer_folder} has no tokenizer.json")
        return files

    def check(self) -> None:
        """Raise UnsupportedModel for a JSON file that cannot be read."""
        for path in (self.folder / name for name in MODEL_JSON):
            _read_json(path)
        for path in (self.tokenizer_folder / name for name in TOKENIZER_JSON):
            _read_json(path)

    @property
    def tokenizer_json(self) -> Path:
        return self.tokenizer_folder / "tokenizer.json"

    @property
    def config(self) -> dict[str, Any]:
        return _read_json(self.folder / "config.json")

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size of the weights. A tokenizer may know fewer tokens."""
        size = self._text_config.get("vocab_size")
        return int(size) if size else None

    @property
    def max_model_len(self) -> int | None:
        max_positions = self._text_config.get("max_position_embeddings")
        return int(max_positions) if max_positions else None

    @property
    def default_sampling(self) -> dict[str, float]:
        """Defaults of generation_config.json, by the field names of ``Sampling``."""
        content = _read_json(self.folder / "generation_config.json")
        defaults = {name: content[name] for name in SAMPLING if content.get(name) is not None}
        if content.get("max_new_tokens") is not None:
            defaults["max_tokens"] = content["max_new_tokens"]
        return defaults

    @property
    def special_tokens(self) -> dict[str, Any]:
        """Tokens that templates know by name, such as ``bos_token`` and ``eos_token``."""
        content = (
            _read_json(self.tokenizer_folder / "special_tokens_map.json") | self._tokenizer_config
        )
        tokens = {
            key: _read_token(value) for key, value in content.items() if key.endswith("_token")
        }
        return {key: value for key, value in tokens.items() if value is not None}

    def chat_template(self, with_tools: bool) -> str | None:
        """Return the model's own template. Some models have a separate one for chats with tools."""
        templates = self._read_templates()
        if with_tools and "tool_use" in templates:
            return templates["tool_use"]
        return templates.get("default")

    def _read_templates(self) -> dict[str, str]:
        templates = _name_templates(self._tokenizer_config.get("chat_template"))
        templates |= _name_templates(
            _read_json(self.tokenizer_folder / "chat_template.json").get("chat_template")
        )
        folder = self.tokenizer_folder / "additional_chat_templates"
        templates |= {file.stem: _read(file) for file in sorted(folder.glob("*.jinja"))}
        path = self.tokenizer_folder / "chat_template.jinja"
        return templates | ({"default": _read(path)} if path.is_file() else {})

    @property
    def tokenizer_info(self) -> dict[str, Any]:
        """Content of tokenizer_config.json for ``/tokenizer_info``, with tokens as texts."""
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
        """Config of the language model. Multimodal models keep it in ``text_config``."""
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
    """Read a JSON object; empty if there is none. Raises UnsupportedModel."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read(path))
    except RecursionError:
        raise UnsupportedModel(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from None
    return content if isinstance(content, dict) else {}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _read_token(token: Any) -> str | None:
    """Return a token's text. tokenizer_config.json has the text or an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _flatten_tokens(value: Any) -> Any:
    """Replace tokens that are objects by their texts, at any depth."""
    if isinstance(value, dict):
        items = {key: _flatten_tokens(item) for key, item in value.items()}
        return items["content"] if isinstance(items.get("content"), str) else items
    return [_flatten_tokens(item) for item in value] if isinstance(value, list) else value


def _name_templates(template: Any) -> dict[str, str]:
    """Return one template, or a list of named templates, as a mapping from names."""
    if isinstance(template, str):
        return {"default": template}
    return {entry["name"]: entry["template"] for entry in template or ()}


class TemplateRenderer:
    """Renderer that runs the model's chat template; see ``eaglegate.text.rendering.base.Renderer``.

    Its methods raise ValueError if the template refuses a conversation.
    """

    def __init__(
        self, files: ModelFiles, chat_template: str | None = None, parse_special: bool = False
    ) -> None:
        """Load the tokenizer and templates of a model.

        With ``parse_special`` the text of a special token in a message becomes the token. Raises
        UnsupportedModel if the tokenizer cannot be read.
        """
        self._tokenizer = _open_tokenizer(files.tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._encoder = TextEncoder(self._tokenizer)
        self._special_text = self._find_special_text()
        self._parse_special = parse_special
        self._writer = TemplateRunner()
        self._special_tokens = files.special_tokens
        self._info = files.tokenizer_info
        template = None if chat_template is None else read_template(chat_template)
        self._plain = _compile(template or files.chat_template(with_tools=False))
        self._with_tools = _compile(template or files.chat_template(with_tools=True))

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
        """Render a conversation to token ids. ``chat_template`` overrides the model's template."""
        template = self._with_tools if tools else self._plain
        if template is None and chat_template is None:
            raise ValueError("the model has no chat template: give one with --chat-template")
        is_default = chat_template is None
        marked_input = MarkedInput(messages, tools, chat_template_kwargs or {})
        if not self._parse_special:
            marked_input = self._special_text.mark(
                marked_input.messages, marked_input.tools, marked_input.kwargs
            )
        template_input = TemplateInput(
            chat_template or (template.source if template else ""),
            marked_input.messages,
            marked_input.tools,
            self._special_tokens,
            marked_input.kwargs,
            add_generation_prompt,
            continue_final_message,
        )
        text = self._writer.write(template_input, template if is_default else None, limits)
        return self._encoder.encode_parts(text, marked_input.mark, limits)

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        return self._encoder.encode(text, add_special_tokens, limits)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def spells_special_tokens(self, text: str, token_ids: Sequence[int]) -> bool:
        """Return True if tokenizing ``text`` again gives special tokens that the ids lack."""
        added_tokens = self._tokenizer.get_added_tokens_decoder()
        return self._special_text.count(text) > sum(1 for id in token_ids if id in added_tokens)

    def _find_special_text(self) -> SpecialText:
        added_tokens = self._tokenizer.get_added_tokens_decoder().values()
        return SpecialText.of(added_tokens, lambda text: self.encode(text, False), self.decode)


def _open_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the type that tokenizers raises
        raise UnsupportedModel(f"{path} cannot be read: {error}") from None


def _compile(source: str | None) -> ChatTemplate | None:
    return None if source is None else ChatTemplate(source)
