"""Extract the schemas that test_conformance.py needs from OpenAI's OpenAPI document.

usage: python scripts/openai_schema.py openapi.json > tests/server/apis/shared/openai_schema.json

The document is https://github.com/openai/openai-openapi (MIT licence, copyright OpenAI). The output
has only the shapes of a text gateway's answers, without descriptions, examples, hosted tools,
images and audio.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOTS = (
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "Response",
    "ResponseStreamEvent",
    "ResponseItemList",
    "ListModelsResponse",
    "Model",
    "ErrorResponse",
)
NOTES = {"description", "title", "example", "examples", "default", "deprecated", "discriminator"}
FOREIGN = re.compile(
    "Web|File|Computer|Image|Audio|CodeInterp|MCP|Shell|Patch|Program|Compaction|ToolSearch"
    "|AdditionalTools|Moderation|Namespace|Refusal(Delta|Done)|ReasoningSummary(Part|Text)(Add|D)"
)
PREFIX = "#/components/schemas/"


def strip_notes(node: Any) -> Any:
    """Strip notes, and the branches of unions that do not apply to a text gateway."""
    if isinstance(node, list):
        return [strip_notes(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key.startswith("x-") or (key in NOTES and not isinstance(value, dict)):
            continue
        if key in ("description", "title", "example", "discriminator") and "type" in node:
            continue
        if key in ("oneOf", "anyOf"):
            value = [item for item in value if not FOREIGN.search(item.get("$ref", ""))]
            key = "anyOf"
        out[key] = strip_notes(value)
    return {"anyOf": [out, {"type": "null"}]} if out.pop("nullable", False) else out


def reachable(schemas: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = strip_notes(schemas[name])
            text = json.dumps(found[name])
            waiting += re.findall(f'"{re.escape(PREFIX)}([^"]+)"', text)
    return dict(sorted(found.items()))


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    kept = reachable(document["components"]["schemas"], ROOTS)
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in kept.items()]
    source = "https://github.com/openai/openai-openapi, MIT licence, copyright OpenAI"
    print(f'{{"$comment": "{source}",\n"components": {{"schemas": {{')
    print(",\n".join(lines))
    print("}}}")


if __name__ == "__main__":
    main()
