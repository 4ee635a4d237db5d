"""Every row of a changing batch is steered as the request would be alone and without a draft.

vLLM's own batch, samplers and processors, on logits made up here: requests join, leave, come back
from preemption, change rows and have drafts or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from eaglegate.engine.vllm_backend import worker as worker
from eaglegate.engine.vllm_backend.patches import bias_and_min_p, min_tokens

pytestmark = pytest.mark.thorough

VOCABULARY, MOST_ROWS, MOST_DRAFTS = 24, 6, 3
START, PHRASE, END, STOP = [20, 21], [18, 19], [19], 22
CPU = torch.device("cpu")
SAMPLER = Sampler()
REJECTION = RejectionSampler(SAMPLER)


def make_config(rows: int, drafts: bool) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        speculative_config=object() if drafts else None,
    )


def make_batch(rows: int, num_drafts: int) -> InputBatch:
    config = make_config(rows, num_drafts > 0)

    def make_plain(*_: Any) -> LogitsProcessors:
        return LogitsProcessors(kind(config, CPU, False) for kind in BUILTIN_LOGITS_PROCESSORS)

    build = partial(bias_and_min_p.build_logitsprocs, make_plain)
    reasoning: Any = SimpleNamespace(
        reasoning_start_token_ids=START,
        reasoning_end_token_ids=PHRASE,
        natural_reasoning_end_token_ids=END,
    )
    return InputBatch(
        max_num_reqs=rows,
        max_model_len=256,
        max_num_batched_tokens=256,
        device=CPU,
        vocab_size=VOCABULARY,
        block_sizes=[16],
        max_num_blocks_per_req=[16],
        logitsprocs=min_tokens.build_logitsprocs(build, config, CPU, False, False),
        num_spec_tokens=num_drafts,
        reasoning_config=reasoning,
    )


def make_params(random: Random) -> SamplingParams:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 200}
    steers: dict[str, Any] = {
        "logit_bias": {random.randrange(VOCABULARY): random.choice([-100.0, -2.0, 3.0])},
        "allowed_token_ids": random.sample(range(VOCABULARY), 12),
        "presence_penalty": 1.5,
        "frequency_penalty": -0.7,
        "repetition_penalty": 1.8,
        "min_tokens": random.randrange(1, 12),
        "min_p": 0.4,
        "thinking_token_budget": random.randrange(9),
    }
    for name in random.sample(list(steers), random.choice([0, 1, 1, 2, 4])):
        fields[name] = steers[name]
    if "min_p" in fields:
        fields["temperature"] = 1.5
    params = SamplingParams(**fields)
    params._all_stop_token_ids = {STOP}
    if random.random() < 0.3:
        params._bad_words_token_ids = [[3], [random.randrange(VOCABULARY), 5]]
    return params


def make_request(name: str, random: Random) -> CachedRequestState:
    prompt = [random.randrange(18) for _ in range(random.randrange(1, 5))]
    prompt += START if random.random() < 0.7 else []
    prompt += [random.randrange(18) for _ in range(random.randrange(3))]
    return CachedRequestState(
        name, prompt, [], make_params(random), None, ([1],), len(prompt), output_token_ids=[]
    )


def find_forced(tokens: list[int], budget: int | None) -> int | None:
    """The rule, from the whole sequence: the token that the budget demands next."""
    begin = rfind(tokens, START)
    if budget is None or begin < 0 or rfind(tokens, END) > begin:
        return None
    if len(tokens) - begin - len(START) < budget:
        return None
    return PHRASE[1] if tokens[-1] == PHRASE[0] else PHRASE[0]


def rfind(tokens: list[int], marker: list[int]) -> int:
    places = range(len(tokens) - len(marker), -1, -1)
    return next((at for at in places if tokens[at : at + len(marker)] == marker), -1)


def steer_alone(request: CachedRequestState, output: list[int], row: torch.Tensor) -> torch.Tensor:
    """vLLM's plain path with this request alone; the budget's rule is the one above."""
    batch = make_batch(1, 0)
    assert request.prompt_token_ids is not None and request.sampling_params is not None
    params = request.sampling_params.clone()
    budget, params.thinking_token_budget = params.thinking_token_budget, None
    state = CachedRequestState(
        "alone", request.prompt_token_ids, [], params, None, ([1],), 1, output_token_ids=output
    )
    batch.add_request(state)
    batch.refresh_metadata()
    made = SAMPLER.apply_logits_processors(row[None].clone(), batch.sampling_metadata, False)
    forced = find_forced([*request.prompt_token_ids, *output], budget)
    if forced is not None:
        made[0, forced] = 1e9
    return mask_unlikely(made, batch)[0]


def mask_unlikely(logits: torch.Tensor, batch: InputBatch) -> torch.Tensor:
    """The last part of ``Sampler.sample``, with the temperature taken back."""
    temperature = batch.sampling_metadata.temperature
    if temperature is None:
        return logits
    heat = torch.where(temperature > 0, temperature, 1.0).unsqueeze(1)
    logits = logits / heat
    for processor in batch.logitsprocs.argmax_invariant:
        logits = processor.apply(logits)
    return logits * heat


class World:
    """A batch and the requests in it, running or preempted; ``outputs`` are their true tokens.

    With asynchronous scheduling the tokens of the last step come as -1, as many as if all drafts
    had been accepted, and are put right before sampling where the batch says it needs them.
    """

    def __init__(self, seed: int, asynchronous: bool) -> None:
        self.random = Random(seed)
        self.asynchronous = asynchronous
        self.outputs: dict[str, list[int]] = {}
        self._sampled: dict[str, tuple[int, int]] = {}
        self.batch = make_batch(MOST_ROWS, MOST_DRAFTS)
        self.running: dict[str, CachedRequestState] = {}
        self.preempted: dict[str, CachedRequestState] = {}
        self._count = 0

    def change(self) -> None:
        """Remove, add, condense, reorder: in the order in which vLLM's runner does it."""
        random = self.random
        self._hide_sampled()
        for name in list(self.running):
            if random.random() < 0.12:
                request = self.running.pop(name)
                self.batch.remove_request(name)
                if random.random() < 0.7:
                    self.preempted[name] = request
        while len(self.running) < MOST_ROWS and random.random() < 0.6:
            self._add()
        if not self.running:
            self._add()
        self.batch.condense()
        if len(self.running) > 1 and random.random() < 0.3:
            self.batch.swap_states(*random.sample(range(len(self.running)), 2))
        self._plan_drafts()
        self.batch.refresh_metadata()
        if not self.asynchronous or self.batch.sampling_metadata.output_token_ids:
            for name, request in self.running.items():
                request.output_token_ids[:] = self.outputs[name]

    def _hide_sampled(self) -> None:
        for name, (known, most) in self._sampled.items():
            tokens = self.running[name].output_token_ids
            if self.asynchronous:
                del tokens[known:]
                tokens.extend([-1] * (known + most - len(tokens)))
            else:
                tokens[:] = self.outputs[name]
        self._sampled.clear()

    def commit(self, name: str, tokens: list[int]) -> None:
        """Record the tokens that the last step sampled."""
        drafts = self.batch.spec_token_ids[self.batch.req_id_to_index[name]]
        self._sampled[name] = (len(self.outputs[name]), 1 + len(drafts))
        self.outputs[name] += tokens

    def _add(self) -> None:
        if self.preempted and self.random.random() < 0.5:
            name, request = self.preempted.popitem()
            request.output_token_ids = list(self.outputs[name])
        else:
            self._count += 1
            name = f"r{self._count}"
            request = make_request(name, self.random)
            self.outputs[name] = []
        self.running[name] = request
        self.batch.add_request(request)

    def _plan_drafts(self) -> None:
        most = self.random.choice([0, 1, MOST_DRAFTS, MOST_DRAFTS])
        for request in self.running.values():
            drafts = [self._make_draft(request) for _ in range(self.random.randint(0, most))]
            self.batch.update_req_spec_token_ids(request, {request.req_id: drafts})

    def _make_draft(self, request: CachedRequestState) -> int:
        return self.random.choice([*PHRASE, *START, STOP, 5, self.random.randrange(VOCABULARY)])

    def steer(self) -> Iterator[tuple[CachedRequestState, list[int], torch.Tensor, torch.Tensor]]:
        """Request, output before the row, raw logits, steered logits; as vLLM's samplers do it."""
        metadata, rows = self.batch.sampling_metadata, self.batch.req_ids
        drafts = [list(tokens) for tokens in self.batch.spec_token_ids[: len(rows)]]
        counts = [len(tokens) for tokens in drafts]
        bonus = torch.randn(len(rows), VOCABULARY) * 2
        steered = SAMPLER.apply_logits_processors(bonus.clone(), metadata, sum(counts) > 0)
        steered = mask_unlikely(steered, self.batch)
        targets = torch.randn(sum(counts), VOCABULARY) * 2
        verified = targets.clone()
        if sum(counts):
            given: Any = SimpleNamespace(num_draft_tokens=counts)
            verified = REJECTION.apply_logits_processors(verified, metadata, given)
        first = 0
        for at, (name, own) in enumerate(zip(rows, drafts, strict=True)):
            request = self.running[name]
            output = list(self.outputs[name])
            for place in range(len(own)):
                row = first + place
                yield request, output + own[:place], targets[row], verified[row]
            yield request, output + own, bonus[at], steered[at]
            first += len(own)


def choose(steered: torch.Tensor) -> int:
    return int(steered.argmax())


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_that_of_the_request_alone(seed: int, asynchronous: bool) -> None:
    torch.manual_seed(seed)
    world = World(seed, asynchronous)
    for _ in range(30):
        world.change()
        answers: dict[str, list[int]] = {name: [] for name in world.running}
        for request, output, raw, steered in world.steer():
            want = steer_alone(request, output, raw)
            where = f"{request.sampling_params} after {request.prompt_token_ids} {output}"
            assert choose(steered) == choose(want), where
            torch.testing.assert_close(steered, want)
            committed = [*world.outputs[request.req_id], *answers[request.req_id]]
            if committed == output:
                answers[request.req_id].append(choose(steered))
        for name, tokens in answers.items():
            if world.random.random() < 0.9:
                world.commit(name, tokens)
