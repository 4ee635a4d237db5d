"""Recorder of a pod's speculation, in vLLM's scheduler."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from time import monotonic
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

from eaglegate.engine.vllm_backend.planning import get_draft_depth
from eaglegate.engine.vllm_backend.scheduler import is_past_prompt
from eaglegate.engine.vllm_backend.step_plugin import StepAccount, StepPlugin
from eaglegate.engine.vllm_backend.translate import find_undrafted_reason
from eaglegate.engine.vllm_contract import POD_RECORD
from eaglegate.features.pod.engine.record import SUMS, PodNumbers, PodRecord

DECODING = "decoding_requests"
"""Attribute of a SchedulerOutput: the names of requests that decode in the step."""
NOTHING = (0, 0)
HALF_LIFE_S = 20.0
"""Seconds after which a step counts half in the means."""


class PodRecorder(StepPlugin):
    """Sums up the accounts of one rank's steps, as the gateway does for every answer."""

    needs_times = True

    def __init__(self, scheduler: Any, record: PodRecord) -> None:
        self._scheduler = scheduler
        self._record = record
        self._rank = int(scheduler.vllm_config.parallel_config.data_parallel_index)
        self._sums: dict[str, float] = defaultdict(float)
        self._recent: dict[str, float] = defaultdict(float)
        """Sums in which older steps count less."""
        self._last_s = monotonic()

    def mark(self, output: SchedulerOutput, depth: int) -> None:  # noqa: ARG002
        requests = self._scheduler.requests
        tokens = output.num_scheduled_tokens
        names = [name for name in tokens if is_past_prompt(requests[name], tokens[name])]
        setattr(output, DECODING, names)

    def observe(self, output: SchedulerOutput, account: StepAccount) -> None:
        names = getattr(output, DECODING, ())
        if not names:
            return
        verified = [pair for pair in account.counts.values() if pair[0]]
        accepted = sum(accepted for _, accepted in verified)
        step: dict[str, float] = {
            "steps": 1,
            "decode_steps": len(names),
            "verify_steps": len(verified),
            "draft_tokens": sum(drafted for drafted, _ in verified),
            "accepted_tokens": accepted,
            "tokens": len(names) + accepted,
            "depths": get_draft_depth(output),
        }
        if len(verified) < len(names):
            counts, depths = account.counts, account.depths
            undrafted = Counter(
                depths.get(name, 0) for name in names if not counts.get(name, NOTHING)[0]
            )
            for depth, requests in undrafted.items():
                reason = find_undrafted_reason(depth).value
                step[reason] = step.get(reason, 0) + requests
        if (seconds := account.seconds) is not None:
            step["timed_steps"] = 1
            step["timed_tokens"] = step["tokens"]
            step["seconds"] = seconds
            step["request_seconds"] = len(names) * seconds
        now = monotonic()
        keep, self._last_s = 0.5 ** ((now - self._last_s) / HALF_LIFE_S), now
        for name in self._recent:
            self._recent[name] *= keep
        for name, number in step.items():
            self._sums[name] += number
            self._recent[name] += number
        self._record.write(self._rank, self._make_numbers())

    def _make_numbers(self) -> PodNumbers:
        recent = self._recent
        verify_steps = recent["verify_steps"] or 1
        decode_steps = recent["decode_steps"]
        means = (
            1 + recent["accepted_tokens"] / verify_steps,
            recent["draft_tokens"] / verify_steps,
            1 - recent["verify_steps"] / decode_steps,
            recent["depths"] / recent["steps"],
            recent["seconds"] / (recent["timed_steps"] or 1),
            recent["timed_tokens"] / (recent["request_seconds"] or 1),
        )
        return PodNumbers._make((*(self._sums[name] for name in SUMS), *means))


def make_plugin(scheduler: Any) -> PodRecorder | None:
    """Make the recorder of a pod's scheduler; None in a gateway's engine."""
    path = os.environ.get(POD_RECORD)
    return PodRecorder(scheduler, PodRecord(path)) if path else None
