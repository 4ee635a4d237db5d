"""Grammar and parser of an answer: free reasoning, constrained content or tool calls.

The grammar includes the reasoning. A model that may either think or answer is therefore constrained
in both cases, with any reasoning format, and the engine needs to know no format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from eaglegate.engine.types import Constraint
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.job import Prompt, Question, ToolPolicy
from eaglegate.text.events import Phase
from eaglegate.text.parsing.answer import fit_reasoning, make_parser
from eaglegate.text.parsing.message import CallFrame, ReasoningFormat, TagNode, matching
from eaglegate.text.parsing.parser import Parser
from eaglegate.text.parsing.registry import find_frame, framed_names, tool_format
from eaglegate.text.parsing.schemas import find_cycle, modernise
from eaglegate.text.parsing.vocabulary import Vocabulary


def answer_constraint(
    question: Question,
    starts_in: Phase,
    reasoning: ReasoningFormat,
    tool_parser: str | None,
    reasoned: bool = False,
) -> Constraint | None:
    """Return the answer's constraint; None if it is free. Raises InvalidRequest if it cannot be
    enforced.

    If the prompt has closed the reasoning (``reasoned``), the grammar does not allow further
    reasoning, so a client that turned thinking off gets none.
    """
    constraint = question.constraint
    if constraint is None and not needs_grammar(question.tool_policy):
        return None
    if constraint is not None and constraint.kind == "structural_tag":
        return constraint
    if reasoning.channels is not None and question.parses:
        return _on_channels(question)
    has_reasoning = bool(reasoning.ends) and question.parses and not reasoned
    if not has_reasoning and constraint is not None and question.tool_policy.choice == "none":
        return _bound_white_space(constraint)
    answer = _answer(question, tool_parser)
    elements = [*_thinking(starts_in, reasoning), answer] if has_reasoning else [answer]
    return _tag({"type": "sequence", "elements": elements} if has_reasoning else answer)


def _bound_white_space(constraint: Constraint) -> Constraint:
    """Convert JSON constraints to the same grammar as with reasoning, which bounds white space."""
    if constraint.kind in ("json_schema", "json_object"):
        return _tag(content_format(constraint))
    return constraint


def _on_channels(question: Question) -> Constraint:
    """Return the constraint for gpt-oss, whose messages have headers: only the engine knows where
    content begins.
    """
    if question.constraint is None or question.tool_policy.choice == "required":
        _frame("gpt_oss")
    assert question.constraint is not None
    return replace(question.constraint, after_reasoning=True)


def needs_grammar(policy: ToolPolicy) -> bool:
    """Return True if calls are forced, limited to some tools, or must match a schema or a
    grammar.
    """
    if policy.choice != "auto":
        return policy.choice == "required"
    if policy.only or any(map(is_strict, policy.tools)):
        return True
    return bool(policy.custom) and any(is_held(tool, policy) for tool in policy.tools)


def holds_calls(question: Question) -> bool:
    """Return True if the grammar of ``answer_constraint`` guarantees that a call's JSON is
    complete.
    """
    if question.constraint is not None:
        return question.constraint.kind != "structural_tag"
    return needs_grammar(question.tool_policy)


def spells_calls(question: Question) -> bool:
    """Return True if a call in a grammar may be marked with ordinary tokens.

    A grammar only sees text, and a model that would rather not call spells the marker with ordinary
    tokens. Return False if the content may be JSON that quotes a marker.
    """
    return question.constraint is None or question.tool_policy.choice == "required"


def _answer(question: Question, tool_parser: str | None) -> TagNode:
    policy = question.tool_policy
    if policy.choice == "required":
        return _list_calls(_frame(tool_parser), policy)
    if question.constraint is None:
        return _text_with_calls(_frame(tool_parser), policy)
    content = content_format(question.constraint)
    if policy.choice == "none" or find_frame(tool_parser) is None:
        return content
    calls = _list_calls(_frame(tool_parser), policy)
    return {"type": "or", "elements": [content, calls]}


def content_format(constraint: Constraint) -> TagNode:
    """Return a Constraint as a node of a structural tag."""
    match constraint.kind:
        case "json_schema":
            return matching(orjson.loads(constraint.value))
        case "json_object":
            return matching({"type": "object"})
        case "regex":
            return {"type": "regex", "pattern": constraint.value}
        case "choice":
            literals = [{"type": "const_string", "value": text} for text in constraint.choices]
            return {"type": "or", "elements": literals}
        case kind:
            return {"type": kind, kind: constraint.value}


def _thinking(starts_in: Phase, reasoning: ReasoningFormat) -> list[TagNode]:
    """Return the nodes for reasoning. Reasoning opened by the template must end; otherwise it is
    optional.
    """
    end = reasoning.ends[0] if len(reasoning.ends) == 1 else list(reasoning.ends)
    any_text = {"type": "any_text"}
    if starts_in is Phase.REASONING:
        return [
            {"type": "tag", "begin": "", "content": any_text, "end": end},
            *_make_gap(reasoning),
        ]
    openings = [
        {"type": "tag", "begin": start, "content": any_text, "end": end}
        for start in reasoning.starts
    ]
    if not openings:
        return []
    opening: Any = openings[0] if len(openings) == 1 else {"type": "or", "elements": openings}
    reasoning_tag = {"type": "sequence", "elements": [opening, *_make_gap(reasoning)]}
    return [{"type": "optional", "content": reasoning_tag}]


def _make_gap(reasoning: ReasoningFormat) -> list[TagNode]:
    """Return a node for the white space that a template writes between reasoning and answer."""
    if not reasoning.framing:
        return []
    characters = reasoning.framing.replace("\n", "\\n")
    return [{"type": "regex", "pattern": f"[{characters}]{{0,4}}"}]


def _tag(answer: TagNode) -> Constraint:
    return Constraint("structural_tag", _text({"type": "structural_tag", "format": answer}))


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _frame(tool_parser: str | None) -> CallFrame:
    frame = find_frame(tool_parser)
    if frame is None:
        names = ", ".join(framed_names())
        raise InvalidRequest(
            f"The tool-call parser '{tool_parser}' cannot force calls or make them strict; these "
            f"can: {names}. Use tool_choice 'auto', and tools without 'strict' or a grammar.",
            param="tool_choice",
        )
    return frame


def _list_calls(frame: CallFrame, policy: ToolPolicy) -> TagNode:
    """Return a node for one or more calls of any tool. Arguments match their schemas and
    grammars.
    """
    calls: TagNode = {
        "type": "tags_with_separator",
        "tags": [_tag_of(frame, tool, policy, is_constrained=True) for tool in policy.callable],
        "separator": frame.separator,
        "at_least_one": True,
        "stop_after_first": not policy.parallel,
    }
    return _in_section(frame, calls)


def _text_with_calls(frame: CallFrame, policy: ToolPolicy) -> TagNode:
    """Return a node for free text with calls of the offered tools. Strict tools get matching
    arguments.
    """
    tags = [
        _tag_of(frame, tool, policy, is_constrained=is_strict(tool)) for tool in policy.callable
    ]
    if frame.section[0]:
        inner: TagNode = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": frame.separator,
            "at_least_one": True,
            "stop_after_first": not policy.parallel,
        }
        begin, end = frame.section
        tags = [{"type": "tag", "begin": begin, "content": inner, "end": end}]
    return {
        "type": "triggered_tags",
        "triggers": [frame.trigger],
        "tags": tags,
        "stop_after_first": not policy.parallel,
    }


def _tag_of(
    frame: CallFrame, tool: Mapping[str, Any], policy: ToolPolicy, *, is_constrained: bool
) -> TagNode:
    function = tool["function"]
    grammar = policy.custom.get(function["name"])
    if grammar is not None:
        return frame.text_call(function["name"], grammar)
    schema = modernise(function.get("parameters")) if is_constrained else None
    return frame.call(function["name"], {"type": "object"} if schema is None else schema)


def _in_section(frame: CallFrame, calls: TagNode) -> TagNode:
    begin, end = frame.section
    if not begin:
        return calls
    return {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": begin},
            calls,
            {"type": "const_string", "value": end},
        ],
    }


def is_strict(tool: Mapping[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def is_held(tool: Mapping[str, Any], policy: ToolPolicy) -> bool:
    """Return True if the tool's arguments must match a schema or grammar even if no call is
    forced.
    """
    return is_strict(tool) or policy.custom.get(tool["function"]["name"]) is not None


def _check_cycles(constraint: Constraint, param: str) -> None:
    if '"$ref"' not in constraint.value:
        return
    with suppress(orjson.JSONDecodeError):
        for schema in _find_schemas(constraint.kind, orjson.loads(constraint.value)):
            if reference := find_cycle(schema):
                raise InvalidRequest(
                    f"No answer can match the schema in '{param}': its reference "
                    f"'{reference[:100]}' leads back to itself. Put a type between them, such as "
                    "'properties' or 'items'.",
                    param=param,
                    code="invalid_schema",
                )


def _find_schemas(kind: str, value: Any) -> Iterator[Any]:
    """Yield the schemas of a constraint: its value, or those in a structural tag."""
    if kind == "json_schema":
        yield value
        return
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        elif isinstance(part, dict):
            for name, inner in part.items():
                if name in ("json_schema", "schema"):
                    yield inner
                else:
                    stack.append(inner)


TAIL = 32
"""Number of prompt tokens searched for opened reasoning. Templates add only a few."""


@dataclass(frozen=True, slots=True)
class ParserFactory:
    """Creates parsers from the configured formats and the vocabulary of their markers."""

    vocabulary: Vocabulary
    tool_parser: str | None
    reasoning_parser: str | None
    repairs: bool = True
    """True if a call's arguments are repaired where that is safe (docs/parsers.md)."""
    reasoning: ReasoningFormat = field(init=False)
    """Format in which the model marks its reasoning."""
    _openings: tuple[str, ...] = field(init=False)
    """Texts at the end of a prompt that open reasoning."""

    def __post_init__(self) -> None:
        """Find the formats. Raises UnknownParser, which lists the known names."""
        reasoning = fit_reasoning(self.reasoning_parser, self.vocabulary)
        openings = reasoning.openings
        if self.tool_parser is not None:
            openings = (*openings, *filter(None, [tool_format(self.tool_parser).opening]))
        object.__setattr__(self, "reasoning", reasoning)
        object.__setattr__(self, "_openings", openings)

    def describe(self) -> list[tuple[str, str]]:
        """Return the purpose and name of each parser."""
        parsers = (("tool_calls", self.tool_parser), ("reasoning", self.reasoning_parser))
        return [(purpose, name) for purpose, name in parsers if name]

    @property
    def pieces(self) -> Mapping[int, bytes]:
        """The bytes of every token."""
        return self.vocabulary.pieces

    def constrain(self, question: Question, prompt: Prompt) -> Constraint | None:
        """Return the ``answer_constraint`` of an answer to ``prompt``. Raises InvalidRequest."""
        constraint = answer_constraint(
            question, prompt.starts_in, self.reasoning, self.tool_parser, reasoned=prompt.reasoned
        )
        if constraint is not None:
            _check_cycles(constraint, question.grammar_param)
        return constraint

    def read(self, token_ids: Sequence[int], continued_text: str = "") -> Prompt:
        """Return a prompt with the phase in which the answer starts.

        A template that opens or closes reasoning ends with its marker and white space. A marker
        further up belongs to the conversation, unless it is in the message that the answer
        continues, of which ``continued_text`` is the text. There the last marker counts.
        """
        num_tail = TAIL + len(continued_text.encode())
        end = self.vocabulary.decoder().text(token_ids[-num_tail:]).rstrip()
        start = len(end[: len(end) - len(continued_text.strip())].rstrip())

        def find_last(markers: tuple[str, ...]) -> int:
            places = (end.rfind(marker, max(0, start - len(marker))) for marker in markers)
            return max(places, default=-1)

        opening, closing = find_last(self._openings), find_last(self.reasoning.ends)
        phase = Phase.REASONING if opening > closing else Phase.CONTENT
        return Prompt(tuple(token_ids), phase, closing > opening)

    def make(self, question: Question, phase: Phase) -> Parser:
        """Create the parser of one choice. Calls are only parsed if tools may be called."""
        policy = question.tool_policy
        is_sound = holds_calls(question)
        return make_parser(
            self.vocabulary,
            tool_parser=self.tool_parser if policy.choice != "none" else None,
            reasoning_parser=self.reasoning_parser if question.parses else None,
            tools=policy.tools,
            starts_in=phase,
            stop=question.stop,
            include_stop=question.include_stop,
            parallel=policy.parallel,
            skip_special_tokens=question.skip_special_tokens,
            custom=frozenset(policy.custom),
            is_sound=is_sound,
            may_spell=is_sound and spells_calls(question),
            repairs=self.repairs,
        )
