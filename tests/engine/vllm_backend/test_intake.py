import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import zmq
import zmq.asyncio
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, UtilityOutput
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.core_client import BackgroundResources
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

from eaglegate.engine.vllm_backend.outputs import OutputReader, replace_output_reader


class Lab:
    """A client as the intake sees it, and the engine's end of the socket."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        address = "inproc://outputs"
        self.socket = zmq.asyncio.Context(context).socket(zmq.PULL)
        self.socket.bind(address)
        self.engine = context.socket(zmq.PUSH)
        self.engine.connect(address)
        self.core = SimpleNamespace(
            resources=BackgroundResources(ctx=context, output_socket=self.socket),
            decoder=MsgpackDecoder(EngineCoreOutputs),
            outputs_queue=asyncio.Queue(),
            utility_results={},
            vllm_config=SimpleNamespace(
                parallel_config=SimpleNamespace(enable_fault_tolerance=False)
            ),
        )
        self.encoder = MsgpackEncoder()

    def say(self, **fields: Any) -> None:
        self.engine.send_multipart(self.encoder.encode(EngineCoreOutputs(**fields)))

    async def heard(self) -> Any:
        return await asyncio.wait_for(self.core.outputs_queue.get(), 10)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Lab, asyncio.Task[None]]]:
    context: zmq.Context[Any] = zmq.Context()
    lab = Lab(context)
    task = asyncio.create_task(OutputReader(lab.core).run())
    try:
        yield lab, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        lab.socket.close(0)
        lab.engine.close(0)
        context.term()


async def test_messages_come_in_the_order_they_were_sent() -> None:
    async with running() as (lab, _):
        for at in range(50):
            lab.say(outputs=[EngineCoreOutput("a", [at])])
            if at % 10 == 0:
                await asyncio.sleep(0)
        heard = [(await lab.heard()).outputs[0].new_token_ids for _ in range(50)]
        assert heard == [[at] for at in range(50)]


async def test_outputs_sent_before_the_intake_are_read() -> None:
    context: zmq.Context[Any] = zmq.Context()
    lab = Lab(context)
    lab.say(outputs=[EngineCoreOutput("a", [1])])
    task = asyncio.create_task(OutputReader(lab.core).run())
    assert (await lab.heard()).outputs[0].new_token_ids == [1]
    task.cancel()
    await task
    lab.socket.close(0)
    lab.engine.close(0)
    context.term()


async def test_an_answer_to_a_call_goes_to_its_caller() -> None:
    async with running() as (lab, _):
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lab.core.utility_results[7] = answer
        lab.say(utility_output=UtilityOutput(7, result=UtilityResult("well")))
        assert await asyncio.wait_for(answer, 10) == "well"
        assert lab.core.outputs_queue.empty()


async def test_the_engines_last_message_ends_the_reading() -> None:
    async with running() as (lab, task):
        lab.engine.send(EngineCoreProc.ENGINE_CORE_DEAD)
        assert isinstance(await lab.heard(), EngineDeadError)
        assert lab.core.resources.engine_dead
        await asyncio.wait_for(task, 10)


async def test_nonsense_is_an_error_for_who_waits() -> None:
    async with running() as (lab, task):
        lab.engine.send(b"\xc1")
        assert isinstance(await lab.heard(), Exception)
        await asyncio.wait_for(task, 10)


async def test_closing_as_vllm_does_tells_who_waits() -> None:
    async with running() as (lab, task):
        await asyncio.sleep(0)
        lab.socket.close(0)
        task.cancel()
        assert isinstance(await lab.heard(), EngineDeadError)


async def test_other_clients_go_on_reading_for_themselves() -> None:
    core = SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(enable_fault_tolerance=False)),
        resources=SimpleNamespace(output_queue_task=None),
    )
    replace_output_reader(core)
    assert core.resources.output_queue_task is None
