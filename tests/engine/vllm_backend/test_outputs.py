import asyncio
from collections.abc import AsyncGenerator
from random import Random
from typing import Any

import numpy as np
import pytest
from vllm.exceptions import VLLMError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreRequest,
)
from vllm.v1.engine import FinishReason as Reason
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.stats import IterationStats, PrefillStats, RequestSpecDecodeMetrics
from vllm.v1.outputs import LogprobsLists

from eaglegate.engine.errors import EngineDead, EngineFailed, RequestRejected
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import (
    DecodeStep,
    EngineRequest,
    Sampling,
    Step,
    StepSink,
    StepTrace,
)
from eaglegate.engine.vllm_backend.outputs import StepOutputProcessor
from eaglegate.engine.vllm_backend.step_queue import StepQueue
from eaglegate.engine.vllm_backend.translate import (
    convert_intake_error,
    read_decode_step,
)
from eaglegate.text.events import FinishReason

FIRST = PrefillStats(num_prompt_tokens=3, num_computed_tokens=1, num_cached_tokens=2)


def output(
    tokens: int, drafted: int = 0, reached: int = 0, name: str = "a", **more: Any
) -> EngineCoreOutput:
    account = RequestSpecDecodeMetrics(3, [reached], num_draft_tokens=drafted)
    return EngineCoreOutput(name, [5] * tokens, spec_decode_metrics=account, **more)


def processor(interval: int = 1, interval_s: float | None = 0.0) -> StepOutputProcessor:
    replaced = OutputProcessor(None, log_stats=True, stream_interval=interval)
    return StepOutputProcessor(replaced, read_decode_step, interval_s)


def begin(outputs: StepOutputProcessor, name: str = "a", **sampling: Any) -> StepQueue:
    params = SamplingParams(
        detokenize=False, output_kind=RequestOutputKind.DELTA, max_tokens=99, **sampling
    )
    request = EngineCoreRequest(name, [1, 2, 3], None, params, None, 0.0, None, None, None)
    request.external_req_id = name
    queue = RequestOutputCollector(RequestOutputKind.DELTA, name)
    outputs.add_request(request, None, None, 0, queue)
    inbox: StepQueue = queue.inbox
    return inbox


def read(inbox: StepQueue) -> AsyncGenerator[Step, None]:
    """The steps of ``inbox``, as a reader that asks for one at a time gets them."""

    async def deliver(_: EngineRequest, sink: StepSink) -> None:
        await inbox.deliver(sink)

    return read_steps(deliver, EngineRequest("a", (1,), Sampling(9)))


async def test_an_output_becomes_a_step() -> None:
    outputs = processor()
    inbox = begin(outputs)
    steps = read(inbox)
    outputs.process_outputs([output(1, prefill_stats=FIRST)])
    assert await anext(steps) == Step((5,), cached_tokens=2, recomputed_tokens=0)
    outputs.process_outputs([output(3, 3, 2)])
    assert await anext(steps) == Step((5, 5, 5), (DecodeStep(3, 2, 3),))
    outputs.process_outputs([output(2, 3, 1, finish_reason=Reason.STOP)])
    end = Step((5, 5), (DecodeStep(3, 1, 2),), finish=FinishReason.STOP, stop_token=5)
    assert await anext(steps) == end
    assert inbox.ended
    assert not outputs.request_states
    assert not outputs.external_req_ids


async def test_a_traced_request_gets_times_and_drafts_with_its_steps() -> None:
    outputs = processor()
    inbox, other = begin(outputs), begin(outputs, "b")
    inbox.traced = True
    steps, others = read(inbox), read(other)
    outputs.process_outputs([output(1, prefill_stats=FIRST), output(1, name="b")], 7.0)
    account = RequestSpecDecodeMetrics(3, [2], 3, [100_500, 90_000, 200], [5, 5, 8])
    verified = EngineCoreOutput("a", [5] * 3, spec_decode_metrics=account)
    outputs.process_outputs([verified, output(2, 3, 1, name="b")], 7.5)
    step = await anext(steps)
    assert step.decode == (DecodeStep(3, 2, 3),)
    rates = (100.5, 90.0), 0.2
    assert step.traces == (StepTrace(7.0), StepTrace(7.5, (5, 5, 8), *rates))
    assert (await anext(others)).traces == ()


async def test_a_lagging_reader_gets_several_steps_as_one_with_every_account() -> None:
    outputs = processor()
    inbox = begin(outputs)
    steps = read(inbox)
    for given in (output(1, prefill_stats=FIRST), output(4, 3, 3), output(2, 3, 1)):
        outputs.process_outputs([given])
    step = await anext(steps)
    assert step.token_ids == (5,) * 7
    assert step.decode == (DecodeStep(3, 3, 4), DecodeStep(3, 1, 2))
    assert step.cached_tokens == 2
    assert not inbox.take()


async def test_steps_of_released_requests_are_unclaimed() -> None:
    outputs = processor()
    inbox = begin(outputs)
    outputs.process_outputs([output(1, prefill_stats=FIRST)])
    outputs.process_outputs([output(4, 3, 3)])
    outputs.release(inbox)
    assert outputs.abort_requests(["a"], internal=True) == ["a"]
    outputs.process_outputs([output(2, 3, 1), output(1, prefill_stats=FIRST)])
    unclaimed = outputs.unclaimed
    assert (unclaimed.verify_steps, unclaimed.accepted, unclaimed.requests) == (2, 4, 0)
    assert unclaimed.decode_steps == 2


async def test_an_abort_from_elsewhere_is_the_end_of_the_engine() -> None:
    outputs = processor()
    inbox = begin(outputs)
    steps = read(inbox)
    assert outputs.abort_requests(["a"], internal=False) == ["a"]
    with pytest.raises(EngineDead, match="before its answer was complete"):
        await anext(steps)
    assert inbox.ended


async def test_a_request_that_the_engine_gives_up_has_not_finished() -> None:
    """A signal ends requests in this way; the delivered tokens stand."""
    outputs = processor()
    steps = read(begin(outputs))
    outputs.process_outputs([output(2), output(0, finish_reason=Reason.ABORT)])
    assert (await anext(steps)).token_ids == (5, 5)
    with pytest.raises(EngineDead):
        await anext(steps)
    assert not outputs.request_states


async def test_outputs_before_the_death_of_an_engine_are_delivered_first() -> None:
    outputs = processor()
    steps = read(begin(outputs))
    outputs.process_outputs([output(1)])
    outputs.propagate_error(EngineDeadError())
    assert (await anext(steps)).token_ids == (5,)
    with pytest.raises(EngineDead):
        await anext(steps)


async def test_a_request_the_engine_failed_on() -> None:
    outputs = processor()
    steps = read(begin(outputs))
    outputs.process_outputs([output(0, finish_reason=Reason.ERROR)])
    with pytest.raises(EngineFailed):
        await anext(steps)
    assert not outputs.request_states


async def test_log_probabilities_belong_to_the_tokens_of_their_step() -> None:
    outputs = processor()
    steps = read(begin(outputs, logprobs=1))
    for token in (5, 7):
        given = LogprobsLists(
            np.array([[token, 9]]), np.array([[-0.5, -0.1 * token]]), np.array([2])
        )
        outputs.process_outputs([EngineCoreOutput("a", [token], new_logprobs=given)])
        (position,) = (await anext(steps)).logprobs
        assert (position.chosen.token_id, position.chosen.rank) == (token, 2)
        assert [entry.token_id for entry in position.top] == [9]
        assert position.top[0].logprob == pytest.approx(-0.1 * token)


async def test_vllms_statistics_are_those_of_its_own_processor() -> None:
    ours, theirs = processor(), OutputProcessor(None, log_stats=True)
    begin(ours)
    state = RequestOutputCollector(RequestOutputKind.DELTA, "a")
    params = SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA, max_tokens=99)
    request = EngineCoreRequest("a", [1, 2, 3], None, params, None, 0.0, None, None, None)
    request.external_req_id = "a"
    theirs.add_request(request, None, None, 0, state)
    steps = [
        output(1, prefill_stats=FIRST),
        output(4, 3, 3),
        output(2, 3, 1),
        output(1, 3, 0, finish_reason=Reason.LENGTH),
    ]
    for at, given in enumerate(steps):
        mine, vllms = IterationStats(), IterationStats()
        mine.iteration_timestamp = vllms.iteration_timestamp = 7.0
        ours.process_outputs([given], 1.0 + at, mine)
        theirs.process_outputs([given], 1.0 + at, vllms)
        assert repr(mine) == repr(vllms)


def make_outputs(random: Random) -> list[EngineCoreOutput]:
    """A step's outputs, mostly of requests that only go on; "gone" has left."""
    outputs = []
    for name in random.sample(["a", "b", "scored", "traced", "gone"], random.randint(1, 5)):
        tokens, drafted = random.randint(0, 4), random.choice([0, 3])
        more: dict[str, Any] = {}
        if random.random() < 0.1:
            more["finish_reason"] = random.choice([Reason.STOP, Reason.LENGTH, Reason.ABORT])
        if random.random() < 0.1:
            more["events"] = [EngineCoreEvent(EngineCoreEventType.PREEMPTED, random.random())]
        if random.random() < 0.2:
            more["prefill_stats"] = FIRST
        if name == "scored":
            ids, logprobs = np.full((tokens, 2), 5), np.full((tokens, 2), -0.5)
            more["new_logprobs"] = LogprobsLists(ids, logprobs, np.ones(tokens))
        outputs.append(output(tokens, drafted, random.randint(0, drafted), name, **more))
    return outputs


@pytest.mark.parametrize("seed", range(30))
def test_the_fast_path_gives_what_the_full_one_gives(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    fast = processor()
    with monkeypatch.context() as patch:
        patch.setenv("VLLM_COMPUTE_NANS_IN_LOGITS", "1")  # every output takes the full path
        full = processor()
    inboxes = []
    for outputs in (fast, full):
        inbox = [begin(outputs, name, logprobs=1) for name in ("a", "b", "scored", "traced")]
        inbox[-1].traced = True
        inboxes.append(inbox)
    random = Random(seed)
    for number in range(12):
        step, seen = make_outputs(random), []
        for outputs, inbox in zip((fast, full), inboxes, strict=True):
            counts = IterationStats()
            counts.iteration_timestamp = 7.0
            outputs.process_outputs(step, float(number), counts)
            requests = {name: repr(state.stats) for name, state in outputs.request_states.items()}
            steps = [(queue.take(), queue.ended) for queue in inbox]
            seen.append((repr(counts), requests, steps, outputs.unclaimed))
        assert seen[0] == seen[1], number


def test_outputs_that_may_have_nans_are_counted_by_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_COMPUTE_NANS_IN_LOGITS", "1")
    outputs = processor()
    begin(outputs)
    for nans in (0, 1):
        outputs.process_outputs([output(1, num_nans_in_logits=nans)], 1.0, IterationStats())
        assert outputs.request_states["a"].stats.is_corrupted == bool(nans)


def test_vllm_still_ends_an_abort_with_a_request_output() -> None:
    outputs = processor()
    put: list[object] = []
    inbox = begin(outputs)
    outputs.request_states["a"].queue = type(
        "Queue", (), {"put": lambda _, item: put.append(item)}
    )()
    outputs.abort_requests([inbox.request_id], internal=True)
    (end,) = put
    assert isinstance(end, RequestOutput)
    assert end.finished


class RecordingSink:
    """A StepSink that keeps what it gets, and raises ``error`` where there is one."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.steps: list[Step] = []
        self.error: Exception | None = None

    @property
    def sizes(self) -> list[int]:
        return [len(step.token_ids) for step in self.steps]

    def is_open(self) -> bool:
        return self.opened.is_set()

    def push(self, step: Step) -> None:
        if self.error is not None:
            raise self.error
        self.steps.append(step)

    async def drain(self) -> None:
        await self.opened.wait()


async def _deliver(inbox: StepQueue, sink: RecordingSink) -> asyncio.Task[None]:
    """A delivery that waits for steps."""
    delivery = asyncio.create_task(inbox.deliver(sink))
    await asyncio.sleep(0)
    return delivery


async def test_steps_go_to_an_open_sink_at_once() -> None:
    outputs, sink = processor(), RecordingSink()
    inbox = begin(outputs)
    outputs.process_outputs([output(1, prefill_stats=FIRST)])
    delivery = await _deliver(inbox, sink)
    assert sink.sizes == [1], "it came before the delivery began"
    outputs.process_outputs([output(3, 3, 2)])
    outputs.process_outputs([output(2, 3, 1)])
    outputs.process_outputs([output(1, 3, 0, finish_reason=Reason.LENGTH)])
    assert sink.sizes == [1, 3, 2, 1]
    assert sink.steps[-1].finish is FinishReason.LENGTH
    await delivery


async def test_a_closed_sink_gets_the_steps_as_one_when_it_opens() -> None:
    outputs, sink = processor(), RecordingSink()
    inbox = begin(outputs)
    delivery = await _deliver(inbox, sink)
    sink.opened.clear()
    outputs.process_outputs([output(3, 3, 2)])
    await asyncio.sleep(0)
    assert not sink.steps
    outputs.process_outputs([output(2, 3, 1)])
    sink.opened.set()
    outputs.process_outputs([output(1, 3, 0, finish_reason=Reason.LENGTH)])
    await delivery
    assert sink.sizes == [6], "in their order"


async def test_a_sink_that_closes_on_a_step_is_drained() -> None:
    """A response may keep a part of the step's frames until then."""
    outputs = processor()
    drained = asyncio.Event()

    class Closing(RecordingSink):
        def push(self, step: Step) -> None:
            super().push(step)
            self.opened.clear()

        async def drain(self) -> None:
            drained.set()
            self.opened.set()

    closing = Closing()
    delivery = await _deliver(begin(outputs), closing)
    outputs.process_outputs([output(3, 3, 2)])
    assert closing.sizes == [3]
    await asyncio.wait_for(drained.wait(), 5)
    delivery.cancel()


async def test_an_error_of_the_sink_ends_its_delivery_alone() -> None:
    outputs, sink, other = processor(), RecordingSink(), RecordingSink()
    sink.error = ValueError("a broken parser")
    delivery = await _deliver(begin(outputs), sink)
    beside = await _deliver(begin(outputs, "b"), other)
    outputs.process_outputs([output(3, 3, 2), output(2, 3, 1, name="b")])
    with pytest.raises(ValueError, match="a broken parser"):
        await delivery
    assert other.sizes == [2], "another stream goes on"
    beside.cancel()


async def test_a_cancelled_delivery_gets_no_more_pushes() -> None:
    outputs, sink = processor(), RecordingSink()
    inbox = begin(outputs)
    delivery = await _deliver(inbox, sink)
    delivery.cancel()
    outputs.process_outputs([output(3, 3, 2)])
    assert not sink.steps
    outputs.release(inbox)
    assert outputs.unclaimed.tokens == 3


async def test_an_interval_joins_steps() -> None:
    outputs, sink = processor(interval=4), RecordingSink()
    inbox = begin(outputs)
    delivery = await _deliver(inbox, sink)
    outputs.process_outputs([output(1, prefill_stats=FIRST)])
    outputs.process_outputs([output(3, 3, 2)])
    assert sink.sizes == [1]
    outputs.process_outputs([output(2, 3, 1)])
    assert sink.sizes == [1, 5]
    outputs.process_outputs([output(2, 3, 1)])
    outputs.process_outputs([output(1, 3, 0, finish_reason=Reason.LENGTH)])
    assert sink.sizes == [1, 5, 3]
    await delivery


async def test_steps_are_joined_while_the_loop_lags() -> None:
    outputs, sink = processor(interval_s=None), RecordingSink()
    inbox = begin(outputs)
    delivery = await _deliver(inbox, sink)
    outputs.process_outputs([output(3, 3, 2)])
    outputs.process_outputs([output(2, 3, 1)])
    assert not sink.steps
    await asyncio.sleep(0)
    outputs.process_outputs([output(4, 3, 3)])
    await asyncio.sleep(0)
    assert sink.sizes == [5, 4]
    assert sink.steps[0].decode == (DecodeStep(3, 2, 3), DecodeStep(3, 1, 2))
    delivery.cancel()


async def test_steps_of_an_interval_are_pushed_as_one() -> None:
    outputs, sink = processor(interval_s=0.02), RecordingSink()
    inbox = begin(outputs)
    delivery = await _deliver(inbox, sink)
    for _ in range(3):
        outputs.process_outputs([output(2, 3, 1)])
        await asyncio.sleep(0)
    assert not sink.steps
    await asyncio.sleep(0.05)
    assert sink.sizes == [6]
    outputs.process_outputs([output(2, 3, 1)])
    outputs.process_outputs([output(1, 3, 0, finish_reason=Reason.STOP)])
    await delivery
    assert sink.sizes == [6, 3]
    assert sink.steps[-1].finish is FinishReason.STOP


async def test_an_error_comes_after_the_steps_held_for_the_sink() -> None:
    outputs, sink = processor(interval_s=9.0), RecordingSink()
    inbox = begin(outputs)
    delivery = await _deliver(inbox, sink)
    outputs.process_outputs([output(2, 3, 1)])
    outputs.propagate_error(EngineDeadError())
    with pytest.raises(EngineDead):
        await delivery
    assert sink.sizes == [2]


@pytest.mark.parametrize("error", [ValueError("secret"), OverflowError("int too big"), VLLMError()])
def test_intake_errors_reject_the_request_without_their_text(error: Exception) -> None:
    converted = convert_intake_error(error, "a")
    assert isinstance(converted, RequestRejected)
    assert type(error).__name__ in str(converted)
    assert "secret" not in str(converted)


def test_a_dead_engine_is_not_the_request_s_fault() -> None:
    assert isinstance(convert_intake_error(EngineDeadError(), "a"), EngineDead)
