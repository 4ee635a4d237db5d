"""A canary's test whose verdict never rests on the requests of a single API key.

A client sees the arm of its requests and can make those of one arm fail, or be slow. Its share of
the traffic is its own choice as well. A verdict therefore has to hold without any one key's
requests. A gateway whose requests all have one key, or none, is tested as a whole.

A key that sends more in one arm's slots slows everybody there. Where a key's share of the tokens is
uneven, the block says nothing of the TPOT of the others.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace

from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.canary.sequential import CanaryFindings, CanaryTest, SessionValues, SlotPair

MAX_KEYS = 50
"""Most keys that are left out in turn. A key beyond the largest 50 has at most 2 % of the sessions,
which is the smallest margin."""


UNEVEN = 0.3
"""Difference of a key's shares of both slots' tokens from which its load may explain a TPOT."""
TOKENS = "tokens"
"""Name of the tokens of each session among the metrics of a slot; absent if both arms serve at the
same time."""


class KeyedTest:
    """Judges blocks whose sessions are pairs of an API key's name and a session."""

    def __init__(self, test: CanaryTest) -> None:
        self._test = test
        self._rests: dict[str | None, CanaryTest] = {}
        """The test without the requests of a key, by key."""
        self._num_sessions: Counter[str | None] = Counter()

    def add(self, block: SlotPair) -> None:
        sessions = Counter(session[0] for session in block.sessions)  # type: ignore[index]
        for name, _ in sessions.most_common(MAX_KEYS):
            if name not in self._rests:
                self._rests[name] = deepcopy(self._test)  # it had hardly any request before
        self._num_sessions += sessions
        largest_keys = sorted(self._rests, key=self._num_sessions.__getitem__)[-MAX_KEYS:]
        self._rests = {key: self._rests[key] for key in largest_keys}
        for key, test in self._rests.items():
            test.add(_leave_out(block, key))
        self._test.add(block)

    def judge(self) -> CanaryFindings:
        """Return the current verdict; undecided while it needs the requests of one key."""
        findings = self._test.judge()
        if findings.verdict is CanaryVerdict.UNDECIDED or len(self._rests) < 2:
            return findings
        for key, test in self._rests.items():
            if test.judge().verdict is not findings.verdict:
                reason = f"{findings.reason}, but only with the requests of the key {key}"
                is_last = findings.blocks >= self._test.rules.max_blocks
                return replace(
                    findings, verdict=CanaryVerdict.UNDECIDED, reason=reason, ended=is_last
                )
        return findings


def _leave_out(block: SlotPair, key: str | None) -> SlotPair:
    def filter_sessions(values: SessionValues) -> SessionValues:
        return {session: value for session, value in values.items() if session[0] != key}  # type: ignore[index]

    arms = block.control, block.candidate
    tokens = [arm.get(TOKENS, {}) for arm in arms]
    totals = [_add_up(sessions) for sessions in tokens]
    rests = [_add_up(filter_sessions(sessions)) for sessions in tokens]
    is_uneven = differ_in_load((rests[0], totals[0]), (rests[1], totals[1]))
    return SlotPair(
        *(
            {
                metric: filter_sessions(values)
                for metric, values in arm.items()
                if not (is_uneven and metric.startswith("tpot"))
            }
            for arm in arms
        )
    )


def differ_in_load(control: tuple[float, float], candidate: tuple[float, float]) -> bool:
    """Return True if the parts of both (part, total) are too different for a comparison of TPOT."""
    shares = [part / (total or 1.0) for part, total in (control, candidate)]
    return abs(shares[0] - shares[1]) > UNEVEN


def _add_up(sessions: SessionValues) -> float:
    return sum(map(sum, sessions.values()))
