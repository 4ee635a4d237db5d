"""The demo tokenizer: byte-level BPE after a pre-tokenizer that makes copying easy.

A content word is split from the space before it, digits are separate, and runs of punctuation are
one piece. A value therefore has the same tokens in the user's sentence and inside JSON quotes, and
copying it is plain induction. Only common function words keep their leading space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from eaglegate.lab.training.data import arithmetic, conversation, tasks, tools, values
from eaglegate.lab.training.data.source import Phrasings

VOCABULARY = 2048
SPECIAL = ["<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tools>", "</tools>"]
TEMPLATE = Path(__file__).parent / "chat_template.jinja"
OPENERS = ["history", "best", "news", "cost", "meeting", "lunch", "flight", "dentist"]
CONTENT = {
    *values.NOUNS,
    *values.VERBS,
    *values.TEXT_NAMES,
    *values.INTEGER_NAMES,
    *values.NUMBER_NAMES,
    *values.FLAG_NAMES,
    *values.COLORS,
    *OPENERS,
    *(option for options in values.ENUMS for option in options),
}
"""Words that begin values. With the space attached they would have two spellings."""


def function_words() -> list[str]:
    """Return lower-case words of the fixed texts that never occur as values, longest first."""
    texts = [f"{topic['answer']} {topic['thought']}" for topic in tasks.topics()]
    texts += [*tasks.unknown_questions(), tasks.FALLBACK, arithmetic.TOO_LARGE]
    texts += [row["does"] for row in tasks.functions()]
    for module in (arithmetic, conversation, tasks, tools):
        templates = [item for item in vars(module).values() if isinstance(item, Phrasings)]
        texts += [re.sub(r"{\w*}", "", text) for item in templates for text in item]
    words = set(re.findall(r"(?<![A-Za-z])[a-z]+(?![A-Za-z])|\bI\b", " ".join(texts)))
    return sorted(words - CONTENT, key=lambda word: (-len(word), word))


def pieces() -> str:
    """Return the pre-tokenizer's regular expression."""
    glued_words = " (?:" + "|".join(function_words()) + ")(?![A-Za-z])"
    words = r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]|[0-9]"
    foreign_words, punctuation = r"[^ -~\n]+", r"[ -/:-@\[-`{-~]+"
    return "|".join([glued_words, words, r"\n+ *", foreign_words, punctuation])


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pieces()), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=5,
        show_progress=False,
    )
    marker = re.compile("|".join(re.escape(token) for token in SPECIAL + MARKERS))
    tokenizer.train_from_iterator((marker.sub("\n", text) for text in texts), trainer)
    tokenizer.add_tokens([AddedToken(m, normalized=False, special=False) for m in MARKERS])
    return wrap(tokenizer)


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    wrapper = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    wrapper.chat_template = TEMPLATE.read_text()
    return wrapper
