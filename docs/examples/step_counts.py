"""A step plug-in that counts the engine's steps by batch size.

export PYTHONPATH=docs/examples
eaglegate serve --additional-config '{"eaglegate_plugins": ["step_counts"]}'
curl http://127.0.0.1:8000/debug/speculation
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

from eaglegate.engine.vllm_backend.step_plugin import StepPlugin


class StepCounts(StepPlugin):
    def __init__(self, scheduler: Any) -> None:  # noqa: ARG002
        self._steps = Counter[int]()

    def settle(self, output: SchedulerOutput) -> None:
        self._steps[len(output.num_scheduled_tokens)] += 1

    def describe(self) -> Mapping[str, object]:
        return {"steps_by_batch": {str(size): self._steps[size] for size in sorted(self._steps)}}


make_plugin = StepCounts
