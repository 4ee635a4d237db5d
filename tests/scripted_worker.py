"""A scripted worker in a process of its own, to be killed: python -m tests.scripted_worker PORT

It continues a prompt with words in a fixed order, from where the prompt's last token stands, so
that any such worker goes on where another one stopped.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from eaglegate.engine.remote.probe import PROBE
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests import workers
from tests.engine.remote.stand_in_worker import StandIn, chunk, end

WORDS = "one two three four five six seven eight nine ten eleven twelve red green blue old new"
PAUSE_S = 0.01
PER_STEP = 4


class Worker(StandIn):
    def __init__(self) -> None:
        renderer = TemplateRenderer(ModelFiles.find(workers.MODEL, None, None))
        super().__init__(script=self.play, tokens=renderer.encode(PROBE, False))
        self.words = list(dict.fromkeys(renderer.encode(WORDS, False)))

    def play(self, body: dict[str, Any]) -> Any:
        tokens = self.following(body["token_ids"], body["sampling_params"]["max_tokens"])
        pieces = [
            tokens[:1],
            *(tokens[at : at + PER_STEP] for at in range(1, len(tokens), PER_STEP)),
        ]
        for at, piece in enumerate(pieces):
            yield PAUSE_S
            yield chunk(*piece, finish="length" if at == len(pieces) - 1 else None)
        yield end(*((3, len(piece) - 1) for piece in pieces[1:]))

    def following(self, prompt: list[int], most: int) -> list[int]:
        last = prompt[-1]
        known = last in self.words
        first = self.words.index(last) + 1 if known else sum(prompt)
        return [self.words[(first + at) % len(self.words)] for at in range(most)]

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(
            f"vllm:num_requests_running {self.running}\nvllm:spec_decode_num_drafts_total 0.0\n"
        )


if __name__ == "__main__":
    config = uvicorn.Config(Worker().app(), port=int(sys.argv[1]), log_level="error")
    asyncio.run(uvicorn.Server(config).serve())
