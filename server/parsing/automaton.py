"""Aho and Corasick's automaton: all of some words in a text, one step for each character.

A. V. Aho and M. J. Corasick, Efficient string matching, CACM 18 (1975).
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

ROOT = 0


class Automaton:
    """``depth[state]``: characters at the end of the text that begin a word.

    ``longest[state]``: length of the longest word that ends here; 0 for none.
    """

    __slots__ = ("_fail", "_next", "depth", "longest")

    def __init__(self, words: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [ROOT]
        self.depth = [0]
        self.longest = [0]
        for word in words:
            self._add(word)
        self._link()

    def step(self, state: int, char: str) -> int:
        """The state behind ``char``; amortised, a constant number of looks."""
        while char not in self._next[state]:
            if state == ROOT:
                return ROOT
            state = self._fail[state]
        return self._next[state][char]

    def _add(self, word: str) -> None:
        state = ROOT
        for depth, char in enumerate(word, 1):
            following = self._next[state].get(char)
            if following is None:
                following = self._next[state][char] = len(self._next)
                self._next.append({})
                self._fail.append(ROOT)
                self.depth.append(depth)
                self.longest.append(0)
            state = following
        self.longest[state] = len(word)

    def _link(self) -> None:
        """Breadth first: what a state falls back on is shorter, so it is linked already."""
        queue = deque(self._next[ROOT].values())
        while queue:
            state = queue.popleft()
            for char, following in self._next[state].items():
                self._fail[following] = back = self.step(self._fail[state], char)
                self.longest[following] = self.longest[following] or self.longest[back]
                queue.append(following)


@lru_cache(maxsize=64)
def automaton(words: tuple[str, ...]) -> Automaton:
    """The choices of a request share one."""
    return Automaton(words)
