"""The minimal cost of a Python server in front of vLLM: ``floor`` of ``lab.benchmarks.wire``.

It has no validation, parsers, accounts, metrics, backpressure or errors: a protocol on uvloop
renders the prompt, sends it to the engine by vLLM's own client, reads that client's outputs,
decodes tokens and writes each step as one chat chunk. No Python gateway that uses the same
libraries for these parts can cost less.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import time
from typing import Any

import orjson
import uvloop
from tokenizers.decoders import DecodeStream
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.executor import Executor

from eaglegate.engine.vllm_backend.arguments import (
    EngineParser,
    add_engine_arguments,
    make_engine_arguments,
)
from eaglegate.engine.vllm_backend.renderer import VllmRenderer

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
STREAM = HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n"


class Answer:
    """Answer to one request; ``take`` writes a step when it arrives."""

    def __init__(self, transport: Any, tokenizer: Any, name: str, is_stream: bool) -> None:
        self._transport, self._tokenizer, self._is_stream = transport, tokenizer, is_stream
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._text: list[str] = []
        self._count = 0
        self._head = {"id": name, "object": "chat.completion.chunk", "created": int(time.time())}
        if is_stream:
            transport.write(STREAM)

    def take(self, output: EngineCoreOutput) -> None:
        self._count += len(output.new_token_ids)
        decode, tokenizer = self._decoder.step, self._tokenizer
        text = "".join([decode(tokenizer, token) or "" for token in output.new_token_ids])
        if not self._is_stream:
            self._text.append(text)
        elif text:
            self._write({"index": 0, "delta": {"content": text}, "finish_reason": None})
        if output.finish_reason is not None:
            self._end(str(output.finish_reason))

    def _write(self, choice: dict[str, Any]) -> None:
        body = orjson.dumps(self._head | {"model": "demo", "choices": [choice]})
        self._transport.write(b"%x\r\ndata: %b\n\n\r\n" % (len(body) + 8, body))

    def _end(self, reason: str) -> None:
        usage = {"completion_tokens": self._count}
        if self._is_stream:
            self._write({"index": 0, "delta": {}, "finish_reason": reason})
            body = orjson.dumps(self._head | {"model": "demo", "choices": [], "usage": usage})
            closing = b"data: %b\n\ndata: [DONE]\n\n" % body
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(closing), closing))
            return
        message = {"role": "assistant", "content": "".join(self._text)}
        answer(self._transport, {"choices": [{"index": 0, "message": message}], "usage": usage})


def answer(transport: Any, content: dict[str, Any]) -> None:
    body = orjson.dumps(content)
    head = HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(body)
    transport.write(head + body)


class Front:
    def __init__(self, renderer: VllmRenderer, core: Any) -> None:
        self._tokenizer = renderer.tokenizer
        self._core = core
        self._answers: dict[str, Answer] = {}
        self._names = map(str, itertools.count())
        self._sending: set[asyncio.Future[None]] = set()

    def begin(self, body: dict[str, Any], transport: Any) -> None:
        prompt = self._tokenizer.apply_chat_template(
            body["messages"],
            tools=body.get("tools"),
            add_generation_prompt=True,
            tokenize=False,
        )
        inner = self._tokenizer._tokenizer
        name = next(self._names)
        sampling = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body.get("temperature", 0),
            ignore_eos=body.get("ignore_eos", False),
            output_kind=RequestOutputKind.DELTA,
        )
        request = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=inner.encode(prompt, add_special_tokens=False).ids,
            mm_features=None,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._answers[name] = Answer(transport, inner, name, bool(body.get("stream")))
        task = asyncio.ensure_future(self._core.add_request_async(request))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def run(self) -> None:
        while True:
            for output in (await self._core.get_output_async()).outputs:
                self._answers[output.request_id].take(output)
                if output.finish_reason is not None:
                    del self._answers[output.request_id]


class Connection(asyncio.Protocol):
    def __init__(self, front: Front) -> None:
        self._front = front
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, mark, body = self._received.partition(b"\r\n\r\n")
        match = LENGTH.search(head)
        length = int(match[1]) if match else 0
        if not mark or len(body) < length:
            return
        self._received = body[length:]
        if head.startswith(b"GET"):
            answer(self._transport, {})
        else:
            self._front.begin(orjson.loads(body[:length]), self._transport)


async def serve(argv: list[str]) -> None:
    parser = EngineParser(prog="floor")
    add_engine_arguments(parser)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    namespace, _ = parser.parse_known_args(argv)
    arguments = make_engine_arguments(namespace)
    config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    core = EngineCoreClient.make_async_mp_client(
        vllm_config=config, executor_class=Executor.get_class(config), log_stats=False
    )
    front = Front(VllmRenderer(arguments), core)
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(front), namespace.host, namespace.port)
    await front.run()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
