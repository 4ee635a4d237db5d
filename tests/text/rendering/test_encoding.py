"""Long text: the same tokens in bounded memory, or a refusal before any work."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from eaglegate.text.rendering import encoding
from eaglegate.text.rendering.encoding import (
    WHOLE,
    PromptTooLong,
    RenderingCancelled,
    RenderLimits,
    TextEncoder,
)

pytestmark = pytest.mark.thorough

DEMO = "engine/demo/target/tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(DEMO)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(encoding, "WHOLE", 300)
    monkeypatch.setattr(encoding, "WINDOW", 300)
    monkeypatch.setattr(encoding, "OVERLAP", 100)


def natural() -> str:
    folder = Path("docs")
    return "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("*.md")))[:60_000]


def test_natural_text_gets_the_same_tokens_in_windows(tokenizer, small):
    text = natural() + "漢字 über 😀" * 200 + "<|im_end|>\n<think>" * 50
    assert TextEncoder(tokenizer).encode(text, True) == tokenizer.encode(text).ids


@pytest.mark.parametrize("piece", ["a", " ", "\n", "漢", "😀", "-=", "ab c", "<|im_end|>"])
def test_text_of_one_kind_loses_nothing(tokenizer, small, piece):
    text = piece * 2000
    ids = TextEncoder(tokenizer).encode(text, False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_too_long_is_known_from_the_bytes_alone(tokenizer):
    encoder = TextEncoder(tokenizer)
    began = time.process_time()
    with pytest.raises(PromptTooLong) as refused:
        encoder.encode("x" * 8_000_000, False, RenderLimits(max_tokens=2048))
    assert time.process_time() - began < 0.1
    assert refused.value.num_tokens == -(-8_000_000 // encoder.token_bytes)
    assert not refused.value.exact


def test_the_length_that_is_named_is_the_true_one_or_a_bound(tokenizer):
    """Read to its end, a prompt has an exact length; else it has at least so many tokens."""
    encoder = TextEncoder(tokenizer)
    encoder.token_bytes = None
    for text in ("a b " * 500, "a b " * 50_000):
        true = len(encoder.encode(text, False))
        with pytest.raises(PromptTooLong) as refused:
            encoder.encode(text, False, RenderLimits(max_tokens=100))
        assert refused.value.exact is (len(text) < WHOLE)
        if refused.value.exact:
            assert refused.value.num_tokens == true
        else:
            assert 100 < refused.value.num_tokens < true
            assert "at least" in str(refused.value)


def test_the_parts_of_a_prompt_are_counted_together(tokenizer):
    encoder = TextEncoder(tokenizer)
    encoder.token_bytes = None
    text = "|".join(["a b c"] * 40)
    true = len(encoder.encode_parts(text, "|", RenderLimits()))
    with pytest.raises(PromptTooLong) as refused:
        encoder.encode_parts(text, "|", RenderLimits(max_tokens=true - 1))
    assert (refused.value.num_tokens, refused.value.exact) == (true, True)
    with pytest.raises(PromptTooLong) as refused:
        encoder.encode_parts(text, "|", RenderLimits(max_tokens=10))
    assert not refused.value.exact


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("bounded", [True, False])
def test_one_end_is_read_alone(tokenizer, small, side, bounded):
    encoder, text = TextEncoder(tokenizer), natural()
    encoder.token_bytes = encoder.token_bytes if bounded else None
    whole = tokenizer.encode(text).ids
    kept = encoder.encode(text, False, RenderLimits(keep=50, side=side))
    assert kept == (whole[-50:] if side == "left" else whole[:50])


def test_nobody_waits_any_more(tokenizer):
    limits = RenderLimits()
    limits.ended.set()
    with pytest.raises(RenderingCancelled):
        TextEncoder(tokenizer).encode("a " * 50_000, False, limits)


def test_memory_is_bounded():
    script = (
        "import resource;from tokenizers import Tokenizer;"
        "from eaglegate.text.rendering.encoding import TextEncoder;"
        f"e=TextEncoder(Tokenizer.from_file('{DEMO}'));e.encode('a b',True);"
        "r=lambda:resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024;b=r();"
        "e.encode('The cat sat. '*150_000,False);print(r()-b)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert int(done.stdout) < 150, done
