"""Child program of ``grammar_probe``, which compiles constraints as vLLM would and walks along
them.

It reads and writes JSON lines. ``engine.vllm_backend.grammar_probe`` runs it and kills it when a
trial exceeds its limits. xgrammar compiles a constraint in the constraint's own syntax. If xgrammar
refuses it or vLLM would not use xgrammar, llguidance compiles it. If both refuse, so does the
trial.

A walk goes as far as an answer could, within limited CPU time. Literal text is passed in one step,
so that no costly part can hide after it. Every group with a counted repetition is also walked
separately, wherever it occurs.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from eaglegate.engine.stop_signals import block_stop_signals
from eaglegate.engine.vllm_backend.grammar_probe import NO_GRAMMAR, OK

TOKENS_PER_S = 10_000
"""Vocabulary size that adds one second to the limit. A bounded string takes 3 s with 151,000."""

MEMORY_BYTES = 6 << 30
"""Limit on the child's address space. Imports alone reserve about half of it."""
STEPS = 2000
WALK_S = 0.4
"""Limit on the CPU seconds of one walk. The choice of tokens may take half as much in addition."""
STEP_S = 0.02
"""Limit on the mean CPU seconds of a step. Usual schemas take under 0.001 with any vocabulary."""
STALL_S = 0.25
"""Limit on the CPU seconds of any step. Usual schemas take up to 0.03 with 151,000 tokens."""
WINDOW = 50
"""Steps per mean, so that many quick steps do not hide slow ones after them."""
COUNTED_GROUP = re.compile(r"\)(?:\{(\d{1,9})?(?:,(\d{0,9}))?\}|~(\d{1,9}))")
REPETITION = re.compile(r"\{(\d{1,9})?(,)?(\d{0,9})\}|~(\d{1,9})(?:\.\.(\d{1,9}))?")
OPTIONAL_RUN = re.compile(r"(?:(?:\\.|\[(?:\\.|[^\]\\]){1,200}\]|[^\\()\[\]{}|*+?])[?*]){16,}")
"""A run of optional characters and character classes."""
MINIMUM_KEYS = ("minLength", "minItems", "minProperties")
MIN_REPETITIONS = 16
"""Number of repetitions from which a group is walked separately."""
MAX_PIECES = 32
PIECE_CHARS = 2000
LLGUIDANCE_KEYWORDS = (
    "multipleOf", "uniqueItems", "ontains", "patternProperties", "propertyNames", "format",
)  # fmt: skip
"""Keywords of JSON schemas that vLLM may compile with llguidance."""
SOURCE_LINE = re.compile(r"^\[[\d:]+\] \S+: ")
"""Prefix of a compiler's error with a line of its own source."""
REFUSALS = (RuntimeError, ValueError, TypeError, KeyError)
"""Errors that compilers raise for input that they do not accept."""
UNKNOWN_TOKENIZER = (ValueError, TypeError, AttributeError, NotImplementedError)
"""Errors that a tokenizer without a compiler causes. Others, as for a lack of memory, may pass."""
NO_MATCH = f"{NO_GRAMMAR}: it has a part that no text matches, such as a rule that refers to itself"
"""Verdict on a walk that ends where neither a token nor the end is allowed. An engine fails there.
"""


def main(tokenizer: str, trust_remote_code: bool, limit_s: float) -> None:
    """Print the time limit of a trial, then answer each input line with one line. Print null and
    end if there is no compiler for the tokenizer.

    The kernel ends a trial that takes longer, because compilers check no clock.
    """
    block_stop_signals()
    from transformers import AutoTokenizer

    try:
        trial = GrammarTrial(
            AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code)
        )
    except UNKNOWN_TOKENIZER:
        print("null", flush=True)
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    limit_s += trial.vocab_size / TOKENS_PER_S
    print(json.dumps(limit_s), flush=True)
    for line in sys.stdin:
        number, _, constraint = line.partition(" ")
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        verdict = trial.judge(*json.loads(constraint))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([int(number), verdict]), flush=True)


class GrammarTrial:
    """Trial of constraints for the vocabulary of ``tokenizer``, as transformers loads it."""

    def __init__(self, tokenizer: Any) -> None:
        import numpy as np

        self._xgrammar = XgrammarCompiler(tokenizer)
        self.vocab_size = self._xgrammar.info.vocab_size
        self._compilers = self._xgrammar, LlguidanceCompiler(tokenizer, self.vocab_size)
        self._cost = np.array([_rate_token(token) for token in self._xgrammar.info.decoded_vocab])

    def judge(self, kind: str, value: str) -> str:
        try:
            verdict = self._judge_one(kind, value)
            if verdict != OK:
                return verdict
            groups = [*islice(split_repeated_groups(kind, value), MAX_PIECES + 1)]
            if len(groups) > MAX_PIECES:
                return f"it repeats more than {MAX_PIECES} groups a counted number of times"
            pieces = [("regex", group) for group in groups if group]
            if (short_value := shorten(kind, value)) != value:
                pieces.append((kind, short_value))
            for piece in pieces:
                piece_verdict = self._judge_one(*piece)
                if piece_verdict != OK and not piece_verdict.startswith(NO_GRAMMAR):
                    return piece_verdict
        except MemoryError:
            return "it needed too much memory"
        return OK

    def _judge_one(self, kind: str, value: str) -> str:
        """Return the verdict of the first compiler that accepts the constraint, or of all compilers
        if vLLM may prefer another one."""
        refusal, is_accepted = "", False
        for compiler in self._compilers:
            try:
                for prefers_short in (False, True):
                    if reason := self._explain_slowness(compiler.walk(kind, value), prefers_short):
                        return reason
            except REFUSALS as error:
                refusal = refusal or SOURCE_LINE.sub("", " ".join(str(error).split()))[:300]
                continue
            is_accepted = True
            if kind != "json_schema" or not any(word in value for word in LLGUIDANCE_KEYWORDS):
                break
        return OK if is_accepted else f"{NO_GRAMMAR}: {refusal}"

    def _explain_slowness(self, walk: ConstraintMatcher, prefers_short: bool) -> str:
        """Walk along the constraint as an engine would, and explain if steps take too many CPU
        seconds."""
        steps: list[float] = []
        total_s, deadline = 0.0, time.process_time() + 1.5 * WALK_S
        while len(steps) < STEPS and total_s < WALK_S and time.process_time() < deadline:
            start = time.process_time()
            walk.jump()
            mask = walk.compute_mask()
            mask_end = time.process_time()
            if not mask.any():
                return NO_MATCH
            token = self._choose_token(mask, len(steps) + 1, prefers_short)
            accept_start = time.process_time()
            if token is None or not walk.accept(token):
                break
            steps.append(mask_end - start + time.process_time() - accept_start)
            total_s += steps[-1]
        mean_s = _find_slowest_mean(steps)
        if mean_s >= STEP_S or max(steps, default=0.0) >= STALL_S:
            return f"its tokens took {mean_s:.2g} s each, one {max(steps):.2g} s"
        return ""

    def _choose_token(self, mask: Any, number: int, prefers_short: bool) -> int | None:
        """Choose some allowed token, or with ``prefers_short`` the shortest that continues.

        The latter avoids white space, which JSON allows without end, and closing characters if
        there is any other token.
        """
        import numpy as np

        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self.vocab_size]
        bits[self._xgrammar.info.stop_token_ids] = 0
        tokens = np.flatnonzero(bits)
        if not len(tokens):
            return None
        index = self._cost[tokens].argmin() if prefers_short else number * 7919 % len(tokens)
        return int(tokens[index])


def _find_slowest_mean(steps: Sequence[float]) -> float:
    """Return the largest mean of any ``WINDOW`` consecutive steps, or the mean of all if there are
    fewer."""
    if not steps:
        return 0.0
    starts = range(0, max(1, len(steps) - WINDOW + 1), WINDOW // 2)
    return max(sum(part) / len(part) for start in starts if (part := steps[start : start + WINDOW]))


def _rate_token(token: bytes) -> float:
    if not token.strip():
        return 1000.0
    return len(token) + 0.5 * (token[:1] in (b"}", b"]", b'"'))


class XgrammarCompiler:
    """Compiler of xgrammar. It raises one of ``REFUSALS`` for input that it does not accept."""

    def __init__(self, tokenizer: Any) -> None:
        import xgrammar

        self._library = xgrammar
        self.info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        self._compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)

    def walk(self, kind: str, value: str) -> _XgrammarMatcher:
        return _XgrammarMatcher(self._library, self._compile(kind, value), self.info.vocab_size)

    def _compile(self, kind: str, value: str) -> Any:
        match kind:
            case "regex":
                return self._compiler.compile_regex(value)
            case "grammar":
                return self._compiler.compile_grammar(value)
            case "structural_tag":
                return self._compile_tag(value)
        return self._compiler.compile_json_schema(value)

    def _compile_tag(self, value: str) -> Any:
        tag = json.loads(value)
        if "structures" not in tag:
            return self._compiler.compile_structural_tag(value)
        tags = [
            self._library.StructuralTagItem(
                begin=item["begin"], schema=json.dumps(item["schema"]), end=item["end"]
            )
            for item in tag["structures"]
        ]
        return self._compiler.compile_structural_tag(tags, tag["triggers"])


class _XgrammarMatcher:
    """Position in a constraint. ``accept`` takes a token, and returns False if none fits."""

    def __init__(self, library: Any, grammar: Any, vocab_size: int) -> None:
        self._matcher = library.GrammarMatcher(grammar)
        self._mask = library.allocate_token_bitmask(1, vocab_size)
        self.accept = self._matcher.accept_token

    def jump(self) -> None:
        """Pass literal text in one step, if possible."""
        literal = self._matcher.find_jump_forward_string()
        if literal:
            self._matcher.accept_string(literal)

    def compute_mask(self) -> Any:
        """Return the tokens that may come next, as a bit mask."""
        self._matcher.fill_next_token_bitmask(self._mask)
        return self._mask[0].numpy()


class LlguidanceCompiler:
    """Compiler of llguidance, which vLLM uses for input that xgrammar refuses."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._tokenizer_data: Any = None

    def walk(self, kind: Any, value: str) -> _LlguidanceMatcher:
        import llguidance
        import llguidance.hf

        if self._tokenizer_data is None:
            self._tokenizer_data = llguidance.hf.from_tokenizer(
                self._tokenizer, max(self._vocab_size, len(self._tokenizer))
            )
        if kind == "structural_tag":
            raise ValueError("the structural tag is not known")
        if kind == "json_schema":
            grammar = llguidance.LLMatcher.grammar_from_json_schema(value)
        else:
            grammar = llguidance.grammar_from(kind, value)
        matcher = llguidance.LLMatcher(self._tokenizer_data, grammar, log_level=0)
        if error := matcher.get_error():
            raise ValueError(error)
        return _LlguidanceMatcher(matcher, self._tokenizer_data.vocab_size)


class _LlguidanceMatcher:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        import llguidance.torch

        self._library = llguidance.torch
        self._matcher = matcher
        self._mask = llguidance.torch.allocate_token_bitmask(1, vocab_size)
        self.accept = matcher.consume_token

    def jump(self) -> None:
        tokens = self._matcher.compute_ff_tokens()
        if tokens:
            self._matcher.consume_tokens(tokens)

    def compute_mask(self) -> Any:
        self._library.fill_next_token_bitmask(self._matcher, self._mask, 0)
        return self._mask[0].numpy()


ConstraintMatcher = _XgrammarMatcher | _LlguidanceMatcher


def split_repeated_groups(kind: str, value: str) -> Iterator[str]:
    """Yield groups with a counted repetition, each as its own pattern; empty for a long one."""
    texts = (
        _find_strings(json.loads(value)) if kind in ("json_schema", "structural_tag") else [value]
    )
    for text in texts:
        for match in COUNTED_GROUP.finditer(text):
            counts = [int(count) for count in match.groups() if count]
            begin = _find_opening(text, match.start())
            if begin is None or max(counts, default=MIN_REPETITIONS) < MIN_REPETITIONS:
                continue
            is_short = match.end() - begin <= PIECE_CHARS
            yield re.sub(r"~(\d+)$", r"{\1}", text[begin : match.end()]) if is_short else ""
        yield from (run[0][:PIECE_CHARS] for run in OPTIONAL_RUN.finditer(text))


def shorten(kind: str, value: str) -> str:
    """Reduce repetitions in a constraint to one, so that a walk reaches the parts after them."""
    if kind in ("json_schema", "structural_tag"):
        return json.dumps(_shorten_value(json.loads(value)))
    return REPETITION.sub(_shorten_count, value)


def _shorten_value(value: Any) -> Any:
    if isinstance(value, str):
        return REPETITION.sub(_shorten_count, value)
    if isinstance(value, list):
        return [_shorten_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: min(item, 1) if key in MINIMUM_KEYS and isinstance(item, int) else _shorten_value(item)
        for key, item in value.items()
    }


def _shorten_count(match: re.Match[str]) -> str:
    """Shorten a count: ``{0,900}`` to ``{0,1}``, ``{900}`` to ``{1}``, ``~900`` to ``~1``."""
    counts = [int(count) for count in (match[1], match[3], match[4], match[5]) if count]
    if max(counts, default=0) < MIN_REPETITIONS:
        return match[0]
    if match[4]:
        return "~1"
    return "{0,1}" if match[2] and not int(match[1] or 0) else "{1}"


def _find_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _find_strings(item)


def _find_opening(text: str, end: int) -> int | None:
    """Find the beginning of the group that ends at ``end``."""
    depth = 0
    for index in range(end, max(-1, end - PIECE_CHARS), -1):
        if text[index] in "()" and text[index - 1 : index] != "\\":
            depth += 1 if text[index] == ")" else -1
            if not depth:
                return index
    return None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "True", float(sys.argv[3]))
