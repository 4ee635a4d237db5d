"""Fields and types of requests in the Python SDK that is installed, as JSON on standard output.

python sdk_fields.py openai|anthropic
"""

import json
import sys
import typing
from importlib import import_module

import typing_extensions

APIS = {
    "anthropic": {
        "messages": (
            "anthropic.types.message_create_params",
            "anthropic.types.beta.message_create_params",
        ),
        "count_tokens": (
            "anthropic.types.message_count_tokens_params",
            "anthropic.types.beta.message_count_tokens_params",
        ),
    },
    "openai": {
        "chat": ("openai.types.chat.completion_create_params",),
        "completions": ("openai.types.completion_create_params",),
        "responses": ("openai.types.responses.response_create_params",),
    },
}  # fmt: skip


def parameters(module):
    """The whole requests of a module: of its own dictionaries those named for it."""
    return [
        kind
        for name, kind in vars(import_module(module)).items()
        if name.endswith(("ParamsBase", "ParamsStreaming", "ParamsNonStreaming", "TokensParams"))
        and typing_extensions.is_typeddict(kind)
        and not name.startswith("Parse")
    ]


def find(kind, found):
    """Dictionaries by their name, with their fields and the values of ``type``."""
    if typing_extensions.is_typeddict(kind):
        name = kind.__name__.removeprefix("Beta")
        hints = typing.get_type_hints(kind)
        fresh = (kind.__module__, kind.__name__) not in found["seen"]
        found["seen"].add((kind.__module__, kind.__name__))
        if not fresh:
            return
        said = hints.get("type")
        while typing.get_origin(said) in (
            typing_extensions.Required,
            typing_extensions.NotRequired,
        ):
            said = typing.get_args(said)[0]
        literal = [value for value in typing.get_args(said) if isinstance(value, str)]
        for value in literal or [name]:
            known = found["types"].setdefault(value, set())
            known |= set(hints) - {"type"}
        for hint in hints.values():
            find(hint, found)
        return
    for inner in typing.get_args(kind):
        find(inner, found)


def main(sdk):
    out = {}
    for api, modules in APIS[sdk].items():
        fields, found = set(), {"seen": set(), "types": {}}
        for module in modules:
            for kind in parameters(module):
                fields |= set(typing.get_type_hints(kind))
                find(kind, found)
        types = {name: sorted(known) for name, known in found["types"].items()}
        out[api] = {"fields": sorted(fields), "types": types}
    return out


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
