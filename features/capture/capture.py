"""Selection of the requests to capture, and conversion of finished requests to records."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any

import orjson
from cryptography.fernet import MultiFernet
from msgspec import structs

from eaglegate.engine.events import RequestFacts
from eaglegate.engine.types import EngineRequest, Sampling, SpeculationInfo, Step
from eaglegate.features.capture.audits import AuditCapture, name_request
from eaglegate.features.capture.files import CaptureFolder, CaptureWriter
from eaglegate.features.capture.images import may_have_images, replace_images
from eaglegate.features.capture.limits import FULL, HASHES
from eaglegate.features.capture.redaction import Decode, Redactor, SaltedHashes
from eaglegate.observability.captures.record import (
    CapturedChoice,
    CapturedPrompt,
    CapturedStep,
    CaptureRecord,
    coarsen,
    format_record,
)
from eaglegate.observability.middleware import to_ms
from eaglegate.observability.observation import ChoiceRecord, RequestRecord
from eaglegate.observability.sequence import SequenceTimeline
from eaglegate.text.events import Phase

TOKEN_BYTES = 8
"""Approximate memory of a token id in a tuple, in bytes."""


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A finished request, created on the event loop and read on the writer's thread."""

    record: RequestRecord
    session: str
    timelines: tuple[SequenceTimeline, ...]
    path: str
    body: bytes
    arrived: float
    """Unix time of the request's arrival."""
    speculation: SpeculationInfo | None


class RequestCapture:
    """Capture of requests. ``Telemetry`` calls ``select`` when a request starts and ``submit`` when
    it ends.
    """

    def __init__(
        self,
        folder: CaptureFolder,
        share: float,
        hashes: SaltedHashes,
        redactor: Redactor | None = None,
        cipher: MultiFernet | None = None,
        keeps_images: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Capture to ``folder``. Without a ``redactor`` the mode is ``hashes``, which captures no
        text.
        """
        self._share = share
        self._salt = secrets.token_bytes(16)
        self._clock, self._wall = clock, wall
        self._began = wall()
        self._formatter = RecordFormatter(hashes, redactor, cipher, self._began, keeps_images)
        self.writer = CaptureWriter(folder, self._formatter.format)
        self.audits = AuditCapture(folder, hashes, redactor, cipher)

    def set_decode(self, decode: Decode) -> None:
        """Set the decoder that redaction uses to read token ids, once a tokenizer is loaded."""
        if self._formatter.redactor is not None:
            self._formatter.redactor.decode = decode

    def select(self, facts: RequestFacts) -> str | None:
        """Return the request's session if the request is to be captured, else None.

        All requests of a session are captured, or none.
        """
        if self._share <= 0:
            return None
        session = facts.session or begin_of_conversation(facts) or facts.id
        if self._share < 1:
            digest = hashlib.blake2b(session.encode(), key=self._salt, digest_size=8).digest()
            if int.from_bytes(digest, "big") >= self._share * 2**64:
                return None
        return session

    def submit(
        self,
        record: RequestRecord,
        session: str,
        timelines: Sequence[SequenceTimeline],
        sent_body: tuple[str, bytes],
        speculation: SpeculationInfo | None,
    ) -> None:
        """Queue a selected request that has ended, with its path and body. Never waits."""
        path, body = sent_body
        arrived_at = self._wall() - (self._clock() - record.facts.arrived)
        request = EndedRequest(
            record, session, tuple(timelines), path, body, arrived_at, speculation
        )
        tokens = record.facts.prompt_tokens + record.tokens
        self.writer.put(request, len(body) + TOKEN_BYTES * tokens)

    def close(self) -> None:
        self.writer.close()
        self.audits.close()


def begin_of_conversation(facts: RequestFacts) -> str:
    """Return a session for a client that names none: a hash of the key and the messages up to the
    first user message.

    These are the same in every turn of a conversation.
    """
    head: list[Any] = []
    for message in facts.messages:
        head.append(message)
        if message.get("role") == "user":
            break
    if not head:
        return ""
    content = orjson.dumps([facts.key, head], default=str)
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class RecordFormatter:
    """Formats a finished request as one line, on the writer's thread."""

    def __init__(
        self,
        hashes: SaltedHashes,
        redactor: Redactor | None,
        cipher: MultiFernet | None,
        start_time: float,
        keeps_images: bool = False,
    ) -> None:
        self.redactor = redactor
        self._keeps_images = keeps_images
        self._hashes = hashes
        self._cipher = cipher
        self._began = start_time

    def format(self, request: EndedRequest) -> bytes:
        line = format_record(self.make_record(request))
        return line if self._cipher is None else self._cipher.encrypt(line)

    def make_record(self, request: EndedRequest) -> CaptureRecord:
        """Build the record. Raises RecordDropped."""
        redactor = self.redactor
        if redactor is not None:
            redactor.begin()
        requests = [line.request for line in request.timelines]
        first_request = next((request for request in requests if request is not None), None)
        prompts, places = self._make_prompts(requests)
        request_record = self._describe_request(request, self._make_content(request, prompts))
        choices = tuple(
            self._make_choice(choice, timeline, places)
            for choice, timeline in zip(request.record.choices, request.timelines, strict=True)
            if timeline.request is not None
        )
        record = replace(
            request_record,
            output_length=max((choice.tokens for choice in choices), default=0) or None,
            depth=first_request.depth if first_request else None,
            sampling=self._list_sampling(first_request),
            constraint=first_request.constraint.kind
            if first_request and first_request.constraint
            else "",
            prompts=tuple(prompts),
            choices=choices,
        )
        if redactor is None:
            return record
        # Keep the token ids only if no pattern is found in their text.
        for ids in (*(p.token_ids for p in prompts), *(c.token_ids for c in choices)):
            redactor.read(ids or ())
        return redactor.strip_ids(record)

    def _describe_request(self, request: EndedRequest, content: Mapping[str, Any]) -> CaptureRecord:
        """Describe the request, its caller and its ending, without prompts and choices."""
        redactor, speculation = self.redactor, request.speculation
        facts, record = request.record.facts, request.record
        return CaptureRecord(
            **content,
            timestamp=round(1000 * (request.arrived - self._began), 3),
            id=name_request(facts.id, redactor, self._hashes),
            session=self._hashes.hash_text(request.session),
            arrived=round(request.arrived, 6),
            mode=FULL if redactor else HASHES,
            api=facts.api,
            path=request.path,
            model=facts.model,
            key=facts.key,
            stream=facts.stream,
            workload=record.slices.labels.workload,
            context=record.slices.context,
            template=self._name_template(facts.template),
            lane=facts.lane,
            method=speculation.method if speculation else "",
            draft="+".join(record.drafts) or (speculation.draft if speculation else "") or "",
            ending=record.ending.value,
            queued_ms=to_ms(record.queued),
            ttft_ms=to_ms(record.ttft),
            duration_ms=to_ms(record.duration),
        )

    def _make_content(
        self, request: EndedRequest, prompts: Sequence[CapturedPrompt]
    ) -> dict[str, Any]:
        """Return the content that the mode allows, with exactly one of AIPerf's three inputs."""
        facts = request.record.facts
        length = prompts[0].tokens if prompts else facts.prompt_tokens
        redactor = self.redactor
        if redactor is None:
            blocks = prompts[0].blocks if prompts else None
            return {
                "input_length": length,
                "hash_ids": coarsen(blocks, length) if blocks else None,
            }
        body = _parse_body(request.body)
        if not self._keeps_images and may_have_images(request.body):
            body = replace_images(body)
        messages, tools = list(facts.messages), list(facts.tools)
        if facts.api == "chat":
            messages, tools = body.pop("messages", messages), body.pop("tools", None) or []
        text = body.pop("prompt") if isinstance(body.get("prompt"), str) else None
        content: dict[str, Any] = {"body": redactor.redact_body(body)}
        if messages:
            content["session_id"] = self._hashes.hash_text(request.session)
            content["messages"] = tuple(redactor.redact(messages))
            content["tools"] = tuple(redactor.redact(tools)) or None
        elif text is not None:
            content["text_input"] = redactor.redact(text)
        else:
            content["input_length"] = length
        return content

    def _make_prompts(
        self, requests: Sequence[EngineRequest | None]
    ) -> tuple[list[CapturedPrompt], dict[tuple[int, ...], int]]:
        """Return each distinct prompt once, and the index of each prompt."""
        places: dict[tuple[int, ...], int] = {}
        prompts = []
        for request in requests:
            if request is not None and request.prompt not in places:
                places[request.prompt] = len(places)
                prompts.append(self._make_prompt(request))
        return prompts, places

    def _make_prompt(self, request: EngineRequest) -> CapturedPrompt:
        if request.images:
            digests = [image.digest for image in request.images]
            if self.redactor is None:
                digests = [*map(self._hashes.hash_text, digests)]
            return CapturedPrompt(request.num_prompt, images=tuple(digests))
        if self.redactor is None:
            return self._hashes.hash_prompt(request.prompt)
        return CapturedPrompt(len(request.prompt), request.prompt)

    def _make_choice(
        self,
        choice: ChoiceRecord,
        timeline: SequenceTimeline,
        places: Mapping[tuple[int, ...], int],
    ) -> CapturedChoice:
        request, log = timeline.request, timeline.log or []
        assert request is not None
        token_ids, steps, phases = _join_log(log)
        return CapturedChoice(
            prompt=places[request.prompt],
            tokens=len(token_ids),
            token_ids=None if self.redactor is None else token_ids,
            steps=steps,
            phases=phases,
            finish=choice.finish,
            tools=tuple(outcome.value for outcome in choice.tools),
            cached=choice.usage.cached if choice.usage else 0,
            seed=request.sampling.seed,
        )

    def _name_template(self, template: str) -> str:
        """Return the template's fingerprint, salted in mode ``hashes``. Without a salt, known
        templates could be guessed from it.
        """
        if self.redactor is not None or not template:
            return template
        return self._hashes.hash_text(template)

    def _list_sampling(self, request: EngineRequest | None) -> dict[str, Any]:
        """List the sampling fields that are not neutral; in mode ``hashes``, only numbers."""
        if request is None:
            return {}
        values = {
            name: getattr(request.sampling, name)
            for name, default in _NEUTRAL.items()
            if getattr(request.sampling, name) != default
        }
        if self.redactor is None:
            return {name: v for name, v in values.items() if isinstance(v, (int, float))}
        if "bad_words" in values:
            values["bad_words"] = list(self.redactor.redact(list(values["bad_words"])))
        if "logit_bias" in values:
            values["logit_bias"] = {
                str(token): bias for token, bias in values["logit_bias"].items()
            }
        return values


_NEUTRAL: dict[str, Any] = {
    item.name: item.default
    for item in structs.fields(Sampling)
    if item.name not in ("seed", "max_tokens", "logit_bias")
} | {"max_tokens": None, "logit_bias": {}}


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _join_log(
    log: Sequence[tuple[Phase, list[Step]]],
) -> tuple[tuple[int, ...], tuple[CapturedStep, ...], tuple[tuple[str, int], ...]]:
    """Return the tokens, the decode steps, and the runs of tokens by phase.

    The work per token runs in C. Steps are plain tuples here: they serialize like a
    ``CapturedStep`` and are faster to create.
    """
    token_ids: list[int] = []
    steps: list[Any] = []
    runs: list[tuple[str, int]] = []
    for phase, part in log:
        start = len(token_ids)
        token_ids.extend(chain.from_iterable(map(_TOKEN_IDS, part)))
        steps.extend(map(_COLUMNS, chain.from_iterable(map(_DECODE, part))))
        count = len(token_ids) - start
        if runs and runs[-1][0] == phase.value:
            runs[-1] = phase.value, runs[-1][1] + count
        elif count:
            runs.append((phase.value, count))
    return tuple(token_ids), tuple(steps), tuple(runs)


_TOKEN_IDS = attrgetter("token_ids")
_DECODE = attrgetter("decode")
_COLUMNS = attrgetter(*CapturedStep._fields)
