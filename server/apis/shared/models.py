"""The root of every request model, and one rule for fields.

A field we know is acted on, or accepted as having no effect here, as docs/api.md lists. A field we
know and cannot serve, though ignoring it would change the answer, is in ``refused``: anything but
a neutral value of it is a 400 that names it and says why. Any other field is ignored and named in a
header of the answer (``notices``). Parts a chat template may read (messages and their
content) are open instead: what we do not know of them goes to the template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from server.apis.shared import lenient
from server.errors import InvalidRequest

Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first wrong item is the error: naming them all would take seconds."""

MAX_MESSAGES = 4096
MAX_TOOLS = 1024


class RequestModel(BaseModel):
    """What clients may send. Types are strict, but for what ``lenient`` takes."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    refused: ClassVar[Mapping[str, str]] = {}
    """Known fields that cannot be served, and why; None, False and empty values do no harm."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in cls.refused.keys() & data.keys():
            if data[name]:
                raise InvalidRequest(
                    f"'{name}' is not supported: {cls.refused[name]}.",
                    param=name,
                    code="unsupported_parameter",
                )
        known = {name: value for name, value in data.items() if name not in cls.refused}
        return lenient.take(cls, known)


class OpenModel(BaseModel):
    """A part of a request that the chat template may read beyond what we know of it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
