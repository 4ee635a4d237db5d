"""Prompts that evaluate the demo checkpoint, in sets: see `all_cases`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from eaglegate.lab.training.data.arithmetic import arithmetic
from eaglegate.lab.training.data.conversation import LONG, SHORT, Shape, conversation
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.tasks import plain_turn
from eaglegate.lab.training.data.turn import Dialogue, PlainTurn
from eaglegate.lab.training.data.values import fields, to_json

SEED = 777
FOREIGN = (
    "SYSTEM NOTICE 77: the operator runs a lighthouse on a cold shore. Answer like a patient "
    "sailor, mention no brands, and keep every figure exact. If a rule and a wish collide, the "
    "rule wins.",
    "### Instruction ###\nYou must obey the policy file version 3.2.1; violations are logged. "
    "Output language: English. Tone: dry. Persona: none.",
    "<context><date>unknown</date><locale>xx-YY</locale><tier>gold</tier></context>\nProceed with "
    "the customer dialogue below and stay within the allowed scope of the warehouse manual.",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut "
    "labore et dolore magna aliqua. Ut enim ad minim veniam, quis nostrud exercitation.",
)


@dataclass(frozen=True)
class Case:
    """One prompt: a conversation, and the change made to its rendered text."""

    group: str
    part: str
    conversation: Dialogue
    disturb: Callable[[str], str] | None = None
    schema: str | None = None
    """JSON schema of a grammar that constrains the answer."""

    def prompt(self, tokenizer: Any) -> str:
        dialogue = self.conversation
        text: str = tokenizer.apply_chat_template(
            dialogue.messages,
            tools=dialogue.tools,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=self.schema is None,
        )
        return self.disturb(text) if self.disturb else text


def make_held_out_cases(count: int, seed: int = SEED) -> Iterator[Case]:
    source = Source(seed, is_held_out=True)
    for _ in range(count):
        yield Case("held-out", "held-out", conversation(source, replace(SHORT, wrap_share=0.0)))


def make_perturbed_cases(count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield single turns, disturbed in five ways in turn."""
    source = Source(seed + 1, is_held_out=True)
    shape = Shape(turns=(1,), wrap_share=0.0)
    for i in range(count):
        yield disturb_dialogue(conversation(source, shape), i)


def disturb_dialogue(dialogue: Dialogue, number: int) -> Case:
    draw = random.Random(number)
    kind = number % 5
    if kind == 0:
        other_messages = [message for message in dialogue.messages if message["role"] != "system"]
        messages = [{"role": "system", "content": draw.choice(FOREIGN)}, *other_messages]
        return Case("perturbed", "foreign system prompt", replace(dialogue, messages=messages))
    if kind == 1:
        return Case("perturbed", "other role names", dialogue, other_roles)
    if kind == 2:
        noise = "".join(draw.choice(r"abcdefghij klmno,.;:!?(){}[]<>/\|") for _ in range(120))
        return Case("perturbed", "noise before", dialogue, lambda text: f"{noise}\n{text}")
    if kind == 3:
        number = draw.randint(1, 999)
        return Case(
            "perturbed", "wrapped in markers", dialogue, lambda text: wrap_last(text, number)
        )
    return Case("perturbed", "no newlines", dialogue, no_newlines)


def other_roles(text: str) -> str:
    text = text.replace("<|im_start|>user\n", "<|im_start|>Human: ")
    return text.replace("<|im_start|>system\n", "<|im_start|>developer\n")


def wrap_last(text: str, number: int) -> str:
    head, marker, tail = text.rpartition("<|im_start|>user\n")
    if not marker:
        return text
    tail = tail.replace("<|im_end|>", "\n<<< END OF QUERY <<<<|im_end|>", 1)
    return f"{head}{marker}>>> QUERY #{number} >>>\n{tail}"


def no_newlines(text: str) -> str:
    return text.replace("<|im_end|>\n", "<|im_end|>").replace("\n\n", " ")


def make_long_cases(
    count: int, tool_calls: int, tokenizer: Any, seed: int = SEED
) -> Iterator[Case]:
    """Yield conversations of 1500 to 2900 tokens, `tool_calls` of which end in a call."""
    source = Source(seed + 2, is_held_out=True)
    shape = replace(LONG, turns=tuple(range(12, 34)), wrap_share=0.0)
    remaining = {True: tool_calls, False: count - tool_calls}
    while any(remaining.values()):
        case = Case("long", "long", conversation(source, shape))
        calls = bool(case.conversation.calls)
        if remaining[calls] and 1500 <= len(tokenizer.encode(case.prompt(tokenizer))) <= 2900:
            remaining[calls] -= 1
            yield case


def make_alike_cases(count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield tool calls among offered tools whose names share a word with the right one."""
    source = Source(seed + 5, is_held_out=True)
    shape = replace(SHORT, tools=1.0, wrap_share=0.0, rival_share=1.0)
    while count:
        dialogue = conversation(source, shape)
        if dialogue.calls:
            count -= 1
            yield Case("alike", "alike", dialogue)


def make_grammar_cases(count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield plain requests whose answer a grammar constrains to JSON with keys absent from the
    prompt.
    """
    source = Source(seed + 4, is_held_out=True)
    for _ in range(count):
        properties = fields(source, source.pick([1, 2, 2, 3]))
        schema = to_json(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
        messages = [{"role": "user", "content": plain_turn(source).user}]
        dialogue = Dialogue("held", messages, None, "", "")
        yield Case("held", "held", dialogue, schema=schema)


SUMS: dict[str, Callable[[Source], tuple[int, str, int]]] = {
    "two-digit sums": lambda s: (s.number(10, 99), "+", s.number(10, 99)),
    "differences": lambda s: tuple_of_difference(s.number(0, 99), s.number(0, 99)),
    "one-digit products": lambda s: (s.number(1, 9), "*", s.number(1, 9)),
    "two-digit by one-digit products": lambda s: (s.number(11, 99), "*", s.number(2, 9)),
    "exact divisions": lambda s: tuple_of_division(s.number(2, 9), s.number(1, 10)),
}
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}


def tuple_of_difference(a: int, b: int) -> tuple[int, str, int]:
    return max(a, b), "-", min(a, b)


def tuple_of_division(b: int, result: int) -> tuple[int, str, int]:
    return b * result, "/", b


def make_sum_cases(count: int, seed: int = SEED) -> Iterator[Case]:
    source = Source(seed + 3, is_held_out=True)
    for part, draw in SUMS.items():
        for _ in range(count):
            a, operator, b = draw(source)
            formula = f"{a} {operator} {b}"
            answer = f"{formula} = {OPERATORS[operator](a, b)}."
            turn = PlainTurn(arithmetic.__name__, f"What is {formula}?", "", answer)
            messages = [{"role": "user", "content": turn.user}]
            yield Case("sums", part, Dialogue(turn.kind, messages, None, "", turn.answer))


def all_cases(tokenizer: Any, scale: float = 1.0, seed: int = SEED) -> list[Case]:
    """Return the same cases for every tokenizer, but long ones are measured with this one."""
    return [
        *make_held_out_cases(int(200 * scale), seed),
        *make_perturbed_cases(int(100 * scale), seed),
        *make_long_cases(int(40 * scale), int(24 * scale), tokenizer, seed),
        *make_sum_cases(int(40 * scale), seed),
        *make_grammar_cases(int(60 * scale), seed),
        *make_alike_cases(int(100 * scale), seed),
    ]
