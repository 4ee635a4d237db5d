"""A vLLM worker whose model takes no time: ``--instant`` of ``eaglegate.lab.benchmarks.wire``.

The engine's loop, scheduler and messages are vLLM's own. The worker sends one text repeatedly, in
steps of one to four tokens, about 2.2 on average. The front ends are then the bottleneck, as with
an accelerator that is faster than they are.
"""

from __future__ import annotations

import random
from itertools import cycle, islice
from typing import Any

from tokenizers import Tokenizer
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from eaglegate.lab.benchmarks.wire import DEMO, TEXT

TOKENIZER = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
TOKENS = tuple(TOKENIZER.encode(TEXT * 8, add_special_tokens=False).ids)
DICE = random.Random(3)
ACCEPTED = tuple(min(3, int(DICE.expovariate(0.55))) for _ in range(997))


class InstantWorker(CPUWorker):  # type: ignore[misc]
    """Worker that loads the model but never runs it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._output: ModelRunnerOutput | None = None
        self._prompts: dict[str, int] = {}
        """Prompt lengths by request."""

    def execute_model(self, output: SchedulerOutput) -> None:
        prompts = self._prompts
        for name in output.finished_req_ids:
            prompts.pop(name, None)
        starts = {}
        for request in output.scheduled_new_reqs:
            prompts[request.req_id] = len(request.prompt_token_ids or ())
            starts[request.req_id] = request.num_computed_tokens
        running_requests = output.scheduled_cached_reqs
        starts |= zip(running_requests.req_ids, running_requests.num_computed_tokens, strict=True)
        drafts = output.scheduled_spec_decode_tokens
        tokens = []
        for name, start in starts.items():
            end = start + output.num_scheduled_tokens[name]
            drafted = len(drafts.get(name, ()))
            place = end - drafted - prompts[name]
            num_kept = min(ACCEPTED[place % len(ACCEPTED)], drafted)
            tokens.append(read_text(place, num_kept + 1) if place >= 0 else [])
        names = list(starts)
        places = {name: place for place, name in enumerate(names)}
        self._output = ModelRunnerOutput(names, places, sampled_token_ids=tokens)

    def sample_tokens(self, _grammar: GrammarOutput | None) -> ModelRunnerOutput | None:
        return self._output

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        output = self._output
        return output and DraftTokenIds(output.req_ids, [[1, 2, 3] for _ in output.req_ids])


def read_text(start: int, count: int) -> list[int]:
    """Return ``count`` tokens of the text, starting at token ``start``."""
    return list(islice(cycle(TOKENS), start % len(TOKENS), start % len(TOKENS) + count))
