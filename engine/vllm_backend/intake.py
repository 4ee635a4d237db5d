"""Reads the engine core's messages off their socket, in one callback of the event loop.

vLLM awaits every message on an asyncio socket, which makes futures, callbacks and system calls of
each step. Here the socket's readiness calls ``OutputReader``, which decodes what is there and hands
it to the queue AsyncLLM reads. Everything else of ``AsyncMPClient`` stays as it is.

It needs this of vLLM, beside what is in ``engine/vllm_contract.py``: ``AsyncMPClient``
reads its ``resources.output_socket`` in ``resources.output_queue_task`` alone, and starts no such
task while there is one; the socket, once closed, cancels it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import zmq
from vllm.v1.engine import EngineCoreOutputs, core_client
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

TASK_NAME = "EngineCoreOutputQueueTask"


def take_over(core: AsyncMPClient) -> None:
    """Read ``core``'s messages on the running loop, before its first request.

    Clients of several engines, and of engines with fault tolerance, receive more than outputs and
    keep vLLM's own reader.
    """
    tolerant = core.vllm_config.parallel_config.enable_fault_tolerance
    if type(core) is AsyncMPClient and not tolerant and core.resources.output_queue_task is None:
        intake = OutputReader(core)
        core.resources.output_queue_task = asyncio.create_task(intake.run(), name=TASK_NAME)


class OutputReader:
    """``run`` reads until it is cancelled or something breaks, and then says so in the queue."""

    def __init__(self, core: AsyncMPClient) -> None:
        self._resources = core.resources
        self._decoder = core.decoder
        self._queue: asyncio.Queue[Any] = core.outputs_queue
        self._utility_results = core.utility_results
        self._socket = core.resources.output_socket
        self._now: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        """The same socket without asyncio. What closes ``_socket`` does so on this loop."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()
        number = os.dup(self._now.FD)
        """A duplicate: the socket's own number may be reused once it is closed."""
        loop.add_reader(number, self._on_readable, broken)
        self._on_readable(broken)
        try:
            await broken
        except asyncio.CancelledError:
            self._queue.put_nowait(EngineDeadError())
        finally:
            loop.remove_reader(number)
            os.close(number)

    def _on_readable(self, broken: asyncio.Future[None]) -> None:
        """Read every waiting message: ZeroMQ signals once for any number of them."""
        try:
            while not (broken.done() or self._socket.closed):
                self._handle_message(self._receive_frames())
        except zmq.Again:
            return
        except Exception as error:  # whatever it is, its readers must hear of it
            self._queue.put_nowait(error)
            broken.set_result(None)

    def _receive_frames(self) -> list[zmq.Frame]:
        frames = [self._now.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(self._now.recv(zmq.NOBLOCK, copy=False))
        return frames

    def _handle_message(self, frames: list[zmq.Frame]) -> None:
        self._resources.validate_alive(frames)
        outputs: EngineCoreOutputs = self._decoder.decode(frames)
        if outputs.utility_output is not None:
            core_client._process_utility_output(outputs.utility_output, self._utility_results)
        elif outputs.outputs or outputs.scheduler_stats:
            self._queue.put_nowait(outputs)
