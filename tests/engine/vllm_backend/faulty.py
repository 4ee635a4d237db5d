"""Faults that a test switches on in a running engine; see test_prove_faults.py and test_audits.py.

Scheduler and worker share the engine process, so the worker reaches both.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.patches import bias_and_min_p, seeds
from eaglegate.engine.vllm_backend.patches.min_tokens import MinTokens
from eaglegate.engine.vllm_backend.scheduler import DepthSchedulerBase
from eaglegate.engine.vllm_backend.worker import DepthWorker
from eaglegate.engine.wrapping import wrap

IGNORES_TEMPERATURE = "a sampler that ignores the temperature"
ACCEPTS_TOO_MANY = "a scheduler that accepts one draft too many"
DRAFTS_TOO_MANY = "a scheduler that drafts one token too many"
ACCEPTS_ALL = "a sampler that verifies no draft"
ACCEPTS_WITHIN_A_WINDOW = "a sampler that accepts drafts of a third of the best token's probability"
REDRAWS_FROM_ALL = "a sampler that may draw a draft again that it has rejected"
REPEATS_THE_LAST_ROW = "a bonus token from the logits of the last draft"
KEEPS_STALE_TEMPERATURES = "a batch whose rows keep the temperature of the request before"
IGNORES_BIAS = "a rejection sampler that leaves biases out"
IGNORES_TRUNCATION = "a rejection sampler that leaves top-k and top-p out"
FREES_GRAMMAR = "a grammar that is lost with the drafts of one step"
IGNORES_SEED = "a sampler that draws seeded requests at random"
IGNORES_PENALTIES = "a rejection sampler that leaves penalties out"
IGNORES_MINIMUM = "a bonus token that ends the answer too early"
SWAPS_ROWS = "a step that gives two requests each other's tokens"
FALLS_BACK = "an engine that falls back to eager"
DIES_DRAFTING = "an engine that dies in the draft pass of its eighth step of over one draft"

INJECTED = "INJECTED_FAULT"
"""Environment variable of a served gateway's engine: the fault to start with."""
ON: set[str] = {os.environ[INJECTED]} if INJECTED in os.environ else set()
"""Faults that are switched on in this process."""
STALE: list[float] = []
"""The temperature of the request before."""
FREED: set[str] = set()
"""Requests whose grammar was left out of a step."""
DEEP_STEPS_TO_DEATH = 8
MOST_DRAFTS: list[int] = [0]
"""The most drafts that a client's request verified, step by step."""
SERVED = "chatcmpl"
"""The begin of the ids of clients' requests."""


class FaultyWorker(DepthWorker):
    def set_fault(self, fault: str, on: bool) -> None:
        (ON.add if on else ON.discard)(fault)
        if fault == FALLS_BACK:
            self._compile_nothing(on)

    def _compile_nothing(self, on: bool) -> None:
        """Switch compilation off, as vLLM does where it finds something that it cannot compile."""
        worker: Any = self
        for part in worker.get_model().modules():
            if hasattr(part, "do_not_compile"):
                part.do_not_compile = on


def execute_model(
    original: Callable[..., Any], runner: Any, step: SchedulerOutput, *args: Any, **kwargs: Any
) -> Any:
    drafted = step.scheduled_spec_decode_tokens.items()
    counts = (len(drafts) for name, drafts in drafted if name.startswith(SERVED))
    MOST_DRAFTS.append(max(counts, default=0))
    for request in step.scheduled_new_reqs:
        params = request.sampling_params
        if params is None or not params.temperature:
            continue
        if IGNORES_TEMPERATURE in ON:
            params.temperature = 1.0
        if KEEPS_STALE_TEMPERATURES in ON:
            STALE.append(params.temperature)
            params.temperature = STALE.pop(0) if len(STALE) > 1 else params.temperature
    return original(runner, step, *args, **kwargs)


def propose(original: Callable[..., Any], drafter: Any, *args: Any, **kwargs: Any) -> Any:
    deep_steps = sum(most > 1 for most in MOST_DRAFTS)
    if DIES_DRAFTING in ON and MOST_DRAFTS[-1] > 1 and deep_steps >= DEEP_STEPS_TO_DEATH:
        os.abort()
    return original(drafter, *args, **kwargs)


def update_from_output(
    original: Callable[..., Any], scheduler: Any, step: SchedulerOutput, output: ModelRunnerOutput
) -> Any:
    """Take the first draft that the target rejected, too."""
    swap_rows(output, step)
    drafted = step.scheduled_spec_decode_tokens if ACCEPTS_TOO_MANY in ON else {}
    for req_id, drafts in drafted.items():
        tokens = output.sampled_token_ids[output.req_id_to_index[req_id]]
        if 0 < len(tokens) <= len(drafts):
            tokens.insert(-1, drafts[len(tokens) - 1])
    return original(scheduler, step, output)


def verify(original: Callable[..., torch.Tensor], *given: Any, **options: Any) -> torch.Tensor:
    """Verify drafts wrongly. ``logits`` are scaled by the temperature."""
    drafts, counts, most, _, _, logits, bonus, metadata, *_ = given
    if ACCEPTS_ALL in ON and most:
        return accept_all(drafts, counts, most, bonus)
    rows = original(*given, **options)
    begin = 0
    for row, count in enumerate(counts):
        kept = int((rows[row] >= 0).sum()) - 1
        if 0 <= kept < count:
            replace_recovered(rows[row], kept, drafts[begin + kept], logits[begin + kept], metadata)
        elif count and REPEATS_THE_LAST_ROW in ON:
            rows[row, count] = logits[begin + count - 1].argmax()
        begin += count
    return rows


def replace_recovered(
    row: torch.Tensor, at: int, draft: torch.Tensor, logits: torch.Tensor, metadata: Any
) -> None:
    """Replace the token that came in the place of the rejected ``draft``."""
    window = logits.max() - math.log(3)
    if ACCEPTS_WITHIN_A_WINDOW in ON and logits[draft] >= window:
        row[at] = draft
    if REDRAWS_FROM_ALL in ON and not metadata.all_greedy:
        row[at] = torch.multinomial(logits.softmax(-1), 1)[0]


def accept_all(
    drafts: torch.Tensor, counts: list[int], most: int, bonus: torch.Tensor
) -> torch.Tensor:
    rows = torch.full((len(counts), most + 1), -1, dtype=torch.int32)
    for row, own in enumerate(drafts.split(counts)):
        rows[row, : len(own)] = own
        rows[row, len(own)] = bonus[row, 0]
    return rows


def key_by_position(original: Callable[..., Any], runner: Any, metadata: Any) -> Any:
    if IGNORES_SEED in ON:
        runner.input_batch.generators.clear()
    return original(runner, metadata)


def apply_penalties(original: Callable[..., Any], *given: Any) -> Any:
    """A static method that is called by its instance, and so gets it, too."""
    return given[1] if IGNORES_PENALTIES in ON else original(*given[1:])


def add_biases(original: Callable[..., None], *given: Any) -> None:
    if IGNORES_BIAS not in ON:
        original(*given)


def constrain(original: Callable[..., Any], logits: Any, counts: Any, metadata: Any) -> Any:
    """``apply_sampling_constraints``, without top-k and top-p."""
    if IGNORES_TRUNCATION in ON:
        metadata = dataclasses.replace(metadata, top_k=None, top_p=None)
    return original(logits, counts, metadata)


def apply_grammar(original: Callable[..., None], step: SchedulerOutput, *given: Any) -> None:
    """Leave the grammar out of the first step in which its request verifies drafts."""
    drafted = [name for name, drafts in step.scheduled_spec_decode_tokens.items() if drafts]
    if FREES_GRAMMAR in ON and not FREED.issuperset(drafted):
        FREED.update(drafted)
    else:
        original(step, *given)


def accept_tokens(original: Callable[..., bool], *given: Any) -> bool:
    """A grammar that was left out does not notice."""
    return original(*given) or FREES_GRAMMAR in ON


def count_missing(original: Callable[..., int], minimum: Any, row: int) -> int:
    return 0 if IGNORES_MINIMUM in ON else original(minimum, row)


def swap_rows(output: ModelRunnerOutput, step: SchedulerOutput) -> None:
    """Give the first two requests of a step that decode each other's tokens, once in a while."""
    rows = [*output.req_id_to_index.values()][:2]
    decodes = all(count <= 8 for count in step.num_scheduled_tokens.values())
    if SWAPS_ROWS in ON and len(rows) == 2 and decodes:
        tokens = output.sampled_token_ids
        one, two = rows
        if len(tokens[one]) == len(tokens[two]):
            tokens[one], tokens[two] = tokens[two], tokens[one]


def get_depth(original: Callable[..., int], scheduler: Any, request: Request) -> int:
    depth = original(scheduler, request)
    return min(depth + 1, scheduler.ceiling) if DRAFTS_TOO_MANY in ON else depth


wrap(GPUModelRunner, "execute_model", execute_model)
wrap(SpecDecodeBaseProposer, "propose", propose)
wrap(DepthSchedulerBase, "update_from_output", update_from_output)
wrap(DepthSchedulerBase, "get_depth", get_depth)
wrap(rejection_sampler, "rejection_sample", verify)
wrap(seeds, "key_by_position", key_by_position)
wrap(RejectionSampler, "apply_penalties", apply_penalties)
wrap(MinTokens, "_count_missing", count_missing)
wrap(bias_and_min_p, "add_biases", add_biases)
wrap(gpu_model_runner, "apply_grammar_bitmask", apply_grammar)
wrap(StructuredOutputManager, "accept_tokens", accept_tokens)
wrap(rejection_sampler, "apply_sampling_constraints", constrain)
