"""OpenAPI for routes that read their own body."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

PARTS = "x-parts"
"""Where an operation keeps the schemas its body is made of until the document is put together."""


def accepts(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of ``model`` as FastAPI's ``openapi_extra``."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}, PARTS: dict(_schemas(model))}


@cache
def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema and those it refers to, by name; cached: each app asks for them again."""
    name = model.__name__
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    parts = {f"{name}.{part}": inner for part, inner in schema.pop("$defs", {}).items()}
    return parts | {name: schema}


def complete(app: FastAPI) -> None:
    """Move the schemas of all bodies to where the application's document refers to them."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for operations in document["paths"].values():
            for operation in operations.values():
                schemas |= operation.pop(PARTS, {})
        return document

    app.openapi = openapi  # type: ignore[method-assign]
