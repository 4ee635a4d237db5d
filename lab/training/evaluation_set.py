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
        made = self.conversation
        text: str = tokenizer.apply_chat_template(
            made.messages,
            tools=made.tools,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=self.schema is None,
        )
        return self.disturb(text) if self.disturb else text


def held_out(count: int, seed: int = SEED) -> Iterator[Case]:
    source = Source(seed, held_out=True)
    for _ in range(count):
        yield Case("held-out", "held-out", conversation(source, replace(SHORT, wrapped=0.0)))


def perturbed(count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield single turns, disturbed in five ways in turn."""
    source = Source(seed + 1, held_out=True)
    single = Shape(turns=(1,), wrapped=0.0)
    for i in range(count):
        yield disturbed(conversation(source, single), i)


def disturbed(made: Dialogue, number: int) -> Case:
    draw = random.Random(number)
    kind = number % 5
    if kind == 0:
        rest = [message for message in made.messages if message["role"] != "system"]
        foreign = [{"role": "system", "content": draw.choice(FOREIGN)}, *rest]
        return Case("perturbed", "foreign system prompt", replace(made, messages=foreign))
    if kind == 1:
        return Case("perturbed", "other role names", made, other_roles)
    if kind == 2:
        noise = "".join(draw.choice(r"abcdefghij klmno,.;:!?(){}[]<>/\|") for _ in range(120))
        return Case("perturbed", "noise before", made, lambda text: f"{noise}\n{text}")
    if kind == 3:
        number = draw.randint(1, 999)
        return Case("perturbed", "wrapped in markers", made, lambda text: wrap_last(text, number))
    return Case("perturbed", "no newlines", made, no_newlines)


def other_roles(text: str) -> str:
    text = text.replace("<|im_start|>user\n", "<|im_start|>Human: ")
    return text.replace("<|im_start|>system\n", "<|im_start|>developer\n")


def wrap_last(text: str, number: int) -> str:
    before, found, after = text.rpartition("<|im_start|>user\n")
    if not found:
        return text
    after = after.replace("<|im_end|>", "\n<<< END OF QUERY <<<<|im_end|>", 1)
    return f"{before}{found}>>> QUERY #{number} >>>\n{after}"


def no_newlines(text: str) -> str:
    return text.replace("<|im_end|>\n", "<|im_end|>").replace("\n\n", " ")


def long(count: int, tool_calls: int, tokenizer: Any, seed: int = SEED) -> Iterator[Case]:
    """Yield conversations of 1500 to 2900 tokens, `tool_calls` of which end in a call."""
    source = Source(seed + 2, held_out=True)
    shape = replace(LONG, turns=tuple(range(12, 34)), wrapped=0.0)
    left = {True: tool_calls, False: count - tool_calls}
    while any(left.values()):
        case = Case("long", "long", conversation(source, shape))
        calls = bool(case.conversation.calls)
        if left[calls] and 1500 <= len(tokenizer.encode(case.prompt(tokenizer))) <= 2900:
            left[calls] -= 1
            yield case


def alike(count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield tool calls among offered tools whose names share a word with the right one."""
    source = Source(seed + 5, held_out=True)
    shape = replace(SHORT, tools=1.0, wrapped=0.0, rivals=1.0)
    while count:
        made = conversation(source, shape)
        if made.calls:
            count -= 1
            yield Case("alike", "alike", made)


def held(count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield plain requests whose answer a grammar constrains to JSON with keys absent from the
    prompt.
    """
    source = Source(seed + 4, held_out=True)
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
        made = Dialogue("held", messages, None, "", "")
        yield Case("held", "held", made, schema=schema)


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


def sums(each: int, seed: int = SEED) -> Iterator[Case]:
    source = Source(seed + 3, held_out=True)
    for part, draw in SUMS.items():
        for _ in range(each):
            a, operator, b = draw(source)
            plain = f"{a} {operator} {b}"
            answer = f"{plain} = {OPERATORS[operator](a, b)}."
            turn = PlainTurn(arithmetic.__name__, f"What is {plain}?", "", answer)
            messages = [{"role": "user", "content": turn.user}]
            yield Case("sums", part, Dialogue(turn.kind, messages, None, "", turn.answer))


def all_cases(tokenizer: Any, scale: float = 1.0, seed: int = SEED) -> list[Case]:
    """Return the same cases for every tokenizer, except that `long` is measured with this one."""
    return [
        *held_out(int(200 * scale), seed),
        *perturbed(int(100 * scale), seed),
        *long(int(40 * scale), int(24 * scale), tokenizer, seed),
        *sums(int(40 * scale), seed),
        *held(int(60 * scale), seed),
        *alike(int(100 * scale), seed),
    ]
