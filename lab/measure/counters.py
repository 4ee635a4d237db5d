"""Speculation counters of a server, read from its /metrics before and after a run.

The counters of an eaglegate are exact for delivered tokens, and count how often a position was
drafted. vLLM's own (`vllm:spec_decode_*`) count tokens as the target accepts them, before a stop or
a token limit removes some. They do not show which drafts reached a position, so figures per
position need a constant depth there. Counters cover the whole server, including other traffic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eaglegate.engine.totals import Totals

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
GATEWAY = re.compile(r"eaglegate_(?!pod_)")
"""A name of a gateway's. A pod's stand beside vLLM's own, which count the same (docs/pod.md)."""
POSITION = re.compile(r'position="(\d+)"')
OUTCOME = re.compile(r'outcome="(\w+)"')
OURS = "eaglegate_"
VLLM = "vllm:spec_decode_num_"


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over a server's series."""

    source: str
    """"eaglegate", "vllm", or "" if the server exports neither."""
    values: Mapping[tuple[str, str], float]
    """Values by name, and by position or outcome."""

    def __sub__(self, start: Counters) -> Counters:
        """Return the growth since ``start``. After a restart it is negative and meaningless."""
        names = self.values.keys() | start.values.keys()
        growth = {n: self.values.get(n, 0.0) - start.values.get(n, 0.0) for n in names}
        return Counters(self.source, growth)

    def value(self, name: str, label: str = "") -> int:
        return round(self.values.get((name, label), 0.0))

    def _positions(self, name: str, base: int) -> tuple[int, ...]:
        counts = {
            int(label) - base: round(value)
            for (counter, label), value in self.values.items()
            if counter == name and label
        }
        return tuple(counts.get(position, 0) for position in range(max(counts, default=-1) + 1))

    @property
    def reset(self) -> bool:
        """True if a counter fell, because the server was restarted."""
        return any(value < 0 for value in self.values.values())

    def totals(self) -> Totals | None:
        """Return the totals; None if the server has no counters of speculation."""
        if self.source == "vllm":
            return Totals(
                verify_steps=self.value("drafts_total"),
                proposed=self.value("draft_tokens_total"),
                accepted=self.value("accepted_tokens_total"),
                accepted_at=self._positions("accepted_tokens_per_pos_total", 0),
            )
        if self.source != "eaglegate":
            return None
        return Totals(
            tokens=self.value("completion_tokens_total"),
            verify_steps=self.value("verify_steps_total"),
            proposed=self.value("drafted_tokens_total"),
            accepted=self.value("accepted_tokens_total"),
            cut=self.value("cut_tokens_total"),
            rejected=self.value("decode_steps_total", "rejected"),
            undrafted=self.value("decode_steps_total", "undrafted"),
            off=self.value("decode_steps_total", "off"),
            accepted_at=self._positions("accepted_at_total", 1),
            proposed_at=self._positions("drafted_at_total", 1),
        )


def parse_counters(text: str) -> Counters:
    """Parse Prometheus text. An eaglegate's own counters take precedence over vLLM's."""
    values: dict[str, dict[tuple[str, str], float]] = {OURS: {}, VLLM: {}}
    for name, labels, value in SAMPLE.findall(text):
        for prefix, sums in values.items():
            if name.startswith(prefix) and name.endswith("_total"):
                match = POSITION.search(labels) or OUTCOME.search(labels)
                key = name.removeprefix(prefix), match[1] if match else ""
                sums[key] = sums.get(key, 0.0) + float(value)
    if GATEWAY.search(text):
        return Counters("eaglegate", values[OURS])
    return Counters("vllm" if values[VLLM] else "", values[VLLM])
