"""Lookups in the scheduler with vLLM's second model runner, which keeps drafts in the worker.

Who decides what:

* The scheduler chooses the shortest match that becomes a lookup, per request, by what it has learnt
  of lookups and of the draft beside matches of that length. The worker finds the match, one step
  later and with all tokens (``device_lookups.py``), and tells which rows were lookups.
* The scheduler chooses how many tokens a step verifies. With synchronous scheduling it knows every
  token then. With asynchronous scheduling the tokens of the step in progress are unknown, so a
  request gets a lookup's width if that pays with the chance that its match goes on (``pays_late``).

Tokens verified behind the draft's own, where an expected lookup was not found, were proposed by
nobody: they count as drafted only if they are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from eaglegate.engine.vllm_backend.step_plugin import StepAccount
from eaglegate.engine.vllm_contract import DRAFT_DEPTH
from eaglegate.features.lookups.acceptance import MIN_LENGTHS
from eaglegate.features.lookups.engine.contract import MIN_MATCHES, PROPOSALS
from eaglegate.features.lookups.engine.first_runner import Lookups


class SecondLookups(Lookups):
    """Lookups of one scheduler's requests on the second model runner."""

    def __init__(self, scheduler: Any, width: int) -> None:
        super().__init__(scheduler, width)
        self._is_late = bool(scheduler.vllm_config.scheduler_config.async_scheduling)
        self._widths: dict[str, int] = {}
        """Tokens of the lookup that is expected in a request's next step."""
        self._min_matches: dict[str, int] = {}
        self._depth = 0
        """The draft's depth after the last scheduled step."""
        self._num_proposed: dict[str, int] = {}
        """Tokens that the draft proposed for a request of the step that is read."""

    def _read_quotes(self, extra: Mapping[str, Any]) -> list[int]:  # noqa: ARG002
        return []  # the worker searches the request's own text only

    def mark(self, output: SchedulerOutput, depth: int) -> None:
        names = output.num_scheduled_tokens
        min_matches = {name: self._min_matches[name] for name in names if name in self._min_matches}
        setattr(output, MIN_MATCHES, min_matches)
        setattr(output, DRAFT_DEPTH, depth)
        self._depth = depth
        # vLLM erases the columns behind this number after the drafts are proposed.
        output.num_spec_tokens_to_schedule = self._scheduler.num_spec_tokens

    def read(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        used_names: set[str] = set()
        self._num_proposed = {}
        proposals = getattr(result, PROPOSALS, None)
        rows = [] if proposals is None else proposals.tolist()
        for name, (is_lookup, *tokens) in zip(result.req_ids, rows, strict=False):
            if name not in output.scheduled_spec_decode_tokens:
                continue  # the row is of an earlier request or of no interest
            drafts = [token for token in tokens if token >= 0]
            if is_lookup:
                used_names.add(name)
            else:
                self._num_proposed[name] = len(drafts)
            if name in self.chooser:
                self.chooser.note_proposal(name, drafts, bool(is_lookup))
        return used_names

    def count_drafted(self, name: str, drafted: int, accepted: int) -> int:
        return max(min(drafted, self._num_proposed.get(name, drafted)), accepted)

    def observe(self, output: SchedulerOutput, account: StepAccount) -> None:  # noqa: ARG002
        """Choose what the requests of a step get next, now that its tokens are known."""
        names = output.num_scheduled_tokens
        self._begin_step(names)
        limit = self._get_limit()
        for name in names:
            request = self._scheduler.requests.get(name)
            if request is not None and name in self.chooser and request.num_output_tokens:
                self._choose(request, limit)

    def _choose(self, request: Request, limit: int) -> None:
        name, chooser = request.request_id, self.chooser
        num_drafts = self._scheduler.count_useful_drafts(name)
        limit = self._limit_width(request, limit, num_drafts)
        lookup = chooser.choose(name, [], num_drafts, limit)
        width = 0 if lookup is None else len(lookup)
        if width and self._scheduler.planning.graphs is not None:
            width = limit  # the width for which a graph was captured
        if self._is_late and not chooser.pays_late(name, width, num_drafts):
            width = 0
        min_match = chooser.find_min_length(
            name, width or min(num_drafts or limit, limit), num_drafts
        )
        if self._scheduler.planning.mode == "random":
            width = self._random.randint(0, limit)
            min_match = self._random.choice((*MIN_LENGTHS, None))
        self._widths[name] = width
        if min_match is None or not limit:
            self._min_matches.pop(name, None)
        else:
            self._min_matches[name] = min_match

    def replace(self, proposal: DraftTokenIds, drafts: list[list[int]]) -> list[list[int]]:
        """Return as many of each row's tokens as the next step verifies."""
        num_drafts = {
            name: min(len(tokens), self._depth)
            for name, tokens in zip(proposal.req_ids, drafts, strict=True)
        }
        widths = self._choose_widths(num_drafts)
        rows = zip(proposal.req_ids, proposal.draft_token_ids, strict=True)
        return [list(tokens[: widths[name]]) for name, tokens in rows]

    def begin_step(self) -> None:
        """Choose the widths of the step that asynchronous scheduling schedules next."""
        if not self._is_late:
            return
        num_drafts = {
            request.request_id: len(request.spec_token_ids)
            for request in self._scheduler.running
            if not request.is_prefill_chunk
        }
        # The worker alone knows the tokens. vLLM schedules as many as a request has placeholders,
        # so they are added before it plans the step.
        for name, width in self._choose_widths(num_drafts).items():
            if width > num_drafts[name]:
                self._scheduler.requests[name].spec_token_ids = [-1] * width

    def _choose_widths(self, num_drafts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the tokens to verify of each request: as many as the draft's, or a lookup's.

        Where graphs make steps of equal widths faster, a step is not widened if it would lose its
        graph: nobody has measured what that costs beside lookups.
        """
        planning, limit = self._scheduler.planning, self._get_limit()
        if self._scheduler.plugins.binds_widths:
            return num_drafts
        widths = {
            name: max(count, min(limit, self._widths.get(name, 0)))
            for name, count in num_drafts.items()
        }
        graphs = planning.graphs
        if graphs is not None and graphs.find_mode([*widths.values()]) > graphs.find_mode(
            [*num_drafts.values()]
        ):
            return num_drafts
        return widths

    def limit_depth(self, requests: Sequence[Request], depth: int) -> int:
        # Requests verify as many tokens as the draft makes where a step cannot be widened.
        return depth if self._scheduler.planning.graphs else super().limit_depth(requests, depth)

    def end(self, request: Request) -> None:
        super().end(request)
        self._widths.pop(request.request_id, None)
        self._min_matches.pop(request.request_id, None)
