"""Images for a real vLLM server: it reads them, counts them as the gateway does, and continues."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.remote.engine import RemoteEngine
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel, Upstream
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, ImageInput, Sampling, Step
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.workers import OURS, WorkerProcess, vllm_worker

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TOKENS = 24


@pytest.fixture(scope="module")
def worker(vision_demo, tmp_path_factory) -> Iterator[WorkerProcess]:
    settings = vision_demo.arguments()
    flags = (
        f"--model={settings['model']}",
        "--served-model-name=vision-demo",
        f"--speculative-config={json.dumps(settings['speculative_config'])}",
        f"--limit-mm-per-prompt={json.dumps(settings['limit_mm_per_prompt'])}",
        f"--mm-processor-kwargs={json.dumps(settings['mm_processor_kwargs'])}",
        "--max-model-len=1024",
        "--kv-cache-memory-bytes=67108864",
    )
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    with vllm_worker(log, (*OURS, "--per-request-spec-decode-metrics=detailed", *flags)) as started:
        started.until_healthy()
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(vision_demo, worker) -> AsyncGenerator[RemoteEngine, None]:
    files = ModelFiles.find(str(vision_demo.target), None, None)
    from tests.vision_demo import PLACEHOLDER, VOCABULARY

    codec = TemplateRenderer(files)
    model = LocalModel("vision-demo", codec, VOCABULARY, 1024, placeholder=PLACEHOLDER)
    remote = RemoteEngine(Upstream(worker.url), model, ConnectionSettings())
    info = await remote.start()
    assert info.image_input == ImageInput(PLACEHOLDER, 999)
    yield remote
    await remote.aclose()


@pytest.fixture(scope="module")
def asked(vision_demo) -> EngineRequest:
    from tests.vision_demo import IMAGE, draw_picture

    codec = TemplateRenderer(ModelFiles.find(str(vision_demo.target), None, None))
    question = codec.render_chat([{"role": "user", "content": "Count from one to twenty."}], None)
    sampling = Sampling(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    images = draw_picture(1, 200, 200), draw_picture(2, 300, 100)
    return EngineRequest(
        "a", (*question[:3], *IMAGE, *IMAGE, *question[3:]), sampling, images=images
    )


async def run(engine: RemoteEngine, request: EngineRequest) -> list[Step]:
    return [step async for step in read_steps(engine.generate, request)]


def tokens_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


async def test_the_worker_reads_images_at_every_depth_and_continues(engine, asked) -> None:
    lengths = [await engine.count_image(image) for image in asked.images]
    assert lengths == [49, 44]
    length = len(asked.prompt) - 2 + sum(lengths)
    counted = replace(asked, expanded_length=length)
    whole = await run(engine, counted)
    text = tokens_of(whole)
    assert len(text) == TOKENS
    assert sum(decode.accepted for decode in whole[-1].decode) > 4
    for depth in (0, 1):
        other = replace(counted, id=f"depth-{depth}", depth=depth)
        assert tokens_of(await run(engine, other)) == text
    rest = replace(
        counted,
        id="rest",
        prompt=(*asked.prompt, *text[:9]),
        expanded_length=length + 9,
        sampling=replace(asked.sampling, max_tokens=TOKENS - 9),
    )
    assert tokens_of(await run(engine, rest)) == text[9:]


async def test_a_refusal_by_the_worker_ends_one_request(engine, asked) -> None:
    four = replace(asked, id="four", prompt=asked.prompt + (2050,) * 2, images=asked.images * 2)
    with pytest.raises(RequestRejected):
        await run(engine, four)
    assert tokens_of(await run(engine, replace(asked, id="next")))
