"""Capture of requests: every API, streamed or not, and what must never reach the disk."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.fernet import Fernet

from eaglegate.engine.events import Ending
from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import DecodeStep, Step
from eaglegate.features.capture.audits import read_audits
from eaglegate.features.capture.capture import RequestCapture
from eaglegate.features.capture.feature import CaptureSubscriber
from eaglegate.features.capture.files import CaptureFolder
from eaglegate.features.capture.limits import CaptureLimits
from eaglegate.features.capture.metrics import CapturedRequests
from eaglegate.features.capture.redaction import Redactor, SaltedHashes, load_salt
from eaglegate.lab.measure.load import NOT_CAPTURED
from eaglegate.observability.captures.files import make_cipher, read_records
from eaglegate.observability.captures.record import CaptureRecord
from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.facts import AnswerAudited
from eaglegate.observability.middleware import TelemetryMiddleware
from eaglegate.observability.telemetry import Telemetry
from eaglegate.text.events import FinishReason
from tests.observability.scene import make_telemetry
from tests.server.conftest import EOS, Lab, call

SECRET = "zanzibar"
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "find", "arguments": {"q": "zanzibar"}}\n</tool_call>'


@dataclass
class Bench:
    lab: Lab
    capture: RequestCapture
    telemetry: Telemetry
    folder: Path

    async def post(self, url: str, body: Any, **options: Any) -> Any:
        return await call(self.app, "POST", url, orjson.dumps(body), **options)

    async def ask(self, body: Any = None, **options: Any) -> Any:
        """A chat with a tool, which names the secret; ``body`` goes on top."""
        url, fields = REQUESTS["chat"]
        return await self.post(url, {"model": "demo", **fields, **(body or {})}, **options)

    @property
    def written(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.folder.glob("*.jsonl"))

    @property
    def app(self) -> TelemetryMiddleware:
        return TelemetryMiddleware(self.lab.app, lambda _: None, keep_bodies=True)

    def records(self, **options: Any) -> list[CaptureRecord]:
        self.capture.close()
        return list(read_records(self.folder, **options))


@contextmanager
def bench(
    lab: Lab,
    folder: Path,
    share: float = 1.0,
    redactor: Redactor | None = None,
    hashes: bool = False,
    cipher: Any = None,
    keeps_images: bool = False,
) -> Iterator[Bench]:
    files = CaptureFolder(folder, CaptureLimits())
    capture = RequestCapture(
        files,
        share,
        SaltedHashes(load_salt(folder)),
        None if hashes else redactor or Redactor(),
        cipher,
        keeps_images,
    )
    telemetry = make_telemetry(models=("demo",))
    capture.set_decode(lab.renderer.decode)
    CaptureSubscriber(capture, telemetry)
    telemetry.add_group(lambda scope: CapturedRequests(scope, capture.writer))
    lab.gateway.observer = telemetry
    path = lab.path()
    lab.gateway.open(replace(path, engine=InstrumentedEngine(lab.engine, telemetry)))
    try:
        yield Bench(lab, capture, telemetry, folder)
    finally:
        capture.close()


def says(lab: Lab, text: str) -> list[int]:
    """The engine answers in verify steps of depth 3, two of three drafts accepted."""
    ids = lab.renderer.encode(text + EOS, False)
    script = [Step((ids[0],))]
    for at in range(1, len(ids), 3):
        part = tuple(ids[at : at + 3])
        last = at + 3 >= len(ids)
        script.append(
            Step(
                part,
                decode=(DecodeStep(3, len(part) - 1, len(part)),),
                finish=FinishReason.STOP if last else None,
            )
        )
    lab.engine.script = script
    return ids


REQUESTS = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": f"Where is {SECRET}?"}], "tools": [TOOL]},
    ),
    "completions": ("/v1/completions", {"prompt": f"Where is {SECRET}?"}),
    "responses": ("/v1/responses", {"input": f"Where is {SECRET}?", "instructions": "Be brief"}),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": f"Where is {SECRET}?"}], "max_tokens": 99},
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", list(REQUESTS))
async def test_every_api_is_captured_whole(lab: Lab, tmp_path: Path, api: str, stream: bool):
    url, fields = REQUESTS[api]
    ids = says(lab, "In the sea.")
    with bench(lab, tmp_path / "c") as found:
        answer = await found.post(
            url,
            {"model": "demo", **fields, "stream": stream, "temperature": 0, "seed": 7},
            headers={"x-session-id": "s-1"},
        )
        assert answer.status == 200, answer.body
        (record,) = found.records()
    (choice,) = record.choices
    assert (record.api, record.path, record.stream) == (api, url, stream)
    assert record.id and record.model == "demo" and record.session not in ("", "s-1")
    assert (record.ending, choice.finish) == (Ending.COMPLETED.value, "stop")
    assert list(choice.token_ids or ()) == ids
    assert sum(step.delivered for step in choice.steps) == len(ids) - 1
    assert sum(count for _, count in choice.phases) == len(ids) == record.output_length
    assert lab.renderer.decode(record.prompts[0].token_ids or ()).count(SECRET) == 1
    assert record.greedy and record.ttft_ms is not None
    assert record.lane and record.workload in ("chat", "tools")
    if api != "messages":
        assert choice.seed == 7
    if api == "completions":
        assert record.text_input == fields["prompt"]
    else:
        assert record.messages and record.session_id == record.session
    again = record.request_body()
    assert again["stream"] is stream
    for name, value in fields.items():
        assert again[name] == value


async def test_a_captured_body_can_be_replayed(lab: Lab, tmp_path: Path):
    says(lab, CALL)
    with bench(lab, tmp_path / "c") as found:
        first = await found.ask()
        (record,) = found.records()
    assert record.choices[0].tools == ("valid",)
    assert record.choices[0].phases[-1][0] == "tool_call"
    second = await call(lab.app, "POST", record.path, orjson.dumps(record.request_body()))
    message = "choices", 0, "message", "tool_calls", 0, "function"
    one, two = first.json, second.json
    for step in message:
        one, two = one[step], two[step]
    assert one == two


async def test_a_client_that_leaves_is_captured_as_far_as_it_came(lab: Lab, tmp_path: Path):
    says(lab, "A long answer that its reader does not wait for, not to its end. " * 3)
    lab.engine.script.insert(5, Pause(30))
    leave = asyncio.Event()
    with bench(lab, tmp_path / "c") as found:

        def on_send(answer: Any) -> None:
            if len(answer.sends) > 3:
                leave.set()

        await found.ask({"stream": True}, leave=leave, on_send=on_send)
        (record,) = found.records()
    (choice,) = record.choices
    assert record.ending == Ending.CLIENT_GONE.value
    assert choice.finish is None
    assert choice.token_ids and len(choice.token_ids) == choice.tokens


async def test_several_choices_share_their_prompt(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    with bench(lab, tmp_path / "c") as found:
        await found.ask({"n": 3, "seed": 5})
        (record,) = found.records()
    assert len(record.prompts) == 1
    seeds = [choice.seed for choice in record.choices]
    assert (seeds[0], len(set(seeds))) == (5, 3)
    assert len(list(record.trajectories())) == 3


async def test_a_session_is_captured_whole_or_not_at_all(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    with bench(lab, tmp_path / "c", share=0.5) as found:
        for session in [*range(40)] * 3:
            await found.ask(headers={"x-session-id": f"session-{session}"})
        sessions = [record.session for record in found.records()]
    assert all(sessions.count(session) == 3 for session in sessions)
    assert 5 < len(set(sessions)) < 35


async def test_turns_of_a_conversation_without_a_name_are_one_session(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    history = [{"role": "user", "content": "Hello"}]
    other = [{"role": "user", "content": "Good day"}]
    with bench(lab, tmp_path / "c") as found:
        more = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on"}]
        for messages in (history, history + more, other):
            await found.ask({"messages": messages})
        one, two, three = (record.session for record in found.records())
    assert one == two != three


async def test_requests_of_a_replay_are_not_captured(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    with bench(lab, tmp_path / "c") as found:
        await found.ask(headers=NOT_CAPTURED)
        assert (await found.ask()).status == 200
        assert len(found.records()) == 1


async def test_a_share_of_nothing_captures_nothing(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    with bench(lab, tmp_path / "c", share=0.0) as found:
        await found.ask()
        assert found.records() == []


@pytest.mark.thorough
@pytest.mark.parametrize("api", list(REQUESTS))
async def test_hashes_leave_nothing_of_a_prompt_on_the_disk(lab: Lab, tmp_path: Path, api: str):
    """No text, no token ids, no name of a tool or a session, no unsalted fingerprint."""
    url, fields = REQUESTS[api]
    ids = says(lab, CALL if api == "chat" else f"It is {SECRET}.")
    folder = tmp_path / "c"
    with bench(lab, folder, hashes=True) as found:
        headers = {"x-session-id": "session-name", "x-request-id": "request-name"}
        body = {"model": "demo", **fields, "user": "someone", "stop": ["full stop"]}
        answer = await found.post(url, body, headers=headers)
        assert answer.status == 200
        (record,) = found.records()
    written = found.written.decode()
    for word in (SECRET, "Where", "find", "session-name", "request-name", "someone", "Be brief"):
        assert word not in written
    prompt = lab.engine.requests[-1].prompt
    for sequence in (prompt, tuple(ids)):
        for at in range(len(sequence) - 2):
            run = ",".join(map(str, sequence[at : at + 3]))
            assert not re.search(rf"(?<!\d){run}(?!\d)", written.replace(" ", ""))
    assert record.input_length == len(prompt) and record.output_length == len(ids)
    assert record.hash_ids and record.messages is None and record.session_id is None
    assert (folder / "salt").stat().st_mode & 0o777 == 0o600


async def test_hashes_keep_the_structure_of_prefixes(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    start = "one two three four five six seven eight nine ten eleven twelve " * 2
    with bench(lab, tmp_path / "c", hashes=True) as found:
        for prompt in (start + "and left", start + "and right", "other " + start):
            await found.post("/v1/completions", {"model": "demo", "prompt": prompt})
        blocks = [record.prompts[0].blocks or () for record in found.records()]
    one, two, three = blocks
    shared = sum(a == b for a, b in zip(one, two, strict=False))
    assert 0 < shared < len(one) and one[:shared] == two[:shared]
    assert not set(three) & set(one)


async def test_redaction_reaches_text_and_token_ids(lab: Lab, tmp_path: Path):
    """The secret is redacted in the prompt, in the answer, and in the tokens that spell either."""
    redactor = Redactor.of([SECRET], ["user"])
    with bench(lab, tmp_path / "c", redactor=redactor) as found:
        says(lab, f"It is {SECRET}.")
        await found.ask({"user": "someone"})
        clean = {"messages": [{"role": "user", "content": "Where is it?"}]}
        await found.ask(clean)
        says(lab, "There.")
        await found.ask(clean)
        both, answer, neither = found.records()
    assert SECRET.encode() not in found.written and b"someone" not in found.written
    assert both.redacted and both.prompts[0].token_ids is None
    assert both.messages and "[redacted]" in both.messages[0]["content"]
    assert both.choices[0].token_ids is None and both.choices[0].tokens > 0
    assert answer.redacted and not answer.prompts[0].token_ids and not answer.choices[0].token_ids
    assert not neither.redacted and neither.choices[0].token_ids


async def test_an_encrypted_capture_shows_nothing(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    cipher = make_cipher([Fernet.generate_key().decode()])
    with bench(lab, tmp_path / "c", cipher=cipher) as found:
        await found.ask()
        (record,) = found.records(cipher=cipher)
    assert SECRET.encode() not in found.written and b"{" not in found.written
    assert record.model == "demo"


async def test_the_capture_is_counted(lab: Lab, tmp_path: Path):
    says(lab, "Yes.")
    with bench(lab, tmp_path / "c") as found:
        read = found.telemetry.registry.get_sample_value
        await found.ask()
        found.capture.close()
        assert read("eaglegate_capture_records_total") == 1
        assert read("eaglegate_capture_bytes_total") == len(found.written)
        assert read("eaglegate_capture_dropped_total", {"reason": "disk"}) == 0


def test_fields_of_the_prompt_cannot_be_dropped():
    with pytest.raises(ValueError, match="mode hashes"):
        Redactor.of([], ["messages"])
    with pytest.raises(ValueError, match="regular expression"):
        Redactor.of(["("], [])


@pytest.mark.parametrize("hashes", [False, True])
async def test_an_audit_is_written_beside_its_record(
    lab: Lab, tmp_path: Path, hashes: bool
) -> None:
    """The audits of requests that are not captured are left out."""
    with bench(lab, tmp_path, hashes=hashes) as made:
        says(lab, "Seven.")
        await made.ask({"n": 2})
        sequences = [request.id for request in lab.engine.requests[-2:]]
        for sequence in (sequences[1], "of another request"):
            result = {"choosing": "greedy", "draft": "abc", "depth": 3, "detail": ""}
            result |= {"tokens": 2, "at": 1.0}
            made.telemetry.facts.publish(AnswerAudited(sequence, "lossless", result))
        (record,) = made.records()
        (audit,) = read_audits(tmp_path)
        assert (audit.id, audit.session) == (record.id, record.session)
        assert (audit.choice, audit.outcome, audit.draft) == (1, "lossless", "abc")
