"""Evidence files that reproduce a violation: an answer's tokens, its sampling, and the finding.

Token ids are the text in another form. A file is therefore written only into the folder that an
operator names, readable by its owner only, and without tokens if the client asked not to be
captured.
"""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from eaglegate.engine.types import Constraint, EngineRequest, RepetitionStop, Sampling
from eaglegate.features.audit.records import AuditRecord, FinishedAnswer

log = logging.getLogger(__name__)

VERSION = 1
MOST = 100
"""Most files in the folder. Further violations write none, so that the first files stay."""


class EvidenceFolder:
    """Writer of one file for each violation that takes speculation from a workload."""

    def __init__(self, folder: Path, model: str) -> None:
        """Create the folder. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        self._folder, self._model = folder, model

    def __call__(self, answer: FinishedAnswer, record: AuditRecord) -> str:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", answer.request.id)[:100]
        path = self._folder / f"violation-{int(record.at)}-{name}.json"
        try:
            if sum(1 for _ in self._folder.glob("violation-*.json")) >= MOST:
                log.warning("no evidence is written: %s holds %d files", self._folder, MOST)
                return ""
            _write(path, pack(answer, record, self._model))
        except OSError as error:
            log.warning("evidence could not be written to %s: %s", path, error.strerror)
            return ""
        return str(path)


def _write(path: Path, content: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)


def pack(answer: FinishedAnswer, record: AuditRecord, model: str) -> dict[str, Any]:
    """Return the content of a file. The prompt and the answer are null if they must not be kept."""
    request = answer.request
    return {
        "eaglegate_violation": VERSION,
        "model": model,
        "found": record.to_json(),
        "request": {
            "sampling": msgspec.to_builtins(request.sampling),
            "constraint": None if request.constraint is None else asdict(request.constraint),
            "depth": request.depth,
            "adapter": request.adapter,
            "workload": request.workload,
        },
        "images": [image.digest for image in request.images],
        "prompt": [*request.prompt] if answer.may_keep else None,
        "answer": [*answer.token_ids] if answer.may_keep else None,
    }


def unpack(content: Any) -> tuple[EngineRequest, tuple[int, ...], int]:
    """Return the request of a file, its answer, and the verified depth. Raises ValueError."""
    if not isinstance(content, dict) or content.get("eaglegate_violation") != VERSION:
        raise ValueError(f"This is not a violation file of version {VERSION}.")
    if not content.get("prompt") or not content.get("answer"):
        raise ValueError("The file has no tokens: the client asked not to be captured.")
    if content.get("images"):
        raise ValueError("The prompt has images, of which the file holds the digests alone.")
    try:
        fields, finding = content["request"], content["found"]
        request = EngineRequest(
            id=str(finding["request"]),
            prompt=tuple(map(int, content["prompt"])),
            sampling=_read_sampling(fields["sampling"]),
            constraint=_read_constraint(fields["constraint"]),
            adapter=fields["adapter"],
            workload=str(fields["workload"]),
        )
        return request, tuple(map(int, content["answer"])), int(finding["depth"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"The file is damaged: {error!r}") from None


def _read_sampling(fields: dict[str, Any]) -> Sampling:
    values = {name: fields[name] for name in Sampling.__struct_fields__ if name in fields}
    for name in ("allowed_token_ids", "bad_words", "stop_token_ids"):
        values[name] = tuple(values[name])
    values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
    values["logprobs"] = values["prompt_logprobs"] = None
    if values["repetition"] is not None:
        values["repetition"] = RepetitionStop(**values["repetition"])
    return Sampling(**values)


def _read_constraint(fields: dict[str, Any] | None) -> Constraint | None:
    return None if fields is None else Constraint(**{**fields, "choices": tuple(fields["choices"])})
