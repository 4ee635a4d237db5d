"""Search for stop strings in the output's text, before any format reads it."""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from eaglegate.text.parsing.reader import TextSink

ROOT = 0


class Automaton:
    """Aho-Corasick automaton that finds several words in a text, one step per character.

    A. V. Aho and M. J. Corasick, Efficient string matching, CACM 18 (1975).
    ``depth[state]``: number of characters at the end of the text that begin a word.
    ``longest[state]``: length of the longest word that ends here, or 0.
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
        """Return the state after ``char``, in amortised constant time."""
        while char not in self._next[state]:
            if state == ROOT:
                return ROOT
            state = self._fail[state]
        return self._next[state][char]

    def _add(self, word: str) -> None:
        state = ROOT
        for depth, char in enumerate(word, 1):
            next_state = self._next[state].get(char)
            if next_state is None:
                next_state = self._next[state][char] = len(self._next)
                self._next.append({})
                self._fail.append(ROOT)
                self.depth.append(depth)
                self.longest.append(0)
            state = next_state
        self.longest[state] = len(word)

    def _link(self) -> None:
        """Link each state to its fallback, breadth first: shorter states are linked already."""
        queue = deque(self._next[ROOT].values())
        while queue:
            state = queue.popleft()
            for char, next_state in self._next[state].items():
                self._fail[next_state] = fallback = self.step(self._fail[state], char)
                self.longest[next_state] = self.longest[next_state] or self.longest[fallback]
                queue.append(next_state)


@lru_cache(maxsize=64)
def automaton(words: tuple[str, ...]) -> Automaton:
    """Return an automaton that all choices of a request share."""
    return Automaton(words)


class StopText:
    """Sink that passes text on until a stop string, and holds back its possible beginning.

    The stop string that starts first counts, and the shortest of several. The result does not
    depend on how the text is split. A marker token that contains a stop string also ends the text,
    but no stop string extends across a marker. While ``is_off``, no stop string ends.
    """

    __slots__ = (
        "_automaton",
        "_held",
        "_include",
        "_sink",
        "_state",
        "_stop_range",
        "is_off",
        "stopped",
    )

    def __init__(self, stops: tuple[str, ...], sink: TextSink, include: bool = False) -> None:
        self._automaton = automaton(stops)
        self._sink = sink
        self._include = include
        self._state = ROOT
        self._held = ""
        self._stop_range: tuple[int, int] | None = None
        """Range of the best stop in the held text, while an earlier stop is still possible."""
        self.is_off = False
        self.stopped: str | None = None

    def text(self, text: str) -> None:
        begin = len(self._held)
        buffer = self._held = self._held + text
        if self._scan(text, begin):
            self._stop()
            return
        keep = len(buffer) - self._automaton.depth[self._state]
        if self._stop_range is not None:  # it starts after the possible earlier stop, which is kept
            self._stop_range = (self._stop_range[0] - keep, self._stop_range[1] - keep)
        self._held = buffer[keep:]
        if keep:
            self._sink(buffer[:keep])

    def marker(self, marker: str) -> bool:
        """Release the held text. Return True if it or the marker's own text contains a stop."""
        self.settle()
        if self.stopped is None:
            self._scan(marker, 0)
            if self._stop_range is not None:
                self.stopped = marker[slice(*self._stop_range)]
            self._state, self._stop_range = ROOT, None
        return self.stopped is not None

    def settle(self) -> None:
        """Settle the held text, as no more follows: a complete stop counts, a beginning is text."""
        if self._stop_range is not None:
            self._stop()
            return
        buffer, self._held, self._state = self._held, "", ROOT
        if buffer:
            self._sink(buffer)

    def _scan(self, text: str, begin: int) -> bool:
        """Read ``text``, which begins at ``begin`` of the held text. Return True if a stop is found
        and no earlier one is possible."""
        machine, state = self._automaton, self._state
        for end, char in enumerate(text, begin + 1):  # ``end`` counts the characters read
            state = machine.step(state, char)
            # While it is off the automaton reads on, so that a stop may begin in such text.
            size = 0 if self.is_off else machine.longest[state]
            # The earliest start counts, so the longest word that ends here. A later word with the
            # same start is longer, and is not taken.
            if size and (self._stop_range is None or end - size < self._stop_range[0]):
                self._stop_range = (end - size, end)
            # A word that begins earlier may still be under way, if the last ``depth`` characters
            # reach back before the stop. Without this test, of the stops "b" and "abc", "b" would
            # end the text "abc", although "abc" starts first.
            if self._stop_range is not None and end - machine.depth[state] >= self._stop_range[0]:
                return True
        self._state = state
        return False

    def _stop(self) -> None:
        assert self._stop_range is not None
        start, end = self._stop_range
        self.stopped = self._held[start:end]
        text = self._held[: end if self._include else start]
        self._held, self._stop_range = "", None
        if text:
            self._sink(text)
