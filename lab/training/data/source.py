"""The generator's source of randomness, and the words it draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ONSETS = (
    "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kr pl sh sk st th tr qu x y"
).split()
VOWELS = "a e i o u ai ea ou y oo".split()
CODAS = ["", "", "", "n", "r", "s", "l", "t", "x", "m", "ck", "nd"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORDS = (Path(__file__).parent / "words.txt").read_text().split()
FIRST_NAMES = (
    "Alice Bob Carla David Emma Frank Grace Henry Irene Jack Karen Leo Maria Nina Oscar Paul "
    "Rosa Sam Tina Victor Wendy Zoe Anna Tom John Mary José Zoë Björn Søren Łukasz".split()
)
CITIES = (
    "Paris,London,Berlin,Madrid,Rome,Vienna,Prague,Oslo,Helsinki,Lisbon,Dublin,Athens,Warsaw,"
    "Tokyo,Osaka,Seoul,Beijing,Delhi,Mumbai,Cairo,Lagos,Nairobi,Boston,Chicago,Denver,Seattle,"
    "Austin,Toronto,Montreal,Lima,Bogota,Santiago,Sydney,Melbourne,Perth,Auckland,New York,"
    "San Diego,Los Angeles,Cape Town,Hong Kong,Buenos Aires,Tel Aviv,San Francisco,Munich,"
    "Zürich,São Paulo,Málaga,Göteborg,Kraków".split(",")
)
STATES = "CA NY TX WA UK France Japan Brazil".split()
UNICODE_WORDS = (
    "café naïve jalapeño façade brûlée über straße smörgåsbord piñata señor año mañana "
    "vu résumé touché cliché fiancée Ångström œuvre niño árbol français élève "
    "größe schön märchen øre æble łódź český řeka ñandú ο λόγος мир привет 你好 한국 "
    "über-cool €50 ½ 21 °C".split()
)
SCRIPTS = (
    "àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿßœšžłńśźżąęčďěňřťůğışőű",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "абвгдежзийклмнопрстуфхцчшщыьэюя",
    "東京大阪日本山川田中人木水火土金月海空花学生先国語時間上下左右前後北南西",
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん",
    "가나다라마바사아자차카타파하고노도로모보소오조초코토포호한국서울",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "😀🎉🚀🔥✨🌍🐱🍕⚡✅",
)
"""Letters of foreign words."""
MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


class Phrasings(tuple[str, ...]):
    """Ways to ask for the same thing. ``Source.ask`` fills their slots."""

    def __new__(cls, *templates: str) -> Phrasings:
        return super().__new__(cls, templates)


class Source:
    """Source of all random choices. Many values are invented, because a model must learn to copy.

    What it draws follows from its seed and the order of the calls.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return self.random.choice(items)

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def ask(self, phrasings: Phrasings, *value: object, **slots: object) -> str:
        """Return a phrasing with its slots filled."""
        return self.pick(phrasings).format(*value, **slots)

    def pseudo_word(self) -> str:
        count = self.pick([1, 2, 2, 3, 3, 4])
        body = "".join(self.pick(ONSETS) + self.pick(VOWELS) for _ in range(count))
        return body + self.pick(CODAS)

    def mixed_word(self) -> str:
        """Join the start of one word and the end of another, so that its pieces are in no known
        order.
        """
        start, end = self.pick(WORDS), self.pick(WORDS)
        return start[: self.number(2, 5)] + end[-self.number(2, 5) :]

    def made_up_word(self) -> str:
        """Return a word of ASCII letters that is in no list."""
        draw = self.random.random()
        if draw < 0.45:
            return self.pseudo_word()
        return self.mixed_word() if draw < 0.9 else self.letters(2, 6).lower()

    def foreign_word(self) -> str:
        if self.chance(0.3):
            return self.pick(UNICODE_WORDS)
        script = self.pick(SCRIPTS)
        return "".join(self.pick(script) for _ in range(self.number(1, 5)))

    def word(self) -> str:
        draw = self.random.random()
        if draw < 0.45:
            return self.made_up_word()
        return self.foreign_word() if draw < 0.49 else self.pick(WORDS)

    def plain_word(self) -> str:
        """Return a word suitable as an identifier."""
        return self.made_up_word() if self.chance(0.45) else self.pick(WORDS)

    def phrase(self, low: int = 1, high: int = 3) -> str:
        return " ".join(self.word() for _ in range(self.number(low, high)))

    def name(self) -> str:
        return self.proper(FIRST_NAMES)

    def city(self) -> str:
        city = self.proper(CITIES)
        return f"{city}, {self.pick(STATES)}" if self.chance(0.06) else city

    def proper(self, names: Sequence[str]) -> str:
        """Return a known name, or any word with a capital."""
        return self.word().capitalize() if self.chance(0.55) else self.pick(names)

    def date(self) -> str:
        draw = self.random.random()
        month, day = self.number(1, 12), self.number(1, 28)
        if draw < 0.5:
            return f"{self.pick([2025, 2026, 2027])}-{month:02d}-{day:02d}"
        if draw < 0.85:
            return f"{MONTHS[month - 1]} {day}"
        return self.pick([*DAYS, "tomorrow", "today"])

    def time(self) -> str:
        return f"{self.number(0, 23):02d}:{self.pick([0, 15, 30, 45]):02d}"

    def letters(self, low: int, high: int) -> str:
        return "".join(self.pick(LETTERS) for _ in range(self.number(low, high)))

    def code(self) -> str:
        """Return a code such as `EAQ`, `XB-204`, `k3f9a2`."""
        if self.chance(0.2):
            alphabet = "abcdef0123456789"
            return "".join(self.pick(alphabet) for _ in range(self.number(4, 8)))
        tail = str(self.number(1, 9999)) if self.chance(0.7) else ""
        return self.letters(2, 5) + (self.pick(["", "-", "_"]) if tail else "") + tail

    def email(self) -> str:
        host = f"{self.plain_word()}.{self.pick(['com', 'org', 'net'])}"
        return f"{self.name().lower().replace(' ', '')}@{host}"

    def path(self) -> str:
        stem, suffix = self.plain_word(), self.pick(["txt", "py", "csv", "json", "md"])
        return self.pick(
            [f"/{self.plain_word()}/{stem}", f"{stem}.{suffix}", f"{stem}_{self.plain_word()}.txt"]
        )
