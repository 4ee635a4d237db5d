"""Captured answers with lookups at every position, for ``eaglegate drafts compare --lookup N``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from eaglegate.engine.speculation.lookup.twin import escape
from eaglegate.lab.measure.lookup_index import Proposal, propose
from eaglegate.observability.captures.record import CapturedChoice, CapturedStep, CaptureRecord

TEXT, TWIN = "text", "twin"
"""What a lookup searches: the conversation's text, or also its tool results as JSON strings."""


@dataclass(slots=True)
class LookupAnswer:
    """One captured answer with its draft's steps, and with lookups at every position."""

    session: str
    workload: str
    method: str
    phases: Sequence[str]
    """Phase of each token."""
    steps: Mapping[int, CapturedStep]
    """Captured steps by the position of their first token."""
    sources: Mapping[str, Sequence[Proposal | None]]
    """Lookups by what they search: ``TEXT``, and ``TWIN`` where tool results have a twin."""
    costs: dict[str, dict[str, float]] = field(default_factory=dict)
    """Time by variant and phase, in steps without drafts. Filled by ``replay_answers``."""


class Twins:
    """Tool results as JSON strings: an answer that quotes one in its arguments escapes it."""

    def __init__(self, target: Path) -> None:
        path = target / "tokenizer.json"
        text = path.read_text("utf-8")
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the type that tokenizers raises
            raise ValueError(f"{path} cannot be read: {error}") from None
        self.results = 0
        self.num_used = 0

    def encode(self, record: CaptureRecord, prompt: Sequence[int]) -> list[int]:
        """Return the escaped tool results of a prompt; empty without any that it contains."""
        texts = [text for text in list_tool_results(record) if escape(text) != text]
        self.results += len(texts)
        if not texts:
            return []
        # Text that is not in the decoded prompt was cut by the template, or the tokenizer is wrong.
        prompt_text = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        texts = [text for text in texts if text.strip() in prompt_text]
        self.num_used += len(texts)
        escaped_texts = [escape(text) for text in texts]
        return [
            token
            for text in escaped_texts
            for token in self._tokenizer.encode(text, add_special_tokens=False).ids
        ]

    def describe(self) -> str:
        if not self.results:
            return "No prompt has a tool result that JSON would escape, so there is no twin"
        if self.num_used:
            return f"The twin has {self.num_used} of {self.results} tool results, as JSON strings"
        return (
            f"No twin: none of {self.results} tool results is in its prompt as --target's "
            "tokenizer reads it; give the folder of the captured model"
        )


def list_tool_results(record: CaptureRecord) -> Iterator[str]:
    """Yield the texts of a request's tool messages."""
    for message in record.messages or ():
        if not isinstance(message, Mapping) or message.get("role") != "tool":
            continue
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            texts = (part.get("text") for part in content if isinstance(part, Mapping))
            yield from (text for text in texts if isinstance(text, str))


def read_lookups(
    records: Iterable[CaptureRecord], width: int, twins: Twins, limit: int | None = None
) -> tuple[list[LookupAnswer], int]:
    """Look up every captured answer that has token ids and steps, and count the others."""
    answers: list[LookupAnswer] = []
    num_excluded = 0
    for record in records:
        twin_tokens: dict[int, list[int]] = {}
        for choice in record.choices:
            prompt, steps = find_prompt(record, choice), place_steps(choice)
            if prompt is None or not steps:
                num_excluded += 1
                continue
            if limit is not None and len(answers) >= limit:
                return answers, num_excluded
            if choice.prompt not in twin_tokens:
                twin_tokens[choice.prompt] = twins.encode(record, prompt)
            answers.append(
                look_up_answer(record, choice, prompt, steps, twin_tokens[choice.prompt], width)
            )
    return answers, num_excluded


def look_up_answer(
    record: CaptureRecord,
    choice: CapturedChoice,
    prompt: Sequence[int],
    steps: Mapping[int, CapturedStep],
    twin: Sequence[int],
    width: int,
) -> LookupAnswer:
    tokens = choice.token_ids or ()
    # One step late, a proposal must also reach over the tokens of the step before.
    horizon = width + max(width + 1, *(step.delivered for step in steps.values()))
    sources = {TEXT: propose(prompt, tokens, horizon)}
    if twin:
        sources[TWIN] = propose([*twin, *prompt], tokens, horizon)
    runs = (repeat(name, count) for name, count in choice.phases)
    phases = list(islice(chain.from_iterable(runs), len(tokens)))
    phases += [phases[-1] if phases else "content"] * (len(tokens) - len(phases))
    return LookupAnswer(record.cluster, record.workload, record.method, phases, steps, sources)


def find_prompt(record: CaptureRecord, choice: CapturedChoice) -> tuple[int, ...] | None:
    """Return the prompt's token ids; None if prompt or answer has none, or has no valid ones."""
    if not isinstance(choice.prompt, int) or not 0 <= choice.prompt < len(record.prompts):
        return None
    prompt = record.prompts[choice.prompt].token_ids
    return prompt if is_ids(prompt) and is_ids(choice.token_ids) else None


def is_ids(tokens: Any) -> bool:
    return isinstance(tokens, tuple) and all(
        type(token) is int and 0 <= token < 2**32 for token in tokens
    )


def place_steps(choice: CapturedChoice) -> dict[int, CapturedStep]:
    """Return the steps by the position of their first token; empty if they cannot be the answer's,
    or if lookups were served, which say nothing about the draft.

    Tokens before the first step came from prefill.
    """
    counts = [number for step in choice.steps for number in step]
    if not all(type(number) is int and number >= 0 for number in counts):
        return {}
    if any(step.lookup for step in choice.steps):
        return {}
    steps = [step for step in choice.steps if step.delivered]
    position = len(choice.token_ids or ()) - sum(step.delivered for step in steps)
    if position < 0 or any(step.accepted > step.drafted for step in steps):
        return {}
    positions = {}
    for step in steps:
        positions[position] = step
        position += step.delivered
    return positions
