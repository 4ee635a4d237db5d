"""Which variables of a chat template a request may give: those it reads, and that are its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

RESERVED = frozenset((
    "messages", "conversation", "tools", "add_generation_prompt", "continue_final_message",
    "chat_template", "chat_template_kwargs", "tokenizer_kwargs", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
    "additional_special_tokens",
))  # fmt: skip
"""Names that mean something to a tokenizer's ``apply_chat_template``, or to the gateway."""
GLOBALS = frozenset((
    "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner",
))  # fmt: skip
"""What a template's environment defines."""
CODED = frozenset((
    "enable_thinking", "thinking", "thinking_effort", "preserve_thinking", "reasoning_effort",
    "documents",
))  # fmt: skip
"""For models whose prompts are written in code: no template says what they read."""


def filter_variables(given: Mapping[str, Any] | None, read: Iterable[str]) -> dict[str, Any]:
    """``given`` without what a template that reads ``read`` would not read."""
    names = frozenset(read) - RESERVED - GLOBALS
    return {name: value for name, value in (given or {}).items() if name in names}
