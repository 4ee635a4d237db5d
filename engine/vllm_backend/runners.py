"""What a scheduler knows of vLLM's two model runners: a class each."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.config import VllmConfig
from vllm.v1.request import Request

from eaglegate.engine.speculation.drafts.methods import (
    FULL_RUNS,
    Runner,
    StepBehaviour,
    find_method,
)


class FirstRunner:
    """Drafts before it returns a step's tokens, and for no request once one is near the end of the
    context."""

    name = Runner.FIRST

    def __init__(self, config: VllmConfig) -> None:
        speculation = config.speculative_config
        draft = getattr(speculation, "draft_model_config", None)
        length = (config.model_config if draft is None else draft).max_model_len
        k = speculation.num_speculative_tokens if speculation else 0
        self._max_computed = length - k
        parallel = getattr(speculation, "parallel_drafting", False)
        name = getattr(speculation, "method", "")
        self.method = find_method({"method": name, "parallel_drafting": parallel})
        """The drafting method as vLLM resolved it."""
        self.behaviour = self._read_behaviour(config)

    def _read_behaviour(self, config: VllmConfig) -> StepBehaviour:  # noqa: ARG002
        return self.method.on(self.name)

    def drafts_for(self, requests: Sequence[Request]) -> bool:
        """Return False if the runner will draft for none of the requests and leave zeros."""
        return all(request.num_computed_tokens <= self._max_computed for request in requests)

    def find_drafted_depth(self, depth: int, has_prompts: bool) -> int | None:  # noqa: ARG002
        """Return the depth of the drafts made between the last update and this one; None if
        unknown. ``depth`` is that of this step's drafts."""
        return depth

    def pause(self) -> None:
        """Note that the engine was idle before the next step."""


class SecondRunner(FirstRunner):
    """Returns a step's tokens before it drafts, so that the previous step's drafts fall into the
    time of this step. Drafts up to the end of a context."""

    name = Runner.SECOND

    def __init__(self, config: VllmConfig) -> None:
        super().__init__(config)
        self._late_drafts: tuple[int, bool] | None = None
        """Drafts to make at the last update, as (depth, step had prompts). None after a pause."""

    def _read_behaviour(self, config: VllmConfig) -> StepBehaviour:
        """An MTP draft of several layers has a speculator of its own, which always makes K."""
        speculation = config.speculative_config
        if speculation is not None and speculation.use_multi_module_mtp():
            return FULL_RUNS
        return super()._read_behaviour(config)

    def drafts_for(self, requests: Sequence[Request]) -> bool:  # noqa: ARG002
        return True

    def find_drafted_depth(self, depth: int, has_prompts: bool) -> int | None:
        late_drafts, self._late_drafts = self._late_drafts, (depth, has_prompts)
        if late_drafts is None or (late_drafts[1] and not has_prompts):
            return None
        return late_drafts[0]

    def pause(self) -> None:
        self._late_drafts = None


def make_runner(config: VllmConfig) -> FirstRunner:
    return (SecondRunner if config.use_v2_model_runner else FirstRunner)(config)
