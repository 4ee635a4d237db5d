"""Sessions of two arms under a load that drifts, as a canary's blocks see them."""

from __future__ import annotations

import math
import random
from collections import defaultdict

from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.canary.sequential import CanaryRules, CanaryTest, SlotPair

RULES = CanaryRules(max_blocks=40)
Values = dict[str, dict[str, list[float]]]


class Traffic:
    """Sessions that differ, under a load that drifts; requests of one session are alike."""

    def __init__(self, seed: int, gain: float = 1.0, slower: float = 1.0, tools: float = 1.0):
        self.random = random.Random(seed)
        self.gain, self.slower, self.tools = gain, slower, tools
        self.at = 0

    def make_slot(self, candidate: bool) -> Values:
        out, load = make_values(), self.find_load()
        for session in range(self.random.randint(5, 11)):
            self.add_session(out, f"{self.at}-{session}", load, candidate)
        return out

    def make_span(self, share: float) -> SlotPair:
        """The arms at the same time, a share of the sessions in the candidate's."""
        arms, load = [make_values(), make_values()], self.find_load()
        for session in range(self.random.randint(10, 22)):
            candidate = self.random.random() < share
            self.add_session(arms[candidate], f"{self.at}-{session}", load, candidate)
        return SlotPair(*arms)

    def find_load(self) -> float:
        self.at += 1
        return 1 + 0.3 * math.sin(self.at / 7) + 0.02 * self.random.gauss(0, 1)

    def add_session(self, out: Values, name: str, load: float, candidate: bool) -> None:
        workload = "tools" if self.random.random() < 0.3 else "chat"
        own = self.random.lognormvariate(0, 0.25) * (2.2 if workload == "tools" else 1)
        for _ in range(self.random.randint(1, 5)):
            self.add_request(out, name, workload, own, load, candidate)

    def add_request(
        self, out: Values, name: str, workload: str, own: float, load: float, candidate: bool
    ) -> None:
        gain, slower = (self.gain, self.slower) if candidate else (1.0, 1.0)
        if candidate and workload == "tools":
            gain *= self.tools
        noise = [self.random.lognormvariate(0, 0.1) for _ in range(2)]
        length = 1 + 1.8 * gain * own * noise[0]
        out["acceptance"][name].append(length)
        out["acceptance:" + workload][name].append(length)
        tpot = slower * load * noise[1] / length
        for metric in ("tpot", "tpot:" + workload):
            out[metric][name].append(tpot)
        out["fallback"][name].append(self.random.betavariate(2, 8))
        out["failed"][name].append(float(self.random.random() < 0.01))
        if workload == "tools":
            out["tool_failed"][name].append(float(self.random.random() < 0.03))

    def make_block(self) -> SlotPair:
        first = bool(self.random.random() < 0.5)
        slots = {arm: self.make_slot(arm) for arm in (first, not first)}
        return SlotPair(slots[False], slots[True])

    def run(
        self, rules: CanaryRules = RULES, share: float | None = None
    ) -> tuple[CanaryVerdict, int]:
        """Looks after every block, and stops at the first verdict."""
        test = CanaryTest(rules, concurrent=share is not None)
        while True:
            test.add(self.make_block() if share is None else self.make_span(share))
            found = test.judge()
            if found.ended:
                return found.verdict, found.blocks


def make_values() -> Values:
    return defaultdict(lambda: defaultdict(list))
