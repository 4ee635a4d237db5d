"""Step plug-ins: their hooks in vLLM's scheduler, in the engine's process.

The order of the hooks in a step::

    begin_step      before vLLM schedules: order, widen, cut or hold requests
    choose          which requests choose the depth of the drafts made after this step
    limit_depth     that depth, or less
    mark            the scheduled step, before the worker gets it
    settle          the same step, complete
    replace         drafts have come: the tokens to verify in the next step
    read            the worker's result has come: whose verified tokens are not the draft's
    count_drafted   verified tokens of a request that somebody proposed
    observe         the account of the step, and its time where it is certain

``add``, ``begin_answer`` and ``end`` follow the life of a request. A hook that a plug-in does not
override is never called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request


class StepAccount(NamedTuple):
    """Account of a step."""

    counts: Mapping[str, tuple[int, int]]
    """Drafted and accepted tokens of the requests that verified."""
    depths: Mapping[str, int]
    """Depth in force of every request of the step, as in ``vllm_fields.pack_depth``."""
    seconds: float | None
    """Time of the step; None where it is uncertain, or nobody needs it."""


class StepPlugin:
    """A plug-in of one scheduler (``scheduler.DepthSchedulerBase``). Every default does nothing."""

    needs_times = False
    """True while it needs the time of every step."""
    binds_widths = False
    """True while no plug-in may verify more tokens of a request than are planned."""

    def add(self, request: Request) -> None:
        """A request has come, and vLLM has not queued it yet."""

    def begin_step(self) -> None:
        """vLLM schedules next. ``spec_token_ids`` of the running requests are to be verified."""

    def choose(self, requests: Sequence[Request]) -> Collection[str]:  # noqa: ARG002
        """Return the names of the requests that choose the depth for all; none if all do."""
        return ()

    def limit_depth(self, requests: Sequence[Request], depth: int) -> int:  # noqa: ARG002
        """Return the depth of the drafts made after a step of these requests."""
        return depth

    def mark(self, output: SchedulerOutput, depth: int) -> None:
        """The step is scheduled, and the draft's depth after it chosen."""

    def settle(self, output: SchedulerOutput) -> None:
        """The step is complete, with its number of columns and placeholders."""

    def replace(self, proposal: DraftTokenIds, drafts: list[list[int]]) -> list[list[int]]:  # noqa: ARG002
        """Return the tokens to verify of every request of ``proposal``, which has the draft's
        tokens uncut. ``drafts`` are cut to the width of each request."""
        return drafts

    def read(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:  # noqa: ARG002
        """Return the requests of a step whose verified tokens are not the draft model's. vLLM has
        not read ``result`` yet."""
        return set()

    def count_drafted(self, name: str, drafted: int, accepted: int) -> int:  # noqa: ARG002
        """Return the number of a request's verified tokens that somebody proposed."""
        return drafted

    def observe(self, output: SchedulerOutput, account: StepAccount) -> None:
        """vLLM has read the step's result."""

    def begin_answer(self, output: EngineCoreOutput) -> None:
        """A request's first output, with its account, is ready."""

    def end(self, request: Request) -> None:
        """A request has finished or was aborted."""

    def describe(self) -> Mapping[str, object]:
        """Return its parts of the description of planning, by name."""
        return {}

    def forget_tenants(self, tenants: Collection[str]) -> None:
        """Forget what the traffic of these tenants has taught."""

    def forget_draft(self) -> None:
        """Forget what was learnt of the last draft, because another one serves."""


HOOKS = tuple(name for name, value in vars(StepPlugin).items() if callable(value))


class StepPlugins:
    """The plug-ins of one scheduler, in their order."""

    def __init__(self, plugins: Iterable[StepPlugin]) -> None:
        self._plugins = tuple(plugins)
        self._hooks = {hook: self._list_overrides(hook) for hook in HOOKS}

    def _list_overrides(self, hook: str) -> tuple[Callable[..., Any], ...]:
        base = getattr(StepPlugin, hook)
        return tuple(
            getattr(plugin, hook)
            for plugin in self._plugins
            if getattr(type(plugin), hook) is not base
        )

    def __iter__(self) -> Iterator[StepPlugin]:
        return iter(self._plugins)

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of every plug-in that has it."""
        for method in self._hooks[hook]:
            method(*arguments)

    def pass_on(self, hook: str, first: Any, value: Any) -> Any:
        """Pass ``value`` through a hook of every plug-in, as its second argument."""
        for method in self._hooks[hook]:
            value = method(first, value)
        return value

    def count_drafted(self, name: str, drafted: int, accepted: int) -> int:
        for method in self._hooks["count_drafted"]:
            drafted = method(name, drafted, accepted)
        return drafted

    def collect(self, hook: str, *arguments: Any) -> Iterable[Any]:
        """Return the answers of a hook."""
        return [method(*arguments) for method in self._hooks[hook]]

    @property
    def replaces_drafts(self) -> bool:
        return bool(self._hooks["replace"])

    @property
    def binds_widths(self) -> bool:
        return any(plugin.binds_widths for plugin in self._plugins)

    @property
    def needs_times(self) -> bool:
        return any(plugin.needs_times for plugin in self._plugins)
