"""A worker's words stay with the operator; clients read ours, and what they can act on."""

from __future__ import annotations

import json
import logging

import pytest

from eaglegate.engine.errors import EngineError, RequestRejected
from eaglegate.engine.remote.reading import quote
from eaglegate.engine.remote.refusals import describe_refusal
from eaglegate.engine.remote.upstream import ConnectionSettings
from tests.engine.remote.bad_workers import BadWorker, listening, says, stream
from tests.engine.remote.test_bad_workers import engine_at, take

pytestmark = pytest.mark.thorough

KEY = "worker-key-7d1f"
SPILLS = (
    f"grammar compiler at gpu-7.internal.example: key {KEY}; Authorization: Bearer {KEY}",
    r"xgrammar failed in C:\Users\serve\grammars\a.ebnf on \\files\models",
    "guided decoding: see http://10.1.2.3:9000/ui?token=abcdef and /srv/models/secret",
    "json schema refused by node-3.cluster.local for tenant acme-corp, password=hunter22",
    "maximum context length exceeded on gpu-7.internal.example with key " + KEY,
)
PRIVATE = (
    KEY, "gpu-7", "internal", "C:", "Users", "serve", "files", "10.1.2.3", "abcdef", "/srv",
    "node-3", "acme", "hunter22",
)  # fmt: skip
ACCESS = ConnectionSettings(key=KEY, connect_s=1.0, first_token_s=5.0, idle_s=5.0)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("said", SPILLS)
async def test_no_word_of_a_worker_reaches_a_client_and_no_key_the_log(said, streamed, caplog):
    error = {"error": {"message": said, "code": 400}}
    answer = stream(error) if streamed else says(json.dumps(error).encode(), 400)
    talks = {"/": answer, "/health": says(b"")}
    caplog.set_level(logging.WARNING)
    bad = listening(BadWorker(talks))
    async with bad as worker, engine_at(worker.url, access=ACCESS) as engine:
        refused = await take(engine)
    assert isinstance(refused, RequestRejected)
    assert not [word for word in PRIVATE if word in str(refused)]
    logged = caplog.text.partition("refused a request")[2]
    assert said.split()[0] in logged, "the operator reads what the worker said"
    assert KEY not in logged
    assert "hunter22" not in logged


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Grammar error: the keyword 'minContains' is not supported", "keyword 'minContains'"),
        ("regex error: Lookahead is not supported here", "over a lookahead"),
        ("This model's maximum context length is 4096 tokens. However, ...", "at most 4096 tokens"),
        ("xgrammar says no", "refused its output format. Simplify"),
        ("the prompt is too long", "too long for the worker"),
        (
            "thinking_token_budget is set but reasoning_config is not configured. Please set "
            "--reasoning-parser and/or --reasoning-config to use thinking_token_budget.",
            "'thinking_token_budget' cannot be enforced",
        ),
        ("no such parameter", "refused this request as invalid"),
    ],
)
def test_a_client_reads_what_it_can_act_on(said, told):
    assert told in describe_refusal(400, said)


async def test_a_password_of_the_address_is_not_repeated():
    said = json.dumps({"error": {"message": "you sent user:hunter22 to a grammar", "code": 500}})
    talks = {"/": says(said.encode(), 502), "/health": says(b"")}
    async with listening(BadWorker(talks)) as worker:
        url = worker.url.replace("//", "//user:hunter22@")
        async with engine_at(url) as engine:
            failed = await take(engine)
    assert isinstance(failed, EngineError)
    assert "you sent user:***" in str(failed)


def test_a_quotation_is_made_in_linear_time():
    assert len(quote("x" * 1_000_000)) < 300
    assert len(quote(b"a:" * 1_000_000)) < 300
