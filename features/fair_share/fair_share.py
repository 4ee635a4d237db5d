"""Sharing of steps between requests of a latency class and all others.

A step with requests of the latency class takes other work only if a time account can pay for it.
Every such step adds its *slack* to the account: the time that the class's objective leaves beyond a
step of that class alone. Without an objective the slack is ``SLACK`` of such a step. It is never
less than ``LEAST``, so that other work cannot starve. The time that other work adds to a step is
deducted from the account.

The time of a step alone is measured: from time to time two consecutive steps run the latency class
alone. The second one's time counts, because part of the cost of other work falls into the step
after it: its tokens are delivered, and its requests leave the batch. The costs of a request, a
draft token and a prompt token are learnt from the other steps, by recursive least squares. The
planner's cost model cannot be used, because it attributes the cost of one more request in every
step to the speed of the machine.

If the account cannot pay, work is dropped in this order: draft tokens to verify, then whole
requests for a step. Prompts get half of the account if other requests decode as well. Keys share
the rest by weight: draft tokens in proportion, turns by start-time fair queueing (Goyal et al.,
SIGCOMM 1996).

None of this changes text. A request that waits for a step, or verifies fewer drafts, continues with
the same tokens later.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import NamedTuple

from eaglegate.features.fair_share.work_prices import PRICED, Kind, SharedStep, WorkPrices

SLACK = 0.05
"""Share of a step of the latency class alone that other work may add, without an objective."""
LEAST = 0.03
"""Share of such a step that other work may always add, whatever the objective."""
SAVED = 2.0
"""Most slacks that the account saves, unless the cheapest piece of work costs more."""
CHUNK = 32
"""Least number of tokens in a piece of a prompt."""
ALONE_EVERY = 15, 47
"""Steps between two measurements of a step alone, while others are limited and while not."""
STALE = 256
"""Steps after which a measured time of a step alone expires."""
ATTEMPTS = 4
"""Most consecutive steps alone to wait for a measurement."""
KNOWN = 64
"""Number of kinds of steps alone whose time is remembered."""
NEWEST = 15
"""Number of newest measurements whose median is the time of a step alone."""
KEYS = 64
"""Number of keys whose turns are counted. More have turns only while their requests are here."""
LEARNING = 0.05
"""Weight of the last step in the mean of tokens that a latency request gets from a step."""


class DecodingRow(NamedTuple):
    """A request that decodes in the next step, and its number of draft tokens to verify."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A request's part in the sharing."""

    key: str
    weight: float = 1.0
    """Share of the key among keys outside the latency class."""
    latency: bool = False
    objective_s: float = 0.0
    """Objective of the latency class in seconds per output token; 0 for none."""


@dataclass(slots=True)
class Ration:
    """Part of the next step that other requests get."""

    widths: dict[str, int] = field(default_factory=dict)
    """Draft tokens to verify, for requests that get fewer than they have."""
    held_requests: list[str] = field(default_factory=list)
    """Requests that wait for a later step."""
    prompt: int | None = None
    """Prompt tokens of other requests; None for no limit."""


@dataclass(slots=True)
class KeySteps:
    """Steps of a key outside the latency class, counted once for each request and step."""

    in_step: int = 0
    waited: int = 0


@dataclass(slots=True)
class ShareTotals:
    """Sums since the start, over steps with a request of the latency class."""

    steps: int = 0
    alone_steps: int = 0
    """Steps without other work."""
    added: float = 0.0
    """Expected time that other work added, in steps of the latency class alone."""
    cut_drafts: int = 0
    """Draft tokens of other requests that were not verified."""
    held_rows: int = 0
    """Requests that waited, once for each step."""
    keys: OrderedDict[str, KeySteps] = field(default_factory=OrderedDict)
    """The keys outside the latency class that were active last."""


class FairShare:
    """Sharing of the steps of one engine. Not thread-safe; the scheduler makes every call."""

    def __init__(self) -> None:
        self.totals = ShareTotals()
        self.prices = WorkPrices()
        self._members: dict[str, ShareMember] = {}
        self._num_latency = 0
        self._turns: dict[str, float] = {}
        """Virtual time of each key: its number of turns over its weight."""
        self._last_turn: dict[str, int] = {}
        """Number of each request's last turn."""
        self._num_turns = 0
        self._decoding = 0.0
        self._reading = 0.0
        """Balances of the account for decoding and for prompts, in steps alone."""
        self._tokens = 1.0
        """Mean number of tokens that a request of the latency class gets from a step."""
        self._alone: OrderedDict[Kind, tuple[deque[float], int]] = OrderedDict()
        """Times of the newest steps alone, and the number of the step measured last."""
        self._num_steps = 0
        self._since_alone = 0
        """Steps since the last measured step alone."""
        self._was_alone = False
        self._attempts = 0
        self._limits = False
        """True if the last step limited others."""

    @property
    def is_needed(self) -> bool:
        """True if there are requests of the latency class."""
        return self._num_latency > 0

    def describe(self) -> dict[str, object]:
        """Return totals and learnt prices; empty before the first step with a latency request."""
        if not self.totals.steps:
            return {}
        prices = dict(zip(PRICED, self.prices.prices, strict=True))
        totals = asdict(self.totals)
        return {**totals, "keys": dict(totals["keys"]), "prices": prices}

    def add(self, request: str, member: ShareMember) -> None:
        self._members[request] = member
        self._num_latency += member.latency

    def remove(self, request: str) -> None:
        member = self._members.pop(request, None)
        self._last_turn.pop(request, None)
        if member is not None:
            self._num_latency -= member.latency

    def forget(self, keys: Collection[str]) -> None:
        """Forget keys that are gone."""
        for key in keys:
            self._turns.pop(key, None)
            self.totals.keys.pop(key, None)

    def is_latency(self, request: str) -> bool:
        member = self._members.get(request)
        return member is not None and member.latency

    def observe(self, steps: Mapping[str, tuple[int, int]]) -> None:
        """Learn the tokens of a step from its drafts: (verified, accepted) by request."""
        for request, (_, count) in steps.items():
            if self.is_latency(request):
                self._tokens += LEARNING * (1 + count - self._tokens)

    def observe_step(self, step: SharedStep, seconds: float) -> None:
        """Learn from the time of a step that reads no prompt of the latency class."""
        alone_s = self._find_alone(step.kind)
        if step.is_measured:
            times: deque[float] = (
                deque(maxlen=NEWEST) if alone_s is None else self._alone[step.kind][0]
            )
            times.append(seconds)
            self._alone[step.kind] = times, self._num_steps
            self._alone.move_to_end(step.kind)
            if len(self._alone) > KNOWN:
                self._alone.popitem(last=False)
        elif alone_s is not None and not step.is_alone:
            self.prices.observe(step, seconds / alone_s - 1)

    def ration(self, rows: Sequence[DecodingRow], prompt: int, depth: int) -> Ration | None:
        """Divide the next step. None leaves everything to the scheduler.

        ``prompt`` counts waiting prompt tokens of other requests. ``depth`` is the number of draft
        tokens that the last step made for each request.
        """
        latency_rows = [row for row in rows if self.is_latency(row.name)]
        other_rows = [row for row in rows if not self.is_latency(row.name)]
        if not latency_rows or not (other_rows or prompt):
            return None
        alone_s = self._find_alone((len(latency_rows), depth, depth))
        self._since_alone += 1
        self._attempts = self._attempts + 1 if alone_s is None else 0
        # Unknown: nothing can be charged before a step alone is timed, so others wait, but not for
        # ever: where prompts cannot be split, no step is alone.
        if 0 < self._attempts <= ATTEMPTS:
            return self._leave_out(other_rows)
        self._save(bool(other_rows), prompt > 0, self._get_slack(latency_rows, alone_s))
        # Due: the time is measured again, sooner while it decides who waits.
        if self._since_alone >= ALONE_EVERY[not self._limits]:
            # A few attempts here, too, and again later.
            self._since_alone = max(self._since_alone, ALONE_EVERY[1])
            if self._since_alone >= ALONE_EVERY[1] + ATTEMPTS - 1:
                self._since_alone = 0
            return self._leave_out(other_rows)
        # Known: others get what the account can pay.
        ration, step_rows = self._divide_rows(other_rows)
        if prompt:
            # A smaller piece waits until the account pays for one worth its step.
            max_prompt = self.prices.count_prompt_tokens(self._reading)
            is_enough = max_prompt >= min(prompt, CHUNK)
            ration.prompt = min(prompt, max_prompt) if is_enough else 0
        self._note_turns(other_rows, step_rows, bool(ration.held_requests))
        is_cut = ration.prompt is not None and ration.prompt < prompt
        self._limits = bool(ration.held_requests or ration.widths or is_cut)
        return ration

    def settle(
        self, rows: Sequence[DecodingRow], prompt: int, depth: int, num_drafts: int
    ) -> SharedStep | None:
        """Charge the account for the other work in the step.

        ``depth``: see ``ration``. ``num_drafts`` is the number of draft tokens that this step makes
        per request.
        """
        latency_rows = [row for row in rows if self.is_latency(row.name)]
        if not latency_rows:
            self._was_alone = False
            return None
        other_rows = [row for row in rows if not self.is_latency(row.name)]
        drafts = sum(row.width for row in other_rows)
        kind = len(latency_rows), depth, num_drafts
        step = SharedStep(kind, len(other_rows), drafts, prompt, self._was_alone)
        self._was_alone = step.is_alone
        decoding = self.prices.get_rows(len(other_rows), drafts)
        reading = self.prices.get_prompt(prompt)
        self._decoding = max(self._decoding - decoding, -SAVED)
        self._reading = max(self._reading - reading, -SAVED)
        self._num_steps += 1
        self.totals.steps += 1
        self.totals.alone_steps += step.is_alone
        self.totals.added += decoding + reading
        if step.is_measured:
            self._since_alone = 0
        return step

    def _find_alone(self, kind: Kind) -> float | None:
        """Return the seconds of a step alone; None without a recent measurement."""
        measurement = self._alone.get(kind)
        return (
            None
            if measurement is None or self._num_steps - measurement[1] > STALE
            else median(measurement[0])
        )

    def _leave_out(self, rows: Sequence[DecodingRow]) -> Ration:
        self._count_waits(rows, rows)
        return Ration(held_requests=[row.name for row in rows], prompt=0)

    def _count_waits(
        self, rows: Sequence[DecodingRow], waiting_rows: Sequence[DecodingRow]
    ) -> None:
        """Count the requests in the step, and the requests that wait for a later one."""
        keys = self.totals.keys
        for row in rows:
            key = self._find(row.name).key
            keys.setdefault(key, KeySteps()).in_step += 1
            keys.move_to_end(key)
        for row in waiting_rows:
            steps = keys[self._find(row.name).key]
            steps.in_step -= 1
            steps.waited += 1
        self.totals.held_rows += len(waiting_rows)
        while len(keys) > KEYS:
            keys.popitem(last=False)

    def _get_slack(self, rows: Sequence[DecodingRow], alone_s: float | None) -> float:
        """Return the mean time that other work may add to a step, in steps alone. With an objective
        but no measured step alone, that is the least slack."""
        objectives = [self._members[row.name].objective_s for row in rows]
        alone_s = alone_s or math.inf
        slacks = [
            objective * self._tokens / alone_s - 1 if objective else SLACK
            for objective in objectives
        ]
        return max(LEAST, min(slacks))

    def _save(self, decode: bool, prompt: bool, slack: float) -> None:
        """Add a step's slack to the account, in halves if both kinds of work wait."""
        part = slack / (decode + prompt)
        if decode:
            limit = max(SAVED * slack, self.prices.get_rows(1, 0))
            self._decoding = min(self._decoding + part, limit)
        if prompt:
            limit = max(SAVED * slack, self.prices.get_prompt(CHUNK))
            self._reading = min(self._reading + part, limit)

    def _divide_rows(self, rows: Sequence[DecodingRow]) -> tuple[Ration, Sequence[DecodingRow]]:
        """Divide the time in the account. Return the ration, and the requests that are in the
        step."""
        ration, step_rows = Ration(), rows
        waiting_rows: Sequence[DecodingRow] = ()
        row, draft = self.prices.get_rows(1, 0), self.prices.get_rows(0, 1)
        time = self._decoding - row * len(rows)
        # Rounding must not hold a request that an account filled to its price (``_save``) can pay.
        if time < -1e-9:
            count = int(max(0.0, self._decoding) / row + 1e-9)
            turns = self._list_by_turn(rows)
            waiting_rows = turns[count:]
            ration.held_requests = [decoding_row.name for decoding_row in waiting_rows]
            step_rows, time = turns[:count], 0.0
        if time < draft * sum(decoding_row.width for decoding_row in step_rows):
            widths = self._divide_drafts(step_rows, int(max(0.0, time) / draft))
            ration.widths = widths
            self.totals.cut_drafts += sum(
                decoding_row.width - widths[decoding_row.name] for decoding_row in step_rows
            )
        self._count_waits(rows, waiting_rows)
        return ration, step_rows

    def _divide_drafts(self, rows: Sequence[DecodingRow], tokens: int) -> dict[str, int]:
        """Give out draft tokens one by one, each to the request whose key has the fewest for its
        weight."""
        widths = {row.name: 0 for row in rows}
        open_rows = [row for row in rows if row.width]
        tokens_by_key: dict[str, float] = {}
        while tokens > 0 and open_rows:
            row = min(open_rows, key=lambda row: self._rank(row, tokens_by_key, widths))
            widths[row.name] += 1
            member = self._find(row.name)
            tokens_by_key[member.key] = tokens_by_key.get(member.key, 0.0) + 1 / member.weight
            tokens -= 1
            if widths[row.name] == row.width:
                open_rows.remove(row)
        return widths

    def _rank(
        self, row: DecodingRow, tokens_by_key: Mapping[str, float], widths: Mapping[str, int]
    ) -> tuple[float, int]:
        return tokens_by_key.get(self._find(row.name).key, 0.0), widths[row.name]

    def _list_by_turn(self, rows: Sequence[DecodingRow]) -> list[DecodingRow]:
        """Order rows by turn: keys by virtual time, a key's rows by their last turn."""
        waiting_rows = sorted(rows, key=lambda row: self._last_turn.get(row.name, 0))
        keys = {self._find(row.name).key for row in rows}
        level = self._find_level(keys)
        times = {key: self._turns.get(key, level) for key in keys}
        result = []
        while waiting_rows:
            row = min(waiting_rows, key=lambda row: times[self._find(row.name).key])
            waiting_rows.remove(row)
            result.append(row)
            member = self._find(row.name)
            times[member.key] += 1 / member.weight
        return result

    def _find_level(self, keys: Collection[str]) -> float:
        """Return the virtual time at which a new key starts: the least of the keys that are here,
        or of the last ones that were."""
        times = [time for key, time in self._turns.items() if key in keys]
        return min(times or self._turns.values(), default=0.0)

    def _note_turns(
        self, rows: Sequence[DecodingRow], step_rows: Sequence[DecodingRow], others_wait: bool
    ) -> None:
        """Charge keys for the turns of their requests. A key that comes back starts level with the
        others, or behind them if it had had more when it left."""
        if not others_wait:  # all had their turn, so nobody is ahead any more
            self._turns.clear()
            return
        keys = {self._find(row.name).key for row in rows}
        level = self._find_level(keys)
        self._turns = {k: time for k, time in self._turns.items() if k in keys or time > level}
        for row in step_rows:
            member = self._find(row.name)
            self._turns[member.key] = self._turns.get(member.key, level) + 1 / member.weight
            self._num_turns += 1
            self._last_turn[row.name] = self._num_turns

    def _find(self, request: str) -> ShareMember:
        return self._members.get(request) or ShareMember("")
