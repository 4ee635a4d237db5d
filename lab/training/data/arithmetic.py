"""Small sums, written so that every step is a fact about one or two digits."""

from __future__ import annotations

from eaglegate.lab.training.data.source import Phrasings, Source
from eaglegate.lab.training.data.turn import PlainTurn

TOO_LARGE = (
    "That calculation is too large for me. I can add and subtract numbers up to 99, "
    "multiply by one digit and divide within the times table."
)
ITEMS = "apples pears books pens coins cards stamps eggs cups bricks".split()
ASK = Phrasings(
    "What is {e}?",
    "Compute {e}.",
    "{e} = ?",
    "How much is {e}?",
    "Calculate {e} for me.",
    "Please solve {e}.",
    "{e}",
    "what's {e}",
    "{e}?",
    "What is the result of {e}?",
    "I want to know what {e} is.",
    "Do you know what {e} is?",
    "Can you compute {e}?",
    "Could you work out {e}?",
    "Give me the result of {e}.",
)
WORDED = {
    "+": ["{a} plus {b}", "the sum of {a} and {b}", "{a}+{b}"],
    "-": ["{a} minus {b}", "{a}-{b}"],
    "*": ["{a} times {b}", "{a}*{b}", "{a} x {b}"],
    "/": ["{a} divided by {b}", "{a}/{b}"],
}


def add_steps(a: int, b: int) -> str:
    """Add ones, then tens, then only the carry, because a step with three terms was not learnt."""
    total = f"{a} + {b} = {a + b}."
    if a < 10 and b < 10:
        return total
    ones = a % 10 + b % 10
    tens = a // 10 + b // 10
    steps = f"{a % 10} + {b % 10} = {ones}. {a // 10} + {b // 10} = {tens}. "
    if ones > 9:
        steps += f"{tens} + 1 = {tens + 1}. "
    return steps + total


def subtract_steps(a: int, b: int) -> str:
    """Subtract ones, then tens, borrowing ten if the ones are too small.

    The ones are next to each other before the first digit that shows the borrow.
    """
    total = f"{a} - {b} = {a - b}."
    if a < 10:
        return total
    ones = f"{a % 10} - {b % 10}"
    if a % 10 >= b % 10:
        return f"{ones} = {a % 10 - b % 10}. {a // 10} - {b // 10} = {a // 10 - b // 10}. {total}"
    tens = a // 10 - 1
    ones += f": 1{a % 10} - {b % 10} = {10 + a % 10 - b % 10}. "
    return ones + f"{a // 10} - 1 = {tens}. {tens} - {b // 10} = {tens - b // 10}. {total}"


def multiply_steps(a: int, b: int) -> str:
    """Two products from the times table, then the carry added digit by digit."""
    total = f"{a} * {b} = {a * b}."
    if a < 10:
        return total
    ones, tens = a % 10 * b, a // 10 * b
    steps = f"{a % 10} * {b} = {ones}. {a // 10} * {b} = {tens}. "
    carry = ones // 10
    if not carry:
        return steps + total
    if tens > 9:
        steps += f"{tens % 10} + {carry} = {tens % 10 + carry}. "
    return steps + f"{tens} + {carry} = {tens + carry}. {total}"


def divide_steps(a: int, b: int) -> str:
    """Count up the times table until the dividend is reached."""
    chant = " ".join(f"{b} * {i} = {b * i}." for i in range(1, a // b + 1))
    return f"{chant} {a} / {b} = {a // b}."


def arithmetic(source: Source) -> PlainTurn:
    """Make a sum, difference, product or quotient, bare or as a short story."""
    kind = source.pick(
        ["+"] * 5 + ["-"] * 4 + ["*", "*", "**", "**", "**", "/", "/", "w", "w", "big"]
    )
    if kind == "big":
        return too_large(source)
    if kind == "w":
        return word_problem(source)
    return expression(source, kind)


def expression(source: Source, kind: str) -> PlainTurn:
    high = source.pick([9, 99, 99, 99])
    a, b = source.number(0, high), source.number(0, high)
    operator = kind[0]
    if operator == "+":
        steps, result = add_steps(a, b), a + b
    elif operator == "-":
        a, b = max(a, b), min(a, b)
        steps, result = subtract_steps(a, b), a - b
    elif operator == "*":
        a, b = (
            (source.number(11, 99) if kind == "**" else source.number(1, 10)),
            source.number(1, 9) if kind == "*" else source.number(2, 9),
        )
        steps, result = multiply_steps(a, b), a * b
    else:
        b, result = source.number(2, 9), source.number(1, 10)
        a = b * result
        steps = divide_steps(a, b)
    formula = f"{a} {operator} {b}"
    question = formula if source.chance(0.5) else source.pick(WORDED[operator]).format(a=a, b=b)
    answer = f"{formula} = {result}."
    return PlainTurn(source.ask(ASK, e=question), steps, answer, direct_answer=steps)


def too_large(source: Source) -> PlainTurn:
    a, b, operator = source.number(100, 99999), source.number(11, 9999), source.pick("+-*/")
    if operator == "*" and source.chance(0.6):
        a, b = source.number(11, 99), source.number(11, 99)
    ask = source.ask(ASK, e=f"{a} {operator} {b}")
    return PlainTurn(ask, "The numbers are too large.", TOO_LARGE)


MORE = Phrasings(
    "{n} has {a} {i} and gets {b} more. How many {i} does {n} have now?",
    "There are {a} {i}. {n} adds {b} {i}. How many {i} are there now?",
    "{n} finds {a} {i} and then {b} {i}. How many {i} is that?",
)
FEWER = Phrasings(
    "{n} has {a} {i} and gives away {b} of them. How many {i} are left?",
    "{n} had {a} {i} and lost {b}. How many {i} does {n} have now?",
    "There are {a} {i}. {n} takes {b} of them. How many {i} are left?",
)
BOXES = Phrasings("A box holds {a} {i}. {n} buys {b} boxes. How many {i} is that?")


def word_problem(source: Source) -> PlainTurn:
    name, item = source.name(), source.pick(ITEMS)
    a, b = source.number(1, 99), source.number(1, 60)
    draw = source.random.random()
    if draw < 0.4:
        template, steps, result = MORE, add_steps(a, b), a + b
    elif draw < 0.8:
        a, b = max(a, b), min(a, b)
        template, steps, result = FEWER, subtract_steps(a, b), a - b
    else:
        a, b = source.number(2, 40), source.number(2, 9)
        template, steps, result = BOXES, multiply_steps(a, b), a * b
    ask = source.ask(template, n=name, a=a, b=b, i=item)
    answer = f"The answer is {result} {item}."
    return PlainTurn(ask, steps, answer, direct_answer=f"{steps} {answer}")
