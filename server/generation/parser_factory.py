"""Makes a parser for each choice, from the formats the gateway is started with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.events import Phase
from server.generation.grammar import holds_calls, spells_calls
from server.generation.job import Job
from server.generation.prompt import Prompt
from server.parsing.message import ReasoningFormat
from server.parsing.parser import Parser, fit_reasoning, make_parser
from server.parsing.registry import reasoning_format, tool_format
from server.parsing.vocabulary import Vocabulary

__all__ = ["Parser", "ParserFactory", "Vocabulary"]

TAIL = 32
"""Prompt tokens searched for an opened reasoning; templates add a few."""


@dataclass(frozen=True, slots=True)
class ParserFactory:
    """The formats in use and the vocabulary their markers are found in."""

    vocabulary: Vocabulary
    tool_parser: str | None
    reasoning_parser: str | None
    repairs: bool = True
    """Whether arguments of calls are mended where that is safe: docs/parsers.md."""

    def __post_init__(self) -> None:
        """Raises UnknownParser, which lists the names there are."""
        if self.tool_parser is not None:
            tool_format(self.tool_parser)
        reasoning_format(self.reasoning_parser)

    @property
    def reasoning(self) -> ReasoningFormat:
        """How the model marks its thinking."""
        return fit_reasoning(self.reasoning_parser, self.vocabulary)

    def read(self, token_ids: Sequence[int]) -> Prompt:
        """A prompt, and the phase in which the answer starts.

        A template that opens or closes the reasoning ends with its marker and white space; a marker
        further up belongs to the conversation.
        """
        end = self.vocabulary.decoder().text(token_ids[-TAIL:]).rstrip()
        opened = end.endswith(self.reasoning.starts)
        phase = Phase.REASONING if opened else Phase.CONTENT
        return Prompt(tuple(token_ids), phase, end.endswith(self.reasoning.ends))

    def make(self, job: Job, phase: Phase) -> Parser:
        """A fresh parser for one choice. Tools that may not be called are not looked for."""
        policy = job.tool_policy
        return make_parser(
            self.vocabulary,
            tool_parser=self.tool_parser if policy.choice != "none" else None,
            reasoning_parser=self.reasoning_parser if job.parses else None,
            tools=policy.tools,
            starts_in=phase,
            stop=job.stop,
            include_stop=job.include_stop,
            parallel=policy.parallel,
            skip_special_tokens=job.skip_special_tokens,
            custom=frozenset(policy.custom),
            sound=holds_calls(job),
            spelled=spells_calls(job),
            repairs=self.repairs,
        )
